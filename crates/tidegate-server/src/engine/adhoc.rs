//! Limits that come with each call: buckets of the policy `adhoc`, whose settings the
//! config may give.
//!
//! A bucket is made for its numbers when they are first seen, and kept by the worker that
//! saw them until other numbers need its place. However many different numbers there are,
//! that is all they take: the stores keep no list of them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate::algorithm::TokenBucket;
use tidegate::{
    Algorithm, Attributes, Case, Check, Level, Limit, LimitError, LimitSpec, Mode, Policy,
    PolicyLimiter, Rate,
};
use tidegate_config::Config;

use super::StartError;
use super::entry::Entry;
use crate::serve::worker;

/// The name of the policy.
pub const ADHOC: &str = "adhoc";

/// Buckets that a worker keeps.
const KEPT: usize = 256;

/// The numbers that come with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    /// The size of the bucket.
    pub burst: u64,
    /// How many tokens there are per period.
    pub count: u64,
    /// The period, in microseconds.
    pub period_us: u64,
}

/// A limit made of such numbers.
#[derive(Debug)]
pub struct Bucket {
    /// What it was made of.
    pub numbers: Numbers,
    /// A token, in nanoseconds.
    pub token_ns: u64,
    limit: Limit,
    /// The limit in the store, where that is in memory, and the case of the policy's level.
    level: Option<(Level, Case)>,
}

impl Bucket {
    /// The limit.
    #[must_use]
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The check of a key in a store in memory, where that keeps the counts.
    #[inline]
    pub(crate) fn check<'a>(&'a self, attributes: &'a dyn Attributes) -> Option<(Check<'a>, Case)> {
        let (level, case) = self.level.as_ref()?;
        Some((level.check(attributes.value("key")?), *case))
    }

    /// The case of that check.
    #[inline]
    pub(super) fn case(&self) -> Option<Case> {
        self.level.as_ref().map(|(_, case)| *case)
    }
}

/// The policy behind limits that come with each call.
#[derive(Debug)]
pub struct AdHoc {
    entry: Entry,
    /// All these limits share one number in a store in memory, which stays theirs as long
    /// as one of them is here.
    _first: Option<Bucket>,
    /// Of each worker, by a hash of the numbers.
    kept: Box<[Mutex<Kept>]>,
}

type Kept = Vec<Option<Arc<Bucket>>>;

/// The policy as it is where the config does not say.
pub(super) fn standard() -> Policy {
    let policy = Policy::builder(ADHOC).limit(Limit::per_second(1)).build();
    policy.expect("a policy of nothing but defaults")
}

/// The policy of the config, if it has one that calls can use.
pub(super) fn of(config: &Config) -> Result<Option<&Policy>, StartError> {
    let policy = config.policies.iter().find(|it| it.name() == ADHOC);
    let Some(policy) = policy else {
        return Ok(None);
    };
    let level = match policy.levels() {
        [level] if policy.script().is_none() => level,
        _ => return Err(StartError::AdHoc("has levels or a script of its own")),
    };
    let is_bucket = level.limit().algorithm() == Algorithm::TokenBucket;
    let faults = [
        (
            !level.key().attributes().eq(["key"]),
            "has a key other than {key}",
        ),
        (!is_bucket, "has an algorithm or a block"),
        (level.overrides().len() > 0, "has overrides"),
        // What is out was counted under the numbers of one call; the next may have others.
        (policy.mode() == Mode::Lease, "has the mode lease"),
        (policy.count_denied(), "has count_denied"),
        (policy.shadow(), "has shadow = true"),
        (!policy.enabled(), "is not enabled"),
    ];
    match faults.iter().find(|(is_wrong, _)| *is_wrong) {
        Some((_, fault)) => Err(StartError::AdHoc(fault)),
        None => Ok(Some(policy)),
    }
}

#[cfg(test)]
impl Bucket {
    /// A bucket of a store in memory, without a policy.
    pub(crate) fn alone(numbers: Numbers, store: &tidegate::MemoryStore) -> Self {
        let memory = tidegate::PolicyLimiter::over(store, standard()).expect("a policy");
        Self::new(numbers, Some(&memory)).expect("numbers of a limit")
    }
}

impl AdHoc {
    pub(super) fn new(entry: Entry) -> Self {
        let kept = (0..=worker::count()).map(|_| Mutex::new(vec![None; KEPT]));
        let mut adhoc = Self {
            entry,
            _first: None,
            kept: kept.collect(),
        };
        let any = Numbers {
            burst: 1,
            count: 1,
            period_us: 1_000_000,
        };
        adhoc._first = adhoc.make(any).ok();
        adhoc
    }

    /// The policy's entry.
    #[must_use]
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// The bucket of these numbers.
    pub fn bucket(&self, numbers: Numbers) -> Result<Arc<Bucket>, LimitError> {
        let Some(kept) = self.kept.get(worker::number()) else {
            return self.make(numbers).map(Arc::new);
        };
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        let place = &mut kept[numbers.place()];
        if let Some(bucket) = place
            && bucket.numbers == numbers
        {
            return Ok(Arc::clone(bucket));
        }
        let bucket = Arc::new(self.make(numbers)?);
        *place = Some(Arc::clone(&bucket));
        Ok(bucket)
    }

    fn make(&self, numbers: Numbers) -> Result<Bucket, LimitError> {
        Bucket::new(numbers, self.entry.handle().in_memory())
    }
}

impl Bucket {
    fn new(numbers: Numbers, memory: Option<&PolicyLimiter>) -> Result<Self, LimitError> {
        let period = Duration::from_micros(numbers.period_us);
        let spec = LimitSpec {
            burst: Some(numbers.burst),
            gcra: true,
            ..LimitSpec::new(Rate::new(numbers.count, period)?)
        };
        let limit = spec.build()?;
        let token_ns = TokenBucket::gcra(spec.rate, numbers.burst)?.token_parts();
        let level = memory.and_then(|memory| {
            let (_, case) = memory.only_check(&[("key", "")])?;
            // All these limits share one number in a store, so it has room for any of them.
            Some((memory.level_under(limit).ok()?, case))
        });
        Ok(Self {
            numbers,
            token_ns,
            limit,
            level,
        })
    }
}

impl Numbers {
    fn place(self) -> usize {
        let Self {
            burst,
            count,
            period_us,
        } = self;
        let mixed = [burst, count, period_us].iter().fold(0_u64, |hash, part| {
            (hash ^ part)
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .rotate_left(29)
        });
        // One byte names a place.
        usize::from(mixed.to_le_bytes()[7])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wrong with a policy `adhoc` that has this line besides a name and a limit.
    fn fault(line: &str) -> Option<String> {
        let text = format!("[[policies]]\nname = \"adhoc\"\nlimit = \"1r/s\"\n{line}\n");
        let store = "[stores.default]\nurl = \"redis://127.0.0.1:1\"\n";
        let config = Config::parse(&format!("{store}{text}"), "test.toml").unwrap();
        of(&config).err().map(|error| error.to_string())
    }

    #[test]
    fn policy_that_calls_cannot_use_is_refused() {
        for (line, expected) in [
            ("", None),
            ("mode = \"background\"", None),
            ("on_error = \"local\"", None),
            ("mode = \"lease\"", Some("has the mode lease")),
            ("count_denied = true", Some("has count_denied")),
            ("shadow = true", Some("has shadow = true")),
            ("enabled = false", Some("is not enabled")),
            ("key = \"{ip}\"", Some("has a key other than {key}")),
            (
                "algorithm = \"sliding_log\"",
                Some("has an algorithm or a block"),
            ),
        ] {
            let error = fault(line);
            let error = error
                .as_deref()
                .map(|it| it.split(": expected mode").next().expect("a part"));
            let expected = expected.map(|it| format!("policy \"adhoc\" {it}"));
            assert_eq!(error, expected.as_deref(), "{line}");
        }
    }
}
