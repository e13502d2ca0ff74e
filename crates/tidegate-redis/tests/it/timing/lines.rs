//! Log lines: a handful for an outage, which name the store, what is wrong, and what is done
//! about it. Tests have one thread: lines are caught where they are written.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tidegate::{Cost, Limit, Mode, OnError, Policy, Source};
use tidegate_redis::{ErrorKind, RedisOptions, TryCheckError};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::subscriber::DefaultGuard;

use super::rig::{MS, Rig, until};
use crate::proxy::Replies;
use crate::server::Server;
use crate::support::{Named, patient};

/// The lines of the store.
#[derive(Clone)]
struct Lines(Arc<Mutex<Vec<String>>>, Instant);

impl Lines {
    /// Catches them until the guard is dropped.
    fn catch() -> (Self, DefaultGuard) {
        let lines = Self(Arc::default(), Instant::now());
        let writer = lines.clone();
        let log = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE);
        let log = log.with_ansi(false).without_time().with_target(false);
        let log = log.with_writer(move || writer.clone());
        (lines, tracing::subscriber::set_default(log.finish()))
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Whether a line has all of these words.
    fn assert_one(&self, words: &[&str]) {
        let lines = self.all();
        let mut like = lines.iter();
        let found = like.any(|line| words.iter().all(|it| line.contains(it)));
        assert!(found, "{words:?}: {lines:#?}");
    }

    /// Of each kind there is one in ten seconds, which a slow machine may need more often than
    /// once.
    fn assert_handful(&self) {
        let (lines, tens) = (self.all(), self.1.elapsed().as_secs() / 10);
        assert!(lines.len() as u64 <= 6 * (1 + tens), "{lines:#?}");
    }

    /// How many checks the last outage had to do without the store.
    fn checks_without_it(&self) -> u64 {
        let lines = self.all();
        let mut ends = lines.iter().filter(|line| line.contains("answers again"));
        let end = ends.next_back().expect("an end");
        let (_, count) = end.split_once("checks_without_it=").expect(end);
        count.split(' ').next().unwrap().parse().expect(end)
    }
}

impl Write for Lines {
    /// Takes a line.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = String::from_utf8_lossy(bytes).trim().to_owned();
        self.0.lock().unwrap().push(line);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Twenty callers ask as fast as it goes, for a second, and so often at least.
async fn hammer(rig: &Rig) -> u64 {
    let start = Instant::now();
    let mut callers = JoinSet::new();
    for caller in 0..20 {
        let rig = rig.clone();
        callers.spawn(async move {
            let mut checks = 0;
            while start.elapsed() < 1_000 * MS || checks < 250 {
                let _ = rig.check("allow", caller).await;
                checks += 1;
                tokio::task::yield_now().await;
            }
            checks
        });
    }
    callers.join_all().await.iter().sum()
}

#[tokio::test]
async fn outage_is_logged_in_a_handful_of_lines() {
    let (lines, _guard) = Lines::catch();
    let mut server = Server::start();
    let rig = Rig::with(&server.url(), RedisOptions::default().name("counts"));
    rig.until_answered().await;
    server.kill();
    let checks = hammer(&rig).await;
    server.restart();
    let restarted = Instant::now();
    rig.until_answered().await;
    // One check in two milliseconds at most, until the store answers.
    let checks = checks + u64::try_from(restarted.elapsed().as_millis() / 2).unwrap() + 1;
    lines.assert_handful();
    let policies = "policies=allowed: allow; decided locally: local; denied: deny";
    let server = format!("store=\"counts\" server=\"127.0.0.1:{}\"", server.port());
    let keeps = "the store keeps failing: checks do not wait for it";
    let silent = "the store does not answer: on_error decides";
    let again = "the store answers again";
    lines.assert_one(&["ERROR", keeps, policies, &server]);
    lines.assert_one(&["WARN", silent, policies, &server]);
    lines.assert_one(&["INFO", again, " outage=", &server]);
    for line in lines.all() {
        assert!(line.contains("store=\"counts\""), "{line}");
        // The server closes the connections that there are. After that, each deadline passes
        // while a connection is refused or while the next one is being made.
        let causes = ["outcome_unknown: ", "connect: ", "timeout: "];
        let says_why = causes.iter().any(|cause| line.contains(cause));
        assert!(says_why || line.starts_with("INFO"), "{line}");
    }
    // Every check of the outage is one of those.
    let count = lines.checks_without_it();
    assert!(count > 0 && count <= checks, "{count} of {checks}");
}

/// Keys may be names of people: the error has them, and the log has not.
#[tokio::test]
async fn a_key_of_another_type_is_named_to_the_caller_and_not_to_the_log() {
    let (lines, _guard) = Lines::catch();
    let server = Server::start();
    let rig = Rig::with(&server.url(), patient());
    // No line break, quote or byte that is not text gets through.
    let id: &[u8] = b"al\nice\"\xff";
    let key = "tg:{al%0Aice%22%FF}:allow:allow~fw";
    let push = format!("RPUSH {key} 1");
    tidegate_testkit::cluster::run::<()>(&mut server.connect(), &push);
    let attributes = [("id", id)];
    let check = rig.limiter.of("allow").try_check(&attributes, Cost::ONE);
    let Err(TryCheckError::Store(error)) = check.await else {
        panic!("an error of the store");
    };
    assert_eq!(
        (error.kind(), error.keys()),
        (ErrorKind::WrongType, &[key.into()][..])
    );
    let text = error.to_string();
    assert!(text.ends_with(&format!(": {key:?}")), "{text}");
    assert!(!error.redacted().to_string().contains("ice"));
    lines.assert_one(&["wrong_type"]);
    assert!(!lines.all().concat().contains("ice"), "{:?}", lines.all());
}

#[tokio::test]
async fn a_store_that_comes_and_goes_does_not_flood_the_log() {
    let (lines, _guard) = Lines::catch();
    let (_server, proxy, rig) = Rig::behind_a_proxy(RedisOptions::default()).await;
    for _ in 0..8 {
        proxy.set(Replies::Cut { after: 0 });
        rig.until_open().await;
        sleep(10 * MS).await;
        proxy.set(Replies::Pass);
        rig.until_answered().await;
    }
    lines.assert_handful();
}

/// Nobody asks, and it is noticed all the same.
#[tokio::test]
async fn probes_notice_the_end_and_the_return_of_an_idle_store() {
    let (lines, _guard) = Lines::catch();
    let mut server = Server::start();
    server.kill();
    let rig = Rig::with(&server.url(), RedisOptions::default().name("counts"));
    let probe = async || {
        rig.store.probe().await;
        rig.store.stats()
    };
    // Down from the start.
    until("it is open", async || probe().await.breaker_open).await;
    assert!(!rig.store.stats().up);
    server.restart();
    until("it answers", async || probe().await.up).await;
    lines.assert_one(&["WARN", "does not answer", "Connection refused"]);
    lines.assert_one(&["ERROR", "keeps failing"]);
    assert_eq!(lines.checks_without_it(), 0);
    lines.assert_handful();
}

/// U9: checks of a leased key wait for a message of the key, which is not a check.
#[tokio::test]
async fn u9_end_of_an_outage_counts_checks_of_leased_keys() {
    let (lines, _guard) = Lines::catch();
    let mut server = Server::start();
    let policy = Policy::builder("p").key("{id}").mode(Mode::Lease);
    let policy = policy.limit(Limit::per_second(1_000_000));
    let policy = policy.on_error(OnError::Allow).build().unwrap();
    let rig = Rig::of(&server.url(), RedisOptions::default(), [policy]);
    while rig.source("p", 1).await != Source::Lease {}
    server.kill();
    let mut without_store = 0;
    while without_store < 200 {
        without_store += u64::from(rig.source("p", 1).await == Source::ErrorPolicy);
    }
    let while_down = without_store;
    server.restart();
    until("it answers", async || {
        let is_back = rig.source("p", 1).await != Source::ErrorPolicy;
        without_store += u64::from(!is_back);
        is_back
    })
    .await;
    // A check that fails while the server comes back may be told its result after the end.
    let (counted, possible) = (lines.checks_without_it(), while_down..=without_store);
    assert!(
        possible.contains(&counted),
        "{counted}: {possible:?}: {:#?}",
        lines.all()
    );
}
