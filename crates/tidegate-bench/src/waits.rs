//! How long requests have waited, and what that comes to.

use std::time::Duration;

/// What callers went through.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    pub(crate) checks: f64,
    pub(crate) a_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// How many of all were admitted.
    pub(crate) admitted: f64,
}

/// How long each request has waited, and how many were admitted.
#[derive(Default)]
pub(crate) struct Waits {
    nanoseconds: Vec<u64>,
    admitted: u32,
}

impl Waits {
    pub(crate) fn add(&mut self, wait: Duration, admitted: bool) {
        let wait = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.push(wait);
        self.admitted += u32::from(admitted);
    }

    pub(crate) fn join(&mut self, other: Self) {
        self.nanoseconds.extend(other.nanoseconds);
        self.admitted += other.admitted;
    }

    /// What they come to, if they were all within this time.
    pub(crate) fn measured(mut self, time: Duration) -> Measured {
        self.nanoseconds.sort_unstable();
        let count = self.nanoseconds.len();
        let percentile = |hundredths: usize| {
            let index = (count * hundredths / 100).min(count - 1);
            self.nanoseconds[index] as f64 / 1e3
        };
        Measured {
            checks: count as f64,
            a_second: count as f64 / time.as_secs_f64(),
            p50_us: percentile(50),
            p99_us: percentile(99),
            admitted: f64::from(self.admitted) / count as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_come_to_a_rate_and_percentiles() {
        let mut waits = Waits::default();
        for us in 0..1_000 {
            waits.add(Duration::from_micros(us), us < 250);
        }
        let measured = waits.measured(Duration::from_secs(2));
        assert_eq!(measured.a_second, 500.0);
        assert_eq!((measured.p50_us, measured.p99_us), (500.0, 990.0));
        assert_eq!(measured.admitted, 0.25);
    }
}
