//! What is found out at the start: URLs of the environment that cannot be meant, and
//! servers that throw out limits.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tidegate::{Cost, Limit};
use tidegate_config::Config;
use tidegate_redis::{ErrorKind, Policies, RedisOptions, RedisStore};
use tidegate_testkit::cases::controls;
use tidegate_testkit::cluster::run;

use crate::server::Server;
use crate::support::{Named, YEAR, limiter_over, patient, policy, stats};
use crate::user::{kind, rules, set_user};

/// The page that says what to do about a message.
const TROUBLES: &str = include_str!("../../../../docs/troubleshooting.md");

const FORMS: &str = r#"expected "redis://host:port/database", "rediss://user:password@host:port/database", "redis-sentinel://host:port,host:port/master" or "redis-cluster://host:port,host:port""#;

/// URLs, and what is wrong with them.
fn urls() -> impl Iterator<Item = (String, &'static str)> {
    include_str!("urls.txt").lines().map(|line| {
        let (url, wrong) = line.split_once(" =>").expect(line);
        (controls(url), wrong.trim_start())
    })
}

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
    for (number, (url, wrong)) in urls().enumerate() {
        let expected = match wrong {
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
    let urls = urls().enumerate();
    let output = Command::new(program)
        .args(["startup::a_start_with_each_url", "--exact", "--ignored"])
        .envs(urls.map(|(number, (url, _))| (format!("URL_{number}"), url)))
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
        let limiter = limiter(&server.url(), patient());
        assert_eq!(limiter.warnings().await, [""; 0]);
        run::<()>(&mut redis, "CONFIG SET maxmemory 100mb");
        run::<()>(&mut redis, "CONFIG SET maxmemory-policy allkeys-lru");
        let warnings = limiter.warnings().await;
        let [warning] = &warnings[..] else {
            panic!("{warnings:?}");
        };
        let expected = "store \"default\": maxmemory-policy is allkeys-lru: ";
        assert!(warning.starts_with(expected), "{warning}");
        let row = "maxmemory-policy is …: a full server evicts limits that are in use";
        assert!(TROUBLES.contains(row), "{row}");
        assert!(
            warning.replace("allkeys-lru", "…").contains(row),
            "{warning}"
        );
        goes_on(&limiter).await;
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
