//! Memory: nothing is allocated on the hot path, a key takes few bytes, and logs
//! stay within their bound.
#![expect(
    unsafe_code,
    reason = "an allocator that counts can only be written so"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use tidegate::{Charge, Cost, Limit, Limiter, ManualClock, MemoryStore, WhenFull};

use crate::support::{DAY, KEY, MINUTE, START, Timed, every_algorithm};

/// The system's allocator, counting what each thread asks of it.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
}

fn count(allocations: u64, bytes: i64) {
    // A thread that is ending has nothing left to count.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + allocations));
    let _ = BYTES.try_with(|count| count.set(count.get() + bytes));
}

fn size(layout: Layout) -> i64 {
    i64::try_from(layout.size()).expect("a layout is at most isize::MAX bytes")
}

// SAFETY: every call goes on to the system's allocator unchanged, and counting
// neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, size(layout));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, -size(layout));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The allocations this thread makes meanwhile.
fn allocations(run: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    run();
    ALLOCATIONS.get() - before
}

#[test]
fn the_allocator_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
    let before = BYTES.get();
    let kept = std::hint::black_box(vec![0_u8; 1_000]);
    assert_eq!(BYTES.get() - before, 1_000);
    drop(kept);
    assert_eq!(BYTES.get(), before);
}

#[test]
fn checks_peeks_and_refunds_of_known_keys_do_not_allocate() {
    for limit in every_algorithm(50, MINUTE) {
        for count_denied in [false, true] {
            let timed = Timed::new(limit).count_denied(count_denied);
            let round = |number: u64| {
                for step in 0..100 {
                    // Refunds are remembered until they no longer matter.
                    timed.at((number % 20 * 100 + step) * MINUTE);
                    if let Some(receipt) = timed.check().receipt() {
                        timed.limiter.refund(KEY, &receipt);
                    }
                    // Admitted, refused and never: none may allocate.
                    let _ = std::hint::black_box((timed.check(), timed.peek(2)));
                    let _ = std::hint::black_box((timed.check_cost(50), timed.check_cost(51)));
                }
            };
            // The last rounds come after a step back of the clock, which is noted.
            (0..21).for_each(round);
            assert_eq!(allocations(|| round(21)), 0, "{limit} {count_denied}");
        }
    }
}

#[test]
fn checks_of_two_levels_do_not_allocate() {
    for first in every_algorithm(50, MINUTE) {
        for second in every_algorithm(20, MINUTE) {
            let clock = ManualClock::at_us(START);
            let store = MemoryStore::builder()
                .max_keys(64)
                .clock(clock.clone())
                .build();
            let first = store.level("first", first).unwrap();
            let second = store.level("second", second).unwrap();
            let round = || {
                for step in 0..100 {
                    clock.set_us(START + step * 2_000_000);
                    let checks = [first.check("total"), second.check("user:42")];
                    let _ = std::hint::black_box(store.decide(&checks, Charge::Admitted));
                    let _ = std::hint::black_box(store.decide(&checks, Charge::Nothing));
                }
            };
            round();
            round();
            let limits = [first.limit(), second.limit()];
            assert_eq!(allocations(round), 0, "{limits:?}");
        }
    }
}

#[test]
fn checks_on_the_system_clock_do_not_allocate() {
    let limiter = Limiter::in_memory(Limit::per_second(10));
    let _ = limiter.check(KEY);
    let round = || {
        for _ in 0..1_000 {
            let _ = std::hint::black_box(limiter.check(KEY));
        }
    };
    assert_eq!(allocations(round), 0);
}

#[test]
fn a_key_of_a_full_store_takes_at_most_37_bytes() {
    const KEYS: u32 = 200_000;
    let before = BYTES.get();
    let store = MemoryStore::builder()
        .max_keys(KEYS as usize)
        .clock(ManualClock::at_us(START))
        .build();
    let limiter = Limiter::over(&store, Limit::per_day(5)).expect("one limit");
    for key in 0..KEYS {
        let _ = limiter.check(format!("203.0.{}.{}", key / 256, key % 256));
    }
    let bytes = BYTES.get() - before;
    assert_eq!(limiter.stats().keys, KEYS as usize);
    assert!(bytes <= 37 * i64::from(KEYS), "{bytes} for {KEYS} keys");
}

/// A small bound on the bytes of logs: not enough for 20 events of each of this many
/// keys.
const LOG_BYTES: usize = 30_000;
const LOG_KEYS: u32 = 300;

fn crowded_logs(when_full: WhenFull) -> (Timed, usize) {
    let timed = Timed::with(Limit::per_day(20).sliding_log(), |builder| {
        builder
            .max_keys(5_000)
            .max_log_bytes(LOG_BYTES)
            .when_full(when_full)
    });
    let mut admitted = 0;
    for round in 0..20_u64 {
        for key in 0..LOG_KEYS {
            timed.clock.advance(Duration::from_micros(round + 1));
            admitted += usize::from(timed.limiter.check(key.to_le_bytes()).allowed());
            let stats = timed.limiter.stats();
            assert!(stats.log_bytes <= LOG_BYTES, "{stats:?}");
        }
    }
    (timed, admitted)
}

#[test]
fn logs_stay_within_their_bytes_when_others_are_forgotten() {
    let (timed, admitted) = crowded_logs(WhenFull::Evict);
    let stats = timed.limiter.stats();
    assert!(stats.evicted > 0, "{stats:?}");
    assert!(stats.log_bytes > LOG_BYTES / 2, "{stats:?}");
    // Room can always be made, so nobody is refused for want of it: every key
    // asks 20 times, and 20 are allowed.
    assert_eq!((admitted, stats.denied_full), (20 * LOG_KEYS as usize, 0));
}

#[test]
fn logs_stay_within_their_bytes_when_new_events_are_refused() {
    let (timed, admitted) = crowded_logs(WhenFull::Deny);
    let stats = timed.limiter.stats();
    assert_eq!(stats.evicted, 0);
    assert!(stats.log_bytes > LOG_BYTES / 2, "{stats:?}");
    assert_eq!(
        stats.denied_full,
        20 * u64::from(LOG_KEYS) - admitted as u64
    );
    // Every event that was admitted is still there.
    let used: u32 = (0..LOG_KEYS)
        .map(|key| timed.limiter.peek(key.to_le_bytes(), Cost::ONE))
        .map(|seen| seen.limit() - seen.remaining())
        .sum();
    assert_eq!(used as usize, admitted);
    // And when they have expired, there is room again.
    timed.clock.advance(Duration::from_micros(2 * DAY));
    assert!(timed.limiter.check("late").allowed());
}

#[test]
fn the_bytes_of_logs_are_the_bytes_that_are_held() {
    let timed = Timed::with(Limit::per_day(1_000).sliding_log(), |builder| {
        builder.max_keys(1_000).max_log_bytes(4 << 20)
    });
    let before = BYTES.get();
    for key in 0..50_u32 {
        for _ in 0..1_000 {
            timed.clock.advance(Duration::from_micros(1));
            let _ = timed.limiter.check(key.to_le_bytes());
        }
    }
    let held = BYTES.get() - before;
    let told = i64::try_from(timed.limiter.stats().log_bytes).expect("small");
    assert!(told >= 50 * 1_000 * 12, "{told}");
    assert!(
        held <= told + told / 10 + 50 * 40,
        "{held} held, {told} told"
    );
    // A key that is forgotten gives them all back.
    for key in 0..50_u32 {
        assert!(timed.limiter.reset(key.to_le_bytes()));
    }
    assert_eq!(timed.limiter.stats().log_bytes, 0);
    assert_eq!(timed.limiter.stats().keys, 0);
}
