//! Records with one request too many, and what an audit says of them.

use std::fmt::Write as _;
use std::time::Duration;

use tidegate::audit::{Audit, Background, Record, Verdict};
use tidegate::{Cost, Limit, Limiter, ManualClock, MemoryStore, Source};
use tidegate_testkit::conformance::micros;

use crate::support::{MINUTE, SECOND, START};

const ROWS: &str = include_str!("audit.txt");

/// The audit of a row: a limit, and what is allowed for.
fn audit(text: &str) -> Audit {
    let (limit, options) = text.split_once(" | ").unwrap_or((text, ""));
    let mut audit = Audit::new(Limit::parse(limit).expect(text));
    let mut nodes = None;
    for option in options.split_whitespace() {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            "partial" => audit = audit.partial(true),
            "losses" => audit = audit.allow_losses(value.parse().expect(text)),
            "nodes" => {
                let offered = value.split(',').map(|it| it.parse::<u64>().expect(text));
                let (sync, round_trip) = (Duration::from_millis(90), Duration::from_millis(10));
                let fleet = Background::new(sync, round_trip, offered);
                assert_eq!(fleet.staleness(), Duration::from_millis(200));
                nodes = Some(fleet);
            }
            "outage" => {
                let outage = Duration::from_micros(micros(value));
                nodes = nodes.map(|nodes| nodes.outage(outage));
            }
            _ => panic!("unknown option {option:?}"),
        }
    }
    match nodes {
        Some(nodes) => audit.background(nodes),
        None => audit,
    }
}

fn verdict(audit: &Audit, requests: &[(u64, u32)]) -> Verdict {
    let records = requests
        .iter()
        .map(|&(at_us, cost)| Record::admitted("key", START + at_us, Cost::of(cost)));
    audit.clone().judge(records)
}

#[test]
fn one_request_too_many_is_found() {
    let (mut wrong, mut rows) = (String::new(), 0);
    for row in ROWS.lines().filter(|row| row.contains(" -> ")) {
        let (told, expected) = row.split_once(" -> ").expect("filtered");
        let (limit, requests) = told.split_once(": ").expect(row);
        let requests = requests.split(", ").map(|one| {
            let (at, cost) = one.split_once(' ').expect(row);
            (micros(at), cost.parse().expect(row))
        });
        let requests: Vec<(u64, u32)> = requests.collect();
        let (last, fewer) = requests.split_last().expect("some requests");
        let audit = audit(limit);
        let got = match verdict(&audit, &requests).broken {
            None => "held".to_owned(),
            Some(_) if !verdict(&audit, fewer).held() => "broken before".to_owned(),
            Some(broken) => {
                assert_eq!(broken.to_us, START + last.0, "{row}: {broken}");
                assert!(broken.admitted > broken.bound, "{row}: {broken}");
                let from = Duration::from_micros(broken.from_us - START);
                let from = if from.is_zero() {
                    "0s".to_owned()
                } else {
                    format!("{from:?}")
                };
                format!("too many from {from}, bound {}", broken.bound)
            }
        };
        if got != expected {
            writeln!(wrong, "{told} -> {got}\n   instead of {expected}").expect("text");
        }
        rows += 1;
    }
    assert!(wrong.is_empty(), "otherwise than written:\n{wrong}");
    assert!(rows > 25, "only {rows} rows: is audit.txt cut off?");
}

#[test]
fn what_was_decided_without_the_store_is_outside() {
    let mut audit = Audit::new(Limit::per_second(1));
    let admitted = Record::admitted("key", START, Cost::ONE);
    audit.push(&admitted);
    for source in [Source::Local, Source::ErrorPolicy] {
        audit.push(&Record { source, ..admitted });
    }
    audit.push(&Record {
        allowed: false,
        ..admitted
    });
    let verdict = audit.verdict();
    assert!(verdict.held());
    let counts = (verdict.admitted, verdict.outside, verdict.refused);
    assert_eq!(counts, (1, 2, 1));
}

#[test]
fn keys_are_judged_apart_and_the_first_violation_is_reported() {
    let mut audit = Audit::new(Limit::per_minute(2).sliding_log());
    // Not in order, as they come from several threads.
    for at_us in [30, 10, 20] {
        audit.push(&Record::admitted("late", START + at_us, Cost::ONE));
        audit.push(&Record::admitted("early", START + at_us - 5, Cost::ONE));
        audit.push(&Record::admitted(&at_us.to_le_bytes(), START, Cost::ONE));
    }
    let verdict = audit.verdict();
    assert_eq!((verdict.keys, verdict.broken_keys), (5, 2));
    let broken = verdict.broken.expect("three of two");
    assert_eq!(
        broken.to_string(),
        format!(
            "key \"early\": 3 admitted in the 20 us from {} to {}, at most 2 allowed",
            START + 5,
            START + 25
        )
    );
    let tightest = verdict.tightest.expect("the other keys");
    assert_eq!((tightest.admitted, tightest.bound), (1, 2));
}

#[test]
fn what_was_given_back_does_not_count() {
    for limit in crate::support::every_algorithm(2, MINUTE) {
        let clock = ManualClock::at_us(START + 50 * SECOND);
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let limiter = Limiter::over(&store, limit).unwrap();
        let mut audit = Audit::new(limit);
        let mut unheard = Audit::new(limit);
        for _ in 0..10 {
            let decision = limiter.check("key");
            for audit in [&mut audit, &mut unheard] {
                audit.push(&Record::of("key", Cost::ONE, &decision));
            }
            let receipt = decision.receipt().expect("it was admitted");
            limiter.refund("key", &receipt);
            audit.refund("key", decision.decided_at_us(), Cost::ONE);
            clock.advance(Duration::from_micros(10));
        }
        assert!(audit.verdict().held(), "{limit}");
        assert!(!unheard.verdict().held(), "{limit}");
    }
}
