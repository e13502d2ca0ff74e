//! Charges that a replica has: what is told to callers outlives the master.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::{Cost, Limit, OnError, Policy, Source};
use tidegate_redis::{ErrorKind, RedisOptions, RedisStore, SharedLimiter, TryCheckError};
use tokio::task::JoinSet;

use crate::support::{YEAR, limiter_over, look, patient, policy};
use tidegate_testkit::cluster::{Cluster, is_master, run, until};

/// How often a master is killed, unless `TIDEGATE_TRIES` says otherwise.
const TRIES: usize = 20;

/// Checks at once before a master is killed.
const CHECKS: u32 = 50;

/// Replicas are waited for during most of this.
const DEADLINE: Duration = Duration::from_millis(500);

fn acknowledged(url: &str, replicas: u32, deadline: Duration) -> SharedLimiter {
    let options = RedisOptions::default().timeout(deadline);
    let store = RedisStore::new(url, options.replica_acks(replicas)).expect("a right url");
    let limit = Limit::per(1_000_000, YEAR).fixed_window();
    let deny = Policy::builder("deny").key("{key}").limit(limit);
    let deny = deny.on_error(OnError::Deny).build().expect("a policy");
    limiter_over(store, [policy("p", limit), deny])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_killed_forgets_nothing_that_was_acknowledged() {
    let mut cluster = Cluster::start();
    let url = cluster.url();
    let limiter = Arc::new(acknowledged(&url, 1, DEADLINE));
    let tries = std::env::var("TIDEGATE_TRIES").ok();
    let tries = tries.and_then(|it| it.parse().ok()).unwrap_or(TRIES);
    let (mut told, mut unknown, mut forgotten, mut amidst) = (0, 0, 0, 0);
    for number in 0..tries {
        // Different keys of one slot, so that many batches are on their way at once.
        let slot = cluster.slot(&format!("{{t{number}}}"));
        let place = cluster.owner(slot);
        // Who was killed before is asked again.
        let mut answered = 0;
        while answered < 10 {
            let key = [("key", format!("t{number}"))];
            let asked = limiter.try_check("deny", &key, Cost::ONE).await;
            answered = if asked.is_ok() { answered + 1 } else { 0 };
        }
        let mut checks = JoinSet::new();
        for caller in 0..CHECKS {
            let limiter = Arc::clone(&limiter);
            checks.spawn(async move {
                let key = [("key", format!("t{number}"))];
                // Not all at once: the kill comes amidst them.
                tokio::time::sleep(Duration::from_micros(u64::from(caller) * 300)).await;
                let asked = limiter.try_check("p", &key, Cost::ONE).await;
                asked.map(|decision| decision.allowed())
            });
        }
        let mut answers = 0;
        let mut killed = false;
        while let Some(answer) = checks.join_next().await {
            match answer.expect("no panic") {
                Ok(allowed) => answers += u32::from(allowed),
                Err(TryCheckError::Store(_)) => unknown += 1,
                Err(error) => panic!("{error}"),
            }
            if answers >= CHECKS / 2 && !killed {
                cluster.nodes[place].kill();
                killed = true;
            }
        }
        // On a machine that stops for as long as a deadline, there are fewer answers.
        amidst += usize::from(killed);
        if !killed {
            cluster.nodes[place].kill();
        }
        let partner = cluster.partner(place);
        run::<()>(
            &mut cluster.nodes[partner].connect(),
            "CLUSTER FAILOVER TAKEOVER",
        );
        until("a new master", || is_master(&cluster.nodes[partner]));
        cluster.nodes[place].restart();
        cluster.settle();
        let patient = limiter_over(
            RedisStore::new(&url, patient()).expect("a right url"),
            [policy("p", Limit::per(1_000_000, YEAR).fixed_window())],
        );
        let seen = look(&patient, "p", &[("key", &*format!("t{number}"))]).await;
        let used = seen.limit() - seen.remaining();
        told += answers;
        forgotten += answers.saturating_sub(used);
        assert!(used <= CHECKS, "charged twice: {used} charged of {CHECKS}");
    }
    println!(
        "replica_acks = 1: {tries} masters killed, {amidst} amidst {CHECKS} checks each, \
         {told} told, {unknown} errors, {forgotten} forgotten"
    );
    assert!(amidst * 2 > tries, "{amidst} of {tries}");
    assert_eq!(forgotten, 0, "bound broken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_replicas_are_an_error_and_the_charge_stays() {
    let cluster = Cluster::start();
    let url = cluster.url();
    let key = [("key", "k")];
    let place = cluster.owner(cluster.slot("tg:{k}:p:p"));
    let patience = Duration::from_secs(20);
    let (none, one) = (
        acknowledged(&url, 0, patience),
        acknowledged(&url, 1, patience),
    );
    let used = async || {
        let look = look(&none, "p", &key).await;
        look.limit() - look.remaining()
    };
    for (replicas, limiter) in [(0, &none), (1, &one)] {
        let mut took = Vec::new();
        for _ in 0..200 {
            let start = Instant::now();
            let _ = limiter.try_check("p", &key, Cost::ONE).await.unwrap();
            took.push(start.elapsed());
        }
        took.sort_unstable();
        let median = took[took.len() / 2];
        println!("replica_acks = {replicas}: a check takes {median:?}");
    }

    // More than there are.
    let two = acknowledged(&url, 2, 4 * DEADLINE);
    let before = used().await;
    let error = two.try_check("p", &key, Cost::ONE).await.unwrap_err();
    let TryCheckError::Store(error) = error else {
        panic!("{error}");
    };
    assert_eq!(error.kind(), ErrorKind::NoReplicas, "{error}");
    assert!(
        error
            .to_string()
            .contains("1 replicas have the charge: expected 2")
    );
    assert_eq!(used().await, before + 1, "the charge stays");
    // A look waits for nobody.
    let _ = look(&two, "p", &key).await;

    // One that does not answer.
    cluster.nodes[cluster.partner(place)].signal("STOP");
    let hurried = acknowledged(&url, 1, 4 * DEADLINE);
    let decision = hurried.check("deny", &key, Cost::ONE).await.unwrap();
    assert_eq!(
        (decision.allowed(), decision.source()),
        (false, Source::ErrorPolicy)
    );
    cluster.nodes[cluster.partner(place)].signal("CONT");
    let look = look(&none, "deny", &key).await;
    assert_eq!(look.limit() - look.remaining(), 1, "the charge stays");
}
