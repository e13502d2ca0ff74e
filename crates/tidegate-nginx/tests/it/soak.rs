//! Every mode under load for minutes: neither memory nor descriptors grow.
//! `cargo xtask nginx test --soak` runs this.

use std::time::{Duration, Instant};

use tidegate_testkit::http::{Connection, request};
use tidegate_testkit::nginx::pipelined;
use tidegate_testkit::process::until;
use tidegate_testkit::redis::Server;

use crate::nginx::{serving_zones, start, store};

/// Keys of each zone: all are known after the first part of the soak.
const KEYS: usize = 500;

const ZONES: [&str; 5] = ["local", "exact", "lease", "background", "refused"];

/// How much a worker may have grown after the first part: what its allocator has in reserve.
const SLACK_KB: u64 = 2_048;

/// What a worker has taken.
#[derive(Debug)]
struct Usage {
    memory_kb: u64,
    descriptors: usize,
}

impl Usage {
    fn of(worker: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
        let line = status.lines().find_map(|it| it.strip_prefix("RssAnon:"));
        let memory = line.unwrap().trim().trim_end_matches(" kB");
        let descriptors = std::fs::read_dir(format!("/proc/{worker}/fd")).unwrap();
        Self {
            memory_kb: memory.parse().unwrap(),
            descriptors: descriptors.count(),
        }
    }
}

/// Asks all zones for all keys, in another order each time; now and then a client goes away
/// before it is answered.
fn load(port: u16, until: Instant) -> usize {
    let client = |mut round: usize| {
        let mut answered = 0;
        while Instant::now() < until {
            round += 1;
            let targets = (0..KEYS).map(|key| {
                let zone = ZONES[(key + round) % ZONES.len()];
                format!("/{zone}?k={}", key * 7 % KEYS)
            });
            let answers = pipelined(port, "HEAD", &targets.collect::<Vec<_>>());
            assert!(answers.iter().all(|answer| answer.status != 500));
            answered += answers.len();
            let mut gone = Connection::tcp(&format!("127.0.0.1:{port}"));
            gone.send(&request("GET", "/exact?k=gone", &[], &[]));
        }
        answered
    };
    std::thread::scope(|scope| {
        let clients = [0, 1].map(|round| scope.spawn(move || client(round)));
        clients.into_iter().map(|it| it.join().unwrap()).sum()
    })
}

#[test]
#[ignore = "takes minutes: `cargo xtask nginx test --soak` runs it"]
fn workers_hold_no_more_after_a_soak() {
    let length = std::env::var("TIDEGATE_SOAK").expect("`cargo xtask nginx test` sets it");
    let length = Duration::from_secs(length.parse().unwrap());
    let redis = Server::start();
    let zones = "
        tidegate_zone local key=$arg_k rate=1000000r/s mode=local;
        tidegate_zone exact key=$arg_k rate=1000000r/s mode=exact;
        tidegate_zone lease key=$arg_k rate=1000000r/s mode=lease;
        tidegate_zone background key=$arg_k rate=1000000r/s mode=background;
        tidegate_zone refused key=$arg_k rate=1r/s mode=exact;
        tidegate_log_level info; error_log FOLDER/error.log warn;";
    let nginx = start(2, &serving_zones(&(store(&redis, "10s") + zones), &ZONES));
    let start = Instant::now();
    load(nginx.port(), start + length / 3);
    let usage = || nginx.worker_ids().into_iter().map(Usage::of);
    let before: Vec<Usage> = usage().collect();
    let answered = load(nginx.port(), start + length);
    // Connections that clients have just closed are gone a moment later.
    let after = until("closed connections", || {
        let after: Vec<Usage> = usage().collect();
        let mut pairs = after.iter().zip(&before);
        let is_closed = pairs.all(|(after, before)| after.descriptors <= before.descriptors);
        is_closed.then_some(after)
    });
    assert!(answered > 0);
    eprintln!("{answered} requests; before {before:?}, after {after:?}");
    for (before, after) in before.iter().zip(&after) {
        assert!(after.memory_kb <= before.memory_kb + SLACK_KB, "{after:?}");
    }
    assert_eq!(nginx.errors(), Vec::<String>::new());
}
