//! What a client sees of a decision: header fields and the body of a refusal, as text. The
//! front ends send them.

use std::borrow::Cow;
use std::fmt::Write;
use std::time::Duration;

use smallvec::SmallVec;

use crate::limit::Limit;
use crate::policy::template::shown;
use crate::policy::{LevelReport, PolicyDecision};
use crate::rate::gcd;

/// Which header fields a policy's clients see.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Dialect {
    /// `RateLimit-Policy` and `RateLimit`, lists with one item per level, as in
    /// draft-ietf-httpapi-ratelimit-headers-11.
    #[default]
    Ietf,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`.
    XRateLimit,
    /// `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset` and
    /// `RateLimit-Policy`, as in the sixth version of that draft.
    Draft06,
    /// Names of your own, in this order: limit, reset, remaining.
    Custom([Box<str>; 3]),
    /// No headers at all, not even `Retry-After`.
    None,
}

/// Header fields: names and values, ready to be sent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Headers<'p>(SmallVec<[(Cow<'p, str>, Cow<'p, str>); 4]>);

/// The parts of header fields that do not depend on the decision. Formatted once per level,
/// because almost every response needs them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Item {
    /// `policy`, or `policy.level` if there are several levels. Names
    /// need no escapes, neither in a structured field nor in JSON.
    pub(crate) name: Box<str>,
    /// The level's own limit, in `RateLimit-Policy`.
    pub(crate) limit: Box<str>,
}

impl Item {
    pub(crate) fn new(name: Box<str>, limit: &Limit) -> Self {
        Self {
            limit: limit_item(&name, limit).into(),
            name,
        }
    }
}

/// The greatest integer of a structured field (RFC 9651).
const MAX_INTEGER: u128 = 999_999_999_999_999;

const MICROS: u128 = 1_000_000;

impl Dialect {
    /// Its name in the config file; `custom` for names of your own, which stand there instead.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Ietf => "ietf",
            Self::XRateLimit => "x-ratelimit",
            Self::Draft06 => "draft-06",
            Self::Custom(_) => "custom",
            Self::None => "none",
        }
    }

    /// The dialect with this name in the config file.
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Ietf, Self::XRateLimit, Self::Draft06, Self::None];
        all.into_iter().find(|dialect| dialect.as_str() == name)
    }

    /// The names of the fields for limit, reset and remaining, if the dialect has them.
    pub fn names(&self) -> Option<[&str; 3]> {
        match self {
            Self::XRateLimit => Some([
                "X-RateLimit-Limit",
                "X-RateLimit-Reset",
                "X-RateLimit-Remaining",
            ]),
            Self::Draft06 => Some(["RateLimit-Limit", "RateLimit-Reset", "RateLimit-Remaining"]),
            Self::Custom(names) => Some([&*names[0], &*names[1], &*names[2]]),
            Self::Ietf | Self::None => None,
        }
    }

    /// What is wrong with custom names.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self::Custom(names) = self else {
            return Ok(());
        };
        for (index, name) in names.iter().enumerate() {
            if !is_field_name(name) {
                return Err(format!(
                    "{}: expected the name of a header, such as \"x-ratelimit-limit\"",
                    shown(name)
                ));
            }
            let mut others = names[..index].iter();
            if others.any(|other| other.eq_ignore_ascii_case(name))
                || name.eq_ignore_ascii_case(RETRY_AFTER)
            {
                return Err(format!(
                    "{}: used twice: expected three different names",
                    shown(name)
                ));
            }
        }
        Ok(())
    }
}

/// The longest name of a header.
const MAX_NAME: usize = 128;

fn is_field_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_part)
}

const RETRY_AFTER: &str = "Retry-After";

impl<'p> Headers<'p> {
    /// The headers of one response, for all policies that were checked.
    pub(crate) fn of<'d>(
        decisions: impl IntoIterator<Item = &'d PolicyDecision<'p>> + Clone,
    ) -> Self
    where
        'p: 'd,
    {
        let mut headers = Self::default();
        let decisions = || decisions.clone().into_iter();
        // Both drafts have a list of this name, with items of different types: a client
        // that gets the one cannot read the other.
        let ietf = decisions().any(|it| *it.policy().headers() == Dialect::Ietf);
        // A script names its own.
        let levels = || decisions().filter(|decision| decision.answer().is_none());
        for decision in levels() {
            match decision.policy().headers() {
                Dialect::Ietf => headers.add_ietf(decision),
                Dialect::Draft06 if !ietf => headers.add_draft_06_policy(decision),
                Dialect::Draft06 => {}
                Dialect::XRateLimit | Dialect::Custom(_) | Dialect::None => {}
            }
        }
        // Single numbers can only tell of one policy: of those that want such numbers, the
        // one that refused, or else the one with the least remaining.
        let counted = levels().filter(|decision| decision.levels().len() > 0);
        let numbered =
            counted.filter_map(|decision| Some((decision.policy().headers().names()?, decision)));
        let reported = numbered.min_by_key(|(_, it)| (it.allowed(), it.remaining()));
        if let Some(([limit, reset, remaining], decision)) = reported
            && let Some(level) = decision.reported()
        {
            let numbers = level.numbers();
            headers.add(limit, numbers.limit().to_string());
            headers.add(remaining, numbers.remaining().to_string());
            headers.add(reset, seconds(numbers.reset_after()).to_string());
        }
        for (name, value) in decisions()
            .filter_map(|decision| decision.answer())
            .flat_map(|answer| &answer.headers)
        {
            headers.0.push((name.clone().into(), value.clone().into()));
        }
        let refusal = decisions().find(|decision| !decision.allowed());
        let told = refusal.filter(|refusal| *refusal.policy().headers() != Dialect::None);
        if let Some(wait) = told.and_then(|refusal| refusal.retry_after()) {
            headers.add(RETRY_AFTER, seconds(wait).max(1).to_string());
        }
        headers
    }

    /// Names and values, in the order to send them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// The value of a field, whatever the case of its name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter()
            .find(|(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    fn add_ietf(&mut self, decision: &PolicyDecision<'p>) {
        let refused = !decision.allowed();
        for level in decision.levels() {
            let item = &decision.policy().levels()[level.index()].item;
            let limit = match level.is_overridden() {
                true => limit_item(&item.name, level.limit()).into(),
                false => Cow::Borrowed(&*item.limit),
            };
            self.list("RateLimit-Policy", limit);
            let numbers = level.numbers();
            let remaining = u64::from(numbers.remaining());
            let wait = numbers.retry_after().filter(|_| refused && level.refuses());
            let wait = wait.unwrap_or_else(|| numbers.reset_after());
            let wait = level.limit().spec().map(|_| seconds(wait).max(1));
            let item = item_text(&item.name, (";r=", remaining), (";t=", wait));
            self.list("RateLimit", item.into());
        }
    }

    fn add_draft_06_policy(&mut self, decision: &PolicyDecision<'p>) {
        for level in decision.levels() {
            if let Some((quota, window)) = quota(level.limit()) {
                self.list("RateLimit-Policy", format!("{quota};w={window}").into());
            }
        }
    }

    fn add(&mut self, name: &'p str, value: String) {
        self.0.push((name.into(), value.into()));
    }

    /// Appends an item to a list, or begins it.
    fn list(&mut self, name: &'static str, item: Cow<'p, str>) {
        match self.0.iter_mut().find(|(other, _)| *other == name) {
            Some((_, list)) => {
                let list = list.to_mut();
                list.push_str(", ");
                list.push_str(&item);
            }
            None => self.0.push((name.into(), item)),
        }
    }
}

/// Names and values, in the order to send them, for callers that can take over the memory
/// of a value.
impl<'p> IntoIterator for Headers<'p> {
    type Item = (Cow<'p, str>, Cow<'p, str>);
    type IntoIter = HeadersIntoIter<'p>;

    fn into_iter(self) -> HeadersIntoIter<'p> {
        HeadersIntoIter(self.0.into_iter())
    }
}

/// The fields of [`Headers`], one by one.
#[derive(Debug)]
pub struct HeadersIntoIter<'p>(smallvec::IntoIter<[(Cow<'p, str>, Cow<'p, str>); 4]>);

impl<'p> Iterator for HeadersIntoIter<'p> {
    type Item = (Cow<'p, str>, Cow<'p, str>);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for HeadersIntoIter<'_> {}

/// The body of a refusal, as `application/problem+json`: the violated policies, or that a
/// policy's store is unavailable.
pub(crate) fn problem<'p: 'd, 'd>(
    decisions: impl IntoIterator<Item = &'d PolicyDecision<'p>>,
    status: u16,
) -> String {
    let mut violated = String::new();
    for decision in decisions.into_iter().filter(|decision| !decision.allowed()) {
        if decision.is_unavailable() {
            let policy = decision.policy().name();
            // Names need no escapes.
            return format!(
                "{{\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":{status},\
                 \"detail\":\"the store of policy {policy} is unavailable, and the policy denies requests until it answers\"}}"
            );
        }
        for level in decision.levels().filter(LevelReport::refuses) {
            if !violated.is_empty() {
                violated.push(',');
            }
            write!(violated, "\"{}\"", level.level().item.name).expect("a string takes everything");
        }
    }
    format!(
        "{{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\
         \"title\":\"Request cannot be satisfied as assigned quota has been exceeded\",\
         \"status\":{status},\"violated-policies\":[{violated}]}}"
    )
}

/// An item of `RateLimit-Policy`.
fn limit_item(name: &str, limit: &Limit) -> String {
    let (requests, window) = quota(limit).unzip();
    item_text(name, (";q=", requests.unwrap_or(0)), (";w=", window))
}

/// An item with one or two parameters. It allocates only what it needs, so that a front end
/// can send it as it is.
fn item_text(name: &str, first: (&str, u64), second: (&str, Option<u64>)) -> String {
    let mut digits = [itoa::Buffer::new(), itoa::Buffer::new()];
    let [one, two] = &mut digits;
    let second = second.1.map(|number| [second.0, two.format(number)]);
    let [key, value] = second.unwrap_or_default();
    ["\"", name, "\"", first.0, one.format(first.1), key, value].concat()
}

/// Whole seconds, rounded up.
fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// Requests per window, scaled to the least whole number of seconds; `None` for a
/// block. `3/500ms` is 6 per 1.
fn quota(limit: &Limit) -> Option<(u64, u64)> {
    let rate = limit.spec()?.rate;
    let (requests, window_us) = (u128::from(rate.requests()), u128::from(rate.window_us()));
    let common = gcd(rate.window_us(), 1_000_000);
    let times = MICROS / u128::from(common);
    let (quota, window) = (requests * times, window_us * times / MICROS);
    let whole = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
    if quota.max(window) <= MAX_INTEGER {
        return Some((whole(quota), whole(window)));
    }
    // No structured field could say it exactly: less than it is, in the shortest
    // window that has whole seconds.
    let window = window_us.div_ceil(MICROS);
    let quota = requests * window * MICROS / window_us;
    Some((whole(quota), whole(window)))
}
