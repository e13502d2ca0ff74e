//! One rig for faults of a server: the rows of `faults.txt`, and faults of single keys.

use std::time::Duration;

use redis::{Connection, Value};
use tidegate::{Source, Which};
use tidegate_redis::ErrorKind;
use tidegate_testkit::cluster::run;
use tokio::runtime::{Builder, Handle};
use tokio::time::{sleep, timeout};

use super::load;
use super::rig::{MS, Rig, until};
use crate::proxy::{Proxy, Replies};
use crate::server::Server;
use crate::support::{Named, patient};

const FAULTS: &str = include_str!("faults.txt");

/// How many rows run at a time: each waits most of the time.
const AT_ONCE: usize = 5;

/// Checks per second of a load, and its keys.
const RATE: u32 = 500;
const KEYS: usize = 64;

/// Tasks that a store keeps: a worker and a connection for each of its two lanes.
const TASKS: usize = 4;

/// A row of the file.
#[derive(Clone, Copy)]
struct Row<'r> {
    what: &'r str,
    text: &'r str,
}

impl<'r> Row<'r> {
    fn has(self, field: &str) -> bool {
        self.find(field).is_some()
    }

    fn find(self, field: &str) -> Option<&'r str> {
        let lines = self.text.lines();
        let mut lines = lines.filter_map(|line| Some(line.strip_prefix(field)?.trim()));
        lines.next()
    }

    fn ms(self, field: &str, otherwise: u32) -> Duration {
        let number = self.find(field).map(|it| it.parse().expect(it));
        number.unwrap_or(otherwise) * MS
    }

    fn kinds(self) -> Vec<ErrorKind> {
        let named = |name| ErrorKind::ALL.into_iter().find(|it| it.as_str() == name);
        let words = self.find("errors").expect("a field").split(' ');
        words.map(|name| named(name).expect(name)).collect()
    }
}

/// A server, and a proxy where the network is what breaks.
struct Stage {
    server: Server,
    admin: Connection,
    proxy: Option<Proxy>,
    url: String,
    /// Connections with a command that is not answered.
    unanswered: Vec<Connection>,
}

impl Stage {
    async fn new(row: Row<'_>) -> Self {
        let server = Server::start_with(&["--enable-debug-command", "local"]);
        let is_network = row.find("breaks").expect("a field").starts_with("replies");
        let proxy = match is_network {
            true => Some(Proxy::start(server.port()).await),
            false => None,
        };
        let url = proxy.as_ref().map_or_else(|| server.url(), Proxy::url);
        let mut stage = Self {
            admin: server.connect(),
            server,
            proxy,
            url,
            unanswered: Vec::new(),
        };
        let before = row.find("before").unwrap_or("PING");
        stage.perform(before);
        if before.contains("requirepass") {
            stage.url = stage.url.replace("//", "//:one@");
        }
        stage
    }

    fn perform(&mut self, actions: &str) {
        for action in actions.split("; ") {
            let words: Vec<&str> = action.split(' ').collect();
            match words[..] {
                ["signal", name] => self.server.signal(name),
                ["kill"] => self.server.kill(),
                ["restart", ref arguments @ ..] => {
                    self.server.restart_with(arguments);
                    self.admin = self.server.connect();
                }
                ["replies", how] => self.proxy.as_ref().unwrap().set(replies(how)),
                ["endless", "script"] => {
                    let mut script = redis::cmd("EVAL");
                    let script = script.arg("while true do end").arg(0);
                    let mut busy = self.server.connect();
                    busy.send_packed_command(&script.get_packed_command())
                        .unwrap();
                    self.unanswered.push(busy);
                    while redis::cmd("PING").query::<()>(&mut self.admin).is_ok() {}
                }
                _ => drop(run::<Value>(&mut self.admin, action)),
            }
        }
    }

    /// Connections that were made through the proxy.
    fn connections(&self) -> usize {
        self.proxy.as_ref().map_or(0, Proxy::accepted)
    }
}

fn replies(how: &str) -> Replies {
    match how {
        "pass" => Replies::Pass,
        "late" => Replies::Delay(500 * MS),
        "lost" => Replies::BlackHole,
        "half" => Replies::Half,
        "cut" => Replies::Cut { after: 5 },
        "junk" => Replies::Junk,
        _ => panic!("{how}"),
    }
}

#[test]
fn each_fault_opens_the_breaker_obeys_on_error_and_passes() {
    let cases = FAULTS.split("\n--- ").skip(1);
    let rows: Vec<Row<'_>> = cases
        .map(|case| case.split_once('\n').expect(case))
        .map(|(what, text)| Row { what, text })
        .collect();
    assert!(rows.len() >= 19, "is the file cut off?");
    let row = |row: Row<'_>| {
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            match row.has("load") {
                true => strikes_a_load(row).await,
                false => strikes_one_caller(row).await,
            }
        });
    };
    let mut failed = Vec::new();
    for rows in rows.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            let threads = rows.iter().map(|it| (it.what, scope.spawn(|| row(*it))));
            for (what, thread) in threads.collect::<Vec<_>>() {
                failed.extend(thread.join().is_err().then_some(what));
            }
        });
    }
    assert!(failed.is_empty(), "failed, as printed above: {failed:#?}");
}

/// The kinds of errors that the store has had, as a row has them.
fn errors(rig: &Rig) -> String {
    let errors = rig.store.stats().errors;
    let had = errors.iter().filter(|(_, count)| *count > 0);
    let names: Vec<&str> = had.map(|(kind, _)| kind.as_str()).collect();
    format!("errors    {}", names.join(" "))
}

/// The breaker opens, stays open while the fault lasts and closes after it; every check obeys
/// `on_error`, 999 of 1,000 have their answer within a deadline and 10 ms, nobody is stuck, and
/// nothing is left behind.
async fn strikes_a_load(row: Row<'_>) {
    let (what, kinds) = (row.what, row.kinds());
    let mut stage = Stage::new(row).await;
    let breaks = row.find("breaks").expect("a field");
    let rig = Rig::new(&stage.url);
    let patient = Rig::with(&stage.url, patient());
    let is_retried = row.find("retries") == Some("answered");
    if is_retried {
        patient.until_answered().await;
    }
    match row.has("early") {
        true => stage.perform(breaks),
        false => drop(rig.until_answered().await),
    }
    let load = load::start(&rig, RATE, KEYS);
    let before = stage.connections();
    if !row.has("early") {
        sleep(300 * MS).await;
        stage.perform(breaks);
    }
    let mut waiting = None;
    if is_retried {
        let patient = patient.clone();
        waiting = Some(tokio::spawn(async move {
            patient.source("allow", "patient").await
        }));
    }
    let opened = until("the breaker is open", async || rig.is_open()).await;
    rig.is_obeyed().await;
    sleep(row.ms("lasts", 1_200)).await;
    assert!(rig.is_open(), "{what}");
    // On a machine that stalls, deadlines may have come first; then a probe meets it.
    let is_counted = until("it is counted", async || rig.count(kinds[0]) > 0);
    let counted = timeout(20_000 * MS, is_counted).await;
    assert!(
        counted.is_ok(),
        "{what}: no {}:\n{}",
        kinds[0],
        errors(&rig)
    );
    let connections = (stage.connections() - before) as u64;
    stage.perform(row.find("repairs").expect("a field"));
    let closed = until("the breaker is closed", async || !rig.is_open()).await;
    println!("{what}: opened after {opened:?}, closed {closed:?} after it was over");
    assert!(closed < row.ms("back", 1_500), "{what}: {closed:?}");

    if let Some(waiting) = waiting {
        let source = timeout(20_000 * MS, waiting).await.expect("soon");
        assert_eq!(source.unwrap(), Source::Store, "{what}");
        assert!(patient.store.stats().retries > 0, "{what}");
        assert_eq!(patient.used("allow", "patient").await, 1, "{what}: charged");
    }
    is_over(row, &rig, load, connections).await;
}

/// What holds when all is well again.
async fn is_over(row: Row<'_>, rig: &Rig, load: load::Running, connections: u64) {
    let (what, tasks) = (row.what, load.tasks.max(TASKS));
    let load = load.stop_after(700 * MS).await;
    rig.until_answered().await;
    let alive = || Handle::current().metrics().num_alive_tasks();
    until("nothing is left behind", async || alive() <= tasks).await;
    load.keeps_the_deadline(what);
    let without = load.without_store();
    assert!(load.0.len() - without > 50, "{what}: {without} without");
    // A deadline now and then, and not on every check: those that are under way when the fault
    // is noticed, and the probes.
    let (timeouts, late) = (rig.count(ErrorKind::Timeout), load.late_checks());
    let most = without as u64 / 4 + late;
    assert!(timeouts <= most, "{what}: {timeouts} timeouts of {most}");
    if let Some(most) = row.find("connects") {
        // A connection that is silent for a second is given up: each of the two, when the
        // machine stalls for as long as it takes.
        let most = most.parse::<u64>().expect(most) + 2 * load.stalls(400 * MS);
        assert!(connections <= most, "{what}: {connections} connections");
    }
    let kinds = row.kinds();
    for (kind, count) in rig.store.stats().errors {
        let most = match kind {
            _ if kinds.contains(&kind) => continue,
            // Whatever the machine does, the deadline may come first, also in the queue.
            ErrorKind::BreakerOpen | ErrorKind::Timeout | ErrorKind::QueueFull => continue,
            // Connections seem to be dead while it stalls, and all is lost then.
            ErrorKind::Connect | ErrorKind::OutcomeUnknown => late,
            _ => 0,
        };
        let had = errors(rig);
        assert!(count <= most, "{what}: {count} of {kind} of {most}:\n{had}");
    }
}

/// A caller meets the fault so often, and pays a deadline each time at most. Then the breaker
/// is open.
async fn strikes_one_caller(row: Row<'_>) {
    let what = row.what;
    let mut stage = Stage::new(row).await;
    let rig = match row.has("hurried") {
        true => Rig::new(&stage.url),
        false => Rig::with(&stage.url, patient()),
    };
    if !row.has("early") {
        rig.until_answered().await;
    }
    stage.perform(row.find("breaks").expect("a field"));
    // A connection that is closed right after it was used is a lost one.
    sleep(20 * MS).await;
    let opens: usize = row.find("opens").unwrap().parse().unwrap();
    rig.opens_after(what, opens, &row.kinds()).await;
    let retries = rig.store.stats().retries;
    match row.find("retries") {
        Some("none") => assert_eq!(retries, 0, "{what}"),
        Some("some") => assert!(retries > 0, "{what}"),
        _ => {}
    }
    rig.is_obeyed().await;
    stage.perform(row.find("repairs").expect("a field"));
    let back = rig.until_answered().await;
    assert!(back < row.ms("back", 1_500), "{what}: {back:?}");
}

/// It is only about these keys, though they travel with others: theirs are left to `on_error`,
/// all others to the store.
#[tokio::test]
async fn e11_key_of_another_type_is_an_error_of_its_own_kind_and_concerns_no_other_key() {
    let server = Server::start();
    let redis = &mut server.connect();
    for key in ["allow", "deny"] {
        run::<Value>(redis, &format!("LPUSH tg:{{junk}}:{key}:{key}~fw junk"));
    }
    let rig = Rig::with(&server.url(), patient());
    // Each of them more often than opens the breaker.
    let ids = ["junk", "well"].into_iter().cycle().take(40);
    let checks = ids.map(async |id| (id, rig.error(id).await));
    for (id, error) in futures_util::future::join_all(checks).await {
        let expected = (id == "junk").then_some(ErrorKind::WrongType);
        assert_eq!(error, expected, "{id}");
    }
    assert!(!rig.is_open());
    assert!(rig.store.stats().batches < 40, "all travel alone");
    // A reset is for this, too.
    assert_eq!(rig.source("deny", "junk").await, Source::ErrorPolicy);
    let reset = rig.limiter.of("deny").reset(&[("id", "junk")], Which::All);
    assert_eq!(reset.await, Ok(1));
    assert_eq!(rig.source("deny", "junk").await, Source::Store);
}
