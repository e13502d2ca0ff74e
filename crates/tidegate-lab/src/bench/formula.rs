//! The value of a bound over a run, and the inputs of the formula for mode `background`.

use std::time::Duration;

use tidegate::Limit;
use tidegate::audit::{Background, most_in};

use super::counted::{Offered, Told};
use super::fleet::Gathered;
use super::plan::Plan;

/// The figures behind the bound of the mode `background`.
pub(super) struct Formula {
    pub(super) sync_interval: Duration,
    pub(super) round_trip: Duration,
    /// The longest that the store could not be reached.
    pub(super) outage: Duration,
    pub(super) staleness: Duration,
    /// What each process was offered for a key within the staleness, at most; none where
    /// that is not known, and anything may have been.
    pub(super) offered: Vec<Option<u64>>,
}

/// What the bound allows a key in this time, and what the rate comes to.
pub(super) fn allowed(limit: &Limit, time: Duration, formula: Option<&Formula>) -> (f64, f64) {
    let Some(spec) = limit.spec() else {
        return (0.0, 0.0);
    };
    let windows = time.as_secs_f64() / spec.rate.window().as_secs_f64();
    let requests = f64::from(spec.rate.requests());
    let refill = match spec.strict {
        true => requests - spec.burst.unwrap_or(0) as f64,
        false => requests,
    };
    let background = formula.map(Formula::background);
    (most_in(limit, time, background.as_ref()), refill * windows)
}

impl Formula {
    /// The figures of a run.
    pub(super) fn new(plan: &Plan, gathered: &Gathered, sync_interval: Duration) -> Self {
        let Told { round_trip, outage } = gathered.counted.told;
        let mut formula = Self {
            sync_interval,
            round_trip,
            outage,
            staleness: Duration::ZERO,
            offered: Vec::new(),
        };
        formula.staleness = formula.background().staleness();
        let width = plan.offered_bin.unwrap_or(sync_interval);
        let offered = gathered.offered.iter().map(|offered| {
            let checks = most(offered.as_ref()?, width, formula.staleness);
            Some(checks.saturating_mul(plan.cost.into()))
        });
        formula.offered = offered.collect();
        formula
    }

    pub(super) fn background(&self) -> Background {
        let offered = self.offered.iter();
        let offered = offered.map(|offered| offered.unwrap_or(u64::MAX));
        let nodes = Background::new(self.sync_interval, self.round_trip, offered);
        nodes.outage(self.outage)
    }
}

/// The most checks of a key in any stretch of this length: no fewer, and at most those
/// of two bins more.
fn most(offered: &[Offered], width: Duration, length: Duration) -> u64 {
    let reach = length.as_nanos().div_ceil(width.as_nanos());
    let reach = u32::try_from(reach).unwrap_or(u32::MAX);
    let mut sorted = offered.to_vec();
    sorted.sort_unstable_by_key(|offer| (offer.key, offer.bin));
    let (mut first, mut sum, mut most) = (0, 0, 0);
    for offer in &sorted {
        sum += u64::from(offer.checks);
        while sorted[first].key != offer.key || offer.bin - sorted[first].bin > reach {
            sum -= u64::from(sorted[first].checks);
            first += 1;
        }
        most = most.max(sum);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_that_was_offered_is_never_too_little() {
        let offers = [
            (1, 0, 5),
            (1, 9, 3),
            (2, 0, 4),
            (2, 1, 2),
            (2, 0, 1),
            (2, 3, 1),
        ];
        let offered = offers.map(|(key, bin, checks)| Offered { key, bin, checks });
        let time = Duration::from_millis;
        for (length, expected) in [(10, 7), (11, 7), (30, 8), (100, 8)] {
            assert_eq!(most(&offered, time(10), time(length)), expected);
        }
        assert_eq!(most(&[], time(10), time(30)), 0);
    }

    /// Alone, and with two other nodes that were offered few checks, or many.
    #[test]
    fn what_a_bound_allows_over_a_run() {
        let formula = |offered: [Option<u64>; 3]| Formula {
            sync_interval: Duration::from_millis(50),
            round_trip: Duration::from_millis(10),
            outage: Duration::from_millis(80),
            staleness: Duration::from_millis(200),
            offered: offered.to_vec(),
        };
        let few = formula([Some(5), Some(7), Some(6)]);
        let many = formula([None, None, Some(1)]);
        assert_eq!(few.background().staleness(), few.staleness);
        let heading = "what a bound allows in ten seconds, and what it refills";
        tidegate_testkit::cases::rows(include_str!("../rows.txt"), heading, |row| {
            let (others, limit) = row.split_once(' ').unwrap();
            let others = match others {
                "few" => Some(&few),
                "many" => Some(&many),
                _ => None,
            };
            let limit = Limit::parse(limit).unwrap();
            let (most, refilled) = allowed(&limit, Duration::from_secs(10), others);
            format!("{most} {refilled}")
        });
    }
}
