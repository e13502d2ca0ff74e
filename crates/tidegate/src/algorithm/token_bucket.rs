//! The token bucket, which is also the leaky bucket as a meter, and GCRA: one
//! algorithm, one implementation.
//!
//! A bucket holds `B` tokens, refills with `N` per window `W` continuously, and
//! starts full. A request of cost `c` takes `c` tokens or is refused. In any
//! interval `t` at most `B + N*t/W` are admitted.
//!
//! # Arithmetic
//! What is stored is not the tokens left but the *debt*: how long the bucket
//! needs to be full again. With `N'/W'` = `N/W` in lowest terms, one token is
//! `W'/N'` microseconds of debt, which a pair of integers holds exactly: whole
//! microseconds and a number of `1/N'` parts ([`Span`]). Time drains whole
//! microseconds; costs add pairs; a check compares pairs. Nothing is rounded, so nothing is
//! lost, from one request per year to four billion per millisecond.
//!
//! # Example
//! 10 per second, burst 3: a token is 100,000 µs, the bucket 300,000 µs.
//!
//! | at (µs) | debt before | cost | admitted | debt after | remaining | retry after |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | 0 | 0 | 1 | yes | 100,000 | 2 | 0 |
//! | 0 | 100,000 | 2 | yes | 300,000 | 0 | 0 |
//! | 0 | 300,000 | 1 | no | 300,000 | 0 | 100,000 |
//! | 90,000 | 210,000 | 1 | no | 210,000 | 0 | 10,000 |
//! | 100,000 | 200,000 | 1 | yes | 300,000 | 0 | 0 |

use std::time::Duration;

use super::remote::{put, put_parcel};
use super::{
    Compact, Counter, FULL_KEPT, LeaseTerms, Numbers, Outcome, Packed, Parcel, PastCharge, Profile,
    Used,
};
#[cfg(feature = "audit")]
use crate::audit::{Nodes, Refill, Rule};
use crate::clock::micros;
use crate::cost::Cost;
use crate::error::LimitError;
use crate::limit::LimitSpec;
use crate::rate::{Rate, gcd};

/// The longest time a bucket may take to refill: 100 years of 365.25 days.
const MAX_REFILL_US: u64 = 36_525 * 86_400_000_000;

/// The longest debt that the scripts count for tokens that are out, and more microseconds
/// than any bucket holds: the price of a cost that never fits.
const MAX_LEASED_US: u64 = 1 << 52;
const NEVER: Span = Span {
    us: 1 << 54,
    parts: 0,
};

/// A length of time: whole microseconds and parts of one, in units of `1/N'`
/// microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span {
    /// Whole microseconds.
    pub us: u64,
    /// Parts of a microsecond, fewer than `N'`.
    pub parts: u32,
}

impl Span {
    const ZERO: Self = Self { us: 0, parts: 0 };

    /// What is left of it after some time has passed.
    #[inline]
    fn less_us(self, elapsed_us: u64) -> Self {
        match self.us.checked_sub(elapsed_us) {
            Some(us) => Self { us, ..self },
            None => Self::ZERO,
        }
    }

    /// Whole microseconds that cover it.
    const fn ceil_us(self) -> u64 {
        self.us + (self.parts > 0) as u64
    }
}

impl TokenBucketState {
    #[inline]
    fn with_debt(self, debt: Span) -> Self {
        Self { debt, ..self }
    }
}

/// A bucket of `burst` tokens that refills with `requests` per window.
///
/// ```
/// use tidegate::algorithm::{Counter, TokenBucket};
/// use tidegate::{Cost, Rate};
///
/// let limit = TokenBucket::new("10r/s".parse::<Rate>()?, Some(3), false)?;
/// let (state, first) = limit.step(limit.new_state(0), Cost::ONE, 0);
/// assert_eq!((first.remaining(), first.retry_after_us), (2, Some(0)));
/// let (state, second) = limit.step(state, Cost::of(3), 0);
/// assert_eq!((second.remaining(), second.retry_after_us), (2, Some(100_000)));
/// let (_, third) = limit.step(state, Cost::of(3), 100_000);
/// assert_eq!((third.remaining(), third.retry_after_us), (0, Some(0)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    rate: Rate,
    burst: u32,
    strict: bool,
    /// `N'`.
    parts_per_us: u32,
    /// `W'`: a token, in parts.
    token_parts: u64,
    token: Span,
    capacity: Span,
    /// A token is a whole number of nanoseconds.
    is_gcra: bool,
}

/// Parts per microsecond of a bucket in nanoseconds.
const NS_PER_US: u32 = 1_000;

/// What states of all buckets in nanoseconds are stored under: a token of one second.
const GCRA_TOKEN_PARTS: u64 = 1_000_000_000;

/// A key's debt, and when it was last looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct TokenBucketState {
    /// Time until the bucket is full.
    pub debt: Span,
    /// The instant of that debt.
    pub last_us: u64,
}

impl TokenBucket {
    /// A bucket of `burst` tokens (the rate's requests when absent). `strict`
    /// refills with `requests - burst` a window, so that no window ever sees
    /// more than `requests`.
    pub const fn new(rate: Rate, burst: Option<u64>, strict: bool) -> Result<Self, LimitError> {
        let requests = rate.requests();
        let burst = match Self::size(burst, requests) {
            Ok(burst) => burst,
            Err(error) => return Err(error),
        };
        if strict && burst >= requests {
            return Err(LimitError::StrictBurst { burst, requests });
        }
        let refill = if strict { requests - burst } else { requests };
        let divisor = gcd(refill as u64, rate.window_us());
        #[expect(clippy::cast_possible_truncation, reason = "a part of a u32")]
        let parts_per_us = (refill as u64 / divisor) as u32;
        let token_parts = rate.window_us() / divisor;
        Self::in_parts(rate, burst, parts_per_us, token_parts, (strict, false))
    }

    /// A bucket in the arithmetic of redis-cell, for numbers that come with each call:
    /// a token is a whole number of nanoseconds, rounded down.
    ///
    /// The debt of a key is then a time that means the same whatever the rate and the
    /// burst: a call with other numbers continues with the time that the last one left,
    /// and a store need not remember which numbers these were.
    pub const fn gcra(rate: Rate, burst: u64) -> Result<Self, LimitError> {
        let requests = rate.requests();
        let token_parts = rate.window_us() * NS_PER_US as u64 / requests as u64;
        if token_parts == 0 {
            return Err(LimitError::Requests(requests as u64));
        }
        match Self::size(Some(burst), requests) {
            Ok(burst) => Self::in_parts(rate, burst, NS_PER_US, token_parts, (false, true)),
            Err(error) => Err(error),
        }
    }

    const fn size(burst: Option<u64>, requests: u32) -> Result<u32, LimitError> {
        match burst {
            Some(burst) if burst == 0 || burst > u32::MAX as u64 => Err(LimitError::Burst(burst)),
            #[expect(clippy::cast_possible_truncation, reason = "just found to fit")]
            Some(burst) => Ok(burst as u32),
            None => Ok(requests),
        }
    }

    const fn in_parts(
        rate: Rate,
        burst: u32,
        parts_per_us: u32,
        token_parts: u64,
        (strict, is_gcra): (bool, bool),
    ) -> Result<Self, LimitError> {
        let max = MAX_REFILL_US as u128 * parts_per_us as u128 / token_parts as u128;
        if burst as u128 > max {
            #[expect(clippy::cast_possible_truncation, reason = "below `burst`")]
            let max = max as u32;
            return Err(LimitError::BurstRefill { burst, max });
        }
        Ok(Self {
            rate,
            burst,
            strict,
            parts_per_us,
            token_parts,
            token: tokens(1, token_parts, parts_per_us),
            capacity: tokens(burst, token_parts, parts_per_us),
            is_gcra,
        })
    }

    pub(crate) const fn from_spec(spec: LimitSpec) -> Result<Self, LimitError> {
        match (spec.gcra, spec.burst) {
            (true, Some(burst)) => Self::gcra(spec.rate, burst),
            (true, None) => Self::gcra(spec.rate, spec.rate.requests() as u64),
            (false, burst) => Self::new(spec.rate, burst, spec.strict),
        }
    }

    pub(crate) const fn spec(&self) -> Option<LimitSpec> {
        Some(LimitSpec {
            burst: if self.burst == self.rate.requests() {
                None
            } else {
                Some(self.burst as u64)
            },
            strict: self.strict,
            gcra: self.is_gcra,
            ..LimitSpec::new(self.rate)
        })
    }

    /// Whether a token is a whole number of nanoseconds ([`gcra`](Self::gcra)).
    pub const fn is_gcra(&self) -> bool {
        self.is_gcra
    }

    /// What a state is stored under, so that a limit that counts in other units can
    /// convert it: the parts of a token, and one value for all buckets made by
    /// [`gcra`](Self::gcra).
    pub const fn stored_token_parts(&self) -> u64 {
        if self.is_gcra {
            GCRA_TOKEN_PARTS
        } else {
            self.token_parts
        }
    }

    /// The rate it was made of.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// The size of the bucket.
    pub const fn burst(&self) -> u32 {
        self.burst
    }

    /// Whether any window is held to the rate's requests.
    pub const fn is_strict(&self) -> bool {
        self.strict
    }

    /// `N'`: how many parts make a microsecond in this limit's [`Span`]s.
    pub const fn parts_per_us(&self) -> u32 {
        self.parts_per_us
    }

    /// `W'`: how many of those parts one token is.
    pub const fn token_parts(&self) -> u64 {
        self.token_parts
    }

    /// The debt of a full bucket.
    pub const fn capacity(&self) -> Span {
        self.capacity
    }

    /// The debt of a cost, or `None` for one the bucket can never hold.
    #[inline]
    pub fn price(&self, cost: Cost) -> Option<Span> {
        match cost.get() {
            1 => Some(self.token),
            cost if cost > self.burst => None,
            cost => Some(tokens(cost, self.token_parts, self.parts_per_us)),
        }
    }

    #[inline]
    fn add(&self, a: Span, b: Span) -> Span {
        let parts = u64::from(a.parts) + u64::from(b.parts);
        let carry = parts >= u64::from(self.parts_per_us);
        let parts = if carry {
            parts - u64::from(self.parts_per_us)
        } else {
            parts
        };
        #[expect(clippy::cast_possible_truncation, reason = "less than `parts_per_us`")]
        Span {
            us: a.us + b.us + u64::from(carry),
            parts: parts as u32,
        }
    }

    /// `a - b`, or zero.
    #[inline]
    fn subtract(&self, a: Span, b: Span) -> Span {
        if a <= b {
            return Span::ZERO;
        }
        if a.parts >= b.parts {
            return Span {
                us: a.us - b.us,
                parts: a.parts - b.parts,
            };
        }
        let parts = u64::from(self.parts_per_us) + u64::from(a.parts) - u64::from(b.parts);
        #[expect(clippy::cast_possible_truncation, reason = "less than `parts_per_us`")]
        Span {
            us: a.us - b.us - 1,
            parts: parts as u32,
        }
    }

    #[inline]
    fn parts(&self, span: Span) -> u128 {
        u128::from(span.us) * u128::from(self.parts_per_us) + u128::from(span.parts)
    }

    /// So many tokens, in parts.
    fn tokens(&self, tokens: u64) -> u128 {
        u128::from(tokens) * u128::from(self.token_parts)
    }

    /// The span of so many parts, at most `max_us`.
    fn span(&self, parts: u128, max_us: u64) -> Span {
        let per_us = u128::from(self.parts_per_us);
        match u64::try_from(parts / per_us) {
            Ok(us) if us < max_us => Span {
                us,
                parts: u32::try_from(parts % per_us).unwrap_or(0),
            },
            _ => Span {
                us: max_us,
                parts: 0,
            },
        }
    }
}

impl Counter for TokenBucket {
    type State = TokenBucketState;

    const PROFILE: Profile = Profile {
        has_burst: true,
        can_lease: true,
        ..Profile::new("token_bucket", "", include_str!("token_bucket.lua"))
    };

    fn new_state(&self, now_us: u64) -> TokenBucketState {
        TokenBucketState {
            debt: Span::ZERO,
            last_us: now_us,
        }
    }

    /// Time drains the debt.
    #[inline]
    fn at(&self, state: TokenBucketState, now_us: u64) -> TokenBucketState {
        TokenBucketState {
            debt: state.debt.less_us(now_us.saturating_sub(state.last_us)),
            last_us: now_us,
        }
    }

    #[inline]
    fn admits(&self, state: &TokenBucketState, cost: Cost) -> bool {
        self.price(cost)
            .is_some_and(|price| self.add(state.debt, price) <= self.capacity)
    }

    #[inline]
    fn charge(&self, state: TokenBucketState, cost: Cost) -> TokenBucketState {
        let price = self.price(cost).unwrap_or(self.capacity);
        state.with_debt(self.add(state.debt, price))
    }

    #[inline]
    fn try_charge(&self, state: TokenBucketState, cost: Cost) -> Option<TokenBucketState> {
        let debt = self.add(state.debt, self.price(cost)?);
        (debt <= self.capacity).then_some(TokenBucketState { debt, ..state })
    }

    fn saturate(&self, state: TokenBucketState, cost: Cost) -> TokenBucketState {
        let most = self.capacity.max(state.debt);
        state.with_debt(self.charge(state, cost).debt.min(most))
    }

    /// Gives back what has not drained since.
    fn refund(&self, state: TokenBucketState, charge: PastCharge) -> TokenBucketState {
        let price = self.price(charge.cost).unwrap_or(Span::ZERO);
        let owed = price.less_us(state.last_us.saturating_sub(charge.at_us));
        state.with_debt(self.subtract(state.debt, owed))
    }

    #[inline]
    fn outcome(&self, state: &TokenBucketState, cost: Cost, admitted: bool) -> Outcome {
        let retry_after_us = if admitted {
            Some(0)
        } else {
            self.price(cost).map(|price| {
                let wanted = self.add(state.debt, price);
                self.subtract(wanted, self.capacity).ceil_us()
            })
        };
        Outcome {
            limit: self.burst,
            used: Used {
                parts: self.parts(state.debt),
                per_request: self.token_parts,
            },
            retry_after_us,
            reset_after_us: state.debt.ceil_us(),
        }
    }

    fn counts_for_us(&self, cost: Cost) -> u64 {
        self.price(cost).map_or(0, Span::ceil_us)
    }

    /// The sizes may differ, but not what a token is.
    #[inline]
    fn counts_like(&self, old: &Self) -> bool {
        self.parts_per_us == old.parts_per_us
            && self.stored_token_parts() == old.stored_token_parts()
    }

    /// Used tokens stay used tokens, rounded up to a microsecond of debt.
    fn adopt(&self, old: &Self, state: TokenBucketState, _: u64) -> TokenBucketState {
        if self.counts_like(old) {
            return state;
        }
        // Below 2^77 by a bucket's bounds, so the product stays below 2^122.
        let us = (old.parts(state.debt) * u128::from(self.stored_token_parts()))
            .div_ceil(u128::from(old.stored_token_parts()) * u128::from(self.parts_per_us));
        let us = u64::try_from(us).unwrap_or(u64::MAX).min(MAX_REFILL_US);
        state.with_debt(Span { us, parts: 0 })
    }

    /// All buckets in nanoseconds have one number.
    fn numbered(&self) -> Self {
        const GCRA: TokenBucket = {
            let Ok(rate) = Rate::new(1, Duration::from_secs(1)) else {
                panic!("in range")
            };
            let Ok(bucket) = TokenBucket::gcra(rate, 1) else {
                panic!("in range")
            };
            bucket
        };
        if self.is_gcra { GCRA } else { *self }
    }

    fn write_limit(&self, cost: Cost, out: &mut Vec<u8>) {
        self.write_price(cost, out);
        let size = self.capacity;
        put(out, [(size.us, 7), (size.parts.into(), 4)]);
        let per_us = self.parts_per_us.into();
        put(out, [(per_us, 4), (self.stored_token_parts(), 6)]);
    }

    fn read_state(&self, now_us: u64, numbers: &mut Numbers<'_>) -> Option<(Self::State, u64)> {
        let state = TokenBucketState {
            debt: Span {
                us: numbers.next()?,
                parts: numbers.next_u32()?,
            },
            last_us: now_us,
        };
        Some((state, numbers.next()?))
    }

    fn lease_terms(&self) -> LeaseTerms {
        LeaseTerms {
            size: self.burst,
            refill_us: self.capacity.us,
            token_us: Some(self.token.us),
        }
    }

    fn write_price(&self, cost: Cost, out: &mut Vec<u8>) {
        let price = self.price(cost).unwrap_or(NEVER);
        put(out, [(price.us, 7), (price.parts.into(), 4)]);
    }

    fn with_leased(&self, state: TokenBucketState, tokens: u32) -> TokenBucketState {
        let parts = self.parts(state.debt) + self.tokens(tokens.into());
        state.with_debt(self.span(parts, MAX_LEASED_US))
    }

    fn emptied(state: TokenBucketState) -> TokenBucketState {
        state.with_debt(Span::ZERO)
    }

    /// Charges that have drained by themselves may still weigh on those of others.
    fn is_forgotten(_: &TokenBucketState, cost: u64) -> bool {
        cost == 0
    }

    fn write_parcel(&self, own: &TokenBucketState, parcel: &Parcel, out: &mut Vec<u8>) {
        let price = self.span(self.tokens(parcel.cost), MAX_REFILL_US);
        put_parcel(out, [parcel.cost, price.us, price.parts.into()]);
        put_parcel(out, [own.debt.us, own.debt.parts.into()]);
        put_parcel(out, [parcel.idle_us, micros(FULL_KEPT)]);
    }

    /// Charges drain, and it matters when they were made: charges `C` that would have left
    /// the debt `own` in a bucket of their own leave, in a bucket that had the debt `d` so
    /// long ago,
    ///
    /// ```text
    /// max(d + C - elapsed, own)
    /// ```
    ///
    /// The first is what is left if the bucket was never full in between, and the second
    /// if it was full at some time: then only what was charged after that counts, and
    /// `own` is the most of that which any such time leaves.
    fn arrive(
        &self,
        state: TokenBucketState,
        own: &TokenBucketState,
        parcel: &Parcel,
    ) -> TokenBucketState {
        let mut debt = self.parts(state.debt) + self.tokens(parcel.cost);
        if state.debt == Span::ZERO {
            let idle = u128::from(parcel.idle_us) * u128::from(self.parts_per_us);
            debt = debt.saturating_sub(idle);
        }
        state.with_debt(self.span(debt.max(self.parts(own.debt)), MAX_REFILL_US))
    }

    #[cfg(feature = "audit")]
    fn rules(&self, nodes: &Nodes<'_>) -> Vec<Rule> {
        let request = u128::from(self.token_parts);
        let refill = u128::from(self.parts_per_us);
        let burst = u128::from(self.burst) * request;
        let stale = refill * u128::from(nodes.staleness_us());
        vec![Rule::Rate(Refill {
            capacity: nodes.forgotten(burst + nodes.unheard(burst + stale, request)),
            refill,
            request,
        })]
    }
}

impl Compact for TokenBucket {
    #[inline]
    fn pack(&self, state: &TokenBucketState) -> Packed {
        let reset_us = state.debt.ceil_us();
        Packed {
            fresh_at_us: state.last_us + reset_us,
            data: reset_us,
            extra: u64::from(state.debt.parts),
        }
    }

    #[inline]
    fn unpack(&self, packed: Packed) -> TokenBucketState {
        #[expect(clippy::cast_possible_truncation, reason = "packed from a u32")]
        let parts = packed.extra as u32;
        TokenBucketState {
            debt: Span {
                us: packed.data - u64::from(parts > 0),
                parts,
            },
            last_us: packed.fresh_at_us - packed.data,
        }
    }
}

/// The span of `count` tokens of `token_parts` each.
const fn tokens(count: u32, token_parts: u64, parts_per_us: u32) -> Span {
    let parts = count as u128 * token_parts as u128;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "at most 100 years, and fewer than `parts_per_us`"
    )]
    Span {
        us: (parts / parts_per_us as u128) as u64,
        parts: (parts % parts_per_us as u128) as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_in_nanoseconds_keeps_its_debt_under_other_numbers() {
        let gcra = |rate: &str, burst| TokenBucket::gcra(rate.parse().unwrap(), burst).unwrap();
        // 60 s / 7 is 8,571,428,571.4 ns.
        let (seven, ten) = (gcra("7/60s", 7), gcra("10r/s", 100));
        assert_eq!(seven.token_parts(), 8_571_428_571);
        let state = seven.charge(seven.new_state(0), Cost::of(7));
        assert!(ten.counts_like(&seven) && seven.counts_like(&ten));
        assert_eq!(ten.adopt(&seven, state, 0), state);
        // All but 3 ns of a minute: 600 tokens of 0.1 s, of which the bucket has 100.
        let outcome = ten.outcome(&state, Cost::ONE, false);
        assert_eq!(outcome.retry_after_us, Some(50_100_000));
        // Under exact numbers, a second of debt is a token.
        let exact = TokenBucket::new("1r/s".parse().unwrap(), Some(100), false).unwrap();
        assert!(!exact.counts_like(&ten));
        assert_eq!(exact.adopt(&ten, state, 0).debt.us, 60_000_000);
        assert!(TokenBucket::gcra("4294967295/1s".parse().unwrap(), 1).is_err());
        assert!(TokenBucket::gcra("1/366d".parse().unwrap(), 100).is_err());
    }
}
