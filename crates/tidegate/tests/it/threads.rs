//! Real threads: the bounds hold, all or none is charged, and nobody waits for
//! ever.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tidegate::{Charge, Clock, Cost, Decision, Limit, Limiter, ManualClock, MemoryStore};

use crate::support::{HOUR, START, every_algorithm, micros};

const THREADS: usize = 8;

/// Runs one closure on every thread, with its number, and collects what they
/// return.
fn on_all<T: Send>(run: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let run = &run;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| scope.spawn(move || run(number)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    })
}

fn on_clock(limit: Limit, clock: impl Clock + 'static) -> Limiter {
    let store = MemoryStore::builder().clock(clock).build();
    Limiter::over(&store, limit).expect("one limit")
}

fn still(limit: Limit) -> Limiter {
    on_clock(limit, ManualClock::at_us(START))
}

#[test]
fn exactly_the_limit_of_each_key_is_admitted() {
    for (keys, requests) in [(1, 5_000), (500, 10)] {
        for limit in every_algorithm(requests, HOUR) {
            let limiter = still(limit);
            let admitted = on_all(|thread| {
                // Each thread goes round the keys in another order.
                let thread = u32::try_from(thread).expect("few");
                let key = |index: u32| (index * 7 + thread * 13) % keys;
                (0..requests * keys / 2)
                    .filter(|&index| limiter.check(key(index).to_le_bytes()).allowed())
                    .count()
            });
            let admitted: usize = admitted.iter().sum();
            assert_eq!(admitted, (keys * requests) as usize, "{limit}");
            for key in 0..keys {
                let left = limiter.peek(key.to_le_bytes(), Cost::ONE).remaining();
                assert_eq!(left, 0, "{limit} {key}");
            }
        }
    }
}

/// Checks the bound of a bucket on the store's clock over every interval.
fn assert_bound(mut decided_us: Vec<u64>, requests: u64, window_us: u64, burst: u64) {
    decided_us.sort_unstable();
    for (first, from) in decided_us.iter().enumerate() {
        for (count, to) in (1_u64..).zip(&decided_us[first..]) {
            let above = count.saturating_sub(burst) * window_us;
            assert!(
                above <= requests * (to - from),
                "{count} from {from} to {to}"
            );
        }
    }
}

#[test]
fn on_the_system_clock_every_key_stays_within_its_bound() {
    for (keys, requests, burst) in [(1, 2_000, 50), (50, 100, 5)] {
        let limiter = Limiter::in_memory(Limit::per_second(requests).burst(burst));
        let began = Instant::now();
        let admitted = on_all(|_| {
            (0..10_000_u32)
                .map(|index| index % keys)
                .map(|key| (key, limiter.check(key.to_le_bytes())))
                .filter(|(_, decision)| decision.allowed())
                .map(|(key, decision)| (key, decision.decided_at_us()))
                .collect::<Vec<_>>()
        });
        let elapsed_us = micros(began.elapsed());
        let most = u64::from(burst) + u64::from(requests) * elapsed_us / 1_000_000 + 1;
        let mut of_key: HashMap<u32, Vec<u64>> = HashMap::new();
        for (key, at) in admitted.concat() {
            of_key.entry(key).or_default().push(at);
        }
        assert_eq!(of_key.len(), keys as usize);
        for decided_us in of_key.into_values() {
            let admitted = decided_us.len() as u64;
            assert!((burst.into()..=most).contains(&admitted), "{admitted}");
            assert_bound(decided_us, requests.into(), 1_000_000, burst.into());
        }
    }
}

#[test]
fn on_a_clock_that_moves_meanwhile_the_bound_holds() {
    let clock = ManualClock::at_us(START);
    let limiter = on_clock(Limit::per_second(1_000).burst(100), clock.clone());
    let done = AtomicBool::new(false);
    let admitted = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                clock.advance(Duration::from_micros(3));
                thread::yield_now();
            }
        });
        let admitted = on_all(|_| {
            let checks = (0..5_000).map(|_| limiter.check("one"));
            checks
                .filter(Decision::allowed)
                .map(|one| one.decided_at_us())
                .collect::<Vec<_>>()
        });
        done.store(true, Ordering::Relaxed);
        admitted.concat()
    });
    assert!(admitted.len() >= 100);
    assert_bound(admitted, 1_000, 1_000_000, 100);
}

#[test]
fn levels_in_opposite_orders_do_not_deadlock_and_are_charged_all_or_none() {
    const KEYS: usize = 20;
    let limits = every_algorithm(2_000, HOUR)
        .into_iter()
        .zip(every_algorithm(1_500, HOUR).into_iter().rev());
    for (user, address) in limits {
        let store = MemoryStore::builder()
            .clock(ManualClock::at_us(START))
            .build();
        let levels = [user, address, Limit::per_hour(9_000)];
        let level = |index: usize| store.level(&index.to_string(), levels[index]).unwrap();
        let (users, addresses, total) = (level(0), level(1), level(2));
        let keys: Vec<[u8; 1]> = (0_u8..).map(|key| [key]).take(KEYS).collect();
        // What each key was charged, as counted by the admitted callers.
        let spent: [[AtomicU64; KEYS]; 2] = Default::default();
        let admitted: u64 = on_all(|thread| {
            let mut admitted = 0;
            for index in 0..4_000 {
                let (one, other) = ((index * 7 + thread) % KEYS, (index * 3 + thread * 5) % KEYS);
                let mut checks = [
                    users.check(&keys[one]),
                    total.check(""),
                    addresses.check(&keys[other]),
                ];
                if thread % 2 == 0 {
                    checks.reverse();
                }
                if store.decide(&checks, Charge::Admitted).allowed() {
                    spent[0][one].fetch_add(1, Ordering::Relaxed);
                    spent[1][other].fetch_add(1, Ordering::Relaxed);
                    admitted += 1;
                }
            }
            admitted
        })
        .iter()
        .sum();
        assert_eq!(admitted, 9_000, "{user} and {address}");
        let left = |check| u64::from(store.decide(&[check], Charge::Nothing).remaining());
        assert_eq!(left(total.check("")), 0);
        for (index, key) in keys.iter().enumerate() {
            let [one, other] = spent.each_ref().map(|it| it[index].load(Ordering::Relaxed));
            assert_eq!(left(users.check(key)), 2_000 - one, "{user} {index}");
            assert_eq!(
                left(addresses.check(key)),
                1_500 - other,
                "{address} {index}"
            );
        }
    }
}

#[test]
fn refunds_from_many_threads_give_back_exactly_what_was_taken() {
    for limit in every_algorithm(100_000, HOUR) {
        let limiter = still(limit);
        let kept: u32 = on_all(|_| {
            let mut kept = 0;
            for index in 0..500 {
                let receipt = limiter.check("one").receipt().expect("there is enough");
                if index % 3 == 0 {
                    kept += 1;
                } else {
                    limiter.refund("one", &receipt);
                }
            }
            kept
        })
        .iter()
        .sum();
        assert_eq!(
            limiter.peek("one", Cost::ONE).remaining(),
            100_000 - kept,
            "{limit}"
        );
    }
}

#[test]
fn every_waiter_on_the_system_clock_spends_once() {
    let limiter = Limiter::in_memory(Limit::per_second(1_000).burst(1));
    let decided = on_all(|_| {
        (0..5)
            .map(|_| {
                limiter
                    .until_ready("one", Duration::from_secs(60))
                    .expect("in time")
                    .decided_at_us()
            })
            .collect::<Vec<_>>()
    })
    .concat();
    assert_eq!(decided.len(), 40);
    assert_bound(decided, 1_000, 1_000_000, 1);
}
