//! What holds of the headers of any limit, at any time and cost, judged by an independent
//! parser of structured fields. Examples are rows of `policies/suite.txt`.

use std::time::Duration;

use proptest::prelude::*;
use sfv::{BareItem, List, ListEntry, Parser};
use tidegate::{Cost, Dialect, Limit, Policy, PolicyDecision};

use crate::policies::Timed;
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

fn some_levels() -> impl Strategy<Value = Vec<Limit>> {
    let limit = prop_oneof![
        6 => limits::any(),
        3 => (1..6_u32, 0..5_usize).prop_map(|(requests, kind)| {
            crate::support::every_algorithm(requests, 1_234_567)[kind]
        }),
        1 => Just(Limit::block()),
    ];
    prop::collection::vec(limit, 1..4)
}

/// The value of a parameter.
fn of(item: &Item, name: &str) -> Option<u128> {
    let found = item.1.iter().find(|(other, _)| other == name);
    found.map(|(_, value)| u128::try_from(*value).expect("not negative"))
}

/// The items of the lists say what the decision says.
fn lists_are_right(decision: &PolicyDecision<'_>) -> Result<(), TestCaseError> {
    let headers = decision.headers();
    let policies = fields(headers.get("RateLimit-Policy").expect("a policy"));
    let states = fields(headers.get("RateLimit").expect("its state"));
    prop_assert_eq!(policies.len(), decision.levels().len());
    prop_assert_eq!(states.len(), decision.levels().len());
    let mut longest = None;
    for ((level, policy), state) in decision.levels().zip(&policies).zip(&states) {
        let name = match decision.policy().levels().len() {
            1 => "any".to_owned(),
            _ => format!("any.{}", level.name()),
        };
        prop_assert_eq!([&policy.0, &state.0], [&name, &name]);
        let numbers = level.numbers();
        prop_assert_eq!(of(state, "r"), Some(numbers.remaining().into()));
        let Some(spec) = level.limit().spec() else {
            prop_assert_eq!((of(policy, "q"), of(policy, "w")), (Some(0), None));
            prop_assert_eq!(of(state, "t"), None);
            continue;
        };
        let (q, w) = (of(policy, "q").expect("q"), of(policy, "w").expect("w"));
        let (requests, window) = (u128::from(spec.rate.requests()), spec.rate.window_us());
        // The same ratio; where that needs too many digits, the next below it.
        let (said, meant) = (q * u128::from(window), requests * w * 1_000_000);
        prop_assert!(q > 0 && w > 0);
        if said != meant {
            prop_assert!(said < meant && meant < said + u128::from(window));
            prop_assert!(requests > 900_000_000, "{}", level.limit());
        }
        let wait = match numbers.retry_after() {
            Some(wait) if level.refuses() => wait,
            _ => numbers.reset_after(),
        };
        let t = of(state, "t").expect("t");
        prop_assert_eq!(t, wait.as_micros().div_ceil(1_000_000).max(1));
        if level.refuses() {
            longest = longest.max(numbers.retry_after().map(|_| t));
        }
    }
    if let Some(told) = headers.get("Retry-After") {
        prop_assert_eq!(Some(told.parse().expect("seconds")), longest);
    }
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn headers_parse_and_waiting_as_long_as_they_say_admits(
        limits in some_levels(),
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
                lists_are_right(&decision)?;
            }
            let told = headers.get("Retry-After").map(|told| told.parse::<u64>().expect("seconds"));
            let wait = decision.retry_after().filter(|_| !decision.allowed());
            prop_assert_eq!(told.is_some(), wait.is_some());
            if let (Some(told), Some(wait)) = (told, wait) {
                let told = Duration::from_secs(told);
                prop_assert!(told >= wait);
                prop_assert!(told < wait + Duration::from_secs(1) || told.as_secs() == 1);
                client.clock.set_us(now_us + micros(told));
                let later = client.limiter.peek("any", &attributes, cost).expect("good input");
                prop_assert!(later.allowed());
            }
        }
    }
}
