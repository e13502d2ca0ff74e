//! When to retry: exponential backoff with full jitter, within a deadline. A schedule
//! without its own clock.

use std::time::Duration;

/// The longest first pause, which doubles each time, and the longest of all.
const FIRST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(20);

/// The pauses between the attempts of one check.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    attempts: u32,
}

impl Schedule {
    /// How long to pause before asking again; `None` when what is left of the deadline
    /// is not enough. `jitter` is from 0 to 1.
    pub(crate) fn pause(&mut self, left: Duration, jitter: f64) -> Option<Duration> {
        let longest = FIRST
            .saturating_mul(1 << self.attempts.min(16))
            .min(LONGEST);
        self.attempts += 1;
        let pause = longest.mul_f64(jitter);
        (pause < left).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn pauses_double_up_to_a_bound() {
        let mut schedule = Schedule::default();
        let pauses: Vec<_> = (0..6).map(|_| schedule.pause(Duration::MAX, 1.0)).collect();
        assert_eq!(pauses, [2, 4, 8, 16, 20, 20].map(|ms| Some(ms * MS)));
    }

    #[test]
    fn jitter_is_full() {
        for (jitter, pause) in [(0.0, 0), (0.5, 1), (1.0, 2)] {
            let pauses = Schedule::default().pause(Duration::MAX, jitter);
            assert_eq!(pauses, Some(pause * MS));
        }
    }

    #[test]
    fn no_wait_outlasts_the_deadline() {
        let mut schedule = Schedule::default();
        assert_eq!(schedule.pause(3 * MS, 1.0), Some(2 * MS));
        assert_eq!(schedule.pause(MS, 1.0), None);
        assert_eq!(schedule.pause(Duration::ZERO, 0.0), None);
    }

    #[test]
    fn thousands_of_attempts_do_not_overflow() {
        let mut schedule = Schedule::default();
        for _ in 0..10_000 {
            assert!(schedule.pause(Duration::MAX, 1.0) <= Some(LONGEST));
        }
    }
}
