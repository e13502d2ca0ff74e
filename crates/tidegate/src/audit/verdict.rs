//! What an audit says.

use std::fmt;

/// What the records came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    /// The stretch that had too much in it: of several, the one that ended first.
    pub broken: Option<Stretch>,
    /// How many keys had such a stretch.
    pub broken_keys: usize,
    /// The stretch that came nearest to the bound, over all keys that kept it. `None`
    /// when nothing was admitted, and where windows could not be told
    /// ([`Audit::partial`](super::Audit::partial)).
    pub tightest: Option<Stretch>,
    /// How many keys had something admitted.
    pub keys: usize,
    /// Decisions that the bound speaks of.
    pub admitted: u64,
    /// Decisions that refused.
    pub refused: u64,
    /// Decisions that admitted without asking the store.
    pub outside: u64,
}

/// A stretch of time, what was admitted to a key in it, and what might have been.
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
    /// The most that may be admitted.
    pub bound: u64,
}

impl Verdict {
    /// Whether the limit held.
    #[must_use]
    pub fn held(&self) -> bool {
        self.broken.is_none()
    }

    /// Takes in what was found for a key.
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
            "key \"{key}\": {admitted} admitted in the {length_us} us from {from_us} to {to_us}, where at most {bound} may be"
        )
    }
}

/// The stretch that breaks a rule as an error; else the one that comes nearest to it.
pub(super) type Found = Result<Option<Span>, Span>;

/// A [`Stretch`] of a key that goes without saying.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from_us: u64,
    pub(super) to_us: u64,
    pub(super) admitted: u64,
    pub(super) bound: u64,
}

impl Span {
    /// What could still have been admitted.
    pub(super) fn spare(&self) -> u64 {
        self.bound.saturating_sub(self.admitted)
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
