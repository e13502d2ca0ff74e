//! The verdict of an audit.

use std::fmt;

/// The verdict on a set of records.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    /// The interval in which too much was admitted; if there are several, the first to end.
    pub broken: Option<Stretch>,
    /// How many keys had such an interval.
    pub broken_keys: usize,
    /// The interval closest to the bound, over all keys that stayed within it. `None` if
    /// nothing was admitted, or if windows could not be determined
    /// ([`Audit::partial`](super::Audit::partial)).
    pub tightest: Option<Stretch>,
    /// How many keys had an admitted request.
    pub keys: usize,
    /// Decisions that the bound applies to.
    pub admitted: u64,
    /// Decisions that refused.
    pub refused: u64,
    /// Requests admitted without the store.
    pub outside: u64,
}

/// An interval, the cost admitted for a key in it, and the bound.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stretch {
    /// The key.
    pub key: Vec<u8>,
    /// The instant of its first request.
    pub from_us: u64,
    /// The instant of its last request.
    pub to_us: u64,
    /// The cost that was admitted, both instants included.
    pub admitted: u64,
    /// The most that was allowed.
    pub bound: u64,
}

impl Verdict {
    /// Whether the limit held.
    pub fn held(&self) -> bool {
        self.broken.is_none()
    }

    /// Adds the result for a key.
    pub(super) fn add(&mut self, key: &[u8], found: Found) {
        self.keys += 1;
        let kept = match found {
            Ok(None) => None,
            Ok(Some(found)) => found.keep_tighter(&mut self.tightest),
            Err(found) => {
                self.broken_keys += 1;
                found.keep_earlier(&mut self.broken)
            }
        };
        if let Some(kept) = kept {
            kept.key = key.into();
        }
    }
}

impl fmt::Display for Stretch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            key,
            from_us,
            to_us,
            admitted,
            bound,
        } = self;
        let (key, length_us) = (key.escape_ascii(), to_us - from_us);
        write!(
            f,
            "key \"{key}\": {admitted} admitted in the {length_us} us from {from_us} to {to_us}, at most {bound} allowed"
        )
    }
}

/// The interval that breaks a rule as an error; otherwise the one closest to the bound. Its key
/// is not known yet.
pub(super) type Found = Result<Option<Stretch>, Stretch>;

impl Stretch {
    /// How much more was allowed.
    fn spare(&self) -> u64 {
        self.bound.saturating_sub(self.admitted)
    }

    /// Keeps it where it is tighter than what was found so far, unless it breaks its bound.
    pub(super) fn hold(self, tightest: &mut Option<Self>) -> Result<(), Self> {
        if self.admitted > self.bound {
            return Err(self);
        }
        self.keep_tighter(tightest);
        Ok(())
    }

    /// Replaces what was found so far, where that is not as tight.
    pub(super) fn keep_tighter(self, tightest: &mut Option<Self>) -> Option<&mut Self> {
        let found = tightest.as_ref();
        let is_tighter = found.is_none_or(|found| self.spare() < found.spare());
        is_tighter.then(|| tightest.insert(self))
    }

    /// Replaces what was found so far, where that ends later.
    pub(super) fn keep_earlier(self, broken: &mut Option<Self>) -> Option<&mut Self> {
        let found = broken.as_ref();
        let is_earlier = found.is_none_or(|found| self.to_us < found.to_us);
        is_earlier.then(|| broken.insert(self))
    }
}
