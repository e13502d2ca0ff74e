//! What clients see, judged by an independent parser of structured fields.

mod bodies;
mod dialects;
mod properties;
mod waits;

use sfv::{BareItem, List, ListEntry, Parser};
use tidegate::{
    Cost, Dialect, Headers, Limit, ManualClock, MemoryStore, Policy, PolicyBuilder, PolicyDecision,
    PolicyLimiter,
};

use crate::support::{KEY, START};

/// An item of a list: its value as it is written, and its parameters in order.
type Item = (String, Vec<(String, i64)>);

/// A list of strings (or of integers) whose parameters are integers, or a panic that
/// says why it is none.
fn list(value: &str, strings: bool) -> Vec<Item> {
    let list: List = Parser::new(value)
        .parse()
        .unwrap_or_else(|error| panic!("{value:?}: {error}"));
    let item = |entry: &ListEntry| {
        let ListEntry::Item(item) = entry else {
            panic!("{value:?}: a list in a list");
        };
        let name = match &item.bare_item {
            BareItem::String(name) if strings => name.as_str().to_owned(),
            BareItem::Integer(number) if !strings => i64::from(*number).to_string(),
            other => panic!("{value:?}: {other:?}"),
        };
        let parameter = |(name, value): (&sfv::Key, &BareItem)| {
            let number = value.as_integer().expect("an integer");
            (name.as_str().to_owned(), i64::from(number))
        };
        (name, item.params.iter().map(parameter).collect())
    };
    list.iter().map(item).collect()
}

fn strings(value: &str) -> Vec<Item> {
    list(value, true)
}

fn integers(value: &str) -> Vec<Item> {
    list(value, false)
}

/// An item as a table of expectations has it.
fn item(name: &str, parameters: &[(&str, i64)]) -> Item {
    let parameters = parameters
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value));
    (name.to_owned(), parameters.collect())
}

/// Names and values, as they would be sent.
fn sent(headers: &Headers<'_>) -> Vec<(String, String)> {
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let sent: Vec<_> = headers.iter().map(owned).collect();
    let taken = headers.clone().into_iter();
    assert_eq!(taken.len(), sent.len());
    let taken = taken.map(|(name, value)| (name.into_owned(), value.into_owned()));
    assert_eq!(taken.collect::<Vec<_>>(), sent);
    sent
}

/// A policy `login` with one limit for each `key`.
fn login(limit: &str) -> PolicyBuilder {
    let limit = Limit::parse(limit).expect("a limit");
    Policy::builder("login").limit(limit)
}

fn custom(names: [&str; 3]) -> Dialect {
    Dialect::Custom(names.map(Box::from))
}

/// Policies on a clock.
struct Client {
    clock: ManualClock,
    limiter: PolicyLimiter,
}

impl Client {
    fn new(policies: impl IntoIterator<Item = PolicyBuilder>) -> Self {
        let clock = ManualClock::at_us(START);
        let store = MemoryStore::builder()
            .max_keys(64)
            .clock(clock.clone())
            .build();
        let policies = policies.into_iter().map(|one| one.build().expect("right"));
        let limiter = PolicyLimiter::with_stores([("default", store)], policies);
        Self {
            clock,
            limiter: limiter.expect("few policies"),
        }
    }

    /// Asks the policy `login`.
    fn login(&self, cost: u32) -> PolicyDecision<'_> {
        self.limiter
            .check("login", &[("key", KEY)], Cost::of(cost))
            .expect("all attributes are there")
    }
}
