//! Where keys live: every key of a check in one slot, the slot that the cluster says, and
//! policies of one level on all masters.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate::{Cost, Limit, Mode, Policy, Source};
use tidegate_redis::RedisStore;

use crate::support::{Named, YEAR, check, every_algorithm, limiter_over, look, patient};
use tidegate_testkit::cluster::{Cluster, run};

/// Every key and its slot, by the place of the master that has it.
fn keys(cluster: &Cluster) -> [Vec<(u16, String)>; 3] {
    [0, 1, 2].map(|place: usize| {
        let keys: Vec<String> = run(&mut cluster.nodes[place].connect(), "KEYS *");
        let keys = keys.into_iter();
        keys.map(|key| (cluster.slot(&key), key)).collect()
    })
}

fn flush(cluster: &Cluster) {
    for node in cluster.nodes.iter().take(3) {
        run::<()>(&mut node.connect(), "FLUSHALL");
    }
}

#[tokio::test]
async fn keys_are_where_the_cluster_looks_for_them() {
    let cluster = Cluster::start();
    let store = RedisStore::new(&cluster.url(), patient()).unwrap();

    // Thirty keys without a tag, and every algorithm. What nodes report in the mode `background`
    // goes to the server that has the key, too.
    for mode in [Mode::Exact, Mode::Background] {
        flush(&cluster);
        let limits = every_algorithm(100, YEAR);
        let limiter = limits.map(|(name, limit)| {
            let policy = Policy::builder(name).limit(limit).mode(mode);
            policy.build().unwrap()
        });
        let limiter = limiter_over(store.clone(), limiter);
        for (name, _) in limits {
            for number in 0..30 {
                let key = [("key", format!("user:{number}"))];
                let decision = check(&limiter, name, &key).await;
                assert_eq!(decision.remaining(), 99, "{name} {number}");
            }
        }
        assert!(limiter.flush(Duration::from_secs(60)).await);
        let places = keys(&cluster);
        assert!(places.iter().all(|keys| !keys.is_empty()), "{places:?}");
        assert_eq!(places.concat().len(), 150);
        let slots: BTreeSet<u16> = places.concat().iter().map(|(slot, _)| *slot).collect();
        // A key's counters share its slot, and nothing else is in it, but by chance.
        assert!((28..=30).contains(&slots.len()), "{slots:?}");
        assert_eq!(limiter.warnings().await, [""; 0]);
        for (name, _) in limits {
            let seen = look(&limiter, name, &[("key", "user:7")]).await;
            let seen = (seen.remaining(), seen.source());
            assert_eq!(seen, (99, Source::Store), "{name}");
        }
    }

    // Two levels: by the attribute that both have, in one place each.
    flush(&cluster);
    let two = Policy::builder("two")
        .level("tenant", "{tenant}", Limit::per(100, YEAR))
        .level("user", "{tenant}/{user}", Limit::per(10, YEAR));
    let total = Policy::builder("total")
        .level("all", "", Limit::per(100, YEAR))
        .level("user", "{user}", Limit::per(10, YEAR));
    let policies = [two, total].map(|policy| policy.build().unwrap());
    let limiter = limiter_over(store, policies);
    for tenant in 0..20 {
        for user in 0..3 {
            let [tenant, user] = [tenant, user].map(|it: u32| it.to_string());
            let attributes = [("tenant", tenant.as_str()), ("user", &user)];
            assert!(check(&limiter, "two", &attributes).await.allowed());
            let all = limiter.of("total").try_check(&attributes, Cost::ONE).await;
            assert!(all.is_ok());
        }
    }
    let keys_of_two = keys(&cluster).concat();
    for tenant in 0..20 {
        let tag = format!("{{{tenant}}}");
        let own: Vec<_> = keys_of_two
            .iter()
            .filter(|it| it.1.contains(&tag))
            .collect();
        let is_one_slot = own.iter().all(|(slot, _)| *slot == own[0].0);
        assert!(is_one_slot && own.len() == 4, "{tenant}: {own:?}");
    }
    let warnings = limiter.warnings().await;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("policy \"total\""), "{warnings:?}");
}
