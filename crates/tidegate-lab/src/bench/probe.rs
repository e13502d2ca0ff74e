//! How long it takes to tell the store something, while the load goes on: for the bound
//! of the mode `background`, whose nodes know of each other only what the store was told.
//!
//! Questions that charge nothing are put at even times. A time counts from when a
//! question should have been put, so a process that has no turn for a while is seen, too:
//! it tells nobody anything either.

use std::time::{Duration, Instant};

use tidegate::Cost;
use tidegate_redis::Policies;
use tokio::sync::oneshot::Receiver;
use tokio::time::{MissedTickBehavior, interval};

use super::counted::Told;
use super::plan::Plan;
use super::target::Target;

/// How often the store is asked.
const EVERY: Duration = Duration::from_millis(5);

/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

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

/// A limiter of its own, with patience: the one under load is to be left alone, and so
/// are its breaker and what it counts as errors.
pub(super) fn limiter(plan: &Plan) -> anyhow::Result<Option<Policies>> {
    let Target::Store { folder, .. } = &plan.target else {
        return Ok(None);
    };
    if plan.offered_bin.is_none() {
        return Ok(None);
    }
    let mut config = plan.target.config()?;
    for store in config.stores.values_mut() {
        store.timeout = store.timeout.max(PATIENCE);
    }
    Ok(Some(Policies::from_config(&config, folder)?))
}

/// Asks until it is stopped.
pub(super) async fn run(plan: Plan, limiter: Policies, mut stop: Receiver<()>) -> Told {
    let value = format!("{}-probe", plan.run);
    let names = plan.attributes.iter();
    let attributes: Vec<(&str, &str)> = names.map(|name| (&**name, &*value)).collect();
    let policy = limiter
        .handle(&plan.policy)
        .expect("the policy of the plan");
    // The first one has to make a connection.
    drop(policy.peek(&attributes, Cost::ONE).await);
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut probes = Probes::default();
    loop {
        let intended = tokio::select! {
            tick = ticks.tick() => tick.into_std(),
            _ = &mut stop => return probes.told,
        };
        let answer = policy.peek(&attributes, Cost::ONE);
        let (is_answer, is_over) = tokio::select! {
            answer = answer => (answer.is_ok(), false),
            _ = &mut stop => (true, true),
        };
        probes.add(intended, Instant::now(), is_answer);
        if is_over {
            return probes.told;
        }
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
