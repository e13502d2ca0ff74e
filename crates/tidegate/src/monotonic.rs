//! Time that passes, in microseconds: the standard library's `Instant`, with the
//! processor's counter in between.
//!
//! Reading an `Instant` takes as long as half a check. So each thread reads one per
//! millisecond, measures how fast the counter runs, and counts ticks until the next.
//! The counter is not trusted beyond that:
//!
//! - It is used only where the processor promises that it runs at a constant rate, and only
//!   while two measurements in a row agree.
//! - A counter that jumps, or goes back, is noticed, and the `Instant` read instead.
//! - However wrong it is, a reading is never more than a millisecond ahead of the `Instant`,
//!   and corrections of the system's clock are followed within that time.
//!
//! Readings may step back by a microsecond or two, within a thread and between threads. So
//! each shard of the table takes a time before its latest decision for that of the decision.

use std::cell::Cell;
use std::sync::LazyLock;
use std::time::Instant;

/// How long ticks are counted before the system is asked again.
const PERIOD_US: u64 = 1_000;

/// The longest time between two readings that tells the rate of the counter.
const LONGEST_NS: u64 = 1_000_000_000;

/// Bits of a rate that are a fraction.
const FRACTION: u32 = 32;

/// What a thread knows of the counter.
struct Meter {
    /// The time when the system was last asked, and the counter then.
    now_us: Cell<u64>,
    now_ns: Cell<u64>,
    ticks: Cell<u64>,
    /// How many ticks are counted from then on.
    counted: Cell<u64>,
    us_per_tick: Cell<u64>,
}

thread_local! {
    static METER: Meter = const { Meter::new() };
}

/// Microseconds since the first reading in this process.
#[inline]
pub(crate) fn now_us() -> u64 {
    METER.with(|meter| {
        let counted = meter.count(ticks());
        counted.unwrap_or_else(|| meter.ask(system_ns, ticks, has_constant_rate()))
    })
}

fn system_ns() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// The processor's counter.
#[inline]
fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    return safe_arch::read_timestamp_counter();
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// Whether the counter runs at one rate, whatever the processor's own is, and also while the
/// processor sleeps.
fn has_constant_rate() -> bool {
    static CONSTANT: LazyLock<bool> = LazyLock::new(|| {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::__cpuid;

            // A bit of the leaf about power management.
            const POWER: u32 = 0x8000_0007;
            __cpuid(0x8000_0000).eax >= POWER && __cpuid(POWER).edx & 1 << 8 != 0
        }
        #[cfg(not(target_arch = "x86_64"))]
        false
    });
    *CONSTANT
}

impl Meter {
    const fn new() -> Self {
        Self {
            now_us: Cell::new(0),
            now_ns: Cell::new(0),
            ticks: Cell::new(0),
            counted: Cell::new(0),
            us_per_tick: Cell::new(0),
        }
    }

    /// The time by the counter. One that went back has passed by too much.
    #[inline]
    fn count(&self, ticks: u64) -> Option<u64> {
        let passed = ticks.wrapping_sub(self.ticks.get());
        let us = |passed: u64| (passed * self.us_per_tick.get()) >> FRACTION;
        (passed < self.counted.get()).then(|| self.now_us.get() + us(passed))
    }

    /// The time by the system, by which the counter is measured.
    #[cold]
    fn ask(&self, system_ns: impl Fn() -> u64, ticks: impl Fn() -> u64, is_constant: bool) -> u64 {
        let now_ns = system_ns();
        let ticks = ticks();
        let passed_ns = now_ns.saturating_sub(self.now_ns.get());
        if passed_ns < PERIOD_US * 1_000 {
            return now_ns / 1_000;
        }
        let passed = ticks.wrapping_sub(self.ticks.replace(ticks));
        let rate = match is_constant && passed_ns <= LONGEST_NS {
            true => (passed_ns << FRACTION).checked_div(passed.saturating_mul(1_000)),
            false => None,
        };
        let rate = rate.unwrap_or(0);
        let before = self.us_per_tick.replace(rate);
        // To one in five hundred: a thread may be interrupted between its two readings.
        let is_known = rate > 0 && rate.abs_diff(before) <= rate >> 9;
        let counted = is_known.then(|| (PERIOD_US << FRACTION) / rate);
        self.counted.set(counted.unwrap_or(0));
        self.now_ns.set(now_ns);
        self.now_us.set(now_ns / 1_000);
        now_ns / 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system's clock and a counter, each as a test wants it.
    struct Machine {
        meter: Meter,
        ns: Cell<u64>,
        ticks: Cell<u64>,
        asked: Cell<u32>,
    }

    impl Machine {
        /// Whose counter has run at 3 GHz for a while.
        fn new() -> Self {
            let machine = Self {
                meter: Meter::new(),
                ns: Cell::new(7_000_000),
                ticks: Cell::new(1 << 40),
                asked: Cell::new(0),
            };
            for _ in 0..4 {
                machine.pass(1_000_000, 3_000_000);
                machine.now_us();
            }
            machine
        }

        fn pass(&self, ns: u64, ticks: u64) {
            self.ns.update(|now| now + ns);
            self.ticks.update(|now| now.wrapping_add(ticks));
        }

        fn now_us(&self) -> u64 {
            self.meter.count(self.ticks.get()).unwrap_or_else(|| {
                self.asked.update(|asked| asked + 1);
                self.meter.ask(|| self.ns.get(), || self.ticks.get(), true)
            })
        }

        /// How far a reading is ahead of the system's clock, in microseconds.
        fn ahead_us(&self) -> i64 {
            let system_us = self.ns.get() / 1_000;
            self.now_us().cast_signed() - system_us.cast_signed()
        }
    }

    #[test]
    fn ticks_are_counted_for_a_millisecond() {
        let machine = Machine::new();
        machine.asked.set(0);
        for _ in 0..1_000_000 {
            machine.pass(100, 300);
            assert!((-1..=0).contains(&machine.ahead_us()));
        }
        assert!((99..=200).contains(&machine.asked.get()), "in 100 ms");
        // Seven in ten thousand slower, as a clock that is corrected.
        for _ in 0..1_000_000 {
            machine.pass(100_070, 300_000);
            assert!((-1..=1).contains(&machine.ahead_us()));
        }
    }

    #[test]
    fn counter_that_jumps_is_not_believed() {
        for jump in [-(1_i64 << 50), -4_000_000, 4_000_000, 1 << 50] {
            let machine = Machine::new();
            machine.pass(10_000, 30_000_u64.wrapping_add_signed(jump));
            for _ in 0..10_000 {
                assert!((-1..=0).contains(&machine.ahead_us()), "after {jump}");
                machine.pass(1_000, 3_000);
            }
        }
    }

    /// A counter that does what it wants is less than a millisecond ahead.
    #[test]
    fn counter_cannot_lead_far_ahead() {
        for seed in 1..100_u64 {
            let machine = Machine::new();
            let mut random = seed;
            for _ in 0..10_000 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let ticks = match random >> 60 {
                    0 => (random << 4).cast_signed() >> (random >> 50 & 31),
                    _ => (random >> 40).cast_signed() >> (random >> 56 & 7),
                };
                machine.pass(random >> 32 & 0xf_ffff, ticks.cast_unsigned());
                assert!(machine.ahead_us() <= 1_000, "seed {seed}");
            }
        }
    }

    #[test]
    fn counter_without_a_constant_rate_is_not_used() {
        let meter = Meter::new();
        for now_ns in (0..10_000_000).step_by(1_000) {
            let now_us = meter.ask(|| now_ns, || now_ns * 3, false);
            assert_eq!(now_us, now_ns / 1_000);
            assert_eq!(meter.count(now_ns * 3 + 1), None);
        }
    }
}
