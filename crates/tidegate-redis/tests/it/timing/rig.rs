//! A store and a limiter over it: what a fault may do to a check.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::{Cost, Limit, OnError, Policy, PolicyDecision, Source};
use tidegate_redis::{ErrorKind, Policies, RedisOptions, RedisStore, TryCheckError};
use tokio::time::sleep;

use crate::proxy::Proxy;
use crate::server::Server;
use crate::support::{Named, limiter_over};

pub(crate) const MS: Duration = Duration::from_millis(1);

/// The deadline of a store that was not told otherwise.
pub(crate) const DEADLINE: Duration = Duration::from_millis(50);

/// The policies of a rig: one per answer to a store that fails.
pub(crate) const POLICIES: [(&str, OnError); 3] = [
    ("allow", OnError::Allow),
    ("deny", OnError::Deny),
    ("local", OnError::Local),
];

/// Looks until it is so. Returns how long that took, less what a machine that stalls may add: it
/// may fail a probe, and the next one comes a second later.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) -> Duration {
    const PAUSE: Duration = Duration::from_millis(2);
    let (start, mut stalls) = (Instant::now(), 0);
    while !is_so().await {
        assert!(start.elapsed() < 60_000 * MS, "never: {what}");
        let paused = Instant::now();
        sleep(PAUSE).await;
        stalls += u32::from(paused.elapsed() > PAUSE + DEADLINE / 2);
    }
    start.elapsed().saturating_sub(stalls * 3_000 * MS)
}

/// A store and a limiter over it.
#[derive(Clone)]
pub(crate) struct Rig {
    pub(crate) store: RedisStore,
    pub(crate) limiter: Arc<Policies>,
    pub(crate) policies: Arc<[(String, OnError)]>,
}

impl Rig {
    /// With the default options.
    pub(crate) fn new(url: &str) -> Self {
        Self::with(url, RedisOptions::default())
    }

    /// With a policy per answer to a store that fails, with limits that nobody reaches.
    pub(crate) fn with(url: &str, options: RedisOptions) -> Self {
        let limit = Limit::parse("4000000000/1h fixed_window").unwrap();
        let policies = POLICIES.map(|(name, on_error)| {
            let policy = Policy::builder(name).key("{id}").limit(limit);
            policy.on_error(on_error).build().unwrap()
        });
        Self::of(url, options, policies)
    }

    /// With policies by `id`.
    pub(crate) fn of(
        url: &str,
        options: RedisOptions,
        policies: impl IntoIterator<Item = Policy>,
    ) -> Self {
        let store = RedisStore::new(url, options).unwrap();
        let policies: Vec<Policy> = policies.into_iter().collect();
        let names = policies.iter().map(|it| (it.name().into(), it.on_error()));
        Self {
            policies: names.collect(),
            limiter: Arc::new(limiter_over(store.clone(), policies)),
            store,
        }
    }

    /// A server behind a proxy, and a store that has connections through it.
    pub(crate) async fn behind_a_proxy(options: RedisOptions) -> (Server, Proxy, Self) {
        let server = Server::start();
        let proxy = Proxy::start(server.port()).await;
        let rig = Self::with(&proxy.url(), options);
        rig.until_answered().await;
        (server, proxy, rig)
    }

    pub(crate) async fn check(&self, policy: &str, id: impl ToString) -> PolicyDecision<'_> {
        let attributes = [("id", id.to_string())];
        let decision = self.limiter.check(policy, &attributes, Cost::ONE).await;
        decision.unwrap()
    }

    pub(crate) async fn source(&self, policy: &str, id: impl ToString) -> Source {
        self.check(policy, id).await.source()
    }

    /// What the store says: `None` when it has answered.
    pub(crate) async fn error(&self, id: impl ToString) -> Option<ErrorKind> {
        let attributes = [("id", id.to_string())];
        let check = self.limiter.of("allow").try_check(&attributes, Cost::ONE);
        match check.await {
            Ok(_) => None,
            Err(TryCheckError::Store(error)) => Some(error.kind()),
            Err(error) => panic!("{error}"),
        }
    }

    /// What a key of a policy has used, by the store's own account.
    pub(crate) async fn used(&self, policy: &str, id: &str) -> u32 {
        let mut used = 0;
        until("a look", async || {
            let attributes = [("id", id)];
            let look = self.limiter.of(policy).peek(&attributes, Cost::ONE).await;
            let seen = look.map(|look| used = look.limit() - look.remaining());
            seen.is_ok()
        })
        .await;
        used
    }

    pub(crate) fn is_open(&self) -> bool {
        self.store.stats().breaker_open
    }

    pub(crate) fn count(&self, kind: ErrorKind) -> u64 {
        let errors = self.store.stats().errors;
        errors.iter().find(|(it, _)| *it == kind).unwrap().1
    }

    /// Errors of all kinds.
    pub(crate) fn errors(&self) -> u64 {
        let errors = self.store.stats().errors;
        errors.iter().map(|(_, count)| count).sum()
    }

    /// Whether the store answers about this many keys in a row that each connection has had some
    /// of them.
    pub(crate) async fn is_answered(&self) -> bool {
        for id in 0..16 {
            if self.source("deny", id).await != Source::Store {
                return false;
            }
        }
        true
    }

    /// Asks until the store answers. Returns how long that took.
    pub(crate) async fn until_answered(&self) -> Duration {
        let took = until("an answer", async || self.is_answered().await).await;
        assert!(!self.is_open());
        took
    }

    /// Asks until the breaker is open. Returns what the store has said until then.
    pub(crate) async fn until_open(&self) -> Vec<ErrorKind> {
        let start = Instant::now();
        let mut kinds = Vec::new();
        while !self.is_open() {
            kinds.extend(self.error("any").await);
            assert!(start.elapsed() < 60_000 * MS, "it never opens");
        }
        kinds
    }

    /// One caller after the other meets errors of these kinds, and this many open the breaker. Each
    /// pays a deadline at most.
    pub(crate) async fn opens_after(&self, what: &str, failures: usize, kinds: &[ErrorKind]) {
        let (mut met, mut late) = (Vec::new(), Vec::new());
        while !self.is_open() {
            let start = Instant::now();
            let (kind, slept) = tokio::join!(self.error("any"), async {
                sleep(DEADLINE).await;
                start.elapsed()
            });
            late.push(start.elapsed().saturating_sub(slept));
            met.extend(kind);
        }
        assert!(met.iter().all(|it| kinds.contains(it)), "{what}: {met:?}");
        // On a machine that stalls, a connection may be lost meanwhile, which costs no deadline.
        let is_failure = |it: &&ErrorKind| **it != ErrorKind::OutcomeUnknown;
        let paid = met.iter().filter(is_failure).count();
        assert!(paid <= failures && failures <= met.len(), "{what}: {met:?}");
        // By the timers of this machine, unless it does other things.
        assert!(late.iter().min() <= Some(&(10 * MS)), "{what}: {late:?}");
    }

    /// With the breaker open, every policy gets what it asks for, a refusal says when the store
    /// is asked next, and nobody waits.
    pub(crate) async fn is_obeyed(&self) {
        let (mut costs, mut compared) = (Vec::new(), 0);
        for (policy, on_error) in self.policies.iter().cycle().take(200) {
            let before = self.store.next_probe();
            let start = Instant::now();
            let decision = self.check(policy, "obeyed").await;
            let cost = start.elapsed();
            obeys(*on_error, &decision);
            assert_ne!(decision.source(), Source::Store);
            assert_eq!(decision.allowed(), *on_error != OnError::Deny);
            if cost < DEADLINE {
                costs.push(cost);
            }
            let after = self.store.next_probe();
            // As long as it is the same probe that comes next.
            let passed = before.saturating_sub(after);
            let is_same = passed.abs_diff(start.elapsed()) < MS;
            if *on_error == OnError::Deny && after < before && is_same {
                compared += 1;
                let retry_after = decision.retry_after().unwrap();
                let microsecond = Duration::from_micros(1);
                assert!((after..=before + microsecond).contains(&(retry_after + microsecond)));
            }
        }
        assert!(compared > 0, "no refusal could be compared");
        costs.sort_unstable();
        let median = costs[costs.len() / 2];
        // Without optimization, and on a machine that does other things, too.
        assert!(median < MS / 2, "a check takes {median:?}");
        assert!(self.count(ErrorKind::BreakerOpen) > 100);
    }
}

/// Whether a decision is one that its policy may give.
pub(crate) fn obeys(on_error: OnError, decision: &PolicyDecision<'_>) {
    let is_allowed = decision.allowed();
    match (decision.source(), on_error) {
        (Source::Store | Source::Lease | Source::Background | Source::RefusalMemory, _) => {}
        (Source::ErrorPolicy, OnError::Allow) => assert!(is_allowed),
        (Source::ErrorPolicy, OnError::Deny) => assert!(!is_allowed),
        (Source::Local, OnError::Local) => {}
        (source, _) => panic!("{source:?} under {on_error:?}"),
    }
    if !is_allowed {
        let retry_after = decision.retry_after().unwrap();
        assert!(!retry_after.is_zero() && retry_after <= 2_000 * MS);
    }
}
