//! Servers that answer, but not with decisions.

use std::time::{Duration, Instant};

use redis::Connection;
use tidegate::Source;
use tidegate_redis::ErrorKind;
use tokio::time::sleep;

use super::load::{self, Load};
use super::under_load::Fault;
use super::{Rig, obeys};
use crate::server::Server;
use crate::support::patient;

/// Runs a command, which must succeed.
pub(super) fn run(connection: &mut Connection, command: &str) -> redis::Value {
    let mut words = command.split(' ');
    let mut cmd = redis::cmd(words.next().unwrap());
    words.for_each(|word| {
        cmd.arg(if word == "''" { "" } else { word });
    });
    cmd.query(connection).unwrap()
}

/// Breaks the server, looks at the log, repairs the server and waits for it.
async fn fault(rig: &Rig, breaks: impl FnOnce(), kind: ErrorKind, repairs: impl FnOnce()) {
    rig.until_answered().await;
    breaks();
    // A connection that is closed right after it was used is a lost one.
    sleep(Duration::from_millis(20)).await;
    let kinds = rig.until_open().await;
    assert!(kinds.iter().all(|it| *it == kind), "{kind}: {kinds:?}");
    assert_eq!(rig.count(kind), 5);
    rig.is_obeyed().await;
    repairs();
    let back = rig.until_answered().await;
    let bound = Duration::from_millis(1_500);
    assert!(back.is_within(bound), "{kind}: {back:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_memory() {
    let server = Server::start();
    let rig = Rig::new(&server.url());
    let (mut full, mut free) = (server.connect(), server.connect());
    Fault::new("out of memory", &[ErrorKind::OutOfMemory])
        .strikes(
            &rig,
            || drop(run(&mut full, "CONFIG SET maxmemory 1")),
            || drop(run(&mut free, "CONFIG SET maxmemory 0")),
        )
        .await;
    // The server has answered: asking again would have changed nothing.
    let rig = Rig::with(&server.url(), patient());
    fault(
        &rig,
        || drop(run(&mut full, "CONFIG SET maxmemory 1")),
        ErrorKind::OutOfMemory,
        || drop(run(&mut free, "CONFIG SET maxmemory 0")),
    )
    .await;
    assert_eq!(rig.store.stats().retries, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_password_after_a_reconnect() {
    let server = Server::start_with(&["--requirepass", "one"]);
    let url = format!("redis://:one@127.0.0.1:{}/", server.port());
    let rig = Rig::new(&url);
    let client = redis::Client::open(url).unwrap();
    let mut admin = client.get_connection().unwrap();
    let mut again = client.get_connection().unwrap();
    let kept = again.get_connection_id();
    // What was on its way when the connections were closed is lost.
    let kinds = [ErrorKind::Auth, ErrorKind::OutcomeUnknown];
    Fault::new("another password", &kinds)
        .strikes(
            &rig,
            || {
                run(&mut admin, "CONFIG SET requirepass two");
                kill_others(&mut admin, kept);
            },
            || drop(run(&mut again, "CONFIG SET requirepass one")),
        )
        .await;
    assert!(rig.count(ErrorKind::Auth) > 0);
}

#[tokio::test]
async fn a_password_where_there_was_none() {
    let server = Server::start();
    let rig = Rig::with(&server.url(), patient());
    let (mut admin, mut again) = (server.connect(), server.connect());
    let kept = again.get_connection_id();
    fault(
        &rig,
        || {
            run(&mut admin, "CONFIG SET requirepass one");
            kill_others(&mut admin, kept);
        },
        ErrorKind::Auth,
        || drop(run(&mut again, "CONFIG SET requirepass ''")),
    )
    .await;
}

#[tokio::test]
async fn user_loses_the_right_to_run_scripts() {
    let server = Server::start();
    let rig = Rig::with(&server.url(), patient());
    let (mut admin, mut again) = (server.connect(), server.connect());
    fault(
        &rig,
        || drop(run(&mut admin, "ACL SETUSER default -evalsha -eval")),
        ErrorKind::NoPermission,
        || drop(run(&mut again, "ACL SETUSER default +@all")),
    )
    .await;
}

trait ConnectionId {
    fn get_connection_id(&mut self) -> i64;
}

impl ConnectionId for Connection {
    fn get_connection_id(&mut self) -> i64 {
        redis::cmd("CLIENT").arg("ID").query(self).unwrap()
    }
}

/// Closes every connection but this one and another.
fn kill_others(admin: &mut Connection, kept: i64) {
    let own = admin.get_connection_id();
    let list: String = redis::cmd("CLIENT").arg("LIST").query(admin).unwrap();
    for line in list.lines() {
        let id = line.split(' ').next().and_then(|id| id.strip_prefix("id="));
        let id: i64 = id.unwrap().parse().unwrap();
        if id != own && id != kept {
            // One that has gone by itself is as good.
            drop(
                redis::cmd("CLIENT")
                    .arg(&["KILL", "ID"][..])
                    .arg(id)
                    .query::<()>(admin),
            );
        }
    }
}

/// Two loads at a time on a server that answers all the time, so the breaker has no
/// reason to open. One has the usual deadline, which is kept. The other waits longer than
/// any machine is busy with other things, so who has answered it is exact.
async fn answers_all_along(
    what: &str,
    server: &Server,
    meanwhile: impl AsyncFnOnce(),
) -> (Rig, Load) {
    let (patient, hurried) = (Rig::with(&server.url(), patient()), Rig::new(&server.url()));
    patient.until_answered().await;
    hurried.until_answered().await;
    let loads = [&patient, &hurried].map(|rig| load::start(rig, 600));
    meanwhile().await;
    let [exact, quick] = loads;
    quick.stop().await.keeps_the_deadline(what);
    let exact = exact.stop().await;
    let stats = patient.store.stats();
    assert!(!stats.breaker_open && patient.count(ErrorKind::BreakerOpen) == 0);
    assert_eq!(patient.errors(), exact.without_store as u64);
    (patient, exact)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_are_forgotten_are_sent_again_unseen() {
    let server = Server::start();
    let mut connection = server.connect();
    let (_, load) = answers_all_along("script flush", &server, async || {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(2) {
            run(&mut connection, "SCRIPT FLUSH");
            sleep(Duration::from_millis(3)).await;
        }
    })
    .await;
    assert_eq!(load.without_store, 0);
    let info = redis::cmd("INFO").arg("errorstats").query(&mut connection);
    let info: String = info.unwrap();
    println!("script flush: {info}");
    assert!(info.contains("errorstat_NOSCRIPT:count="));
}

/// Keys that hold what is none of ours: theirs alone is the trouble.
#[tokio::test]
async fn key_of_another_type() {
    let server = Server::start();
    let rig = Rig::with(&server.url(), patient());
    rig.until_answered().await;
    let mut connection = server.connect();
    for (policy, _) in super::POLICIES {
        let _ = rig.check(policy, "list").await;
        let _ = rig.check(policy, "text").await;
    }
    for id in ["list", "text"] {
        let keys = redis::cmd("KEYS")
            .arg(format!("*{id}*"))
            .query(&mut connection);
        let keys: Vec<String> = keys.unwrap();
        assert_eq!(keys.len(), 3);
        for key in keys {
            run(&mut connection, &format!("DEL {key}"));
            match id {
                "list" => run(&mut connection, &format!("LPUSH {key} junk")),
                _ => run(&mut connection, &format!("SET {key} junk")),
            };
        }
    }
    for _ in 0..20 {
        for id in ["list", "text"] {
            assert_eq!(rig.error(id).await, Some(ErrorKind::WrongType), "{id}");
            for (policy, _) in super::POLICIES {
                let decision = rig.check(policy, id).await;
                assert_ne!(decision.source(), Source::Store);
                obeys(policy, &decision);
                assert_eq!(rig.check(policy, "other").await.source(), Source::Store);
            }
        }
        assert!(!rig.store.stats().breaker_open);
    }
    assert_eq!(rig.count(ErrorKind::WrongType), 160);
    // A reset is for this, too.
    for id in ["list", "text"] {
        let attributes = [("id", id)];
        let reset = rig.limiter.reset("deny", &attributes, tidegate::Which::All);
        assert_eq!(reset.await, Ok(1));
        assert_eq!(rig.check("deny", id).await.source(), Source::Store);
    }
}

/// It is only about these keys: theirs are left to `on_error`, all others to the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_another_type_under_load() {
    let server = Server::start();
    let mut connection = server.connect();
    let broken = |key: usize| key >= load::KEYS - 8;
    for key in (0..load::KEYS).filter(|key| broken(*key)) {
        for (policy, _) in super::POLICIES {
            let key = format!("tg:{{{key}}}:{policy}:{policy}~fw");
            run(&mut connection, &format!("LPUSH {key} junk"));
        }
    }
    let (rig, load) = answers_all_along("keys of another type", &server, async || {
        sleep(Duration::from_secs(2)).await;
    })
    .await;
    for key in 0..load::KEYS {
        let answered = load.answered(key);
        assert!(answered.len() > 10, "{key}: {}", answered.len());
        assert!(answered.iter().all(|it| *it != broken(key)), "{key}");
    }
    assert_eq!(rig.count(ErrorKind::WrongType), load.without_store as u64);
}
