//! Records with one request too many, and what an audit says of them.

use std::time::{Duration, Instant};

use tidegate::audit::{Audit, Background, Record, Verdict};
use tidegate::{Align, Cost, Limit, Limiter, ManualClock, Source};

use crate::support::{MINUTE, SECOND, START};

/// Judges requests of one key: so long after the start, at what cost.
fn judge(audit: Audit, requests: &[(u64, u32)]) -> Verdict {
    audit.judge(requests.iter().map(|&(at_us, cost)| {
        let at_us = START + at_us;
        Record::admitted("key", at_us, Cost::of(cost))
    }))
}

/// Asserts that the bound holds with all but the last request, and that the last one
/// makes the stretch from there to it (since the start) have too much, against a bound.
#[track_caller]
fn one_too_many(audit: &Audit, requests: &[(u64, u32)], from_us: u64, bound: u64) {
    let (last, fewer) = requests.split_last().expect("some requests");
    let verdict = judge(audit.clone(), fewer);
    assert!(verdict.held(), "{verdict:?}");
    let verdict = judge(audit.clone(), requests);
    let broken = verdict.broken.expect("one too many");
    assert_eq!(verdict.broken_keys, 1);
    assert_eq!(
        (broken.from_us, broken.to_us, broken.bound),
        (START + from_us, START + last.0, bound),
        "{broken}"
    );
    assert!(broken.admitted > broken.bound, "{broken}");
}

#[test]
fn a_token_bucket_that_gives_one_too_many() {
    let audit = Audit::new(Limit::per_second(10).burst(3));
    one_too_many(&audit, &[(0, 3), (0, 1)], 0, 3);
    // A microsecond before the next token.
    one_too_many(&audit, &[(0, 3), (99_999, 1)], 0, 3);
    assert!(judge(audit.clone(), &[(0, 3), (100_000, 1)]).held());
    // The stretch that is too full begins after a pause.
    let paused = [
        (0, 3),
        (SECOND, 2),
        (SECOND + 50_000, 1),
        (SECOND + 99_999, 1),
    ];
    one_too_many(&audit, &paused, SECOND, 3);
    // Nothing is rounded: three a second, one each 333,333.3 us.
    let thirds = Audit::new(Limit::per_second(3).burst(2));
    one_too_many(&thirds, &[(0, 2), (333_333, 1)], 0, 2);
    let exact = [(0, 2), (333_334, 1), (666_667, 1), (SECOND, 1)];
    assert!(judge(thirds.clone(), &exact).held());
    let early = [exact[0], exact[1], exact[2], (SECOND - 1, 1)];
    one_too_many(&thirds, &early, 0, 4);
}

#[test]
fn a_strict_bucket_is_held_to_its_window() {
    // 15 a minute, burst 3: one each five seconds after that, and 15 in any minute.
    let audit = Audit::new(Limit::per_minute(15).burst(3).strict());
    let mut requests = vec![(0, 3)];
    requests.extend((1..=12).map(|count| (count * 5 * SECOND, 1)));
    assert!(judge(audit.clone(), &requests).held());
    requests.push((MINUTE, 1));
    one_too_many(&audit, &requests, 0, 15);
    // The same rate without `strict` allows three more.
    let loose = Audit::new(Limit::per_minute(15).burst(3));
    assert!(judge(loose, &requests).held());
}

#[test]
fn windows_of_both_kinds() {
    let limit = Limit::per_minute(3).fixed_window();
    // The start is on the grid; the first request is not.
    let edge = [(50 * SECOND, 3), (MINUTE, 3)];
    let aligned = Audit::new(limit.align(Align::Epoch));
    assert!(judge(aligned.clone(), &edge).held(), "across an edge");
    one_too_many(
        &aligned,
        &[(50 * SECOND, 3), (MINUTE - 1, 1)],
        50 * SECOND,
        3,
    );
    let first = Audit::new(limit);
    one_too_many(&first, &edge, 50 * SECOND, 3);
    one_too_many(&first, &[(5, 1), (6, 2), (MINUTE + 4, 1)], 5, 3);
    assert!(judge(first.clone(), &[(5, 3), (MINUTE + 5, 3)]).held());
    // A window may have been open when the record began, but not every time.
    let partial = first.partial(true);
    assert!(judge(partial.clone(), &edge).held());
    let again = [edge[0], edge[1], (100 * SECOND, 3)];
    one_too_many(&partial, &again, MINUTE, 3);
}

#[test]
fn a_sliding_window_has_two_bounds() {
    let audit = Audit::new(Limit::per_minute(10).sliding_window());
    one_too_many(&audit, &[(0, 10), (MINUTE - 1, 1)], 0, 10);
    // 19 of 10 can pass across an edge; 20 cannot.
    let edge = [(MINUTE - 1, 10), (2 * MINUTE - 2, 9), (2 * MINUTE - 2, 1)];
    one_too_many(&audit, &edge, MINUTE - 1, 19);
}

#[test]
fn a_sliding_log_holds_any_window() {
    let audit = Audit::new(Limit::per_minute(3).sliding_log());
    let requests = [(0, 1), (30 * SECOND, 2), (MINUTE - 1, 1)];
    one_too_many(&audit, &requests, 0, 3);
    // What is a window old is gone.
    assert!(judge(audit, &[(0, 1), (30 * SECOND, 2), (MINUTE, 1)]).held());
}

#[test]
fn nothing_passes_a_block() {
    let audit = Audit::new(Limit::block());
    one_too_many(&audit, &[(0, 1)], 0, 0);
}

#[test]
fn losses_of_state_allow_one_burst_each() {
    let bucket = Audit::new(Limit::per_second(10).burst(3)).allow_losses(2);
    one_too_many(&bucket, &[(0, 9), (0, 1)], 0, 9);
    let log = Audit::new(Limit::per_second(10).sliding_log()).allow_losses(1);
    one_too_many(&log, &[(0, 10), (1, 10), (2, 1)], 0, 20);
    let window = Audit::new(Limit::per_second(10).fixed_window()).allow_losses(1);
    // Where the windows are is not known then: the first edge may be anywhere.
    one_too_many(&window, &[(0, 20), (2, 20), (4, 1)], 2, 20);
}

#[test]
fn background_adds_what_the_others_may_not_have_told() {
    // D is 2 * (90 ms + 10 ms); three nodes, of which one was offered little.
    let (sync, round_trip) = (Duration::from_millis(90), Duration::from_millis(10));
    let nodes = Background::new(sync, round_trip, [100, 2, 1]);
    assert_eq!(nodes.staleness(), Duration::from_millis(200));
    let window = Limit::per_minute(10).fixed_window().align(Align::Epoch);
    let audit = Audit::new(window).background(nodes.clone());
    // 10, and min(10, 100) + min(10, 2).
    one_too_many(&audit, &[(0, 22), (1, 1)], 0, 22);
    let audit = Audit::new(Limit::per_minute(10).sliding_log()).background(nodes.clone());
    one_too_many(&audit, &[(0, 22), (1, 1)], 0, 22);
    // 3, and min(3 + 10 * 0.2, 100) + min(3 + 10 * 0.2, 2).
    let bucket = Limit::per_second(10).burst(3);
    let audit = Audit::new(bucket).background(nodes.clone());
    one_too_many(&audit, &[(0, 10), (0, 1)], 0, 10);
    // Once, and not once per D.
    one_too_many(&audit, &[(0, 10), (200_000, 2), (200_000, 1)], 0, 12);
    // An outage of 100 ms: min(3 + 10 * 0.3, 100) + min(3 + 10 * 0.3, 2).
    let audit = Audit::new(bucket).background(nodes.outage(Duration::from_millis(100)));
    one_too_many(&audit, &[(0, 11), (0, 1)], 0, 11);
    // A node alone never passes more than the limit.
    let alone = Background::new(sync, round_trip, [100]);
    one_too_many(
        &Audit::new(bucket).background(alone),
        &[(0, 3), (0, 1)],
        0,
        3,
    );
}

#[test]
fn what_was_decided_without_the_store_is_outside() {
    let mut audit = Audit::new(Limit::per_second(1));
    let admitted = Record::admitted("key", START, Cost::ONE);
    audit.push(&admitted);
    for source in [Source::Local, Source::ErrorPolicy] {
        audit.push(&Record { source, ..admitted });
    }
    audit.push(&Record {
        allowed: false,
        ..admitted
    });
    let verdict = audit.verdict();
    assert!(verdict.held());
    let counts = (verdict.admitted, verdict.outside, verdict.refused);
    assert_eq!(counts, (1, 2, 1));
}

#[test]
fn keys_are_judged_apart_and_the_first_violation_is_reported() {
    let mut audit = Audit::new(Limit::per_minute(2).sliding_log());
    // Not in order, as they come from several threads.
    for at_us in [30, 10, 20] {
        audit.push(&Record::admitted("late", START + at_us, Cost::ONE));
        audit.push(&Record::admitted("early", START + at_us - 5, Cost::ONE));
        audit.push(&Record::admitted(&at_us.to_le_bytes(), START, Cost::ONE));
    }
    let verdict = audit.verdict();
    assert_eq!((verdict.keys, verdict.broken_keys), (5, 2));
    let broken = verdict.broken.expect("three of two");
    assert_eq!(
        broken.to_string(),
        format!(
            "key \"early\": 3 admitted in the 20 us from {} to {}, at most 2 allowed",
            START + 5,
            START + 25
        )
    );
    let tightest = verdict.tightest.expect("the other keys");
    assert_eq!((tightest.admitted, tightest.bound), (1, 2));
}

#[test]
fn what_was_given_back_does_not_count() {
    for limit in crate::support::every_algorithm(2, MINUTE) {
        let clock = ManualClock::at_us(START + 50 * SECOND);
        let limiter = Limiter::builder(limit).clock(clock.clone()).build();
        let mut audit = Audit::new(limit);
        let mut unheard = Audit::new(limit);
        for _ in 0..10 {
            let decision = limiter.check("key");
            for audit in [&mut audit, &mut unheard] {
                audit.push(&Record::of("key", Cost::ONE, &decision));
            }
            let receipt = decision.receipt().expect("it was admitted");
            limiter.refund("key", &receipt);
            audit.refund("key", decision.decided_at_us(), Cost::ONE);
            clock.advance(Duration::from_micros(10));
        }
        assert!(audit.verdict().held(), "{limit}");
        assert!(!unheard.verdict().held(), "{limit}");
    }
}

/// Ten million records of a hundred thousand keys, and of one: run it with
/// `cargo test --release -p tidegate -- --ignored --nocapture ten_million`.
#[test]
#[ignore = "measures, in an optimised build"]
fn ten_million_records_take_seconds() {
    const RECORDS: u64 = 10_000_000;
    for keys in [100_000, 1] {
        // As many as the limit allows, spread evenly.
        let limit = Limit::per_second(1_000);
        for limit in [
            limit,
            limit.fixed_window(),
            limit.fixed_window().align(Align::Epoch),
            limit.sliding_window(),
            limit.sliding_log(),
        ] {
            for partial in [false, true] {
                let start = Instant::now();
                let mut audit = Audit::new(limit).partial(partial);
                for number in 0..RECORDS {
                    // A few out of order.
                    let at_us = START + (number ^ 3) * 1_000 / keys;
                    let key = (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) % keys;
                    audit.push(&Record::admitted(&key.to_le_bytes(), at_us, Cost::ONE));
                }
                let pushed = start.elapsed();
                let verdict = audit.verdict();
                let took = start.elapsed();
                eprintln!(
                    "{keys} keys, {limit}, partial {partial}: {took:.2?}, {pushed:.2?} of it to take them in"
                );
                assert!(verdict.held(), "{verdict:?}");
                assert_eq!(verdict.admitted, RECORDS);
                assert!(took < Duration::from_secs(30), "{took:?}");
            }
        }
    }
}
