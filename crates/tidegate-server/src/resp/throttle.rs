//! Limits that come with each call, in the words of three others: `CL.THROTTLE` of
//! redis-cell, `THROTTLE` of throttlecrab, and `GCRA` as Redis 8.8 was to have it.
//!
//! All are one bucket ([`TokenBucket::gcra`](tidegate::algorithm::TokenBucket::gcra)) and
//! differ in what they call its size, in the order of their five numbers, and in rounding.
//! With a token every `E` and a bucket of `B`, and the time `d` that the bucket needs to be
//! full again after the check:
//!
//! | | `CL.THROTTLE` | `THROTTLE` | `GCRA` |
//! | --- | --- | --- | --- |
//! | `B` | `max_burst + 1` | `max_burst` | `max_burst + 1` |
//! | reset after | `d`, rounded up | `d + E*(B - 2)`, rounded down | `d`, a fraction |
//! | retry after | rounded up | rounded down | a fraction |

use tidegate::{Cost, Decision};

use super::frame::Arguments;
use super::reply::Replies;
use super::text::{number, seconds_us, shown};
use crate::engine::{Bucket, Numbers};

/// Whose words a call uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `CL.THROTTLE`.
    Cell,
    /// `THROTTLE`.
    Crab,
    /// `GCRA`.
    Gcra,
}

/// A call, read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Throttle<'b> {
    pub(super) key: &'b [u8],
    pub(super) numbers: Numbers,
    /// None only looks.
    pub(super) quantity: Option<Cost>,
}

impl Dialect {
    pub(super) const ALL: [Self; 3] = [Self::Cell, Self::Crab, Self::Gcra];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Cell => "CL.THROTTLE",
            Self::Crab => "THROTTLE",
            Self::Gcra => "GCRA",
        }
    }

    /// What the arguments are, after the name.
    pub(super) const fn usage(self) -> &'static str {
        match self {
            Self::Cell | Self::Crab => "key max_burst count period [quantity]",
            Self::Gcra => "key max_burst count period [NUM_REQUESTS n]",
        }
    }

    /// Reads a call. What is wrong names the argument and what was expected.
    #[inline]
    pub(super) fn read<'b>(self, arguments: &Arguments<'b>) -> Result<Throttle<'b>, String> {
        let (key, numbers, quantity) = match (self, &arguments[1..]) {
            (_, [key, numbers @ ..]) if numbers.len() == 3 => (*key, numbers, None),
            (Self::Cell | Self::Crab, [key, numbers @ .., quantity]) if numbers.len() == 3 => {
                (*key, numbers, Some(*quantity))
            }
            (Self::Gcra, [key, numbers @ .., word, quantity]) if numbers.len() == 3 => {
                let is_known = [&b"NUM_REQUESTS"[..], b"TOKENS"]
                    .iter()
                    .any(|known| word.eq_ignore_ascii_case(known));
                if !is_known {
                    let word = shown(word);
                    return Err(format!("{word}: expected NUM_REQUESTS or TOKENS"));
                }
                (*key, numbers, Some(*quantity))
            }
            _ => return Err(self.wrong_count()),
        };
        let &[burst, count, period] = numbers else {
            return Err(self.wrong_count());
        };
        Ok(Throttle {
            key,
            numbers: self.numbers(burst, count, period)?,
            quantity: match quantity {
                None => Some(Cost::ONE),
                Some(text) => quantity_of(text)?,
            },
        })
    }

    fn wrong_count(self) -> String {
        let (name, usage) = (self.name(), self.usage());
        format!("wrong number of arguments for '{name}': expected {name} {usage}")
    }

    #[inline]
    fn numbers(self, burst: &[u8], count: &[u8], period: &[u8]) -> Result<Numbers, String> {
        let extra = match self {
            Self::Cell | Self::Gcra => 1,
            Self::Crab => 0,
        };
        let (least, most) = (1 - extra, u64::from(u32::MAX) - extra);
        let read = number(burst).filter(|burst| (least..=most).contains(burst));
        let Some(max_burst) = read else {
            let burst = shown(burst);
            return Err(format!(
                "max_burst: {burst}: expected a whole number from {least} to {most}"
            ));
        };
        let read = number(count).filter(|count| (1..=u64::from(u32::MAX)).contains(count));
        let Some(count) = read else {
            let (count, most) = (shown(count), u32::MAX);
            return Err(format!(
                "count: {count}: expected a whole number from 1 to {most}"
            ));
        };
        let read = match self {
            Self::Gcra => seconds_us(period),
            Self::Cell | Self::Crab => number(period).and_then(|it| it.checked_mul(1_000_000)),
        };
        let longest = tidegate::MAX_WINDOW.as_secs();
        let read = read.filter(|us| (1_000..=longest * 1_000_000).contains(us));
        let Some(period_us) = read else {
            let (period, least) = match self {
                Self::Gcra => (shown(period), "0.001"),
                Self::Cell | Self::Crab => (shown(period), "1"),
            };
            return Err(format!(
                "period: {period}: expected seconds from {least} to {longest}"
            ));
        };
        Ok(Numbers {
            burst: max_burst + extra,
            count,
            period_us,
        })
    }

    /// Writes the five numbers of a decision. `cost` is nothing for a look.
    #[inline]
    pub(super) fn write(
        self,
        replies: &mut Replies,
        bucket: &Bucket,
        cost: Option<Cost>,
        decision: &Decision,
    ) {
        // A look asks for nothing, so nothing is refused.
        let limited = cost.is_some() && !decision.allowed();
        let burst = bucket.numbers.burst;
        let level = decision.levels().first().map(|level| level.outcome());
        let asked = cost.map_or(0, |cost| u64::from(cost.get()));
        // Admitted with an unknown remainder: reported as for a new key.
        let remaining = level.map_or(burst.saturating_sub(asked), |it| it.remaining().into());
        let reset_us = level.map_or(0, |it| it.reset_after_us);
        let retry_us = level.and_then(|it| it.retry_after_us).filter(|_| limited);
        // Five numbers and their line ends, so that none of them finds no room.
        replies.bytes.reserve(128);
        replies.bytes.extend_from_slice(b"*5\r\n");
        match self {
            Self::Cell => {
                replies.number(limited.into());
                replies.number(burst);
                replies.number(remaining);
                match retry_us {
                    Some(us) => replies.number(us.div_ceil(1_000_000)),
                    None => replies.minus_one(),
                }
                replies.number(reset_us.div_ceil(1_000_000));
            }
            Self::Crab => {
                let token_ns = u128::from(bucket.token_ns);
                let burst_ns = u128::from(burst) * token_ns;
                let (reset_ns, retry_ns) = match level.map(|it| it.used) {
                    Some(used) if used.per_request == bucket.token_ns => {
                        let debt_ns = used.parts;
                        let reset_ns = (debt_ns + burst_ns).saturating_sub(2 * token_ns);
                        let wanted_ns = debt_ns + u128::from(asked) * token_ns;
                        (reset_ns, wanted_ns.saturating_sub(burst_ns))
                    }
                    // No bucket has decided this.
                    _ => (
                        u128::from(reset_us) * 1_000,
                        u128::from(retry_us.unwrap_or(0)) * 1_000,
                    ),
                };
                replies.number((!limited).into());
                replies.number(burst);
                replies.number(remaining);
                replies.number(whole_seconds(reset_ns));
                replies.number(if limited { whole_seconds(retry_ns) } else { 0 });
            }
            Self::Gcra => {
                replies.number(limited.into());
                replies.number(burst);
                replies.number(remaining);
                replies.seconds(retry_us);
                replies.seconds(Some(reset_us).filter(|us| *us > 0));
            }
        }
    }
}

fn whole_seconds(ns: u128) -> u64 {
    // Dividing 128 bits takes several times as long as dividing 64.
    match u64::try_from(ns) {
        Ok(ns) => ns / 1_000_000_000,
        Err(_) => u64::try_from(ns / 1_000_000_000).unwrap_or(u64::MAX),
    }
}

/// What a call takes; nothing only looks.
fn quantity_of(text: &[u8]) -> Result<Option<Cost>, String> {
    match number(text) {
        Some(0) => Ok(None),
        Some(quantity) => Cost::new(quantity).map(Some).map_err(|_| ()),
        None => Err(()),
    }
    .map_err(|()| {
        let (text, most) = (shown(text), u32::MAX);
        format!("quantity: {text}: expected a whole number from 0 to {most}")
    })
}
