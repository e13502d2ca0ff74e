//! What is found out at the start: URLs of the environment that cannot be meant, and
//! servers that throw out limits.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tidegate::{Cost, Limit};
use tidegate_config::Config;
use tidegate_redis::{ErrorKind, RedisOptions, RedisStore, SharedLimiter, Store};

use crate::server::Server;
use crate::support::{YEAR, limiter_over, patient, policy};
use crate::user::{MANUAL, kind, rules, set_user};

const VARIABLE: &str = "TIDEGATE_TEST_URL";

/// Says what comes of a config whose URL is in the environment.
#[test]
#[ignore = "a process that the test below starts"]
fn a_start_with_a_url_of_the_environment() {
    let tls = std::env::var("TIDEGATE_TEST_TLS").unwrap_or_default();
    let config = format!("[stores.eu]\nurl = \"env:{VARIABLE}\"\n{tls}");
    let config: Config = config.parse().expect("a config that is right");
    let started = SharedLimiter::from_config(&config, Path::new(""));
    let said = started.map_or_else(|error| error.to_string(), |_| "it starts".into());
    std::fs::write(std::env::var("TIDEGATE_TEST_SAID").unwrap(), said).unwrap();
}

/// The warnings at the start with this URL in the environment, and these lines in the
/// store's section.
fn said(url: Option<&str>, tls: &str) -> String {
    let file = format!("tidegate-said-{}", std::process::id());
    let file = std::env::temp_dir().join(file);
    let mut start = Command::new(std::env::current_exe().expect("this program"));
    let test = "startup::a_start_with_a_url_of_the_environment";
    start
        .args([test, "--exact", "--ignored"])
        .env("TIDEGATE_TEST_SAID", &file)
        .env("TIDEGATE_TEST_TLS", tls)
        .env_remove(VARIABLE);
    start.envs(url.map(|url| (VARIABLE, url)));
    assert!(start.output().expect("it runs").status.success());
    let said = std::fs::read_to_string(&file).expect("what was said");
    std::fs::remove_file(&file).expect("our own file");
    said
}

#[test]
fn a_url_of_the_environment_is_held_to_what_one_in_the_file_is() {
    let server = r#"expected "redis://host:port/database", "rediss://user:password@host:port/database", "redis-sentinel://host:port,host:port/master" or "redis-cluster://host:port,host:port""#;
    let not_a_url = format!("not a Redis URL: {server}");
    let not_redis = format!("\"redis://…\": {server}");
    let cluster = format!("\"redis-cluster://…\": {server}");
    for (url, wrong) in [
        ("", &not_a_url),
        ("hush", &not_a_url),
        ("memory:", &not_a_url),
        ("env:OTHER", &not_a_url),
        ("http://:hush@host/", &not_a_url),
        ("redis://:hush@host:port/", &not_redis),
        ("redis://:hush@host/x", &not_redis),
        ("redis://:hu/sh@host/0", &not_redis),
        ("redis://host\n", &not_redis),
        ("redis-cluster://:hush@h1:1,h2:", &cluster),
    ] {
        let expected = format!("store \"eu\": the environment variable {VARIABLE}: {wrong}");
        assert_eq!(said(Some(url), ""), expected, "{url:?}");
    }
    for url in [
        "redis://host",
        "rediss://:hush@host:6380/3",
        "redis-cluster://:hush@h1:1,h2",
        "redis-sentinel://h1,h2:2/main/1",
    ] {
        assert_eq!(said(Some(url), ""), "it starts", "{url:?}");
    }
    let missing = format!("store \"eu\": the environment variable {VARIABLE} is not set");
    assert_eq!(said(None, ""), missing);
    let no_tls = format!(
        "store \"eu\": tls_ca: has no effect with the redis:// URL of {VARIABLE}: \
         expected a rediss:// one"
    );
    let tls = "tls_ca = \"ca.pem\"";
    assert_eq!(said(Some("redis://:hush@host"), tls), no_tls);
}

fn limiter(url: &str, options: RedisOptions) -> SharedLimiter {
    let store = RedisStore::new(url, options).expect("a right url");
    limiter_over(store, [policy("p", Limit::per(5, YEAR))])
}

/// That nothing was held against the store, which goes on.
async fn goes_on(limiter: &SharedLimiter) {
    let Some((_, Store::Redis(store))) = limiter.stores().next() else {
        panic!("a Redis store");
    };
    let stats = store.stats();
    assert!(stats.errors.iter().all(|(_, count)| *count == 0));
    assert!(!stats.breaker_open);
    let asked = limiter.try_check("p", &[("key", "k")], Cost::ONE).await;
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
                let set = redis::cmd("CONFIG")
                    .arg(&["SET", setting, value][..])
                    .query::<()>(&mut redis);
                set.expect("a setting");
            }
            let limiter = limiter(&server.url(), patient());
            let expected = format!("store \"default\": maxmemory-policy is {eviction}: ");
            let warnings = limiter.warnings().await;
            let is_it = |warning: &String| warning.starts_with(&expected);
            assert_eq!(warnings.len(), usize::from(warned), "{warnings:?}");
            assert!(warnings.iter().all(is_it), "{warnings:?}");
            if (warned, eviction) == (true, "allkeys-lru") {
                let line = format!("\nwarning: {}\n", warnings[0]);
                assert!(MANUAL.contains(&line), "{line}");
            }
            goes_on(&limiter).await;
            limiter
                .reset("p", &[("key", "k")], tidegate::Which::All)
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
    let asked = limiter.try_check("p", &[("key", "k")], Cost::ONE).await;
    let kind = kind(&asked.expect_err("a server that is down"));
    assert!(matches!(kind, ErrorKind::Connect | ErrorKind::Timeout));
}
