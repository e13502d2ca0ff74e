//! The pitfalls of counting that need time to pass: each test is named after its id.
//! Whatever is asked here is asked of both stores.

use std::time::Duration;

use redis::RedisResult;
use tidegate::{Align, Charge, Cost, Limit};

use super::pair::{MINUTE, Pair, SECOND, counter};
use crate::harness::server::Server;

/// So many per window, counted by each algorithm.
fn every_algorithm(requests: u32, window_us: u64) -> [Limit; 5] {
    let limit = Limit::per(requests, Duration::from_micros(window_us));
    [
        limit,
        limit.fixed_window(),
        limit.fixed_window().align(Align::Epoch),
        limit.sliding_window(),
        limit.sliding_log(),
    ]
}

/// The most events in any half-open stretch of this length.
fn most_in_any(events: &[u64], window_us: u64) -> usize {
    let from = |start: u64| {
        let inside = events.iter();
        inside
            .filter(|&&event| (start..start + window_us).contains(&event))
            .count()
    };
    events.iter().map(|&start| from(start)).max().unwrap_or(0)
}

#[test]
fn a1_fifty_at_once_at_limit_ten_admits_ten() {
    for server in Server::start_each() {
        for limit in every_algorithm(10, MINUTE) {
            let mut one_by_one = Pair::one(&server, "a1", limit);
            assert_eq!(one_by_one.admitted_of(50), 10, "{limit}");
            let mut together = Pair::one(&server, "a1 together", limit);
            let decisions = together.checks(50, Cost::ONE);
            let admitted = decisions.iter().filter(|it| it.allowed()).count();
            assert_eq!(admitted, 10, "{limit}");
        }
    }
}

/// What each of ten minutes admits of 12 requests, one every 5 s.
fn twelve_per_minute(server: &Server, limit: Limit, charge: Charge) -> Vec<usize> {
    let mut pair = Pair::one(server, &format!("a2 {charge:?}"), limit);
    pair.charge = charge;
    let admitted = pair.admitted_at((0..120).map(|index| index * 5 * SECOND));
    let in_minute = |minute| admitted.iter().filter(|at| **at / MINUTE == minute).count();
    (0..10).map(in_minute).collect()
}

#[test]
fn a2_refused_requests_cost_nothing_unless_asked() {
    let server = Server::start();
    for limit in every_algorithm(10, MINUTE) {
        let minutes = twelve_per_minute(&server, limit, Charge::Admitted);
        let enough = minutes.iter().all(|&count| count >= 9);
        assert!(
            enough && minutes.iter().sum::<usize>() <= 110,
            "{limit} {minutes:?}"
        );
    }
    // With `count_denied`, a client that does not slow down stays refused.
    for limit in [
        Limit::per_minute(10),
        Limit::per_minute(10).sliding_window(),
    ] {
        let minutes = twelve_per_minute(&server, limit, Charge::Always);
        assert!(minutes[0] >= 10, "{limit} {minutes:?}");
        assert_eq!(minutes[7..], [0, 0, 0], "{limit} {minutes:?}");
    }
}

#[test]
fn a3_ten_late_and_ten_early_pass_two_counters_but_not_the_log() {
    let server = Server::start();
    let bursts = |limit| {
        let mut pair = Pair::one(&server, "a3", limit);
        [59_900_000, 114 * SECOND, 119_900_000].map(|at| pair.at(at).admitted_of(10))
    };
    // Documented: below 2N within a window's length.
    assert_eq!(bursts(Limit::per_minute(10).sliding_window())[..2], [10, 9]);
    assert_eq!(bursts(Limit::per_minute(10).sliding_log()), [10, 0, 10]);
}

#[test]
fn b3_one_per_second_offered_three_admits_one() {
    let server = Server::start();
    // The two counters admit less: a full window blocks the whole next one.
    let admitted = [50, 50, 60, 30, 50];
    for (limit, admitted) in every_algorithm(1, SECOND).into_iter().zip(admitted) {
        let mut pair = Pair::one(&server, "b3", limit);
        let instants = pair.admitted_at((0..200).map(|index| index * 300_000));
        assert_eq!(instants.len(), admitted, "{limit}");
        let mut seconds: Vec<u64> = instants.iter().map(|at| at / SECOND).collect();
        seconds.dedup();
        assert_eq!(seconds.len(), admitted, "{limit}: two in one second");
    }
}

#[test]
fn c1_refill_is_exact_at_any_arrival_pattern() {
    let server = Server::start();
    for period in [7_777, 33_333, 90_000, 99_999, 100_000, 110_000] {
        for burst in [1, 2, 10] {
            let limit = Limit::per_second(10).burst(burst);
            let mut pair = Pair::one(&server, &format!("c1 {period}"), limit);
            // In tenths of a microsecond of a token: rational arithmetic, scaled.
            let (mut debt, mut last) = (0_u64, 0);
            for at in (0..10 * SECOND).step_by(period) {
                debt = debt.saturating_sub(10 * (at - last));
                last = at;
                let fits = debt + SECOND <= u64::from(burst) * SECOND;
                debt += if fits { SECOND } else { 0 };
                assert_eq!(pair.at(at).check().allowed(), fits, "{period} {burst} {at}");
            }
        }
    }
    // In figures: one each 90 ms passes 109 of 112 in 10 s, and nobody below the limit
    // is refused.
    let admitted = |period| {
        let mut pair = Pair::one(
            &server,
            &format!("c1 figures {period}"),
            Limit::per_second(10),
        );
        let instants = (0..10 * SECOND).step_by(period);
        pair.admitted_at(instants).len()
    };
    assert_eq!((admitted(90_000), admitted(110_000)), (109, 91));
}

#[test]
fn c4_d2_lowering_five_to_three_with_five_used_refuses_until_below_three() {
    let server = Server::start();
    let waits = [60, 60, 60, 96, 60];
    let limits = every_algorithm(5, MINUTE).into_iter();
    for ((old, new), wait) in limits.zip(every_algorithm(3, MINUTE)).zip(waits) {
        let mut pair = Pair::one(&server, "c4 d2", old);
        assert_eq!(pair.admitted_of(5), 5);
        pair.limits = vec![new];
        assert_eq!(pair.admitted_of(20), 0, "{new}");
        let refused = pair.check();
        assert_eq!((refused.remaining(), refused.limit()), (0, 3), "{new}");
        assert_eq!(
            refused.retry_after(),
            Some(Duration::from_secs(wait)),
            "{new}"
        );
        assert_eq!(pair.at(wait * SECOND - 1).admitted_of(20), 0, "{new}");
        let admitted = pair.at(wait * SECOND).admitted_of(20);
        assert!((1..=3).contains(&admitted), "{new}: {admitted}");
    }
}

#[test]
fn c7_a_clock_that_steps_back_neither_refills_nor_stalls() {
    for server in Server::start_each() {
        let waits = [12, 60, 60, 72, 60];
        for (limit, wait) in every_algorithm(5, MINUTE).into_iter().zip(waits) {
            let mut pair = Pair::one(&server, "c7", limit);
            assert_eq!(pair.at(3600 * SECOND).admitted_of(6), 5, "{limit}");
            // An hour back: nothing comes of it, and the wait is what it was.
            let refused = pair.at(0).check();
            assert_eq!(
                (refused.allowed(), refused.remaining()),
                (false, 0),
                "{limit}"
            );
            assert_eq!(
                refused.retry_after(),
                Some(Duration::from_secs(wait)),
                "{limit}"
            );
            // Back and forth: each second counts once.
            assert!(!pair.at(2 * SECOND).check().allowed(), "{limit}");
            assert!(!pair.at(SECOND).check().allowed(), "{limit}");
            let left = pair.look(Cost::ONE).retry_after().expect("some day");
            assert!(left <= Duration::from_secs(wait), "{limit}: {left:?}");
            let end = u64::try_from(left.as_micros()).expect("a time") + SECOND;
            assert!(!pair.at(end - 1).check().allowed(), "{limit}");
            assert!(pair.at(end).check().allowed(), "{limit}");
        }
    }
}

#[test]
fn d3_five_per_second_is_five_in_any_second() {
    let server = Server::start();
    for limit in [
        Limit::per_second(5).sliding_log(),
        Limit::per_second(5).burst(2).strict(),
    ] {
        let mut pair = Pair::one(&server, "d3", limit);
        let admitted = pair.admitted_at((967_000..4 * SECOND).step_by(11_000));
        assert!(most_in_any(&admitted, SECOND) <= 5, "{limit}: {admitted:?}");
        assert!(admitted.len() >= 11, "{limit}: {}", admitted.len());
    }
}

#[test]
fn e1_a_bucket_never_gives_more_than_its_burst_at_once() {
    let server = Server::start();
    let limit = Limit::per(20, Duration::from_secs(4)).burst(2);
    let mut pair = Pair::one(&server, "e1", limit);
    assert_eq!(pair.admitted_of(20), 2);
    assert_eq!(pair.at(3 * SECOND).admitted_of(20), 2);
    assert_eq!(pair.at(400 * 1440 * MINUTE).admitted_of(20), 2);
    assert_eq!(pair.look(Cost::of(3)).retry_after(), None);
}

#[test]
fn e4_e5_e7_e9_the_numbers_of_a_refusal_are_exact_and_agree() {
    let server = Server::start();
    // Seconds until one more request fits, and until the key is as new.
    let expected = [(1, 5), (5, 5), (5, 5), (6, 10), (5, 5)];
    for (limit, (retry, reset)) in every_algorithm(5, 5 * SECOND).into_iter().zip(expected) {
        let mut pair = Pair::one(&server, "e4", limit);
        pair.admitted_of(5);
        let refused = pair.check();
        assert_eq!(
            (refused.allowed(), refused.remaining()),
            (false, 0),
            "{limit}"
        );
        assert_eq!(
            refused.retry_after(),
            Some(Duration::from_secs(retry)),
            "{limit}"
        );
        assert_eq!(refused.reset_after(), Duration::from_secs(reset), "{limit}");
        assert!((refused.rate() - 5.0).abs() < 1e-9, "{limit}");
        assert!(!pair.at(retry * SECOND - 1).check().allowed(), "{limit}");
        assert!(pair.at(retry * SECOND).check().allowed(), "{limit}");
        // A cost above what remains is refused with the true remainder.
        let mut fresh = Pair::one(&server, "e4 fresh", limit);
        fresh.admitted_of(3);
        let refused = fresh.check_cost(Cost::of(3));
        assert_eq!(
            (refused.allowed(), refused.remaining()),
            (false, 2),
            "{limit}"
        );
        assert_eq!(fresh.check_cost(Cost::of(6)).retry_after(), None, "{limit}");
    }
}

#[test]
fn e8_remaining_stays_within_a_lowered_limit() {
    let server = Server::start();
    for used in [0, 1, 2, 3, 4, 10] {
        let limits = every_algorithm(10, MINUTE).into_iter();
        for (old, new) in limits.zip(every_algorithm(3, MINUTE)) {
            let mut pair = Pair::one(&server, &format!("e8 {used}"), old);
            pair.admitted_of(used);
            pair.limits = vec![new];
            let seen = pair.look(Cost::ONE);
            let left = 3_usize.saturating_sub(used);
            assert_eq!(
                (seen.remaining() as usize, seen.limit()),
                (left, 3),
                "{new} {used}"
            );
        }
    }
}

#[test]
fn e10_a_burst_above_the_limit_has_right_numbers() {
    let server = Server::start();
    let mut pair = Pair::one(&server, "e10", Limit::per_second(10).burst(20));
    assert_eq!(pair.admitted_of(50), 20);
    let refused = pair.check();
    assert_eq!(refused.retry_after(), Some(Duration::from_millis(100)));
    assert_eq!(refused.reset_after(), Duration::from_secs(2));
    assert_eq!(pair.at(SECOND).admitted_of(50), 10);
}

#[test]
fn k1_a_refusal_by_one_level_charges_none() {
    let server = Server::start();
    for narrow in every_algorithm(3, MINUTE) {
        for wide in every_algorithm(100, MINUTE) {
            for limits in [[wide, narrow], [narrow, wide]] {
                let name = format!("k1 {} {}", limits[0], limits[1]);
                let mut pair = Pair::new(&server, &name, &limits);
                assert_eq!(pair.admitted_of(20), 3, "{name}");
                // All of a call at once, too.
                pair.checks(20, Cost::ONE);
                let seen = pair.look(Cost::ONE);
                let left = seen.levels().iter().map(|level| level.remaining());
                assert_eq!(left.sum::<u32>(), 97, "{name}");
            }
        }
    }
}

#[test]
fn t1_key_expires_when_its_quota_is_full() {
    let server = Server::start();
    let mut pair = Pair::one(&server, "t1", Limit::per_second(1).burst(1_000));
    let mut blast = |at: u64| {
        let decisions = pair.at(at * SECOND).checks(2_000, Cost::ONE);
        decisions.iter().filter(|it| it.allowed()).count()
    };
    assert_eq!([0, 3, 6, 9].map(&mut blast), [1_000, 3, 3, 3]);
    // `checks` has compared the expiry with the numbers each time; here once more.
    let expires: RedisResult<u64> = redis::cmd("PEXPIRETIME")
        .arg(counter(&pair.keys[0], &pair.limits[0]))
        .query(&mut pair.redis);
    let full_at_us = super::pair::START_US + 1_009 * SECOND;
    assert_eq!(expires.expect("a time") * 1_000, full_at_us);
}
