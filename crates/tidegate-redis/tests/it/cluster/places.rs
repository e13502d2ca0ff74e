//! Where keys live: every key of a check in one slot, the slot that the cluster says, and
//! policies of one level on all masters.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidegate::{Cost, Limit, Mode, Policy, Source};
use tidegate_redis::RedisStore;

use crate::support::{YEAR, check, every_algorithm, levels, limiter_over, look, patient, policy};
use tidegate_testkit::cluster::{Cluster, SLOTS, run};

/// Keys that other limiters put into two slots (A4, B8), or call by another's name.
const ODD: [&str; 12] = [
    "",
    "}x",
    "{",
    "}",
    "{}",
    "{a}b",
    "a}{b",
    "{{a}}",
    ":",
    "%",
    "a b\r\nc",
    "\u{0}\u{1F980}",
];

/// Every slot that has keys, with its keys and the place of its master.
fn filled(cluster: &Cluster) -> BTreeMap<u16, (usize, Vec<String>)> {
    let mut filled = BTreeMap::new();
    for (place, node) in cluster.nodes.iter().enumerate().take(3) {
        let redis = &mut node.connect();
        let keys: Vec<String> = run(redis, "KEYS *");
        for key in keys {
            let slot = cluster.slot(&key);
            filled
                .entry(slot)
                .or_insert((place, Vec::new()))
                .1
                .push(key);
        }
    }
    for (slot, (place, keys)) in &filled {
        let count = format!("CLUSTER COUNTKEYSINSLOT {slot}");
        let counted: usize = run(&mut cluster.nodes[*place].connect(), &count);
        assert_eq!(counted, keys.len(), "{slot}: {keys:?}");
        assert!(*slot < SLOTS && cluster.owner(*slot) == *place, "{keys:?}");
    }
    filled
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

    // C3: thirty keys without a tag, and every algorithm.
    let limits = every_algorithm(100, YEAR);
    let limiter = limiter_over(store.clone(), limits.map(|(name, it)| policy(name, it)));
    for (name, _) in limits {
        for number in 0..30 {
            let key = format!("user:{number}");
            let decision = check(&limiter, name, &[("key", key.as_str())]).await;
            assert_eq!(decision.remaining(), 99, "{name} {key}");
        }
    }
    let places = filled(&cluster);
    let masters: BTreeSet<usize> = places.values().map(|(place, _)| *place).collect();
    println!("c3: 150 keys in {} slots of {masters:?}", places.len());
    assert_eq!(masters.len(), 3);
    // A key's counters share its slot, and nothing else is in it, but by chance.
    assert!((28..=30).contains(&places.len()));
    assert_eq!(limiter.warnings().await, [""; 0]);

    // A4, B8: odd keys, on two levels of each algorithm.
    flush(&cluster);
    let limits = limits.map(|(_, limit)| limit);
    let limiter = limiter_over(store.clone(), [levels("odd", &limits)]);
    for key in ODD {
        let decision = check(&limiter, "odd", &[("key", key)]).await;
        assert_eq!(decision.remaining(), 99, "{key:?}");
    }
    let long = "x".repeat(65_536);
    let _ = check(&limiter, "odd", &[("key", long.as_str())]).await;
    let keys: usize = filled(&cluster).values().map(|(_, keys)| keys.len()).sum();
    assert_eq!(keys, (ODD.len() + 1) * limits.len());
    for (_, keys) in filled(&cluster).values() {
        assert_eq!(
            keys.len() % limits.len(),
            0,
            "a check in two slots: {keys:?}"
        );
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
    let limiter = limiter_over(store.clone(), policies);
    for tenant in 0..20 {
        for user in 0..3 {
            let [tenant, user] = [tenant, user].map(|it: u32| it.to_string());
            let attributes = [("tenant", tenant.as_str()), ("user", &user)];
            assert!(check(&limiter, "two", &attributes).await.allowed());
            let all = limiter.try_check("total", &attributes, Cost::ONE).await;
            assert!(all.is_ok());
        }
    }
    let places = filled(&cluster);
    for tenant in 0..20 {
        let tag = format!("{{{tenant}}}");
        let all = places.iter();
        let all = all.flat_map(|(slot, (_, keys))| keys.iter().map(move |key| (slot, key)));
        let own: Vec<_> = all.filter(|(_, key)| key.contains(&tag)).collect();
        let is_one_slot = own.iter().all(|(slot, _)| *slot == own[0].0);
        assert!(is_one_slot && own.len() == 4, "{tenant}: {own:?}");
    }
    let warnings = limiter.warnings().await;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("policy \"total\""), "{warnings:?}");

    // Reports of background mode go to the server that has the key.
    flush(&cluster);
    let limits = every_algorithm(100, YEAR);
    let background = limits.map(|(name, limit)| {
        let policy = Policy::builder(name).limit(limit).mode(Mode::Background);
        policy.build().unwrap()
    });
    let limiter = limiter_over(store, background);
    for (name, _) in limits {
        for number in 0..30 {
            let key = format!("user:{number}");
            let decision = check(&limiter, name, &[("key", key.as_str())]).await;
            assert_eq!(decision.source(), Source::Background);
        }
    }
    assert!(limiter.flush(Duration::from_secs(60)).await);
    let keys: usize = filled(&cluster).values().map(|(_, keys)| keys.len()).sum();
    assert_eq!(keys, 150);
    for (name, _) in limits {
        let seen = look(&limiter, name, &[("key", "user:7")]).await;
        assert_eq!(
            (seen.remaining(), seen.source()),
            (99, Source::Store),
            "{name}"
        );
    }
}
