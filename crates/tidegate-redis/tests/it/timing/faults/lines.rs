//! Log lines: a handful for an outage, which name the store, what is wrong, and what is
//! done about it.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tidegate::{Cost, Limit, Mode, OnError, Policy, Source};
use tidegate_redis::{ErrorKind, RedisOptions, RedisStore, TryCheckError};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::Rig;
use crate::proxy::{Proxy, Replies};
use crate::server::Server;
use crate::support::{limiter_over, patient};

/// Keeps the lines of the store.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push_str(&format!(" {field}={value:?}"));
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tidegate_redis")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Asks as fast as it goes: for so long, and each of twenty callers so often at least.
async fn hammer(rig: &Rig, time: Duration, often: usize) -> usize {
    let start = Instant::now();
    let mut callers = JoinSet::new();
    for caller in 0..20 {
        let rig = rig.clone();
        callers.spawn(async move {
            let mut asked = 0;
            while start.elapsed() < time || asked < often {
                let _ = rig.check("allow", &caller.to_string()).await;
                asked += 1;
                tokio::task::yield_now().await;
            }
            asked
        });
    }
    callers.join_all().await.iter().sum()
}

/// Lines since then: of each kind one in ten seconds, which a slow machine may need more
/// often than once.
fn handful(since: Instant) -> usize {
    let tens = since.elapsed().as_secs() / 10;
    6 * (1 + usize::try_from(tens).unwrap())
}

/// On one thread: lines are caught where they are written.
#[tokio::test]
async fn outage_is_logged_in_a_handful_of_lines() {
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    let mut server = Server::start();
    let rig = Rig::with(&server.url(), RedisOptions::default().name("counts"));
    // Lines of before count as well: a machine that stops for a while is an outage, too.
    let start = Instant::now();
    rig.until_answered().await;
    server.kill();
    let asked = hammer(&rig, Duration::from_secs(2), 250).await;
    server.restart();
    let restarted = Instant::now();
    rig.until_answered().await;
    // One check in five milliseconds at most, until the store answers.
    let asked = asked + usize::try_from(restarted.elapsed().as_millis() / 5).unwrap() + 1;
    let lines = lines.take();
    println!("{asked} checks in an outage: {lines:#?}");
    assert!(lines.len() <= handful(start), "{} lines", lines.len());
    assert!(lines.iter().all(|line| line.contains("store=\"counts\"")));
    // Each deadline passes while a connection is refused or while the next one is being
    // made, and the error is the one or the other.
    let says_why = |line: &str| line.contains("connect: ") || line.contains("timeout: ");
    let has = |words: &[&str]| {
        let mut like = lines
            .iter()
            .filter(|line| words.iter().all(|it| line.contains(it)));
        like.any(|line| words[0] == "INFO" || says_why(line))
    };
    let policies = "policies=allowed: allow; decided locally: local; denied: deny";
    let address = format!("server=\"127.0.0.1:{}\"", server.port());
    assert!(has(&[
        "ERROR",
        "the store keeps failing: checks do not wait for it",
        policies,
        &address
    ]));
    assert!(has(&[
        "WARN",
        "the store does not answer: on_error decides",
        policies,
        &address
    ]));
    assert!(has(&[
        "INFO",
        "the store answers again",
        " outage=",
        " checks_without_it=",
        &address
    ]));
    // Every check of the outage is one of those.
    let again = lines
        .iter()
        .rfind(|line| line.contains("answers again"))
        .expect("checked above");
    let count = again
        .split("checks_without_it=")
        .nth(1)
        .expect("checked above");
    let count: usize = count
        .split(' ')
        .next()
        .expect("a number")
        .parse()
        .expect("a number");
    assert!(count > 0 && count <= asked, "{count} of {asked}");
}

/// Keys may be names of people: the error has them, and the log has not.
#[tokio::test]
async fn a_key_of_another_type_is_named_to_the_caller_and_not_to_the_log() {
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    let server = Server::start();
    let rig = Rig::with(&server.url(), patient());
    // A line break, a quote and a byte that is no text: none of them gets through.
    let id: &[u8] = b"al\nice\"\xff";
    let key = "tg:{al%0Aice%22%FF}:allow:allow~fw";
    let pushed = redis::cmd("RPUSH")
        .arg(&[key, "1"][..])
        .query::<()>(&mut server.connect());
    pushed.unwrap();
    let attributes = [("id", id)];
    let asked = rig.limiter.try_check("allow", &attributes, Cost::ONE);
    let Err(TryCheckError::Store(error)) = asked.await else {
        panic!("an error of the store");
    };
    assert_eq!(error.kind(), ErrorKind::WrongType);
    assert_eq!(error.keys(), [key]);
    assert!(
        error.to_string().ends_with(&format!(": {key:?}")),
        "{error}"
    );
    assert!(!error.redacted().to_string().contains("ice"));
    let lines = lines.take();
    assert!(lines.iter().any(|line| line.contains("wrong_type")));
    assert!(lines.iter().all(|line| !line.contains("ice")), "{lines:?}");
}

#[tokio::test]
async fn a_store_that_comes_and_goes_does_not_flood_the_log() {
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let rig = Rig::new(&proxy.url());
    let start = Instant::now();
    for _ in 0..8 {
        proxy.set(Replies::Pass);
        rig.until_answered().await;
        proxy.set(Replies::Cut { after: 0 });
        rig.until_open().await;
        sleep(Duration::from_millis(10)).await;
    }
    let lines = lines.take();
    println!("came and went eight times: {lines:#?}");
    assert!(lines.len() <= handful(start), "{} lines", lines.len());
}

/// Nobody asks, and it is noticed all the same.
#[tokio::test]
async fn probes_notice_the_end_and_the_return_of_an_idle_store() {
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    let mut server = Server::start();
    server.kill();
    let rig = Rig::with(&server.url(), RedisOptions::default().name("counts"));
    let start = Instant::now();
    // Down from the start.
    while !rig.store.stats().breaker_open {
        rig.store.probe().await;
        assert!(start.elapsed() < Duration::from_secs(60), "it never opens");
        sleep(Duration::from_millis(10)).await;
    }
    assert!(!rig.store.stats().up);
    server.restart();
    while !rig.store.stats().up {
        rig.store.probe().await;
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "it never answers"
        );
        sleep(Duration::from_millis(10)).await;
    }
    let lines = lines.take();
    let has = |words: &[&str]| {
        lines
            .iter()
            .any(|line| words.iter().all(|it| line.contains(it)))
    };
    assert!(
        has(&["WARN", "does not answer", "Connection refused"]),
        "{lines:#?}"
    );
    assert!(has(&["ERROR", "keeps failing"]), "{lines:#?}");
    assert!(
        has(&["INFO", "answers again", "checks_without_it=0"]),
        "{lines:#?}"
    );
    assert!(lines.len() <= handful(start), "{lines:#?}");
}

/// U9: checks of a leased key wait for a message of the key, which is not a check.
#[tokio::test]
async fn u9_end_of_an_outage_counts_checks_of_leased_keys() {
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    let mut server = Server::start();
    let store = RedisStore::new(&server.url(), RedisOptions::default()).unwrap();
    let policy = Policy::builder("p").key("{key}").mode(Mode::Lease);
    let policy = policy.limit(Limit::per_second(1_000_000));
    let policy = policy.on_error(OnError::Allow).build().unwrap();
    let limiter = limiter_over(store.clone(), [policy]);
    let source = async || {
        let decision = limiter.check("p", &[("key", "k")], Cost::ONE).await;
        decision.unwrap().source()
    };
    while source().await != Source::Lease {}
    server.kill();
    let mut without_store = 0;
    while without_store < 200 {
        without_store += u64::from(source().await == Source::ErrorPolicy);
    }
    let while_down = without_store;
    server.restart();
    let start = Instant::now();
    while source().await == Source::ErrorPolicy {
        without_store += 1;
        assert!(start.elapsed() < Duration::from_secs(60), "never answers");
        sleep(Duration::from_millis(1)).await;
    }
    let lines = lines.take();
    let line = lines.iter().find(|line| line.contains("answers again"));
    let counted = line.and_then(|line| line.split("checks_without_it=").nth(1));
    let counted: u64 = counted.expect("an end").parse().expect("a number");
    // A check that fails while the server comes back may be told its result after the end.
    let possible = while_down..=without_store;
    assert!(possible.contains(&counted), "{possible:?}: {lines:#?}");
}
