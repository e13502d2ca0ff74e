//! TLS, passwords and the manual's users, on a cluster and behind sentinels.

use tidegate::{Cost, Limit};
use tidegate_redis::{ErrorKind, RedisOptions, RedisStore};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

use crate::certificates::Certificates;
use crate::server::Server;
use crate::support::{Named, YEAR, limiter_over, patient, policy};
use crate::user::{everything, kind, rules, rules_of, set_user};
use tidegate_testkit::cluster::Cluster;

const USER: &str = "tidegate:a-long-password";

/// The blocks of the manual: after the user of one server, that of a cluster, that of a
/// master behind sentinels, and that of the sentinels.
const CLUSTER: usize = 1;
const MASTER: usize = 2;
const SENTINEL: usize = 3;

fn with_authority(options: RedisOptions, certificates: &Certificates) -> RedisOptions {
    options.certificates(Some(certificates.read("authority.crt")), None)
}

/// A check of a new key, whose slot is on its way to another node.
async fn underway(
    cluster: &Cluster,
    url: &str,
    options: RedisOptions,
    key: &str,
) -> Result<(), ErrorKind> {
    let store = RedisStore::new(url, options).expect("a right url");
    let limiter = limiter_over(store, [policy("p", Limit::per(5, YEAR))]);
    let slot = cluster.slot(&format!("{{{key}}}"));
    let key = [("key", key)];
    let home = cluster.owner(slot);
    let mut asked = Ok(());
    let mut ask = || {
        let check = limiter.of("p").try_check(&key, Cost::ONE);
        let check = block_in_place(|| Handle::current().block_on(check));
        asked = check.map(|_| ()).map_err(|error| kind(&error));
    };
    let mut once = true;
    cluster.move_slot(slot, 1 - home, || {
        if std::mem::take(&mut once) {
            ask();
        }
    });
    cluster.move_slot(slot, home, || {});
    asked
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_over_tls_with_the_manuals_user() {
    let certificates = Certificates::make();
    let tls = certificates.redis("{third}") + " --tls-cluster yes";
    let cluster = Cluster::start_with(2, 1, &tls.split(' ').collect::<Vec<_>>());
    let allow = |rules: &[&str]| {
        for node in &cluster.nodes {
            set_user(node, rules);
        }
    };
    let ports = cluster.nodes.iter().map(|node| node.others()[1]);
    let hosts: Vec<String> = ports.map(|port| format!("127.0.0.1:{port}")).collect();
    let url = format!("rediss-cluster://{USER}@{}", hosts[0]);
    let options = || with_authority(patient().replica_acks(1), &certificates);

    let all = rules_of(CLUSTER);
    allow(&all);
    assert_eq!(everything(&url, options(), &cluster.nodes).await, Ok(()));
    assert_eq!(underway(&cluster, &url, options(), "a").await, Ok(()));
    // Nothing that is not needed: what one server needs is tried out elsewhere.
    for rule in all.iter().filter(|rule| !rules().contains(rule)) {
        let rest: Vec<&str> = all.iter().copied().filter(|it| it != rule).collect();
        allow(&rest);
        let denied = match *rule {
            "+asking" => underway(&cluster, &url, options(), "b").await,
            _ => everything(&url, options(), &cluster.nodes).await,
        };
        assert_eq!(denied, Err(ErrorKind::NoPermission), "without {rule}");
    }
    assert_eq!(all.len(), rules().len() + 3);

    // No user, a wrong password, too few rights: each error says what is wrong.
    allow(&all);
    let quick = || RedisOptions::default().timeout(std::time::Duration::from_secs(2));
    let wrong = url.replace("a-long-password", "another");
    // What is tried until the deadline may end with it.
    for (url, options, expected) in [
        (
            &wrong,
            with_authority(quick(), &certificates),
            [ErrorKind::Auth; 2],
        ),
        (&url, quick(), [ErrorKind::Connect, ErrorKind::Timeout]),
    ] {
        let run = everything(url, options, &cluster.nodes).await;
        assert!(run.is_err_and(|kind| expected.contains(&kind)), "{run:?}");
    }
}

#[tokio::test]
async fn sentinels_and_a_master_over_tls_with_the_manuals_users() {
    let certificates = Certificates::make();
    let user = |number| rules_of(number).join(" ");
    // The plain port is for the test; it needs only the password.
    let arguments = format!(
        "{} --requirepass secret --masterauth secret --user tidegate {}",
        certificates.redis("{third}"),
        user(MASTER)
    );
    let master = Server::start_with(&arguments.split(' ').collect::<Vec<_>>());
    let [_, port] = master.others();
    let sentinel = Server::start_sentinel(&format!(
        "{}\nport 0\nbind 127.0.0.1\nrequirepass hush\nuser tidegate {}\n\
         sentinel monitor main 127.0.0.1 {port} 1\nsentinel auth-pass main secret",
        certificates.redis("{port}").replace("--", "\n"),
        user(SENTINEL)
    ));
    let url = format!(
        "rediss-sentinel://{USER}@127.0.0.1:{}/main",
        sentinel.port()
    );
    let ours = || with_authority(patient(), &certificates);
    assert_eq!(everything(&url, ours(), &[]).await, Ok(()));
    let wrong = url.replace("a-long-password", "another");
    assert_eq!(everything(&wrong, ours(), &[]).await, Err(ErrorKind::Auth));
}
