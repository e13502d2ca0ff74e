//! What our own first version got wrong (G1 to G4 of the list of pitfalls).

use tidegate::{Cost, Limit, Mode, OnError, Override, Policy, Source, Which};
use tidegate_redis::{Policies, RedisOptions, RedisStore};

use crate::server::Server;
use crate::support::{
    Named, YEAR, all_keys, check, every_algorithm, every_policy, levels, limiter, look, policy,
};
use tidegate_testkit::cluster::run;
use tidegate_testkit::process::free_port;

const KEY: [(&str, &str); 1] = [("key", "a")];

/// A limiter over a store that is down.
fn over_a_dead_store(policies: impl IntoIterator<Item = Policy>) -> Policies {
    let url = format!("redis://127.0.0.1:{}/", free_port());
    let store = RedisStore::new(&url, RedisOptions::default()).expect("a valid URL");
    Policies::new([("default", store)], policies).expect("valid policies")
}

#[tokio::test]
async fn g3_a_store_that_is_down_never_opens_a_block() {
    let mut policies = Vec::new();
    for on_error in [OnError::Allow, OnError::Deny, OnError::Local] {
        for mode in [Mode::Exact, Mode::Background] {
            let blocked = Policy::builder(format!("{on_error:?}-{mode:?}-policy"))
                .key("{ip}")
                .block(true);
            let overridden = Policy::builder(format!("{on_error:?}-{mode:?}-override"))
                .key("{ip}")
                .limit(Limit::per_second(5))
                .overrides(Override::of("ip", "203.0.113.7").block());
            let one_of_two = Policy::builder(format!("{on_error:?}-{mode:?}-level"))
                .level("total", "", Limit::per_second(5))
                .level("address", "{ip}", Limit::per_second(5))
                .overrides(Override::of("ip", "203.0.113.7").level("address").block());
            for policy in [blocked, overridden, one_of_two] {
                let policy = policy.mode(mode).on_error(on_error);
                policies.push(policy.build().expect("a policy"));
            }
        }
    }
    let names: Vec<String> = policies.iter().map(|it| it.name().to_owned()).collect();
    let limiter = over_a_dead_store(policies);
    for name in names {
        let attributes = [("ip", "203.0.113.7")];
        let decision = limiter.check(&name, &attributes, Cost::ONE).await;
        let decision = decision.expect("a policy of this name");
        let refused_by = if name.ends_with("level") {
            "address"
        } else {
            &*name
        };
        assert!(!decision.allowed(), "{name} let a blocked key pass");
        assert_eq!(decision.denied_by(), Some(refused_by), "{name}");
        assert_eq!(decision.retry_after(), None, "{name}");
        assert_eq!(decision.source(), Source::Store, "{name}");
        let decision = limiter.of(&name).try_check(&attributes, Cost::ONE).await;
        assert!(!decision.expect("no store is asked").allowed(), "{name}");
    }
}

#[tokio::test]
async fn exempt_check_passes_in_every_mode_without_the_store() {
    let modes = [Mode::Exact, Mode::Lease, Mode::Background];
    let policies = modes.map(|mode| {
        let policy = Policy::builder(format!("{mode:?}"))
            .level("total", "", Limit::per_second(1))
            .level("address", "{ip}", Limit::per_second(1))
            .overrides(Override::of("role", "admin").exempt());
        let policy = policy.mode(mode).on_error(OnError::Deny);
        policy.build().expect("a policy")
    });
    let names = policies.each_ref().map(|policy| policy.name().to_owned());
    let limiter = over_a_dead_store(policies);
    let admin = [("ip", "203.0.113.7"), ("role", "admin")];
    for name in names {
        for _ in 0..3 {
            let decision = limiter.of(&name).try_check(&admin, Cost::ONE).await;
            let decision = decision.expect("no store is asked");
            assert_eq!((decision.allowed(), decision.levels().len()), (true, 0));
            assert_eq!(decision.receipt(), None, "{name}");
        }
        let other = [("ip", "203.0.113.7"), ("role", "user")];
        let other = limiter.check(&name, &other, Cost::ONE).await;
        let is_asked = !other.expect("a policy of this name").is_unavailable();
        assert_eq!(is_asked, name == "Background", "{name}");
    }
}

#[tokio::test]
async fn receipt_is_refunded_once_over_all_nodes() {
    for server in Server::start_each() {
        let (one, limits) = (every_policy(5, YEAR), every_algorithm(5, YEAR));
        let all = levels("all", &limits.map(|(_, limit)| limit));
        let nodes = [0, 1].map(|_| limiter(&server, one.iter().cloned().chain([all.clone()])));
        let names = limits.map(|(name, _)| name);
        for name in names.iter().chain(&["all"]) {
            // They are alike and share a call, and so the moment of their decision.
            let checks = [0, 1, 2, 3].map(|_| check(&nodes[0], name, &KEY));
            let [a, b, c, d] = checks;
            let (a, b, _, _) = tokio::join!(a, b, c, d);
            let receipts = [a, b].map(|decision| decision.receipt().expect("a charge"));
            assert_ne!(receipts[0].id(), receipts[1].id());
            for (receipt, used) in receipts.iter().zip([3.0, 2.0]) {
                for (node, is_first) in [(0, true), (0, false), (1, false), (1, false)] {
                    let refund = nodes[node].of(name).refund(&KEY, receipt).await;
                    assert_eq!(refund.expect("a refund"), is_first);
                    let look = look(&nodes[1], name, &KEY).await;
                    // A bucket has drained a little in the meantime.
                    assert!((look.rate() - used).abs() < 0.001, "{name}: {look:?}");
                }
            }
        }
        let mut redis = server.connect();
        for key in all_keys(&mut redis) {
            let left_ms: i64 = run(&mut redis, &format!("PTTL {key}"));
            assert!(left_ms > 0, "{key} never expires");
        }
    }
}

#[tokio::test]
async fn refund_is_refused_by_a_full_server_and_remembered_while_its_receipt_matters() {
    let server = Server::start();
    let limiter = limiter(&server, [policy("p", Limit::per(1, YEAR).burst(3))]);
    let receipt = check(&limiter, "p", &KEY).await.receipt();
    let receipt = receipt.expect("a charge");
    let mut redis = server.connect();
    for (memory, is_refunded, left) in [("1", false, 2), ("0", true, 3)] {
        run::<()>(&mut redis, &format!("CONFIG SET maxmemory {memory}"));
        let refund = limiter.of("p").refund(&KEY, &receipt).await;
        assert_eq!(refund.is_ok(), is_refunded, "{refund:?}");
        assert_eq!(look(&limiter, "p", &KEY).await.remaining(), left);
    }
    let marker = format!("tg:{{a}}:p~refunded:{:016x}", receipt.id());
    let left_ms: u64 = run(&mut redis, &format!("PTTL {marker}"));
    let year_ms = u64::try_from(YEAR.as_millis()).unwrap();
    assert!((year_ms - 60_000..=year_ms).contains(&left_ms), "{left_ms}");
}

#[tokio::test]
async fn algorithm_is_part_of_the_key_and_a_reset_forgets_all_of_them() {
    let server = Server::start();
    let nodes = every_algorithm(5, YEAR).map(|(_, limit)| limiter(&server, [policy("p", limit)]));
    for node in &nodes {
        let _ = check(node, "p", &KEY).await;
    }
    let mut keys = all_keys(&mut server.connect());
    keys.sort_unstable();
    // A window on the clock is counted as one that opens with a request.
    let expected = [
        "tg:{a}:p:p",
        "tg:{a}:p:p~fw",
        "tg:{a}:p:p~sl",
        "tg:{a}:p:p~sw",
    ];
    assert_eq!(keys, expected);
    let forgotten = nodes[0].of("p").reset(&KEY, Which::Only).await;
    assert_eq!(forgotten.expect("a reset"), 4);
}
