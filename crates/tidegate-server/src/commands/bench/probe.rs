//! How long it takes to tell the store something, while the load goes on: for the bound
//! of the mode `background`, whose nodes know of each other only what the store was told.
//!
//! Questions that charge nothing are put at even times. A time counts from when a
//! question should have been put, so a process that has no turn for a while is seen, too:
//! it tells nobody anything either.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::Cost;
use tidegate_redis::SharedLimiter;
use tokio::time::{MissedTickBehavior, interval};

use super::callers::Run;
use super::tally::Told;

/// How often the store is asked.
const EVERY: Duration = Duration::from_millis(5);

/// What is known of the questions so far.
#[derive(Debug, Default)]
struct Probes {
    told: Told,
    /// When the first of those should have been put that had no answer since.
    unanswered: Option<Instant>,
}

impl Probes {
    fn add(&mut self, intended: Instant, answered: Instant, is_answer: bool) {
        match (is_answer, self.unanswered) {
            (false, _) => {
                let since = *self.unanswered.get_or_insert(intended);
                self.told.outage = self.told.outage.max(answered - since);
            }
            (true, Some(since)) => {
                self.told.outage = self.told.outage.max(answered - since);
                self.unanswered = None;
            }
            (true, None) => {
                self.told.round_trip = self.told.round_trip.max(answered - intended);
            }
        }
    }
}

/// Asks for as long as the run goes on; what has come of it is in the tally.
pub(super) async fn run(run: Arc<Run>, limiter: Arc<SharedLimiter>) {
    let value = format!("{}-probe", run.plan.run);
    let names = run.plan.attributes.iter();
    let attributes: Vec<(&str, &str)> = names.map(|name| (&**name, &*value)).collect();
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut probes = Probes::default();
    loop {
        let intended = ticks.tick().await.into_std();
        let answer = limiter.peek(&run.plan.policy, &attributes, Cost::ONE).await;
        probes.add(intended, Instant::now(), answer.is_ok());
        run.tally().counted.told = probes.told;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_from_the_first_question_without_an_answer() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut probes = Probes::default();
        let mut add = |intended, answered, is_answer| {
            probes.add(at(intended), at(answered), is_answer);
            let Told { round_trip, outage } = probes.told;
            (round_trip.as_millis(), outage.as_millis())
        };
        assert_eq!(add(0, 3, true), (3, 0));
        assert_eq!(add(5, 6, true), (3, 0));
        assert_eq!(add(10, 60, false), (3, 50));
        assert_eq!(add(60, 61, false), (3, 51));
        assert_eq!(add(65, 70, true), (3, 60));
        assert_eq!(add(70, 90, true), (20, 60));
    }
}
