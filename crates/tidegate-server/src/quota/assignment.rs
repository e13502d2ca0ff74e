//! What is assigned to an Envoy: admit all, refuse all, or a token bucket.
//!
//! Envoy 1.40 counts fill intervals in whole seconds. It keeps the level of its bucket when
//! an assignment comes again, compares sizes and tokens for that but not the seconds, and
//! fills the bucket when it has changed.

use super::whole_32;

/// What an Envoy does with the requests of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assignment {
    /// Admit all.
    Allow,
    /// Refuse all.
    Deny,
    /// Admit by a token bucket.
    Tokens(Tokens),
}

/// A token bucket that starts full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tokens {
    /// Its size.
    pub size: u32,
    /// Tokens that come in per interval.
    pub fill: u32,
    /// The interval, in seconds.
    pub interval_s: u32,
}

/// The longest interval: a year.
const LONGEST_S: f64 = 365.0 * 86_400.0;

impl Assignment {
    /// Tokens per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        match self {
            Self::Allow | Self::Deny => 0.0,
            Self::Tokens(tokens) => f64::from(tokens.fill) / f64::from(tokens.interval_s),
        }
    }

    /// Tokens that are there at the start.
    #[must_use]
    pub fn size(&self) -> f64 {
        match self {
            Self::Allow | Self::Deny => 0.0,
            Self::Tokens(tokens) => f64::from(tokens.size),
        }
    }

    /// A bucket of this size at no more than this rate, within 1 % of it. An Envoy that has
    /// `before` notices the difference.
    #[must_use]
    pub fn of(rate: f64, size: f64, before: Option<&Self>) -> Self {
        let mut interval_s = 1.0;
        while rate * interval_s < 100.0 && interval_s < LONGEST_S / 2.0 {
            interval_s *= 2.0;
        }
        let tokens = |interval_s: f64| Tokens {
            size: whole_32(size).max(1),
            fill: whole_32(rate * interval_s),
            interval_s: whole_32(interval_s),
        };
        let made = tokens(interval_s);
        if made.fill == 0 {
            return Self::Deny;
        }
        match before {
            Some(Self::Tokens(old))
                if (old.size, old.fill) == (made.size, made.fill)
                    && old.interval_s != made.interval_s =>
            {
                Self::Tokens(tokens(interval_s * 2.0))
            }
            _ => Self::Tokens(made),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Assignment, Tokens};

    #[test]
    fn rates_are_kept_within_a_percent_and_never_exceeded() {
        for rate in [
            1e-5, 0.003, 0.1, 0.99, 1.0, 7.77, 99.9, 100.0, 12_345.6, 3e9,
        ] {
            let made = Assignment::of(rate, 3.0, None);
            assert!(made.rate() <= rate, "{rate}: {made:?}");
            assert!(made.rate() >= rate * 0.99, "{rate}: {made:?}");
        }
        assert_eq!(Assignment::of(0.0, 3.0, None), Assignment::Deny);
        assert_eq!(Assignment::of(1e-12, 3.0, None), Assignment::Deny);
    }

    #[test]
    fn interval_alone_never_differs() {
        let old = Assignment::Tokens(Tokens {
            size: 3,
            fill: 100,
            interval_s: 1,
        });
        let made = Assignment::of(50.0, 3.0, Some(&old));
        let Assignment::Tokens(tokens) = made else {
            panic!("{made:?}");
        };
        assert_eq!((tokens.fill, tokens.interval_s), (200, 4));
    }
}
