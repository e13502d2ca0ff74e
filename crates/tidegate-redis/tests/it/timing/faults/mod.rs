//! What happens when the store fails: real servers that are stopped, killed, full,
//! busy, locked, and a network that loses what they say. In each case the policy's
//! `on_error` decides, the breaker opens and closes by itself, and nobody waits longer
//! than a deadline.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests fail as tests do, and what they measure is worth a line"
)]

mod callers;
mod errors;
mod lines;
mod load;
mod local;
mod network;
mod processes;
mod states;
mod under_load;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::{Cost, Limit, OnError, Policy, PolicyDecision, Source};
use tidegate_redis::{ErrorKind, RedisOptions, RedisStore, SharedLimiter, TryCheckError};
use tokio::time::sleep;

/// The deadline of a store that was not told otherwise.
const DEADLINE: Duration = Duration::from_millis(50);

/// The policies of a rig: one an answer to a store that fails.
const POLICIES: [(&str, OnError); 3] = [
    ("allow", OnError::Allow),
    ("deny", OnError::Deny),
    ("local", OnError::Local),
];

/// How long something took, and how often the machine has stopped meanwhile.
#[derive(Debug, Clone, Copy)]
struct Took {
    time: Duration,
    stops: u32,
}

impl Took {
    /// Pauses are that much later when the machine does something else for as long as a
    /// check may take.
    const STOP: Duration = Duration::from_millis(25);

    /// Whether it took no longer than this. A machine that stops may fail a probe, and the
    /// next one comes a second later.
    fn is_within(self, bound: Duration) -> bool {
        let stopped = self.stops * Duration::from_secs(3);
        self.time < bound + stopped
    }
}

/// Waits for something, with a pause between two looks.
struct Waiting {
    start: Instant,
    pause: Duration,
    stops: u32,
}

impl Waiting {
    fn new(pause: Duration) -> Self {
        Self {
            start: Instant::now(),
            pause,
            stops: 0,
        }
    }

    async fn pause(&mut self, what: &str) {
        assert!(
            self.start.elapsed() < Duration::from_secs(60),
            "never: {what}"
        );
        let start = Instant::now();
        sleep(self.pause).await;
        self.stops += u32::from(start.elapsed() > self.pause + Took::STOP);
    }

    fn took(&self) -> Took {
        Took {
            time: self.start.elapsed(),
            stops: self.stops,
        }
    }
}

/// A store and a limiter over it, with limits that nobody reaches.
#[derive(Clone)]
struct Rig {
    store: RedisStore,
    limiter: Arc<SharedLimiter>,
}

impl Rig {
    fn new(url: &str) -> Self {
        Self::with(url, RedisOptions::default())
    }

    fn with(url: &str, options: RedisOptions) -> Self {
        let store = RedisStore::new(url, options).unwrap();
        let policies = POLICIES.map(|(name, on_error)| {
            let limit = Limit::parse("4000000000/1h fixed_window").unwrap();
            let policy = Policy::builder(name).key("{id}").limit(limit);
            policy.on_error(on_error).build().unwrap()
        });
        let limiter = SharedLimiter::new([("default", store.clone())], policies).unwrap();
        Self {
            store,
            limiter: Arc::new(limiter),
        }
    }

    async fn check(&self, policy: &str, id: &str) -> PolicyDecision<'_> {
        let attributes = [("id", id)];
        let decision = self.limiter.check(policy, &attributes, Cost::ONE).await;
        decision.unwrap()
    }

    /// What the store says: `None` when it has answered.
    async fn error(&self, id: &str) -> Option<ErrorKind> {
        let attributes = [("id", id)];
        let asked = self.limiter.try_check("allow", &attributes, Cost::ONE);
        match asked.await {
            Ok(_) => None,
            Err(TryCheckError::Store(error)) => Some(error.kind()),
            Err(error) => panic!("{error}"),
        }
    }

    /// What a key has used, by the store's own account. A look may be had again.
    async fn used(&self, id: &str) -> u32 {
        let attributes = [("id", id)];
        let mut waiting = Waiting::new(Duration::from_millis(5));
        loop {
            match self.limiter.peek("allow", &attributes, Cost::ONE).await {
                Ok(look) => return look.limit() - look.remaining(),
                Err(_) => waiting.pause("an answer").await,
            }
        }
    }

    fn count(&self, kind: ErrorKind) -> u64 {
        let errors = self.store.stats().errors;
        errors.iter().find(|(it, _)| *it == kind).unwrap().1
    }

    /// Errors of all kinds.
    fn errors(&self) -> u64 {
        self.store
            .stats()
            .errors
            .iter()
            .map(|(_, count)| count)
            .sum()
    }

    /// Asks until the store has answered on every connection; says how long that took.
    async fn until_answered(&self) -> Took {
        let mut waiting = Waiting::new(Duration::from_millis(5));
        let mut answered = 0;
        // Enough keys in a row that each connection has had some of them.
        while answered < 16 {
            let decision = self.check("allow", &answered.to_string()).await;
            match decision.source() {
                Source::Store => answered += 1,
                _ => {
                    answered = 0;
                    waiting.pause("it comes back").await;
                }
            }
        }
        assert!(!self.store.stats().breaker_open);
        waiting.took()
    }

    /// Asks until the store is not asked any more; says what it had to say until then.
    async fn until_open(&self) -> Vec<ErrorKind> {
        let start = Instant::now();
        let mut kinds = Vec::new();
        while !self.store.stats().breaker_open {
            kinds.extend(self.error("any").await);
            assert!(start.elapsed() < Duration::from_secs(60), "it never opened");
        }
        kinds
    }

    /// With the breaker open: every policy gets what it asks for, a refusal says when
    /// the store is asked next, and nobody waits.
    async fn is_obeyed(&self) {
        let (mut costs, mut compared) = (Vec::new(), 0);
        for round in 0..200 {
            let (policy, _) = POLICIES[round % 3];
            let (before, looked) = (self.store.next_probe(), Instant::now());
            let start = Instant::now();
            let decision = self.check(policy, "obeyed").await;
            let cost = start.elapsed();
            obeys(policy, &decision);
            assert_ne!(decision.source(), Source::Store);
            if cost < DEADLINE {
                costs.push(cost);
            }
            let after = self.store.next_probe();
            // As long as it is the same probe that comes next.
            let passed = before.saturating_sub(after);
            let same = passed.abs_diff(looked.elapsed()) < Duration::from_millis(1);
            if policy == "deny" && after < before && same {
                compared += 1;
                let retry_after = decision.retry_after().unwrap();
                assert!(retry_after <= before + Duration::from_micros(1));
                assert!(retry_after + Duration::from_micros(1) >= after);
            }
        }
        assert!(
            compared > 0,
            "no refusal could be compared with the next probe"
        );
        costs.sort_unstable();
        let median = costs[costs.len() / 2];
        println!("a check with the breaker open: {median:?}");
        // Without optimization, and on a machine that does other things, too.
        assert!(median < Duration::from_micros(500), "{median:?}");
        assert!(self.count(ErrorKind::BreakerOpen) > 100);
    }
}

/// Whether a decision is one that its policy may give.
fn obeys(policy: &str, decision: &PolicyDecision<'_>) {
    let (allowed, source) = match (decision.source(), policy) {
        (Source::Store, _) => (true, Source::Store),
        (_, "allow") => (true, Source::ErrorPolicy),
        (_, "deny") => (false, Source::ErrorPolicy),
        _ => (true, Source::Local),
    };
    assert_eq!((decision.allowed(), decision.source()), (allowed, source));
    if !allowed {
        let retry_after = decision.retry_after().unwrap();
        assert!(!retry_after.is_zero() && retry_after <= Duration::from_secs(2));
    }
}

/// Waits until it is so.
async fn until(what: &str, mut so: impl FnMut() -> bool) -> Took {
    let mut waiting = Waiting::new(Duration::from_millis(1));
    while !so() {
        waiting.pause(what).await;
    }
    waiting.took()
}
