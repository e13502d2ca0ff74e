//! The first map: from a cluster that is down, and from nodes that have names.

use tidegate::Limit;
use tidegate_redis::{ErrorKind, RedisStore};
use tidegate_testkit::cluster::Cluster;

use crate::support::{YEAR, check, limiter_over, patient, policy};
use crate::timing::rig::Rig;

/// The errors say what the trouble is, and not only that nobody is known.
#[tokio::test]
async fn a_start_with_the_cluster_down_works() {
    let mut cluster = Cluster::start_with(1, 0, &[]);
    let rig = Rig::new(&cluster.url());
    cluster.nodes[0].kill();
    // On a busy machine, the deadline may come first.
    let kinds = [ErrorKind::Connect, ErrorKind::Timeout];
    rig.opens_after("cluster", 2, &kinds).await;
    rig.is_obeyed().await;
    cluster.nodes[0].restart();
    // Of these, the node itself takes two seconds before it answers.
    let back = rig.until_answered().await;
    println!("down at start: answers {back:?} after it was up");
}

#[tokio::test]
async fn nodes_that_are_called_by_their_names() {
    let named = [
        "--cluster-announce-hostname",
        "localhost",
        "--cluster-preferred-endpoint-type",
        "hostname",
    ];
    let cluster = Cluster::start_with(2, 0, &named);
    // One of them is enough to know the other, whose name it says.
    let url = format!("redis-cluster://localhost:{}", cluster.nodes[0].port());
    let store = RedisStore::new(&url, patient()).unwrap();
    let limiter = limiter_over(store, [policy("p", Limit::per(5, YEAR))]);
    for key in 0..20 {
        let attributes = [("key", key.to_string())];
        assert_eq!(check(&limiter, "p", &attributes).await.remaining(), 4);
    }
}
