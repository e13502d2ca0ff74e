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
#[derive(Debug, Clone, PartialEq, Eq)]
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
        let named = |span: Span| Stretch {
            key: key.into(),
            from_us: span.from_us,
            to_us: span.to_us,
            admitted: span.admitted,
            bound: span.bound,
        };
        match found {
            Ok(None) => {}
            Ok(Some(span)) => {
                let least = self.tightest.as_ref();
                if least.is_none_or(|least| span.spare() < least.bound - least.admitted) {
                    self.tightest = Some(named(span));
                }
            }
            Err(span) => {
                self.broken_keys += 1;
                let first = self.broken.as_ref();
                if first.is_none_or(|first| span.to_us < first.to_us) {
                    self.broken = Some(named(span));
                }
            }
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

/// The interval that breaks a rule as an error; otherwise the one closest to the bound.
pub(super) type Found = Result<Option<Span>, Span>;

/// A [`Stretch`] without its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from_us: u64,
    pub(super) to_us: u64,
    pub(super) admitted: u64,
    pub(super) bound: u64,
}

impl Span {
    /// How much more was allowed.
    pub(super) fn spare(&self) -> u64 {
        self.bound.saturating_sub(self.admitted)
    }

    /// Keeps it where it is tighter than what was found so far, unless it breaks its bound.
    pub(super) fn hold(self, tightest: &mut Option<Self>) -> Result<(), Self> {
        if self.admitted > self.bound {
            return Err(self);
        }
        *tightest = Some(self.tighter(*tightest));
        Ok(())
    }

    pub(super) fn tighter(self, other: Option<Self>) -> Self {
        match other {
            Some(other) if other.spare() <= self.spare() => other,
            _ => self,
        }
    }

    pub(super) fn earlier(self, other: Option<Self>) -> Self {
        match other {
            Some(other) if other.to_us <= self.to_us => other,
            _ => self,
        }
    }
}
