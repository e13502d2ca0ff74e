//! Bytes a key takes in the server (`MEMORY USAGE`), beside what other scripts for the
//! same limits keep: two plain keys for a bucket, two counters for a window, sorted sets
//! for logs.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::Script;
use tidegate::{Limit, Policy};

use crate::server::Server;
use crate::support::{all_keys, check, limiter, policy};

const HOUR: Duration = Duration::from_secs(3_600);

/// Who is limited: an address, as in most of the world.
const WHO: &str = "203.0.113.7";

/// The memory of all keys.
fn bytes(redis: &mut redis::Connection) -> usize {
    let keys = all_keys(redis);
    let usage = keys.iter().map(|key| {
        let mut usage = redis::cmd("MEMORY");
        usage.arg("USAGE").arg(key).arg("SAMPLES").arg(0);
        usage.query::<usize>(redis).expect("a size")
    });
    usage.sum()
}

fn empty(redis: &mut redis::Connection) {
    let done: redis::RedisResult<()> = redis::cmd("FLUSHALL").query(redis);
    done.expect("an empty server");
}

/// What ours takes after so many requests of one client.
async fn ours(server: &Server, policy: Policy, requests: usize) -> usize {
    let mut redis = server.connect();
    empty(&mut redis);
    let name = policy.name().to_owned();
    let limiter = limiter(server, [policy]);
    let attributes = [("key", WHO), ("resource", "12"), ("consumer", WHO)];
    for _ in 0..requests {
        let _ = check(&limiter, &name, &attributes).await;
    }
    bytes(&mut redis)
}

/// What a script takes after so many requests; it is given a number that grows.
fn theirs(server: &Server, script: &str, keys: &[&str], requests: usize) -> usize {
    let mut redis = server.connect();
    empty(&mut redis);
    let script = Script::new(script);
    for number in 0..requests {
        let mut call = script.prepare_invoke();
        for key in keys {
            call.key(*key);
        }
        let _: () = call.arg(number).invoke(&mut redis).expect("a script");
    }
    bytes(&mut redis)
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

/// A line of the table, and whether ours takes at most as much as theirs: a quarter for a
/// long log.
fn row(name: String, ours: usize, theirs: usize, requests: usize) -> (String, bool) {
    let percent = ours * 100 / theirs;
    let most = theirs * if requests == 1_000 { 25 } else { 100 } / 100;
    let line = format!("| {name} | {ours} | {theirs} | {percent} |\n");
    (line, ours <= most)
}

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

    let sliding = policy("rl", plenty.sliding_window());
    let mut rows = vec![
        row(
            "token_bucket".into(),
            ours(&server, policy("rl", plenty), 5).await,
            theirs(&server, TWO_KEYS_FOR_A_BUCKET, &[WHO], 5),
            5,
        ),
        row(
            "sliding_window".into(),
            ours(&server, sliding, 5).await,
            theirs(&server, TWO_COUNTERS, &counters, 5),
            5,
        ),
    ];
    // Where other scripts come closest, and logs that are far from their limit.
    let full = [
        1, 2, 3, 10, 36, 37, 57, 64, 65, 69, 100, 115, 128, 1_000, 5_000,
    ];
    let full = full.map(|requests| (requests, requests));
    let begun = [1, 3, 10, 38, 40, 65, 80, 128].map(|requests| (requests, 1_000_000));
    for (requests, limit) in full.into_iter().chain(begun) {
        let log = Limit::per(u32::try_from(limit).unwrap(), HOUR).sliding_log();
        let name = match requests == limit {
            true => format!("N = {requests}"),
            false => format!("{requests} of N = {limit}"),
        };
        rows.push(row(
            format!("sliding_log, {name}"),
            ours(&server, policy("rl", log), requests).await,
            theirs(&server, SORTED_SET, &[WHO], requests),
            requests,
        ));
        let two = Policy::builder("rl")
            .level("resource", "{resource}", log)
            .level("consumer", "{resource}:{consumer}", log);
        rows.push(row(
            format!("two levels of it, {name}"),
            ours(&server, two.build().unwrap(), requests).await,
            theirs(&server, TWO_SORTED_SETS, &sets, requests),
            requests,
        ));
    }

    let fixed = ours(&server, policy("rl", plenty.fixed_window()), 5).await;
    let head = "| limit | bytes | other scripts | percent |\n| --- | ---: | ---: | ---: |\n";
    let lines: String = rows.iter().map(|(line, _)| line.as_str()).collect();
    // Shown with `--nocapture`.
    println!("{head}{lines}| fixed_window | {fixed} | | |");
    for (line, is_small) in &rows {
        assert!(is_small, "{line}");
    }
}
