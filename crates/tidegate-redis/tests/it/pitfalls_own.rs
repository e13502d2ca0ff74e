//! What our own first version got wrong (G1 to G4 of the list of pitfalls).

use tidegate::{Cost, Limit, Mode, OnError, Override, Policy, Source};
use tidegate_redis::{Policies, RedisOptions, RedisStore};

use crate::server::Server;
use crate::support::{
    Named, YEAR, check, every_algorithm, every_policy, levels, limiter, look, policy,
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

/// What needs no store is decided without it, in every mode and whatever is done on an error.
#[tokio::test]
async fn g3_a_store_that_is_down_opens_no_block_and_refuses_no_exempt_check() {
    let ip = [("ip", "203.0.113.7"), ("role", "user")];
    let admin = [("ip", "203.0.113.8"), ("role", "admin")];
    let limit = Limit::per_second(5);
    let blocked = || Override::of("ip", "203.0.113.7");
    let two = |name: &str| {
        let policy = Policy::builder(name).level("total", "", limit);
        policy.level("address", "{ip}", limit)
    };
    // Who is refused by what, or exempt.
    let policies = || {
        let policy = Policy::builder("policy").key("{ip}").block(true);
        let one = Policy::builder("override").key("{ip}").limit(limit);
        let level = two("level").overrides(blocked().level("address").block());
        let exempt = two("exempt").overrides(Override::of("role", "admin").exempt());
        [
            (policy, &ip, Some("policy")),
            (one.overrides(blocked().block()), &ip, Some("override")),
            (level, &ip, Some("address")),
            (exempt, &admin, None),
        ]
    };
    for on_error in [OnError::Allow, OnError::Deny, OnError::Local] {
        for mode in [Mode::Exact, Mode::Lease, Mode::Background] {
            for (policy, attributes, denied_by) in policies() {
                let policy = policy.mode(mode).on_error(on_error).build();
                let policy = policy.expect("a policy");
                let name = policy.name().to_owned();
                let what = format!("{name}, {mode:?}, {on_error:?}");
                let limiter = over_a_dead_store([policy]);
                // An error of the store would be one here.
                let decision = limiter.of(&name).try_check(attributes, Cost::ONE).await;
                let decision = decision.expect("no store is asked");
                assert_eq!(decision.allowed(), denied_by.is_none(), "{what}");
                assert_eq!(decision.denied_by(), denied_by, "{what}");
                assert_eq!(decision.source(), Source::Store, "{what}");
                let decision = limiter.check(&name, attributes, Cost::ONE).await;
                let decision = decision.expect("a policy of this name");
                assert_eq!(decision.denied_by(), denied_by, "{what}");
                assert_eq!(decision.receipt(), None, "{what}");
                match denied_by {
                    Some(_) => assert_eq!(decision.retry_after(), None, "{what}"),
                    None => assert_eq!(decision.levels().len(), 0, "{what}"),
                }
            }
        }
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
            let ask = || check(&nodes[0], name, &KEY);
            let (a, b, _, _) = tokio::join!(ask(), ask(), ask(), ask());
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
