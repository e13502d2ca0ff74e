//! Charges that a replica has: what is told to callers outlives the master.

use std::time::Duration;

use tidegate::{Cost, Source};
use tidegate_redis::{ErrorKind, RedisOptions, TryCheckError};
use tidegate_testkit::cluster::{Cluster, is_master, run};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::{Named, patient};
use crate::timing::rig::{Rig, until};

/// How often a master is killed, unless `TIDEGATE_TRIES` says otherwise.
const TRIES: usize = 10;

/// Checks at once before a master is killed.
const CHECKS: u32 = 50;

/// Replicas are waited for during most of this.
const DEADLINE: Duration = Duration::from_millis(500);

fn acknowledged(cluster: &Cluster, replicas: u32, deadline: Duration) -> Rig {
    let options = RedisOptions::default().timeout(deadline);
    Rig::with(&cluster.url(), options.replica_acks(replicas))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_charges_outlive_a_master_and_missing_replicas_are_an_error() {
    let mut cluster = Cluster::start();
    too_few_replicas_are_an_error_and_the_charge_stays(&cluster).await;
    cluster.settle();

    let rig = acknowledged(&cluster, 1, DEADLINE);
    let patient = Rig::with(&cluster.url(), patient());
    let tries = std::env::var("TIDEGATE_TRIES").ok();
    let tries = tries.and_then(|it| it.parse().ok()).unwrap_or(TRIES);
    let (mut told, mut forgotten, mut amidst) = (0, 0, 0);
    for number in 0..tries {
        // One slot: many batches of it are on their way at once.
        let id = format!("t{number}");
        let place = cluster.owner(cluster.slot(&format!("{{{id}}}")));
        // The server that was killed before is asked again.
        until("it is answered", async || {
            for _ in 0..10 {
                if rig.source("deny", &id).await != Source::Store {
                    return false;
                }
            }
            true
        })
        .await;
        let mut checks = JoinSet::new();
        for caller in 0..CHECKS {
            let (rig, id) = (rig.clone(), id.clone());
            checks.spawn(async move {
                // Not all at once: the kill comes amidst them.
                sleep(Duration::from_micros(u64::from(caller) * 300)).await;
                rig.error(id).await.is_none()
            });
        }
        let (mut answers, mut is_killed) = (0, false);
        while let Some(is_answered) = checks.join_next().await {
            answers += u32::from(is_answered.expect("no panic"));
            if answers >= CHECKS / 2 && !is_killed {
                cluster.nodes[place].kill();
                is_killed = true;
            }
        }
        // On a machine that stops for as long as a deadline, there are fewer answers.
        amidst += usize::from(is_killed);
        if !is_killed {
            cluster.nodes[place].kill();
        }
        let partner = &cluster.nodes[cluster.partner(place)];
        run::<()>(&mut partner.connect(), "CLUSTER FAILOVER TAKEOVER");
        until("a new master", async || is_master(partner)).await;
        cluster.nodes[place].restart();
        cluster.settle();
        let used = patient.used("allow", &id).await;
        told += answers;
        forgotten += answers.saturating_sub(used);
        assert!(used <= CHECKS, "charged twice: {used} charged of {CHECKS}");
    }
    println!("{tries} masters killed, {amidst} amidst checks, {told} told, {forgotten} forgotten");
    assert!(amidst * 2 > tries, "{amidst} of {tries}");
    assert_eq!(forgotten, 0, "bound broken");
}

async fn too_few_replicas_are_an_error_and_the_charge_stays(cluster: &Cluster) {
    let none = Rig::with(&cluster.url(), patient());
    let key = [("id", "k")];

    // More than there are.
    let two = acknowledged(cluster, 2, 4 * DEADLINE);
    let check = two.limiter.of("allow").try_check(&key, Cost::ONE).await;
    let Err(TryCheckError::Store(error)) = check else {
        panic!("{check:?}");
    };
    assert_eq!(error.kind(), ErrorKind::NoReplicas, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("1 replicas have the charge: expected 2"),
        "{text}"
    );
    assert_eq!(none.used("allow", "k").await, 1, "the charge stays");
    let look = two.limiter.of("allow").peek(&key, Cost::ONE).await;
    assert!(look.is_ok(), "a look waits for nobody");

    // One that does not answer.
    let place = cluster.owner(cluster.slot("{k}"));
    let replica = &cluster.nodes[cluster.partner(place)];
    replica.signal("STOP");
    let one = acknowledged(cluster, 1, 4 * DEADLINE);
    let source = one.source("deny", "k").await;
    replica.signal("CONT");
    assert_eq!(source, Source::ErrorPolicy);
    assert_eq!(none.used("deny", "k").await, 1, "the charge stays");
}
