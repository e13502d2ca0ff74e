//! Every mode under load for minutes: neither memory nor descriptors grow.
//! `cargo xtask nginx test --soak` runs this.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::client::{pipelined, request};
use crate::nginx::Nginx;
use crate::process::wait_for;
use crate::redis::Redis;

/// Keys of each zone: all are known after the first part of the soak.
const KEYS: usize = 500;

/// How much a worker may have grown after the first part: what its allocator has in reserve.
const SLACK_KB: u64 = 2_048;

/// What a worker holds.
#[derive(Debug)]
struct Held {
    memory_kb: u64,
    descriptors: usize,
}

impl Held {
    fn by(worker: u32) -> Self {
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
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..2)
            .map(|client| {
                scope.spawn(move || {
                    let (mut answered, mut round) = (0, client);
                    while Instant::now() < until {
                        round += 1;
                        let targets: Vec<String> = (0..KEYS)
                            .map(|key| {
                                let zone = ["local", "exact", "lease", "background", "refused"];
                                let zone = zone[(key + round) % zone.len()];
                                format!("/{zone}?k={}", key * 7 % KEYS)
                            })
                            .collect();
                        let heads = pipelined(port, &targets).unwrap();
                        assert_eq!(heads.matches("HTTP/1.1 500").count(), 0);
                        answered += heads.matches("HTTP/1.1 ").count();
                        let mut gone = TcpStream::connect(("127.0.0.1", port)).unwrap();
                        gone.write_all(&request("GET", "/exact?k=gone", &[]))
                            .unwrap();
                    }
                    answered
                })
            })
            .collect();
        clients.into_iter().map(|it| it.join().unwrap()).sum()
    })
}

#[test]
#[ignore = "takes minutes: `cargo xtask nginx test --soak` runs it"]
fn workers_hold_no_more_after_a_soak() {
    let length = std::env::var("TIDEGATE_SOAK").expect("`cargo xtask nginx test` sets it");
    let length = Duration::from_secs(length.parse().unwrap());
    let redis = Redis::start();
    let zones = format!(
        "{} tidegate_zone local key=$arg_k rate=1000000r/s mode=local;
         tidegate_zone exact key=$arg_k rate=1000000r/s mode=exact;
         tidegate_zone lease key=$arg_k rate=1000000r/s mode=lease;
         tidegate_zone background key=$arg_k rate=1000000r/s mode=background;
         tidegate_zone refused key=$arg_k rate=1r/s mode=exact;
         tidegate_log_level info; error_log FOLDER/error.log warn;",
        redis.store()
    );
    let names = ["local", "exact", "lease", "background", "refused"];
    let locations = names
        .map(|name| format!("location /{name} {{ tidegate {name}; try_files /index.html =404; }}"));
    let nginx = Nginx::serve(2, &zones, &locations.join("\n"));
    let start = Instant::now();
    load(nginx.port, start + length / 3);
    let held = || nginx.worker_ids().into_iter().map(Held::by);
    let before: Vec<Held> = held().collect();
    let answered = load(nginx.port, start + length);
    // Connections that clients have just closed are gone a moment later.
    let after = wait_for(|| {
        let after: Vec<Held> = held().collect();
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
