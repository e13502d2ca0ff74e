//! What is found out at the start: URLs of the environment that cannot be meant, and
//! servers that throw out limits.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tidegate::{Cost, Limit};
use tidegate_config::Config;
use tidegate_redis::{ErrorKind, Policies, RedisOptions, RedisStore};
use tidegate_testkit::cluster::run;

use crate::server::Server;
use crate::support::{Named, YEAR, limiter_over, patient, policy, stats};
use crate::user::{kind, rules, set_user};

/// The page that says what to do about a message.
const TROUBLES: &str = include_str!("../../../../docs/troubleshooting.md");

const FORMS: &str = r#"expected "redis://host:port/database", "rediss://user:password@host:port/database", "redis-sentinel://host:port,host:port/master" or "redis-cluster://host:port,host:port""#;

/// URLs, and what is wrong with them.
const URLS: [(&str, &str); 15] = [
    ("redis://:hush@host", ""),
    ("redis://host", ""),
    ("rediss://:hush@host:6380/3", ""),
    ("redis-cluster://:hush@h1:1,h2", ""),
    ("redis-sentinel://h1,h2:2/main/1", ""),
    ("", "not a Redis URL"),
    ("hush", "not a Redis URL"),
    ("memory:", "not a Redis URL"),
    ("env:OTHER", "not a Redis URL"),
    ("http://:hush@host/", "not a Redis URL"),
    ("redis://:hush@host:port/", "\"redis://…\""),
    ("redis://:hush@host/x", "\"redis://…\""),
    ("redis://:hu/sh@host/0", "\"redis://…\""),
    ("redis://host\n", "\"redis://…\""),
    ("redis-cluster://:hush@h1:1,h2:", "\"redis-cluster://…\""),
];

/// What a start says of a config whose URL is in the environment.
#[test]
#[ignore = "a process that the test below starts"]
fn a_start_with_each_url() {
    let said = |variable: &str, tls: &str| {
        let config = format!("[stores.eu]\nurl = \"env:{variable}\"\n{tls}");
        let config: Config = config.parse().expect("a config that is right");
        let started = Policies::from_config(&config, Path::new(""));
        started.map_or_else(|error| error.to_string(), |_| String::new())
    };
    for (number, (url, wrong)) in URLS.iter().enumerate() {
        let expected = match *wrong {
            "" => String::new(),
            _ => format!("store \"eu\": the environment variable URL_{number}: {wrong}: {FORMS}"),
        };
        assert_eq!(said(&format!("URL_{number}"), ""), expected, "{url:?}");
    }
    let missing = "store \"eu\": the environment variable URL_NONE is not set";
    assert_eq!(said("URL_NONE", ""), missing);
    let no_tls = "store \"eu\": tls_ca: has no effect with the redis:// URL of URL_0: \
                  expected a rediss:// one";
    assert_eq!(said("URL_0", "tls_ca = \"ca.pem\""), no_tls);
}

#[test]
fn a_url_of_the_environment_is_held_to_what_one_in_the_file_is() {
    let program = std::env::current_exe().expect("this program");
    let urls = URLS.iter().enumerate();
    let output = Command::new(program)
        .args(["startup::a_start_with_each_url", "--exact", "--ignored"])
        .envs(urls.map(|(number, (url, _))| (format!("URL_{number}"), *url)))
        .output();
    let text = String::from_utf8(output.expect("this program again").stdout);
    let text = text.expect("text");
    assert!(text.contains("1 passed"), "{text}");
}

fn limiter(url: &str, options: RedisOptions) -> Policies {
    let store = RedisStore::new(url, options).expect("a right url");
    limiter_over(store, [policy("p", Limit::per(5, YEAR))])
}

/// That nothing was held against the store, which goes on.
async fn goes_on(limiter: &Policies) {
    let stats = stats(limiter);
    assert!(stats.errors.iter().all(|(_, count)| *count == 0));
    assert!(!stats.breaker_open);
    let asked = limiter.of("p").try_check(&[("key", "k")], Cost::ONE).await;
    assert!(asked.expect("an answer").allowed());
}

#[tokio::test]
async fn a_server_that_throws_out_limits_is_warned_about() {
    for server in Server::start_each() {
        let mut redis = server.connect();
        for (maxmemory, eviction, warned) in [
            ("0", "noeviction", false),
            ("100mb", "noeviction", false),
            ("0", "allkeys-lru", false),
            ("100mb", "allkeys-lru", true),
            ("100mb", "volatile-ttl", true),
        ] {
            for (setting, value) in [("maxmemory", maxmemory), ("maxmemory-policy", eviction)] {
                run::<()>(&mut redis, &format!("CONFIG SET {setting} {value}"));
            }
            let limiter = limiter(&server.url(), patient());
            let expected = format!("store \"default\": maxmemory-policy is {eviction}: ");
            let warnings = limiter.warnings().await;
            let is_it = |warning: &String| warning.starts_with(&expected);
            assert_eq!(warnings.len(), usize::from(warned), "{warnings:?}");
            assert!(warnings.iter().all(is_it), "{warnings:?}");
            if (warned, eviction) == (true, "allkeys-lru") {
                let row = "maxmemory-policy is …: a full server evicts limits that are in use";
                assert!(TROUBLES.contains(row), "{row}");
                let warning = warnings[0].replace(eviction, "…");
                assert!(warning.contains(row), "{warning}");
            }
            goes_on(&limiter).await;
            limiter
                .of("p")
                .reset(&[("key", "k")], tidegate::Which::All)
                .await
                .expect("an answer");
        }
    }
}

/// The user of the manual may not ask, unless told so, and loses nothing by it.
#[tokio::test]
async fn user_without_rights_to_look_is_not_warned() {
    let server =
        Server::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"]);
    let url = format!(
        "redis://tidegate:a-long-password@127.0.0.1:{}/",
        server.port()
    );
    for (more, warned) in [("+info", 1), ("-info", 0)] {
        set_user(&server, &[&rules()[..], &[more]].concat());
        let limiter = limiter(&url, patient());
        // More often than it takes to think that the store keeps failing.
        for _ in 0..10 {
            assert_eq!(limiter.warnings().await.len(), warned, "{more}");
        }
        goes_on(&limiter).await;
    }
}

#[tokio::test]
async fn a_server_that_is_down_is_not_warned_about() {
    let mut server = Server::start();
    server.kill();
    let limiter = limiter(&server.url(), RedisOptions::default());
    let start = Instant::now();
    for _ in 0..10 {
        assert_eq!(limiter.warnings().await, [""; 0]);
    }
    // At most a deadline each; on a machine that does other things, some more.
    assert!(start.elapsed() < Duration::from_secs(8));
    let asked = limiter.of("p").try_check(&[("key", "k")], Cost::ONE).await;
    let kind = kind(&asked.expect_err("a server that is down"));
    assert!(matches!(kind, ErrorKind::Connect | ErrorKind::Timeout));
}
