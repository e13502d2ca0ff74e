//! Log lines about an outage, from the first failure to the recovery: how long it lasted, how
//! many checks were decided without the server, and what each policy does in the meantime.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use tidegate::{Mode, OnError, Policy};
use tokio::time::Instant;

use crate::lock::lock;

/// The most policies that a line names.
const MOST_NAMES: usize = 20;

/// The failures of one server without an answer between them.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    /// Whether there is one. Every answer reads it.
    is_failing: AtomicBool,
    failing: Mutex<Option<Failing>>,
}

/// An outage that goes on.
#[derive(Debug, Clone, Copy)]
struct Failing {
    since: Instant,
    /// Checks that had no answer.
    checks: u64,
    /// Whether a line of the log says so.
    is_said: bool,
    /// Whether it lasted until the server was left alone.
    is_long: bool,
}

/// An outage that is over, and that the log knows about.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Over {
    pub(crate) lasted: Duration,
    /// Checks that were decided without the server.
    pub(crate) checks: u64,
    /// Whether it lasted until the server was left alone.
    pub(crate) is_long: bool,
}

impl Outage {
    /// A question that was put at this time has no answer. Only checks are counted.
    pub(crate) fn failed(&self, asked: Instant, is_check: bool) {
        let mut failing = self.failing();
        let failing = failing.get_or_insert(Failing {
            since: asked,
            checks: 0,
            is_said: false,
            is_long: false,
        });
        failing.checks += u64::from(is_check);
        self.is_failing.store(true, Relaxed);
    }

    /// The log says that there is an outage; `is_long` that the server is left alone.
    pub(crate) fn said(&self, is_long: bool) {
        if let Some(failing) = &mut *self.failing() {
            failing.is_said = true;
            failing.is_long |= is_long;
        }
    }

    /// The server has answered. Returns what there is to say about the end of an outage
    /// that the log knows about. An answer from before it (`is_open`) ends nothing.
    pub(crate) fn answered(&self, is_open: impl FnOnce() -> bool) -> Option<Over> {
        if !self.is_failing.load(Relaxed) || is_open() {
            return None;
        }
        let mut failing = self.failing();
        let over = failing.take();
        self.is_failing.store(false, Relaxed);
        drop(failing);
        let over = over.filter(|over| over.is_said)?;
        Some(Over {
            lasted: over.since.elapsed(),
            checks: over.checks,
            is_long: over.is_long,
        })
    }

    fn failing(&self) -> MutexGuard<'_, Option<Failing>> {
        lock(&self.failing)
    }
}

/// What a policy does while its store does not answer.
#[derive(Debug)]
pub(crate) struct FallbackNote {
    policy: String,
    does: &'static str,
    /// What is done instead, if callers say so.
    callers_do: OnceLock<&'static str>,
}

/// What each of the policies over a store does while it does not answer: of those that
/// are in use.
#[derive(Debug, Default)]
pub(crate) struct Fallbacks(Mutex<Vec<Weak<FallbackNote>>>);

impl FallbackNote {
    pub(crate) fn new(policy: &Policy) -> Arc<Self> {
        Arc::new(Self {
            policy: policy.name().into(),
            does: match policy.on_error() {
                OnError::Allow => "allowed",
                OnError::Deny => "denied",
                OnError::Local => "decided locally",
            },
            // Nobody waits for the store there, and sees no error of it.
            callers_do: match policy.mode() {
                Mode::Background => OnceLock::from("decided in the background"),
                Mode::Exact | Mode::Lease => OnceLock::new(),
            },
        })
    }

    /// The callers of this policy do not leave it to `on_error`, but do this.
    pub(crate) fn callers_do(&self, does: &'static str) {
        self.callers_do.get_or_init(|| does);
    }

    fn does(&self) -> &str {
        self.callers_do.get().unwrap_or(&self.does)
    }
}

impl Fallbacks {
    pub(crate) fn add(&self, note: &Arc<FallbackNote>) {
        let mut notes = lock(&self.0);
        notes.retain(|other| other.strong_count() > 0);
        notes.push(Arc::downgrade(note));
    }
}

/// `allowed: a, b; denied: c`.
impl fmt::Display for Fallbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let notes: Vec<Arc<FallbackNote>> =
            lock(&self.0).iter().filter_map(Weak::upgrade).collect();
        // While a config is replaced, a policy is there twice: the newer one counts.
        let does: BTreeMap<&str, &str> = notes.iter().map(|it| (&*it.policy, it.does())).collect();
        let mut pairs: Vec<_> = does.iter().map(|(policy, does)| (*does, *policy)).collect();
        pairs.sort_unstable();
        let named = &pairs[..pairs.len().min(MOST_NAMES)];
        for (number, group) in named.chunk_by(|one, other| one.0 == other.0).enumerate() {
            let separator = if number > 0 { "; " } else { "" };
            let policies: Vec<&str> = group.iter().map(|(_, policy)| *policy).collect();
            write!(f, "{separator}{}: {}", group[0].0, policies.join(", "))?;
        }
        match pairs.len().saturating_sub(MOST_NAMES) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::Limit;

    #[tokio::test(start_paused = true)]
    async fn outage_lasts_from_the_first_failure_to_the_first_answer() {
        let outage = Outage::default();
        let start = Instant::now();
        assert_eq!(outage.answered(|| false), None);
        outage.failed(start, true);
        tokio::time::advance(Duration::from_secs(2)).await;
        outage.failed(Instant::now(), true);
        outage.failed(Instant::now(), false);
        outage.said(true);
        assert_eq!(outage.answered(|| true), None, "an answer from before");
        tokio::time::advance(Duration::from_secs(1)).await;
        let over = Over {
            lasted: Duration::from_secs(3),
            checks: 2,
            is_long: true,
        };
        assert_eq!(outage.answered(|| false), Some(over));
        assert_eq!(outage.answered(|| false), None);
        outage.failed(Instant::now(), true);
        assert_eq!(outage.answered(|| false), None, "the log knows nothing");
    }

    /// R5: a failure while an outage ends.
    #[test]
    fn r5_flag_of_an_outage_changes_together_with_it() {
        let outage = Outage::default();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    outage.failed(Instant::now(), true);
                }
            });
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    outage.answered(|| false);
                }
            });
            let looks = (0..1_000_000).map(|_| {
                let failing = outage.failing();
                failing.is_some() == outage.is_failing.load(Relaxed)
            });
            let agreed = looks.filter(|agrees| *agrees).count();
            is_over.store(true, Relaxed);
            assert_eq!(agreed, 1_000_000);
        });
    }

    #[test]
    fn notes_are_grouped_and_those_of_old_policies_are_gone() {
        let notes = Fallbacks::default();
        let note = |name: &str, on_error| {
            let policy = Policy::builder(name).limit(Limit::per_second(1));
            FallbackNote::new(&policy.on_error(on_error).build().expect("a policy"))
        };
        let kept = [
            note("open", OnError::Allow),
            note("shut", OnError::Deny),
            note("alone", OnError::Local),
            note("also", OnError::Allow),
        ];
        let old = note("shut", OnError::Allow);
        notes.add(&old);
        kept.iter().for_each(|note| notes.add(note));
        let text = "allowed: also, open; decided locally: alone; denied: shut";
        assert_eq!(notes.to_string(), text);
        drop((old, kept));
        assert_eq!(notes.to_string(), "");
    }
}
