//! Corners that once went wrong, each in its smallest form.

use std::time::Duration;

use tidegate::{Charge, Cost, Limit, WhenFull};

use crate::support::{DAY, HOUR, KEY, SECOND, START, Timed, every_algorithm, micros, small_store};

#[test]
fn two_full_counters_stay_used_when_the_window_changes() {
    let most = 1 << 28;
    let year = Duration::from_micros(366 * DAY);
    let timed = Timed::with(Limit::per(most, year).sliding_window(), |builder| {
        builder.count_denied(true)
    });
    let window_us = 366 * DAY;
    timed.clock.set_us(window_us - 1);
    assert!(timed.check_cost(most).allowed());
    // Both counters are full: the last window's, and this one's with a refusal.
    timed.clock.set_us(window_us);
    assert!(!timed.check_cost(most).allowed());
    timed
        .limiter
        .set_limit(Limit::per(most, year - Duration::from_secs(1)).sliding_window())
        .unwrap();
    for _ in 0..3 {
        let refused = timed.check();
        assert_eq!((refused.allowed(), refused.remaining()), (false, 0));
    }
}

#[test]
fn a_log_that_grows_while_a_new_key_moves_its_entry_stays_its_own() {
    for round in 0..30 {
        let (clock, store) = small_store(|builder| builder.max_keys(1_000));
        let each = store.level("each", Limit::per_day(5)).unwrap();
        let log = store
            .level("log", Limit::per_day(100).sliding_log())
            .unwrap();
        let check = |key: u32, log_key: u32, charge| {
            let (key, log_key) = (key.to_le_bytes(), log_key.to_le_bytes());
            let decision = store.decide(&[each.check(&key), log.check(&log_key)], charge);
            (
                decision.levels()[0].remaining(),
                decision.levels()[1].remaining(),
            )
        };
        let logs = 40;
        for event in 0..20 {
            for log_key in 0..logs {
                clock.advance(Duration::from_micros(1));
                let got = check(event * logs + log_key, log_key, Charge::Admitted);
                assert_eq!(
                    got,
                    (4, 99 - event),
                    "round {round}, event {event} of {log_key}"
                );
            }
        }
        for key in 0..20 * logs {
            assert_eq!(
                check(key, key % logs, Charge::Nothing),
                (4, 80),
                "round {round}, {key}"
            );
        }
        assert_eq!(store.stats().keys, 21 * logs as usize);
        for key in 0..20 * logs {
            assert!(
                store.reset(&each, key.to_le_bytes()),
                "round {round}, {key}"
            );
        }
        for key in 0..logs {
            assert!(store.reset(&log, key.to_le_bytes()), "round {round}, {key}");
        }
        let stats = store.stats();
        assert_eq!((stats.keys, stats.log_bytes), (0, 0), "round {round}");
    }
}

#[test]
fn a_log_that_grew_for_a_check_that_finds_the_store_full_still_answers() {
    let (clock, store) = small_store(|builder| builder.max_keys(1).when_full(WhenFull::Deny));
    let log = store
        .level("log", Limit::per_minute(5).sliding_log())
        .unwrap();
    let bucket = store.level("bucket", Limit::per_minute(2)).unwrap();
    for _ in 0..4 {
        clock.advance(Duration::from_micros(1));
        assert!(store.decide(&[log.check(KEY)], Charge::Admitted).allowed());
    }
    // Both refuse and would be charged; the log must grow, the bucket's key has
    // no place.
    clock.advance(Duration::from_micros(1));
    let three = Cost::of(3);
    let checks = [log.check(KEY).cost(three), bucket.check(KEY).cost(three)];
    let refused = store.decide(&checks, Charge::Always);
    assert_eq!(refused.denied_by(), Some(0));
    assert_eq!(store.decide(&[log.check(KEY)], Charge::Nothing).limit(), 5);
}

#[test]
fn a_full_store_leaves_no_log_behind() {
    let (_, store) = small_store(|builder| builder.max_keys(2).when_full(WhenFull::Deny));
    let level = store.level("level", Limit::per_minute(5)).unwrap();
    assert!(
        store
            .decide(&[level.check(KEY)], Charge::Admitted)
            .allowed()
    );
    // The same key, now counted by a log, beside one there is no place for.
    let level = store
        .level("level", Limit::per_minute(5).sliding_log())
        .unwrap();
    let other = store.level("other", Limit::per_minute(5)).unwrap();
    for _ in 0..10 {
        let refused = store.decide(&[level.check(KEY), other.check(KEY)], Charge::Admitted);
        assert_eq!(refused.denied_by(), Some(1));
        assert_eq!(store.stats().log_bytes, 0);
    }
}

#[test]
fn a_refusal_under_a_changed_limit_holds_for_as_long_as_it_says() {
    for (old, new) in every_algorithm(5, SECOND)
        .into_iter()
        .zip(every_algorithm(5, HOUR))
    {
        let timed = Timed::new(old);
        assert_eq!(timed.admitted_of(5), 5, "{old}");
        timed.limiter.set_limit(new).unwrap();
        let refused = timed.check();
        let wait = refused.retry_after().expect("not for ever");
        assert!(!refused.allowed(), "{new}");
        // Under the old limit the key would be fully refilled by now.
        timed.at(2 * SECOND);
        assert!(!timed.check().allowed(), "{new}");
        timed
            .clock
            .set_us(refused.decided_at_us() + micros(wait) - 1);
        assert!(!timed.check().allowed(), "{new}");
        timed.clock.set_us(refused.decided_at_us() + micros(wait));
        assert!(timed.check().allowed(), "{new}");
    }
}

#[test]
fn a_key_twice_at_too_large_a_cost_keeps_its_log_when_the_clock_steps_back() {
    let (clock, store) = small_store(|builder| builder);
    let log = store
        .level("log", Limit::per_minute(5).sliding_log())
        .unwrap();
    let look = || store.decide(&[log.check(KEY)], Charge::Nothing).remaining();
    assert!(store.decide(&[log.check(KEY)], Charge::Admitted).allowed());
    clock.set_us(START - SECOND);
    let checks = [log.check(KEY).cost(Cost::of(u32::MAX)), log.check(KEY)];
    let refused = store.decide(&checks, Charge::Admitted);
    assert_eq!((refused.limit(), refused.retry_after()), (5, None));
    assert_eq!(look(), 4);
    assert!(store.reset(&log, KEY));
    assert_eq!((look(), store.stats().log_bytes), (5, 0));
}

#[test]
fn a_check_that_only_notes_a_step_back_needs_no_room_in_the_log() {
    let (clock, store) =
        small_store(|builder| builder.max_log_bytes(140).when_full(WhenFull::Deny));
    let log = store
        .level("log", Limit::per_minute(4).sliding_log())
        .unwrap();
    for _ in 0..4 {
        clock.advance(Duration::from_micros(1));
        assert!(store.decide(&[log.check(KEY)], Charge::Admitted).allowed());
    }
    clock.set_us(START - HOUR);
    let refused = store.decide(&[log.check(KEY)], Charge::Admitted);
    assert!(!refused.allowed());
    // The step did not stall the key.
    clock.advance(refused.retry_after().expect("not for ever"));
    assert!(store.decide(&[log.check(KEY)], Charge::Admitted).allowed());
    assert_eq!(store.stats().denied_full, 0);
}
