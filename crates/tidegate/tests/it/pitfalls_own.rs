//! What our own first version got wrong, by the ids of the list of pitfalls, and what a
//! close reading of it found.

use std::time::Duration;

use tidegate::{
    Align, Charge, Cost, Limit, LimitSpec, Limiter, ManualClock, MemoryStore, Rate, WhenFull,
};

use crate::support::{HOUR, KEY, MINUTE, SECOND, START, Timed, every_algorithm};

#[test]
fn g1_refund_is_applied_once() {
    for limit in every_algorithm(10, MINUTE) {
        let timed = Timed::new(limit);
        let receipt = timed.check_cost(2).receipt().expect("it was charged");
        assert!(timed.check_cost(8).allowed());
        assert!(timed.limiter.refund(KEY, &receipt), "{limit}");
        for _ in 0..3 {
            assert!(!timed.limiter.refund(KEY, &receipt), "{limit}");
        }
        assert_eq!(timed.peek(1).remaining(), 2, "{limit}");
    }
}

#[test]
fn g1_receipts_of_one_microsecond_are_refunded_each_by_itself() {
    for limit in every_algorithm(10, MINUTE) {
        let timed = Timed::new(limit);
        let receipts = [(); 5].map(|()| timed.check().receipt().expect("it was charged"));
        for (index, receipt) in receipts.iter().enumerate() {
            assert!(timed.limiter.refund(KEY, receipt), "{limit}");
            assert!(!timed.limiter.refund(KEY, receipt), "{limit}");
            let left = 10 - 4 + u32::try_from(index).unwrap();
            assert_eq!(timed.peek(1).remaining(), left, "{limit}");
        }
    }
}

#[test]
fn g1_a_receipt_of_several_levels_is_refunded_once() {
    let store = MemoryStore::builder()
        .clock(ManualClock::at_us(START))
        .build();
    let total = store.level("total", Limit::per_hour(100)).unwrap();
    let each = store
        .level("each", Limit::per_hour(10).sliding_log())
        .unwrap();
    let checks = [total.check(""), each.check(KEY)];
    let receipt = store.decide(&checks, Charge::Admitted).receipt().unwrap();
    let _ = store.decide(&checks, Charge::Admitted);
    assert!(store.refund(&checks, &receipt));
    assert!(!store.refund(&checks, &receipt));
    let left = store.decide(&checks, Charge::Nothing);
    let left: Vec<u32> = left
        .levels()
        .iter()
        .map(|level| level.remaining())
        .collect();
    assert_eq!(left, [99, 9]);
}

#[test]
fn a_receipt_of_another_key_gives_nothing_back() {
    for limit in every_algorithm(10, MINUTE) {
        let timed = Timed::new(limit);
        let receipt = timed.check_cost(5).receipt().expect("it was charged");
        assert!(timed.limiter.check_cost("other", Cost::of(5)).allowed());
        assert!(!timed.limiter.refund("other", &receipt), "{limit}");
        assert_eq!(timed.limiter.peek("other", Cost::ONE).remaining(), 5);
        assert!(timed.limiter.refund(KEY, &receipt), "{limit}");
    }
}

#[test]
fn g2_flipping_the_algorithm_admits_at_most_both_limits() {
    let clock = ManualClock::at_us(START);
    let store = MemoryStore::builder().clock(clock).build();
    let limits = every_algorithm(5, MINUTE);
    let levels: Vec<_> = limits
        .iter()
        .map(|limit| store.level("level", *limit).unwrap())
        .collect();
    let (bucket, window) = (
        &levels[0],
        levels
            .iter()
            .find(|level| level.limit().algorithm() == tidegate::Algorithm::FixedWindow),
    );
    let window = window.expect("every algorithm is there");
    let admitted = (0..80)
        .map(|index| if index % 2 == 0 { bucket } else { window })
        .filter(|level| {
            store
                .decide(&[level.check(KEY)], Charge::Admitted)
                .allowed()
        });
    assert_eq!(admitted.count(), 10);
}

#[test]
fn g7_a_key_twice_at_costs_above_u32_is_refused_for_good() {
    for limit in every_algorithm(10, MINUTE) {
        for charge in [Charge::Nothing, Charge::Admitted, Charge::Always] {
            for used in [0, 10] {
                let (clock, store) = store();
                let level = store.level("level", limit).unwrap();
                for _ in 0..used {
                    clock.advance(Duration::from_micros(1));
                    assert!(
                        store
                            .decide(&[level.check(KEY)], Charge::Admitted)
                            .allowed()
                    );
                }
                // The small cost first.
                let checks = [level.check(KEY), level.check(KEY).cost(Cost::MAX)];
                let decision = store.decide(&checks, charge);
                assert!(!decision.allowed(), "{limit}, {charge:?}");
                assert_eq!(decision.retry_after(), None, "{limit}, {charge:?}");
            }
        }
    }
}

#[test]
fn a_refund_cannot_undo_that_a_request_opened_a_fixed_window() {
    let timed = Timed::new(Limit::per_minute(2).fixed_window());
    let receipt = timed.check().receipt().expect("A at 0 s");
    assert!(timed.at(59 * SECOND).check().allowed(), "B");
    assert!(
        timed
            .at(59 * SECOND + SECOND / 2)
            .limiter
            .refund(KEY, &receipt)
    );
    assert!(
        timed.at(59 * SECOND + SECOND * 6 / 10).check().allowed(),
        "C"
    );
    // The window that A opened ends, although A is as if it had not been.
    assert!(timed.at(60 * SECOND).check().allowed(), "D");
    assert!(timed.check().allowed(), "E");
    assert!(!timed.check().allowed(), "never more than N in a window");

    // Windows on the grid of the epoch have no such exception.
    let timed = Timed::new(Limit::per_minute(2).fixed_window().align(Align::Epoch));
    let receipt = timed.check().receipt().expect("it was charged");
    assert!(timed.limiter.refund(KEY, &receipt));
    assert!(timed.check().allowed() && timed.check().allowed() && !timed.check().allowed());
}

#[test]
fn a_reset_voids_the_receipts_of_its_own_key_only() {
    for limit in every_algorithm(10, HOUR) {
        let timed = Timed::with(limit, |builder| builder.max_keys(2_000));
        let keys: Vec<String> = (0..2_000).map(|key| format!("key {key}")).collect();
        let receipts: Vec<_> = keys
            .iter()
            .map(|key| timed.limiter.check(key).receipt().expect("it was charged"))
            .collect();
        assert!(timed.limiter.reset(&keys[0]));
        let refunded = keys.iter().zip(&receipts).skip(1);
        for (key, receipt) in refunded {
            assert!(timed.limiter.refund(key, receipt), "{limit}");
            let left = timed.limiter.peek(key, Cost::ONE).remaining();
            assert_eq!(left, 10, "{limit}, {key}");
        }
        // The one that was reset gets nothing back.
        assert!(timed.limiter.check(&keys[0]).allowed());
        timed.limiter.refund(&keys[0], &receipts[0]);
        assert_eq!(timed.limiter.peek(&keys[0], Cost::ONE).remaining(), 9);
    }
}

#[test]
fn unused_limits_are_forgotten() {
    let timed = Timed::new(Limit::per_second(1));
    for requests in 1..=40_000_u64 {
        let rate = Rate::new(requests, Duration::from_secs(1)).unwrap();
        let limit = LimitSpec::new(rate).build().unwrap();
        timed.limiter.set_limit(limit).expect("few are in use");
        if requests % 1_000 == 0 {
            timed.at(requests * SECOND);
            assert!(timed.check().allowed());
        }
    }
    assert_eq!(
        timed.limiter.limit().spec().unwrap().rate.requests(),
        40_000
    );
}

#[test]
fn a_limit_that_a_key_was_charged_under_is_not_forgotten() {
    let timed = Timed::with(Limit::per_day(5), |builder| builder.max_keys(64));
    assert!(timed.check_cost(5).allowed());
    for requests in 1..=70_000_u64 {
        let rate = Rate::new(requests, Duration::from_secs(86_400)).unwrap();
        let limit = LimitSpec::new(rate).build().unwrap();
        timed.limiter.set_limit(limit).expect("few are in use");
    }
    // 5 of 5 used are 5 of 10 used.
    timed.limiter.set_limit(Limit::per_day(10)).unwrap();
    assert_eq!(timed.peek(1).remaining(), 5);
}

#[test]
fn limits_in_use_are_bounded() {
    let store = MemoryStore::new();
    let levels: Vec<_> = (1..=32_767_u64)
        .map(|requests| {
            let rate = Rate::new(requests, Duration::from_secs(1)).unwrap();
            store.level("level", rate.into()).expect("there is room")
        })
        .collect();
    let error = store.level("level", Limit::per_day(1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "more than 32767 different limits in use in one store: expected fewer"
    );
    drop(levels);
    assert!(store.level("level", Limit::per_day(1)).is_ok());
}

#[test]
fn dead_keys_make_room_before_live_ones() {
    // One key in a hundred is dead, and three quarters as many new ones come. A live key
    // goes only where neither its shard nor the next few have a dead one left: before,
    // about half of the new keys evicted one.
    let clock = ManualClock::at_us(START);
    let limiter = Limiter::builder(Limit::per_hour(10))
        .max_keys(20_000)
        .when_full(WhenFull::Evict)
        .clock(clock.clone())
        .build();
    for key in 0..20_000_u32 {
        // A charge of 1 is gone after 6 minutes, one of 5 after half an hour.
        let cost = if key % 100 == 0 {
            Cost::ONE
        } else {
            Cost::of(5)
        };
        assert!(limiter.check_cost(key, cost).allowed());
    }
    clock.advance(Duration::from_secs(7 * 60));
    for key in 20_000..20_150_u32 {
        assert!(limiter.check_cost(key, Cost::of(5)).allowed());
    }
    let evicted = limiter.stats().evicted;
    assert!(evicted <= 7, "{evicted} of 150 new keys evicted a live one");
}

#[test]
fn raising_max_keys_keeps_all_keys() {
    let (_, store) = store();
    let level = store.level("level", Limit::per_hour(1)).unwrap();
    assert!(
        store
            .decide(&[level.check(KEY)], Charge::Admitted)
            .allowed()
    );
    store.set_bounds(2_000_000, WhenFull::Deny);
    assert_eq!(store.bounds(), (2_000_000, WhenFull::Deny));
    assert!(
        !store
            .decide(&[level.check(KEY)], Charge::Admitted)
            .allowed()
    );
}

fn store() -> (ManualClock, MemoryStore) {
    let clock = ManualClock::at_us(START);
    let store = MemoryStore::builder().clock(clock.clone()).build();
    (clock, store)
}
