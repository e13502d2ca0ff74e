//! Rounds in turns, and what they come to.
//!
//! A time alone means little on a machine that does other things, so each
//! limiter runs once a round, right after the others, and what is reported is
//! the median over the rounds of the ratio *within* a round: a slow second then
//! slows both sides of a ratio.

/// Rounds that count. One more, before them, warms up.
const ROUNDS: usize = 7;

/// The figures of one limiter, a round each.
#[derive(Debug, Clone, Default)]
pub(crate) struct Series(Vec<f64>);

impl Series {
    /// A figure that does not vary.
    pub(crate) fn constant(figure: f64) -> Self {
        Self(vec![figure])
    }

    /// The least: what the machine can do when it is left alone.
    pub(crate) fn best(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Figures of so many rounds.
    pub(crate) fn of(figures: Vec<f64>) -> Self {
        Self(figures)
    }

    /// The one in the middle: what a machine that is shared has come to.
    pub(crate) fn median(&self) -> f64 {
        median(self.0.clone())
    }

    /// What it has more than another series, round by round.
    pub(crate) fn less(&self, other: &Self) -> Self {
        let pairs = self.0.iter().zip(&other.0);
        Self(pairs.map(|(own, other)| own - other).collect())
    }

    /// The median of the ratios to another series, round by round.
    pub(crate) fn ratio_to(&self, other: &Self) -> f64 {
        let pairs = self.0.iter().zip(&other.0);
        median(pairs.map(|(own, other)| own / other).collect())
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// How a lane has fared, round by round.
pub(crate) struct Fared<R> {
    pub(crate) label: &'static str,
    rounds: Vec<R>,
}

impl<R> Fared<R> {
    pub(crate) fn series(&self, figure: fn(&R) -> f64) -> Series {
        Series::of(self.rounds.iter().map(figure).collect())
    }

    pub(crate) fn ratio(&self, other: &Self, figure: fn(&R) -> f64) -> f64 {
        self.series(figure).ratio_to(&other.series(figure))
    }

    pub(crate) fn median(&self, figure: fn(&R) -> f64) -> f64 {
        self.series(figure).median()
    }
}

/// Runs all lanes in turns, each round beginning with another one.
pub(crate) fn in_turns<R, F: FnMut() -> R, const LANES: usize>(
    mut lanes: [(&'static str, F); LANES],
) -> [Fared<R>; LANES] {
    for (_, run) in &mut lanes {
        run();
    }
    let mut all = lanes.each_ref().map(|(label, _)| Fared {
        label,
        rounds: Vec::with_capacity(ROUNDS),
    });
    for round in 0..ROUNDS {
        for turn in 0..LANES {
            let lane = (round + turn) % LANES;
            all[lane].rounds.push(lanes[lane].1());
        }
    }
    all
}

/// [`in_turns`] for lanes whose rounds have one figure.
pub(crate) fn interleave<const LANES: usize>(
    lanes: [Box<dyn FnMut() -> f64 + '_>; LANES],
) -> [Series; LANES] {
    in_turns(lanes.map(|lane| ("", lane))).map(|fared| Series(fared.rounds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_round_does_not_move_the_ratio() {
        let slow_second = Series(vec![10.0, 500.0, 11.0]);
        let other = Series(vec![20.0, 1000.0, 22.0]);
        assert_eq!(slow_second.ratio_to(&other), 0.5);
        assert_eq!(slow_second.best(), 10.0);
    }

    #[test]
    fn each_lane_runs_once_a_round_and_once_before() {
        let mut calls = 0.0;
        let lane = || {
            calls += 1.0;
            calls
        };
        let [series] = interleave([Box::new(lane)]);
        assert_eq!(series.0.len(), ROUNDS);
        assert_eq!(series.best(), 2.0);
    }
}
