//! A toy that is compiled only in tests. It shows what it takes to add an algorithm:
//! this file, a line in `table.rs`, and the lines that ARCHITECTURE.md lists.
//!
//! After `N` requests a key is closed until `W` has passed since the last one that was
//! admitted. Every admitted request begins `W` anew, so no window of length `W` has
//! more than `N`.
//!
//! # Example
//! 3 per 60 s, first request at 10 s:
//!
//! | at (s) | admitted | count | remaining | retry after (s) | reset after (s) |
//! | --- | --- | --- | --- | --- | --- |
//! | 10 | yes | 1 | 2 | 0 | 60 |
//! | 20 | yes | 2 | 1 | 0 | 60 |
//! | 69 | yes | 3 | 0 | 0 | 60 |
//! | 70 | no | 3 | 0 | 59 | 59 |
//! | 129 | yes | 1 | 2 | 0 | 60 |

use super::{Compact, Counter, Outcome, Packed, PastCharge, Used};
use crate::cost::Cost;
use crate::rate::Rate;

/// At most `requests`, and then none until a window has passed since the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cooldown {
    rate: Rate,
}

/// A key's count since it was last new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CooldownState {
    count: u32,
    /// Time left until the count starts over.
    left_us: u64,
    last_us: u64,
}

impl Cooldown {
    /// A cooldown of this rate.
    pub(crate) const fn new(rate: Rate) -> Self {
        Self { rate }
    }

    /// The rate it was made of.
    pub(crate) const fn rate(&self) -> Rate {
        self.rate
    }

    const fn remaining(&self, state: &CooldownState) -> u32 {
        self.rate.requests().saturating_sub(state.count)
    }
}

impl Counter for Cooldown {
    type State = CooldownState;

    fn new_state(&self, now_us: u64) -> CooldownState {
        CooldownState {
            count: 0,
            left_us: 0,
            last_us: now_us,
        }
    }

    fn at(&self, state: CooldownState, now_us: u64) -> CooldownState {
        let elapsed = now_us.saturating_sub(state.last_us);
        if elapsed >= state.left_us {
            return self.new_state(now_us);
        }
        CooldownState {
            left_us: state.left_us - elapsed,
            last_us: now_us,
            ..state
        }
    }

    fn admits(&self, state: &CooldownState, cost: Cost) -> bool {
        cost.get() <= self.remaining(state)
    }

    fn charge(&self, state: CooldownState, cost: Cost) -> CooldownState {
        CooldownState {
            count: state.count.saturating_add(cost.get()),
            left_us: self.rate.window_us(),
            ..state
        }
    }

    /// A refusal does not begin the window anew.
    fn saturate(&self, state: CooldownState, cost: Cost) -> CooldownState {
        if state.count == 0 {
            return state;
        }
        CooldownState {
            count: state.count + cost.get().min(self.remaining(&state)),
            ..state
        }
    }

    /// Only the last charge, which is known by when it ends: earlier ones have begun
    /// the window that later ones were counted in.
    fn refund(&self, state: CooldownState, charge: PastCharge) -> CooldownState {
        if self.mark_us(&state) != charge.mark_us {
            return state;
        }
        match state.count.saturating_sub(charge.cost.get()) {
            0 => self.new_state(state.last_us),
            count => CooldownState { count, ..state },
        }
    }

    fn outcome(&self, state: &CooldownState, cost: Cost, admitted: bool) -> Outcome {
        Outcome {
            limit: self.rate.requests(),
            used: Used::requests(state.count),
            retry_after_us: if admitted {
                Some(0)
            } else if cost.get() > self.rate.requests() {
                None
            } else {
                Some(state.left_us)
            },
            reset_after_us: state.left_us,
        }
    }

    fn last_us(state: &CooldownState) -> u64 {
        state.last_us
    }

    fn moved_to(state: CooldownState, last_us: u64) -> CooldownState {
        CooldownState { last_us, ..state }
    }

    /// Each request that follows may keep it counted for a window more.
    fn counts_for_us(&self, _: Cost) -> u64 {
        self.rate.window_us() * u64::from(self.rate.requests())
    }

    /// When the count starts over.
    fn mark_us(&self, state: &CooldownState) -> u64 {
        state.last_us + state.left_us
    }

    fn counts_like(&self, old: &Self) -> bool {
        self.rate.window_us() == old.rate.window_us()
    }

    /// The count stays, and the time since the last charge.
    fn adopt(&self, old: &Self, state: CooldownState, _: u64) -> CooldownState {
        let elapsed = old.rate.window_us().saturating_sub(state.left_us);
        CooldownState {
            left_us: self.rate.window_us().saturating_sub(elapsed),
            ..state
        }
    }
}

impl Compact for Cooldown {
    fn pack(&self, state: &CooldownState) -> Packed {
        Packed {
            fresh_at_us: state.last_us + state.left_us,
            data: state.left_us,
            extra: u64::from(state.count),
        }
    }

    fn unpack(&self, packed: Packed) -> CooldownState {
        CooldownState {
            #[expect(clippy::cast_possible_truncation, reason = "packed from a u32")]
            count: packed.extra as u32,
            left_us: packed.data,
            last_us: packed.fresh_at_us - packed.data,
        }
    }
}

/// The toy through the real paths: the limiter, the table, policies' levels, the audit.
#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use crate::audit::{Audit, Record};
    use crate::{Charge, Cost, Decision, Limit, Limiter, ManualClock, MemoryStore};

    const SECOND: u64 = 1_000_000;

    fn limit(text: &str) -> Limit {
        Limit::parse(text).expect(text)
    }

    fn limiter(text: &str) -> (Limiter, ManualClock) {
        let clock = ManualClock::at_us(0);
        let limiter = Limiter::builder(limit(text)).clock(clock.clone()).build();
        (limiter, clock)
    }

    /// Admitted, remaining, retry after, reset after, in seconds.
    fn numbers(decision: &Decision) -> (bool, u32, Option<u64>, u64) {
        let seconds = |duration: Duration| duration.as_secs();
        (
            decision.allowed(),
            decision.remaining(),
            decision.retry_after().map(seconds),
            decision.reset_after().as_secs(),
        )
    }

    #[test]
    fn name_is_parsed_and_printed() {
        assert_eq!(limit("3/10s cooldown").to_string(), "3/10s cooldown");
        assert!(Limit::parse("3/10s cooldown burst=2").is_err());
        assert!(Limit::parse("3/10s cooldown sliding_log").is_err());
    }

    #[test]
    fn the_example_of_the_module() {
        let (limiter, clock) = limiter("3/60s cooldown");
        for (at, expected) in [
            (10, (true, 2, Some(0), 60)),
            (20, (true, 1, Some(0), 60)),
            (69, (true, 0, Some(0), 60)),
            (70, (false, 0, Some(59), 59)),
            (129, (true, 2, Some(0), 60)),
        ] {
            clock.set_us(at * SECOND);
            assert_eq!(numbers(&limiter.check("a")), expected, "at {at}");
        }
    }

    #[test]
    fn peek_charges_nothing_and_reset_forgets() {
        let (limiter, _) = limiter("2/10s cooldown");
        assert!(limiter.check_cost("a", Cost::of(2)).allowed());
        for _ in 0..2 {
            assert_eq!(
                numbers(&limiter.peek("a", Cost::ONE)),
                (false, 0, Some(10), 10)
            );
        }
        assert!(limiter.reset("a"));
        assert!(!limiter.reset("a"));
        assert_eq!(numbers(&limiter.peek("a", Cost::ONE)).1, 2);
        assert_eq!(limiter.peek("a", Cost::of(3)).retry_after(), None);
    }

    #[test]
    fn refund_gives_the_last_charge_back_once() {
        let (limiter, clock) = limiter("3/10s cooldown");
        let first = limiter.check("a").receipt().expect("charged");
        clock.set_us(SECOND);
        let second = limiter.check_cost("a", Cost::of(2));
        let second = second.receipt().expect("charged");
        assert!(limiter.refund("a", &second));
        assert!(!limiter.refund("a", &second));
        assert_eq!(limiter.peek("a", Cost::ONE).remaining(), 2);
        // Taken, and worth nothing: the second charge has begun another window.
        assert!(limiter.refund("a", &first));
        assert_eq!(limiter.peek("a", Cost::ONE).remaining(), 2);
    }

    #[test]
    fn changed_limit_keeps_what_was_used() {
        let (limiter, clock) = limiter("3/60s cooldown");
        assert!(limiter.check_cost("a", Cost::of(2)).allowed());
        clock.set_us(20 * SECOND);
        for (text, expected) in [
            ("5/60s cooldown", (true, 3, Some(0), 40)),
            ("2/60s cooldown", (false, 0, Some(40), 40)),
            ("2/30s cooldown", (false, 0, Some(10), 10)),
            ("2/15s cooldown", (true, 2, Some(0), 0)),
            // Each algorithm has its own counters.
            ("2/60s fixed_window", (true, 2, Some(0), 0)),
            ("3/60s cooldown", (true, 1, Some(0), 40)),
        ] {
            limiter.set_limit(limit(text)).unwrap();
            let look = limiter.peek("a", Cost::ONE);
            assert_eq!(numbers(&look), expected, "{text}");
        }
        // A check that charges writes the converted state.
        limiter.set_limit(limit("3/30s cooldown")).unwrap();
        assert_eq!(numbers(&limiter.check("a")), (true, 0, Some(0), 30));
    }

    #[test]
    fn refusals_count_where_told_to() {
        let clock = ManualClock::at_us(0);
        let limiter = Limiter::builder(limit("3/10s cooldown"))
            .count_denied(true)
            .clock(clock.clone())
            .build();
        assert!(limiter.check("a").allowed());
        assert!(!limiter.check_cost("a", Cost::of(3)).allowed());
        assert_eq!(numbers(&limiter.check("a")), (false, 0, Some(10), 10));
    }

    #[test]
    fn levels_are_charged_all_or_none() {
        // Up to four levels of known keys go one way through the table, more another.
        for others in 1..=5 {
            let store = MemoryStore::builder().clock(ManualClock::at_us(0)).build();
            let own = store.level("own", limit("2/10s cooldown")).unwrap();
            let wide = store.level("wide", limit("9/10s sliding_window")).unwrap();
            let names: Vec<String> = (0..others).map(|number| number.to_string()).collect();
            let mut checks = vec![own.check("a")];
            checks.extend(names.iter().map(|name| wide.check(name)));
            for expected in [true, true, false, false] {
                let decision = store.decide(&checks, Charge::Admitted);
                assert_eq!(decision.allowed(), expected, "{others} others");
                assert_eq!(decision.denied_by(), (!expected).then_some(0));
            }
            let look = store.decide(&checks, Charge::Nothing);
            let remaining: Vec<u32> = look.levels().iter().map(|it| it.remaining()).collect();
            assert_eq!(remaining[0], 0);
            assert!(remaining[1..].iter().all(|it| *it == 7), "{remaining:?}");
        }
    }

    #[test]
    fn idle_keys_make_room() {
        let clock = ManualClock::at_us(0);
        let limiter = Limiter::builder(limit("1/1s cooldown"))
            .max_keys(4)
            .clock(clock.clone())
            .build();
        for key in 0..40_u64 {
            clock.advance(Duration::from_millis(250));
            assert!(limiter.check(key).allowed());
        }
        assert_eq!(limiter.stats().evicted, 0);
    }

    proptest! {
        /// Decisions agree with a count and the time of the last request; a refused
        /// request is admitted exactly when it was told to come back; and the audit
        /// finds that the bound held.
        #[test]
        fn decisions_are_exact_and_waiting_is_exact(
            requests in 1..5_u32,
            steps in prop::collection::vec((1..4_u32, 0..2_500_000_u64), 1..60),
        ) {
            let text = format!("{requests}/2s cooldown");
            let (limiter, clock) = limiter(&text);
            let mut audit = Audit::new(limit(&text));
            let (mut now_us, mut count, mut last_us) = (0, 0, 0);
            for (cost, pause_us) in steps {
                now_us += pause_us;
                clock.set_us(now_us);
                if now_us - last_us >= 2 * SECOND {
                    count = 0;
                }
                let fits = count + cost <= requests;
                let decision = limiter.check_cost("a", Cost::of(cost));
                prop_assert_eq!(decision.allowed(), fits);
                if fits {
                    (count, last_us) = (count + cost, now_us);
                    audit.push(&Record::admitted("a", now_us, Cost::of(cost)));
                }
                prop_assert_eq!(decision.remaining(), requests - count);
                let wait = decision.retry_after();
                prop_assert_eq!(wait.is_none(), cost > requests);
                if let Some(wait) = wait.filter(|_| !fits) {
                    let ready_us = now_us + u64::try_from(wait.as_micros()).unwrap();
                    for (at_us, expected) in [(ready_us - 1, false), (ready_us, true)] {
                        clock.set_us(at_us);
                        let look = limiter.peek("a", Cost::of(cost));
                        prop_assert_eq!(look.allowed(), expected);
                    }
                    clock.set_us(now_us);
                }
            }
            prop_assert!(audit.verdict().broken.is_none());
        }
    }
}
