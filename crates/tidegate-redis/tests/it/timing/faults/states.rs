//! States that pass: a server that is loading, a replica, or busy with a script. What
//! did not run is asked again, within the deadline.

use std::time::Duration;

use redis::Connection;
use tidegate::Source;
use tidegate_redis::{ErrorKind, RedisOptions};
use tokio::time::{sleep, timeout};

use super::errors::run;
use super::under_load::Fault;
use super::{Rig, load, until};
use crate::proxy::Proxy;
use crate::server::Server;

const MS: Duration = Duration::from_millis(1);

/// A store that waits long enough to see the end of it.
fn patient(url: &str) -> Rig {
    Rig::with(url, RedisOptions::default().timeout(20_000 * MS))
}

/// What a patient store has asked again is answered when the state has passed, and what
/// the others say until then.
async fn passes(url: &str, begins: impl FnOnce(), kind: ErrorKind, ends: impl FnOnce()) {
    let (rig, patient) = (Rig::new(url), patient(url));
    patient.until_answered().await;
    let mut waiting = None;
    let begins = || {
        begins();
        let patient = patient.clone();
        let check = async move { patient.check("allow", "patient").await.source() };
        waiting = Some(tokio::spawn(check));
    };
    Fault::new(kind.as_str(), &[kind])
        .strikes(&rig, begins, ends)
        .await;
    assert!(patient.store.stats().retries > 0);
    let waiting = timeout(20_000 * MS, waiting.unwrap()).await.expect("soon");
    assert_eq!(waiting.unwrap(), Source::Store);
    let used = patient.used("patient").await;
    assert_eq!(used, 1, "asked many times and charged twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_becomes_a_master() {
    let server = Server::start();
    let (mut one, mut other) = (server.connect(), server.connect());
    passes(
        &server.url(),
        || drop(run(&mut one, "REPLICAOF 127.0.0.1 1")),
        ErrorKind::ReadOnly,
        || drop(run(&mut other, "REPLICAOF NO ONE")),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_without_its_master() {
    let server = Server::start_with(&["--replica-serve-stale-data", "no"]);
    let (mut one, mut other) = (server.connect(), server.connect());
    passes(
        &server.url(),
        || drop(run(&mut one, "REPLICAOF 127.0.0.1 1")),
        ErrorKind::MasterDown,
        || drop(run(&mut other, "REPLICAOF NO ONE")),
    )
    .await;
}

/// A name that leads elsewhere after a failover: the old connections still lead to the
/// old master, which has become a replica and says so.
#[tokio::test]
async fn a_master_that_becomes_a_replica_while_another_one_takes_over() {
    let (old, new) = (Server::start(), Server::start());
    let proxy = Proxy::start(old.port()).await;
    let rig = patient(&proxy.url());
    rig.until_answered().await;
    run(
        &mut old.connect(),
        &format!("REPLICAOF 127.0.0.1 {}", new.port()),
    );
    proxy.lead_to(new.port());
    for id in 0..16 {
        let decision = timeout(10_000 * MS, rig.check("deny", &id.to_string())).await;
        assert_eq!(decision.expect("no time is lost").source(), Source::Store);
    }
    assert_eq!(rig.errors(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_busy_with_a_script() {
    let server = Server::start_with(&["--busy-reply-threshold", "10"]);
    let (mut one, mut other) = (server.connect(), server.connect());
    let mut third = server.connect();
    let mut busy = None;
    passes(
        &server.url(),
        || {
            busy = Some(std::thread::spawn(move || endless(&mut one)));
            while redis::cmd("PING").query::<()>(&mut third).is_ok() {}
        },
        ErrorKind::Busy,
        || drop(run(&mut other, "SCRIPT KILL")),
    )
    .await;
    assert!(busy.unwrap().join().unwrap());
}

/// Runs until it is killed.
fn endless(connection: &mut Connection) -> bool {
    let script = redis::cmd("EVAL")
        .arg("while true do end")
        .arg(0)
        .query::<()>(connection);
    script.is_err()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_still_reading_its_data() {
    let mut server = Server::start_with(&["--enable-debug-command", "local"]);
    // It answers in between, every few keys: long enough that one says why.
    let rig = Rig::with(&server.url(), RedisOptions::default().timeout(200 * MS));
    let patient = patient(&server.url());
    rig.until_answered().await;
    patient.until_answered().await;
    let mut connection = server.connect();
    run(&mut connection, "DEBUG POPULATE 200000");
    run(&mut connection, "SAVE");
    let hurried = Rig::new(&server.url());
    hurried.until_answered().await;
    let load = load::start(&hurried, 500);
    server.kill();
    // A tenth of a millisecond a key, with a look at what clients want every few, until it
    // is told to hurry.
    let slowly = [
        "--key-load-delay",
        "100",
        "--loading-process-events-interval-bytes",
        "1024",
    ];
    server.restart_with(&slowly);
    let waiting = {
        let patient = patient.clone();
        tokio::spawn(async move { patient.check("allow", "patient").await.source() })
    };
    let mut kinds = rig.until_open().await;
    rig.is_obeyed().await;
    while rig.count(ErrorKind::Loading) == 0 {
        assert!(!waiting.is_finished(), "{kinds:?}");
        kinds.extend(rig.error("any").await);
        sleep(MS).await;
    }
    run(&mut server.connect(), "CONFIG SET key-load-delay 0");
    assert_eq!(waiting.await.unwrap(), Source::Store);
    assert!(patient.store.stats().retries > 0);
    rig.until_answered().await;
    until("closed", || !hurried.store.stats().breaker_open).await;
    let kinds = [
        ErrorKind::Loading,
        ErrorKind::Connect,
        ErrorKind::OutcomeUnknown,
    ];
    Fault::new("loading", &kinds).is_over(&hurried, load).await;
}
