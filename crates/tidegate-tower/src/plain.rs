//! The everyday layer: one policy in memory, asked about one key. Its verdict needs no
//! list of values, no name to look for and no texts on the way to the headers.

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use tidegate::{Attributes, Cost, Dialect, PolicyDecision, PolicyLimiter};

use crate::fields::{Field, Fields};
use crate::gate::{FITS, Gate, Pass, Verdict};
use crate::head::RequestHead;
use crate::key::Key;

/// A policy, and the header fields of admitted requests.
#[derive(Debug)]
pub(crate) struct Plain {
    policy: PolicyLimiter,
    usual: Usual,
}

/// The header fields of a policy of one level.
#[derive(Debug)]
enum Usual {
    /// None.
    Silent,
    /// Limit, remaining and reset, each under its name.
    Numbers([Field; 3]),
    /// `RateLimit-Policy`, always the same, and how `RateLimit` begins.
    List([Field; 2], HeaderValue, Box<[u8]>),
    /// Those of any other policy.
    Other,
}

/// The value of the one attribute, whatever its name.
struct One<'v>(&'v [u8]);

impl Attributes for One<'_> {
    #[inline]
    fn value(&self, _: &str) -> Option<&[u8]> {
        Some(self.0)
    }
}

impl Plain {
    pub(crate) fn new(policy: PolicyLimiter) -> Self {
        Self {
            usual: Usual::of(&policy).unwrap_or(Usual::Other),
            policy,
        }
    }

    /// The verdict; `None` for a request without a value.
    #[inline]
    pub(crate) fn decide(&self, gate: &Gate, key: &Key, head: &RequestHead<'_>) -> Option<Verdict> {
        let client = match gate.needs_client {
            true => gate.addresses.client(head),
            false => None,
        };
        let value = key.value(head, client, &gate.addresses)?;
        let decision = self.policy.check(&One(value.as_bytes()), Cost::ONE);
        let decision = decision.expect(FITS);
        if !decision.allowed() {
            return Some(gate.refuse_limited(head, &std::iter::once(decision).collect()));
        }
        let fields = self.usual.fields(&decision);
        Some(Verdict::Pass(Pass {
            fields: fields.unwrap_or_else(|| gate.names.fields(decision.headers())),
            charged: None,
        }))
    }
}

impl Usual {
    fn of(policy: &PolicyLimiter) -> Option<Self> {
        let policy = policy.policy();
        let [level] = policy.levels() else {
            return None;
        };
        // A block has no numbers.
        level.limit().spec().filter(|_| policy.script().is_none())?;
        Some(match policy.headers() {
            Dialect::None => Self::Silent,
            Dialect::Ietf => {
                let text = level.header_item();
                let (name, _) = text.split_once(';')?;
                let limit = HeaderValue::from_str(text).ok()?;
                let begin = format!("{name};r=").into_bytes().into();
                Self::List(Field::lists(), limit, begin)
            }
            Dialect::XRateLimit | Dialect::Custom(_) => {
                let [limit, reset, remaining] = policy.headers().names()?;
                let name = |name: &str| HeaderName::from_bytes(name.as_bytes()).ok();
                let names = [name(limit)?, name(remaining)?, name(reset)?];
                Self::Numbers(names.map(Field::from))
            }
            _ => return None,
        })
    }

    /// The header fields of an admitted request; `None` if they are not the usual ones.
    #[inline]
    fn fields(&self, decision: &PolicyDecision<'_>) -> Option<Fields> {
        if let Self::Silent = self {
            return Some(Fields::new());
        }
        let mut levels = decision.levels();
        let level = levels.next().filter(|level| !level.is_overridden())?;
        let numbers = level.numbers();
        let reset = numbers.reset_after();
        let seconds = reset.as_secs() + u64::from(reset.subsec_nanos() > 0);
        let (mut first, mut second) = (itoa::Buffer::new(), itoa::Buffer::new());
        let remaining = first.format(numbers.remaining()).as_bytes();
        match self {
            Self::Silent | Self::Other => None,
            Self::Numbers([limit, left, reset]) => {
                let mut third = itoa::Buffer::new();
                let most = third.format(numbers.limit()).as_bytes();
                Some(vec![
                    (limit.clone(), value(&[most])?),
                    (left.clone(), value(&[remaining])?),
                    (reset.clone(), value(&[second.format(seconds).as_bytes()])?),
                ])
            }
            Self::List([limit, left], most, begin) => {
                let reset = second.format(seconds.max(1)).as_bytes();
                let text = value(&[begin, remaining, b";t=", reset])?;
                Some(vec![(limit.clone(), most.clone()), (left.clone(), text)])
            }
        }
    }
}

/// A value made of these parts, in no more memory than it needs.
#[inline]
fn value(parts: &[&[u8]]) -> Option<HeaderValue> {
    let mut text = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
    parts.iter().for_each(|part| text.extend_from_slice(part));
    HeaderValue::from_maybe_shared(Bytes::from(text)).ok()
}
