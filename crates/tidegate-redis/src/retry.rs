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

    /// What is left of the deadline, the jitter, and the pauses in milliseconds.
    #[test]
    fn pauses_double_up_to_a_bound_and_do_not_outlast_the_deadline() {
        let table: [(_, _, &[u32]); 6] = [
            (Duration::MAX, 1.0, &[2, 4, 8, 16, 20, 20]),
            (Duration::MAX, 0.5, &[1, 2, 4, 8, 10, 10]),
            (Duration::MAX, 0.0, &[0; 6]),
            (5 * MS, 1.0, &[2, 4]),
            (2 * MS, 1.0, &[]),
            (Duration::ZERO, 0.0, &[]),
        ];
        for (left, jitter, expected) in table {
            let mut schedule = Schedule::default();
            let pauses = (0..6).map_while(|_| schedule.pause(left, jitter));
            let pauses: Vec<_> = pauses.collect();
            let expected: Vec<_> = expected.iter().map(|ms| *ms * MS).collect();
            assert_eq!(pauses, expected, "{left:?} {jitter}");
            // Thousands of attempts do not overflow.
            let mut more = (0..10_000).map(|_| schedule.pause(left, jitter));
            assert!(more.all(|pause| pause <= Some(LONGEST)));
        }
    }
}
