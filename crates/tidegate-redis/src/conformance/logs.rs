//! Logs on the way from one form to another: short ones are written as a whole, in few
//! bytes, and long ones are rings. Whatever form its events are in, a log counts the same.

use redis::RedisResult;
use tidegate::{Cost, Limit};

use super::pair::{MINUTE, Pair, SECOND, counter};
use tidegate_testkit::redis::Server;

/// The first byte of a state: short, short with wide totals or a shift, and a ring.
const SHORT: u8 = 5;
const WIDE: u8 = 6;
const RING: u8 = 7;

fn form(pair: &mut Pair) -> u8 {
    let state: RedisResult<Vec<u8>> = redis::cmd("GET")
        .arg(counter(&pair.keys[0], &pair.limits[0]))
        .query(&mut pair.redis);
    state.expect("a state")[0]
}

fn limits(texts: &str) -> Vec<Limit> {
    let limits = texts.split(", ").map(Limit::parse);
    limits.map(|limit| limit.expect("a limit")).collect()
}

fn pair(server: &Server, name: &str, text: &str) -> Pair {
    Pair::new(server, name, &limits(text))
}

/// One check each second of these.
fn each_second(pair: &mut Pair, seconds: std::ops::Range<u64>) -> usize {
    pair.admitted_at(seconds.map(|second| second * SECOND))
        .len()
}

/// Gives back an event out of the middle, of both ends, and one that is gone already, of
/// those that were charged since the clock or the limit was changed.
fn give_some_back(pair: &mut Pair) {
    let receipts = std::mem::take(&mut pair.receipts);
    for index in [receipts.len() / 2, 0, 3, receipts.len() - 1, 3] {
        let before = pair.look(Cost::ONE).remaining();
        pair.refund(&receipts[index]);
        assert!(pair.look(Cost::ONE).remaining() >= before);
    }
}

#[test]
fn a_limit_raised_and_lowered_again_keeps_the_events_of_both_forms() {
    let server = Server::start();
    for steps_back in [0, 20] {
        let name = format!("raised {steps_back}");
        let mut pair = pair(&server, &name, "60/10m sliding_log");
        assert_eq!(each_second(&mut pair, 20..50), 30);
        assert_eq!(form(&mut pair), SHORT);
        give_some_back(&mut pair);
        // A step back moves all events, and what was charged before it stays charged.
        assert_eq!(each_second(&mut pair, 50 - steps_back..90), 34);
        assert_eq!(form(&mut pair), RING);
        pair.receipts.drain(..10);
        give_some_back(&mut pair);
        assert_eq!(pair.look(Cost::ONE).remaining(), 4);

        pair.limits = limits("70/10m sliding_log");
        pair.receipts.clear();
        assert_eq!(each_second(&mut pair, 90 - steps_back..120), 14);
        assert_eq!(pair.look(Cost::ONE).remaining(), 0);
        give_some_back(&mut pair);
        assert_eq!(pair.look(Cost::ONE).remaining(), 4);

        pair.limits = limits("60/10m sliding_log");
        pair.receipts.clear();
        assert_eq!(each_second(&mut pair, 120..130), 0);
        // All of them go, one by one, while new ones come.
        assert_eq!(each_second(&mut pair, 610..1_400), 120);
        assert!(pair.at(3_600 * SECOND).check().allowed(), "{name}");
        assert_eq!(form(&mut pair), SHORT);
    }
}

#[test]
fn a_ring_that_has_wrapped_grows_in_order() {
    let server = Server::start();
    let mut pair = pair(&server, "wrapped", "50/1m sliding_log");
    // Full at the limit, and 30 of the oldest overwritten.
    each_second(&mut pair, 0..50);
    assert_eq!(each_second(&mut pair, 60..90), 30);
    assert_eq!(form(&mut pair), RING);
    pair.limits = limits("300/1m sliding_log");
    for step in 0..250 {
        let _ = pair.at(90 * SECOND + step * 1_000).check();
    }
    assert_eq!(pair.look(Cost::ONE).remaining(), 1);
    assert_eq!(pair.at(109 * SECOND).look(Cost::of(100)).remaining(), 20);
    for second in 110..160 {
        let _ = pair.at(second * SECOND).check();
    }
}

#[test]
fn a_ring_that_has_emptied_is_short_again() {
    let server = Server::start();
    for left in 1..=10 {
        let mut pair = pair(&server, &format!("emptied {left}"), "50/1m sliding_log");
        assert_eq!(each_second(&mut pair, 0..50), 50);
        assert_eq!(form(&mut pair), RING);
        let first_gone = 50 - left;
        assert!(
            pair.at((59 + first_gone) * SECOND + 1).check().allowed(),
            "{left}"
        );
        assert_eq!(form(&mut pair), if left < 8 { SHORT } else { RING });
        assert_eq!(
            u64::from(pair.look(Cost::ONE).remaining()),
            49 - left,
            "{left}"
        );
        each_second(&mut pair, 110..200);
        assert_eq!(form(&mut pair), RING);
    }
}

#[test]
fn every_event_can_be_given_back_in_every_form() {
    let server = Server::start();
    for (count, expected) in [(30, SHORT), (60, RING)] {
        for costs in [1, 2] {
            for index in 0..count {
                let mut pair = pair(
                    &server,
                    &format!("back {count} {costs} {index}"),
                    "120/1m sliding_log",
                );
                for event in 0..count {
                    // Some share a record, of which a part is then left.
                    let _ = pair.at(event / costs * SECOND / 10).check();
                }
                let receipt = pair.receipts[usize::try_from(index).expect("an index")].clone();
                pair.at(10 * SECOND).refund(&receipt);
                let left = u64::from(pair.look(Cost::ONE).remaining());
                assert_eq!(left, 121 - count, "{} {index}", pair.context);
                if costs == 1 {
                    assert_eq!(form(&mut pair), expected);
                }
                pair.checks(200, Cost::ONE);
                for tenth in 590..680 {
                    let _ = pair.at(tenth * SECOND / 10).check();
                }
            }
        }
    }
}

#[test]
fn a_time_is_told_from_one_that_ends_in_the_same_bytes() {
    let server = Server::start();
    // Four bytes of microseconds begin again after 71.6 minutes.
    let mut pair = pair(&server, "bytes", "5/70m sliding_log");
    for minute in [0, 69] {
        let _ = pair.at(minute * MINUTE).check();
    }
    assert_eq!(pair.at(72 * MINUTE).look(Cost::ONE).remaining(), 4);
    let _ = pair.check();
    assert_eq!(pair.at(139 * MINUTE - 1).look(Cost::ONE).remaining(), 3);
    assert_eq!(pair.at(139 * MINUTE).look(Cost::ONE).remaining(), 4);
    // Under a longer window they take more bytes, and under a shorter one fewer again.
    // A refusal writes that down.
    assert!(pair.check().allowed());
    for window in ["2h", "14d", "2h", "69m"] {
        pair.limits = limits(&format!("5/{window} sliding_log"));
        assert_eq!(pair.look(Cost::ONE).remaining(), 3, "{window}");
        assert!(!pair.check_cost(Cost::of(4)).allowed());
    }
    assert_eq!(pair.at(141 * MINUTE).look(Cost::ONE).remaining(), 4);
}

#[test]
fn totals_take_the_bytes_that_they_need() {
    let server = Server::start();
    let mut pair = pair(&server, "totals", "1000000/1m sliding_log");
    let charges = [(200, SHORT), (55, SHORT), (1, WIDE), (65_000, WIDE)];
    for (second, (cost, expected)) in (0..).zip(charges) {
        assert!(
            pair.at(second * SECOND)
                .check_cost(Cost::of(cost))
                .allowed()
        );
        assert_eq!(form(&mut pair), expected, "{cost}");
    }
    // Totals wrap around after 2^24, and after 255 where they are small.
    for second in 4..100 {
        assert!(
            pair.at(second * SECOND)
                .check_cost(Cost::of(10_000 + u32::try_from(second).expect("few")))
                .allowed()
        );
    }
    for minute in 3..40 {
        assert!(
            pair.at(minute * MINUTE)
                .check_cost(Cost::of(999_999))
                .allowed()
        );
        assert!(
            !pair
                .at(minute * MINUTE + 1)
                .check_cost(Cost::of(2))
                .allowed()
        );
    }
    pair.limits = limits("100/1m sliding_log");
    for second in 3_600..3_900 {
        let _ = pair.at(second * SECOND).check_cost(Cost::of(30));
    }
    assert_eq!(form(&mut pair), SHORT);
}
