//! Deciding the requests of a log by the limiter itself, on a clock that shows each
//! request's own time.

use tidegate::{
    Attributes, Cost, ManualClock, MemoryStore, Policy, PolicyLimiter, Stats, WhenFull,
};
use tidegate_config::{StoreConfig, StoreUrl};

/// A policy over the attributes of a log.
#[derive(Debug)]
pub(super) struct Decider {
    limiter: PolicyLimiter,
    clock: ManualClock,
    /// The attributes of its keys, by their slots.
    slots: Vec<usize>,
}

/// The attributes of a request, by name.
struct Named<'a, 'v> {
    names: &'a [String],
    values: &'a [Option<&'v [u8]>],
}

impl Attributes for Named<'_, '_> {
    #[inline]
    fn value(&self, name: &str) -> Option<&[u8]> {
        let slot = self.names.iter().position(|other| other == name)?;
        self.values[slot]
    }
}

/// The keys that a store is built for which has no bound of its own. It grows beyond that.
const BUILT_FOR: usize = 4_000_000;
const NO_BOUND: usize = 1_000_000_000;

/// A store in memory for the counts that the config keeps in this one. Redis has no bound on
/// keys that concerns us.
pub(super) fn store(store: Option<&StoreConfig>, clock: &ManualClock) -> MemoryStore {
    let builder = MemoryStore::builder().clock(clock.clone());
    match store {
        Some(store) if store.url == StoreUrl::Memory => builder
            .max_keys(store.max_keys)
            .when_full(store.when_full)
            .build(),
        _ => {
            let unbounded = builder.max_keys(BUILT_FOR).max_log_bytes(usize::MAX >> 1);
            let store = unbounded.build();
            store.set_bounds(NO_BOUND, WhenFull::Evict);
            store
        }
    }
}

impl Decider {
    /// A policy that keeps its counts in this store, whose clock it sets.
    pub(super) fn new(
        policy: &Policy,
        store: MemoryStore,
        clock: &ManualClock,
        names: &[String],
    ) -> anyhow::Result<Self> {
        let slots = policy.attributes().into_iter().filter_map(|attribute| {
            let position = names.iter().position(|name| name == attribute);
            debug_assert!(position.is_some(), "every attribute has a slot");
            position
        });
        Ok(Self {
            limiter: PolicyLimiter::over(&store, policy.clone())?,
            clock: clock.clone(),
            slots: slots.collect(),
        })
    }

    /// A policy without bounds on keys, to see what a limit alone does.
    pub(super) fn unbounded(policy: &Policy, names: &[String]) -> anyhow::Result<Self> {
        let clock = ManualClock::at_us(0);
        Self::new(policy, store(None, &clock), &clock, names)
    }

    /// The policy.
    pub(super) fn policy(&self) -> &Policy {
        self.limiter.policy()
    }

    /// The values of the policy's key; `None` where the request lacks one of them.
    #[inline]
    pub(super) fn key<'v>(
        &self,
        values: &[Option<&'v [u8]>],
    ) -> Option<impl Iterator<Item = &'v [u8]> + Clone> {
        let all = || self.slots.iter().map(|slot| values[*slot]);
        let is_whole = all().all(|value| value.is_some());
        is_whole.then(|| all().flatten())
    }

    /// The level that refuses the request, or would; `None` where it goes on. The request
    /// must have a key.
    #[inline]
    pub(super) fn refused_by(
        &self,
        at_us: u64,
        names: &[String],
        values: &[Option<&[u8]>],
    ) -> Option<usize> {
        self.clock.set_us(at_us);
        let named = Named { names, values };
        let decided = self.limiter.check(&named, Cost::ONE);
        let decision = decided.expect("the request has a key");
        if decision.allowed() && !decision.would_deny() {
            return None;
        }
        let level = decision.denied_by();
        let mut levels = self.policy().levels().iter();
        let position = level.and_then(|name| levels.position(|level| level.name() == name));
        Some(position.unwrap_or(0))
    }

    /// What the bounds of its store have cost.
    pub(super) fn stats(&self) -> Stats {
        self.limiter.store().stats()
    }
}
