//! Over Redis: two instances share a limit, and an outage is the policy's business.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use tidegate::{Cost, CustomScript, Limit, OnError, Policy};
use tidegate_redis::{PolicyLimiter, RedisOptions, RedisStore};
use tidegate_testkit::http::Connection;
use tidegate_testkit::redis::Server;
use tidegate_tower::{Key, RateLimitBuilder, RateLimitLayer};
use tower::Layer;

use crate::axum::{admitted_at_once, ask, serve};
use crate::support::{hello, statuses};

/// Long enough for a machine that does other things.
pub(crate) const PATIENT: Duration = Duration::from_secs(20);

pub(crate) fn store(server: &Server, timeout: Duration) -> RedisStore {
    let options = RedisOptions::default().timeout(timeout);
    RedisStore::new(&server.url(), options).expect("a right url")
}

pub(crate) fn over(store: RedisStore, policy: Policy) -> RateLimitBuilder {
    let limiter = PolicyLimiter::over(store, policy);
    RateLimitLayer::builder(limiter.expect("a policy without files"))
}

/// So many an hour for each address.
fn hourly(name: &str, requests: u32, on_error: OnError) -> Policy {
    let limit = Limit::per(requests, Duration::from_secs(3_600));
    let policy = Policy::builder(name).key("{ip}").limit(limit);
    policy.on_error(on_error).build().expect("a policy")
}

/// An instance of a service, with a limiter of its own.
async fn instance(store: RedisStore, policy: Policy) -> SocketAddr {
    let layer = over(store, policy).key("ip", Key::address());
    let app = Router::new().route("/", get(async || "hello"));
    serve(app.layer(layer.build().expect("a layer"))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_share_a_limit() {
    for server in Server::start_each() {
        let policy = hourly("p", 5, OnError::Deny);
        let one = instance(store(&server, PATIENT), policy.clone()).await;
        let instances = [one, instance(store(&server, PATIENT), policy).await];
        assert_eq!(admitted_at_once(&instances, 40), 5);
        for address in instances {
            let refused = ask(address, "/");
            assert_eq!(refused.status, 429);
            let ratelimit = refused.header("ratelimit").expect("a header");
            assert!(ratelimit.starts_with("\"p\";r=0;t="), "{ratelimit}");
            assert!(refused.header("retry-after").is_some());
        }
    }
}

#[tokio::test]
async fn a_turn_in_redis_is_waited_for() {
    let server = Server::start();
    let limit = Limit::per(1, Duration::from_millis(50));
    let policy = Policy::builder("p").key("").limit(limit).build();
    let layer = over(store(&server, PATIENT), policy.expect("a policy"));
    let layer = layer.wait(PATIENT, 10, tokio::time::sleep);
    let mut service = layer.build().expect("a layer").layer(hello());
    let start = Instant::now();
    assert_eq!(statuses(&mut service, 4).await, [200; 4]);
    assert!(start.elapsed() >= Duration::from_millis(150));
}

#[test]
fn cost_for_a_script_that_is_not_told_it_is_found_by_build() {
    let script = |arguments: [&str; 1]| {
        let script = CustomScript::text("return {'allow', {}}").args(arguments);
        let policy = Policy::builder("p").key("{ip}").script(script);
        let store = RedisStore::new("redis://127.0.0.1:1/", RedisOptions::default());
        let policy = policy.build().expect("a policy");
        let layer = over(store.expect("a right url"), policy).key("ip", Key::address());
        layer.cost(|_| Cost::ONE).build().map(drop)
    };
    assert_eq!(script(["{cost}"]), Ok(()));
    let error = script(["1"]).expect_err("the script takes no cost");
    let expected = "policy \"p\" is decided by a script without \"{cost}\" among its args: \
        expected it without `cost`";
    assert_eq!(error.to_string(), expected);
}

/// A deadline that passes.
mod timing {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn with_redis_gone_on_error_is_obeyed_within_the_deadline() {
        const DEADLINE: Duration = Duration::from_millis(50);
        // Stopped: connections stay, and nobody answers. Killed: nobody is there.
        for killed in [false, true] {
            let mut server = Server::start();
            let store = store(&server, DEADLINE);
            let mut instances = Vec::new();
            for on_error in OnError::ALL {
                let policy = hourly(on_error.as_str(), 2, on_error);
                instances.push(instance(store.clone(), policy).await);
            }
            match killed {
                true => server.kill(),
                false => server.signal("STOP"),
            }
            let expected = [[200; 5], [503; 5], [200, 200, 429, 429, 429]];
            for (address, expected) in instances.into_iter().zip(expected) {
                let mut connection = Connection::tcp(&address.to_string());
                let (mut statuses, mut times) = (Vec::new(), Vec::new());
                for _ in 0..5 {
                    let start = Instant::now();
                    let answer = connection.ask("GET", "/", &[], &[]);
                    times.push(start.elapsed());
                    if answer.status == 503 {
                        assert!(answer.header("retry-after").is_some());
                        assert!(answer.header("ratelimit").is_none(), "no quota is claimed");
                    }
                    statuses.push(answer.status);
                }
                assert_eq!(statuses, expected, "killed: {killed}");
                // The machine may do something else during one or two of them.
                times.sort_unstable();
                assert!(times[2] < DEADLINE * 4, "killed: {killed}, {times:?}");
            }
        }
    }
}
