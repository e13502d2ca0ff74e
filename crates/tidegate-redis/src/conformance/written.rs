//! What is in a key: logs of a million events, states of another algorithm, and what
//! none of our scripts has written.

use std::time::Duration;

use redis::RedisResult;
use tidegate::{Algorithm, Charge, Cost, Limit};

use super::pair::{MINUTE, Pair, START_US, counter};
use tidegate_testkit::conformance::Subject;
use tidegate_testkit::redis::Server;

fn set(pair: &mut Pair, value: &[u8]) {
    let set: RedisResult<()> = redis::cmd("SET")
        .arg(counter(&pair.keys[0], pair.limits[0].algorithm()))
        .arg(value)
        .query(&mut pair.redis);
    set.expect("a key can be set");
}

/// The state of a log with this many events of cost 1, one each microsecond, as
/// `sliding_log.lua` writes it.
fn log(events: u32, window_us: u64) -> Vec<u8> {
    let mut state = vec![7];
    let mut push = |number: u64, bytes: usize| {
        state.extend_from_slice(&number.to_le_bytes()[..bytes]);
    };
    let last = START_US + u64::from(events) - 1;
    push(last, 7);
    push(0, 7);
    push(0, 3);
    push(events.into(), 3);
    push(events.into(), 3);
    push(0, 3);
    push(window_us, 6);
    push(last, 7);
    push(events.into(), 3);
    for event in 0..events {
        push(START_US + u64::from(event), 6);
        push(u64::from(event) + 1, 3);
    }
    state
}

/// How long the server has been working: processor time, which a busy machine does not add
/// to.
fn worked(pair: &mut Pair) -> Duration {
    let info = redis::cmd("INFO").arg("cpu").query(&mut pair.redis);
    let info: String = info.expect("statistics");
    let seconds = |name: &str| -> f64 {
        let value = info.lines().find_map(|line| line.strip_prefix(name));
        value.expect("a statistic").parse().expect("a number")
    };
    let user = seconds("used_cpu_user_main_thread:");
    Duration::from_secs_f64(user + seconds("used_cpu_sys_main_thread:"))
}

#[test]
fn d6_a_million_events_expire_at_once_or_in_part_in_bounded_work() {
    let events = 1_000_000;
    let server = Server::start();
    let mut pair = Pair::one(&server, "d6", Limit::per_minute(events).sliding_log());
    let (mut slowest, quarter) = (Duration::ZERO, u64::from(events / 4));
    let mut timed = |pair: &mut Pair, at, act: &mut dyn FnMut(&mut Pair)| {
        pair.at(at);
        let before = worked(pair);
        act(pair);
        slowest = slowest.max(worked(pair) - before);
    };
    set(&mut pair, &log(events, MINUTE));
    let one_by_one = (2..100).map(|index| (3 * MINUTE + u64::from(index), true, events - index));
    for (at, allowed, remaining) in [
        (u64::from(events), false, 0),
        (MINUTE - 1, false, 0),
        (MINUTE, true, 0),
        (MINUTE + quarter - 1, true, events / 4 - 2),
        (MINUTE + 2 * quarter, true, events / 2 - 2),
        (3 * MINUTE, true, events - 1),
    ]
    .into_iter()
    .chain(one_by_one)
    {
        timed(&mut pair, at, &mut |pair| {
            let decision = pair.in_redis(Cost::ONE, Charge::Admitted, 1).remove(0);
            let got = (decision.allowed(), decision.remaining());
            assert_eq!(got, (allowed, remaining), "at {at}");
        });
    }
    // The latest of them is given back.
    set(&mut pair, &log(events - 10, MINUTE));
    pair.at(u64::from(events));
    let decision = pair.in_redis(Cost::of(4), Charge::Admitted, 1).remove(0);
    let receipt = decision.receipt().expect("charged");
    timed(&mut pair, u64::from(events) + 5, &mut |pair| {
        pair.refund_in_redis(&receipt);
    });
    let seen = pair.in_redis(Cost::ONE, Charge::Nothing, 1).remove(0);
    assert_eq!((decision.remaining(), seen.remaining()), (6, 10));
    assert!(slowest < Duration::from_millis(50), "{slowest:?}");
}

#[test]
fn what_no_script_has_written_is_an_error() {
    let server = Server::start();
    // Of every length, so of those that states have, too; and with the first bytes that
    // they have.
    for text in [
        "10r/m",
        "10r/m fixed_window",
        "10r/m sliding_window",
        "10r/m sliding_log",
        "100r/m sliding_log",
    ] {
        let limit = Limit::parse(text).expect("a limit");
        let mut pair = Pair::one(&server, "list", limit);
        let key = counter(&pair.keys[0], limit.algorithm());
        let list = redis::cmd("RPUSH")
            .arg(key)
            .arg(1)
            .query::<()>(&mut pair.redis);
        list.expect("a key can be set");
        let asked = pair.reply(Cost::ONE, Charge::Admitted, 1);
        let error = asked.expect_err("a list").to_string();
        assert!(error.contains("WRONGTYPE"), "{error}");
        for first in [b'x', 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 100, 255] {
            for length in 1..80 {
                let mut junk = vec![b'x'; length];
                junk[0] = first;
                let ours = [(1, 36), (2, 31), (3, 42)].contains(&(first, length));
                let other = limit.algorithm() != Algorithm::SlidingLog;
                let log = match first {
                    4 => length >= 48,
                    // A window of this many years is none.
                    5 => length >= 20 && other,
                    6 => length >= 31 && other,
                    7 => length >= 43,
                    _ => false,
                };
                // With one lease, and with two.
                let leased = [(8, 59), (8, 78), (9, 54), (9, 73)].contains(&(first, length));
                if ours || log || leased {
                    continue;
                }
                let mut pair = Pair::one(&server, "junk", limit);
                set(&mut pair, &junk);
                let asked = pair.reply(Cost::ONE, Charge::Admitted, 1);
                let error = asked.expect_err(&format!("{text}: {first} and {length} bytes"));
                assert!(error.to_string().contains("a key holds what"), "{error}");
            }
        }
    }
}
