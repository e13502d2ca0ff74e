//! Bytes a key takes in the server (`MEMORY USAGE`), beside what other scripts for the
//! same limits keep: two plain keys for a bucket, two counters for a window, sorted sets
//! for logs.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::Script;
use tidegate::{Limit, Policy};
use tidegate_testkit::cluster::run;

use crate::server::Server;
use crate::support::{all_keys, check, limiter, policy};

const HOUR: Duration = Duration::from_secs(3_600);

/// Who is limited: an address, as in most of the world.
const WHO: &str = "203.0.113.7";

/// The memory of all keys.
fn bytes(redis: &mut redis::Connection) -> usize {
    let keys = all_keys(redis);
    let usage = |key: &String| run::<usize>(redis, &format!("MEMORY USAGE {key} SAMPLES 0"));
    keys.iter().map(usage).sum()
}

/// Our policy, another script for the same limit with its keys, and how many requests of
/// one client each gets.
struct Case<'c> {
    name: String,
    policy: Policy,
    script: &'c str,
    keys: &'c [&'c str],
    requests: usize,
}

impl Case<'_> {
    /// What ours takes.
    async fn ours(&self, server: &Server) -> usize {
        let mut redis = server.connect();
        run::<()>(&mut redis, "FLUSHALL");
        let limiter = limiter(server, [self.policy.clone()]);
        let attributes = [("key", WHO), ("resource", "12"), ("consumer", WHO)];
        for _ in 0..self.requests {
            let _ = check(&limiter, "rl", &attributes).await;
        }
        bytes(&mut redis)
    }

    /// What the script takes; it is given a number that grows.
    fn theirs(&self, server: &Server) -> usize {
        let mut redis = server.connect();
        run::<()>(&mut redis, "FLUSHALL");
        let script = Script::new(self.script);
        for number in 0..self.requests {
            let mut call = script.prepare_invoke();
            for key in self.keys {
                call.key(*key);
            }
            let _: () = call.arg(number).invoke(&mut redis).expect("a script");
        }
        bytes(&mut redis)
    }
}

/// How many are left and when that was, in a key each.
const TWO_KEYS_FOR_A_BUCKET: &str = "
    local time = redis.call('TIME')
    local now_ms = time[1] * 1000 + time[2] / 1000
    local left = tonumber(redis.call('GET', KEYS[1]) or 1000)
    redis.call('SET', KEYS[1], left - 1)
    redis.call('SET', KEYS[1] .. '-t', now_ms)";

/// The times of all requests, in milliseconds and parts of one, as scores and as members.
/// Here and below, numbers have the length that they nearly always have, so that sizes
/// are the same each time.
const SORTED_SET: &str = "
    local time = redis.call('TIME')
    local now_ms = time[1] * 1000 + math.floor(time[2] / 1000) + 0.5 + ARGV[1]
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now_ms - 3600000)
    redis.call('ZCARD', KEYS[1])
    redis.call('ZADD', KEYS[1], now_ms, now_ms)";

/// A set for a resource and one for its consumer: seconds, with microseconds as members.
const TWO_SORTED_SETS: &str = "
    local time = redis.call('TIME')
    for level = 1, 2 do
      redis.call('ZREMRANGEBYSCORE', KEYS[level], 0, time[1] - 3600)
      redis.call('ZADD', KEYS[level], time[1], 500000 + ARGV[1] * 61)
    end";

/// A counter for this window and one for the last, with the time in their names.
const TWO_COUNTERS: &str = "
    for key = 1, 2 do
      redis.call('INCR', KEYS[key])
      redis.call('EXPIRE', KEYS[key], 300)
    end";

#[tokio::test]
async fn a_key_takes_no_more_than_with_other_scripts_and_a_long_log_a_quarter() {
    let server = Server::start();
    let plenty = Limit::per(1_000, HOUR);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let minutes = [now.as_secs() - 60, now.as_secs()];
    let counters = minutes.map(|minute| format!("zone:{WHO}_{minute}"));
    let counters = counters.each_ref().map(String::as_str);
    let sets = [
        "z:rl:resource:12{12}",
        "z:rl:resource:12{12}:consumer:203.0.113.7",
    ];

    let case = |name: String, policy, script, keys, requests| Case {
        name,
        policy,
        script,
        keys,
        requests,
    };
    let (bucket, window) = (policy("rl", plenty), policy("rl", plenty.sliding_window()));
    let mut cases = vec![
        case(
            "token_bucket".into(),
            bucket,
            TWO_KEYS_FOR_A_BUCKET,
            &[WHO],
            5,
        ),
        case("sliding_window".into(), window, TWO_COUNTERS, &counters, 5),
    ];
    // Where other scripts come closest, and logs that are far from their limit.
    let full = [
        1, 2, 3, 10, 36, 37, 57, 64, 65, 69, 100, 115, 128, 1_000, 5_000,
    ];
    let full = full.map(|requests| (requests, requests));
    let begun = [1, 3, 10, 38, 40, 65, 80, 128].map(|requests| (requests, 1_000_000));
    for (requests, limit) in full.into_iter().chain(begun) {
        let log = Limit::per(u32::try_from(limit).unwrap(), HOUR).sliding_log();
        let name = format!("{requests} of {limit} in a log");
        let two = Policy::builder("rl")
            .level("resource", "{resource}", log)
            .level("consumer", "{resource}:{consumer}", log);
        let two = two.build().expect("a policy");
        let on_two = format!("{name}, on two levels");
        cases.push(case(name, policy("rl", log), SORTED_SET, &[WHO], requests));
        cases.push(case(on_two, two, TWO_SORTED_SETS, &sets, requests));
    }
    for case in cases {
        let (ours, theirs) = (case.ours(&server).await, case.theirs(&server));
        let line = format!("{}: {ours} bytes, others {theirs}", case.name);
        // Shown with `--nocapture`.
        println!("{line}");
        // A quarter for a long log.
        let most = if case.requests == 1_000 { 25 } else { 100 };
        assert!(ours * 100 <= theirs * most, "{line}");
    }
}
