//! What holds of the headers of any limit, at any time and cost, judged by an independent
//! parser of structured fields. Examples are rows of `policies/suite.txt`.

use std::time::Duration;

use proptest::prelude::*;
use sfv::{BareItem, List, ListEntry, Parser};
use tidegate::{Cost, Dialect, Policy, PolicyDecision};

use crate::policies::Timed;
use crate::properties::levels::levels;
use crate::properties::{config, limits, window_us};
use crate::support::{KEY, START, micros};

/// An item of a list: its value as it is written, and its parameters in order.
type Item = (String, Vec<(String, i64)>);

/// A list of strings or of integers whose parameters are integers, or a panic that says
/// why it is none.
pub(crate) fn fields(value: &str) -> Vec<Item> {
    let list: List = Parser::new(value)
        .parse()
        .unwrap_or_else(|error| panic!("{value:?}: {error}"));
    let item = |entry: &ListEntry| {
        let ListEntry::Item(item) = entry else {
            panic!("{value:?}: a list in a list");
        };
        let name = match &item.bare_item {
            BareItem::String(name) => name.as_str().to_owned(),
            BareItem::Integer(number) => i64::from(*number).to_string(),
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

/// (thousandths of the window to wait before, cost)
fn asks() -> impl Strategy<Value = Vec<(u64, u32)>> {
    let cost = prop_oneof![4 => 1..4_u32, 1 => limits::number(u32::MAX)];
    prop::collection::vec((0..1_500_u64, cost), 1..12)
}

fn dialects() -> impl Strategy<Value = Dialect> {
    prop_oneof![
        3 => Just(Dialect::Ietf),
        1 => Just(Dialect::Draft06),
        1 => Just(Dialect::XRateLimit),
        1 => Just(Dialect::Custom(["x-limit", "x-reset", "x-remaining"].map(Box::from))),
    ]
}

/// The items of `RateLimit` say what the levels of the decision say.
fn states_are_right(decision: &PolicyDecision<'_>) -> Result<(), TestCaseError> {
    let headers = decision.headers();
    let policies = fields(headers.get("RateLimit-Policy").expect("a policy"));
    let states = fields(headers.get("RateLimit").expect("its state"));
    let names = |items: &[Item]| items.iter().map(|item| item.0.clone()).collect::<Vec<_>>();
    prop_assert_eq!(names(&policies), names(&states));
    prop_assert_eq!(states.len(), decision.levels().len());
    for (level, (_, parameters)) in decision.levels().zip(states) {
        let numbers = level.numbers();
        let wait = match numbers.retry_after() {
            Some(wait) if level.refuses() => wait,
            _ => numbers.reset_after(),
        };
        let seconds = micros(wait).div_ceil(1_000_000).max(1);
        let mut expected = vec![("r".to_owned(), i64::from(numbers.remaining()))];
        if level.limit().spec().is_some() {
            expected.push(("t".to_owned(), i64::try_from(seconds).expect("some years")));
        }
        prop_assert_eq!(parameters, expected);
    }
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn headers_parse_and_waiting_as_long_as_they_say_admits(
        limits in levels(),
        dialect in dialects(),
        asks in asks(),
    ) {
        let mut policy = Policy::builder("any").headers(dialect.clone());
        for (index, limit) in limits.iter().enumerate() {
            policy = policy.level(format!("level-{index}"), "{key}", *limit);
        }
        let client = Timed::of([policy]);
        let attributes = [("key", KEY)];
        let mut now_us = START;
        for (index, (share, cost)) in asks.into_iter().enumerate() {
            now_us += window_us(&limits[index % limits.len()]) / 1_000 * share;
            client.clock.set_us(now_us);
            let cost = Cost::of(cost);
            let decision = client.limiter.check("any", &attributes, cost).expect("good input");
            let headers = decision.headers();
            for (name, value) in headers.iter() {
                let is_shown = |byte: u8| (b' '..=b'~').contains(&byte);
                prop_assert!(name.bytes().all(|byte| is_shown(byte) && byte != b' '));
                prop_assert!(value.bytes().all(is_shown), "{}", value);
                match (name, &dialect) {
                    ("RateLimit-Policy", Dialect::Draft06) => drop(fields(value)),
                    ("RateLimit-Policy" | "RateLimit", _) => {}
                    _ => prop_assert!(value.parse::<u64>().is_ok(), "{}", value),
                }
            }
            if dialect == Dialect::Ietf {
                states_are_right(&decision)?;
            }
            let told = headers.get("Retry-After").map(|told| told.parse::<u64>().expect("seconds"));
            let wait = decision.retry_after().filter(|_| !decision.allowed());
            prop_assert_eq!(told.is_some(), wait.is_some());
            if let (Some(told), Some(wait)) = (told, wait) {
                let told = Duration::from_secs(told);
                prop_assert!(told >= wait);
                prop_assert!(told < wait + Duration::from_secs(1) || told.as_secs() == 1);
                client.clock.set_us(now_us + micros(told));
                let any = client.limiter.handle("any").expect("its name");
                let later = any.peek(&attributes, cost).expect("good input");
                prop_assert!(later.allowed());
            }
        }
    }
}
