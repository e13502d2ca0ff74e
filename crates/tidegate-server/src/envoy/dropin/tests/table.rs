//! What envoyproxy/ratelimit is documented to answer, and what settings and algorithms of our
//! own change about that, case by case: `table.txt`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::Algorithm;

use super::{Service, domain, read, said, said_status};
use crate::envoy::options::Options;
use crate::envoy::rules::Defaults;
use crate::envoy::tally::{Hits, Tally};
use crate::envoy::wire::{RateLimitResponse, Unit};

const ALGORITHMS: [Algorithm; 3] = [
    Algorithm::FixedWindow,
    Algorithm::TokenBucket,
    Algorithm::SlidingLog,
];

/// Remembers the hits of each limit.
#[derive(Default)]
struct Counts(Mutex<Vec<String>>);

impl Tally for Counts {
    fn count(&self, hits: &Hits<'_>) {
        let path = hits.path.join(".");
        let mut line = format!("{}.{path} total {}", hits.domain, hits.total);
        for (name, count) in [
            ("over", hits.over_limit),
            ("near", hits.near_limit),
            ("within", hits.within_limit),
            ("shadow", hits.shadow_mode),
        ] {
            if count > 0 {
                line += &format!(" {name} {count}");
            }
        }
        self.0.lock().expect("a lock").push(line);
    }
}

/// The words in brackets behind a title.
fn words(title: &str) -> Vec<&str> {
    let words = title.split_once(" [").map(|(_, words)| words);
    let words = words.map_or("", |words| words.trim_end_matches(']'));
    words.split_whitespace().collect()
}

fn options(words: &[&str]) -> Options {
    let has = |word| words.contains(&word);
    Options {
        response_headers: has("response_headers"),
        reset_header: "X-Reset".into(),
        shadow_mode: has("shadow_mode"),
        quota_mode: has("quota_mode"),
        stop_increment_when_over: has("stop_increment_when_over"),
        ..Options::default()
    }
}

/// The response in words, with the headers that it has.
fn words_of(response: &RateLimitResponse) -> String {
    let headers = response.response_headers_to_add.iter();
    let headers = headers.map(|it| format!("; {} {}", it.key, it.value));
    said(response) + &headers.collect::<String>()
}

/// The statuses alone, with unit, name and seconds.
fn details(response: &RateLimitResponse) -> String {
    let statuses = response.statuses.iter().map(|status| {
        let limit = status.current_limit.as_ref().map(|limit| {
            let unit = Unit::ALL.iter().find(|it| i32::from(it.1) == limit.unit);
            format!(" per {} {:?}", unit.expect("a unit").0, limit.name)
        });
        let reset = status.duration_until_reset.as_ref();
        let reset = reset.map(|it| format!(" {}s", it.seconds));
        let (limit, reset) = (limit.unwrap_or_default(), reset.unwrap_or_default());
        format!("{}{limit}{reset}", said_status(status))
    });
    statuses.collect::<Vec<_>>().join(", ")
}

/// Runs a case with an algorithm. Returns the steps that came out otherwise, as they should read.
fn run(limits: &str, words: &[&str], algorithm: Algorithm, steps: &str) -> String {
    let counts = Arc::new(Counts::default());
    let tally = Arc::clone(&counts) as Arc<dyn Tally>;
    let service = Service::with("domain: d\n", options(words), Some(tally));
    let defaults = Defaults {
        algorithm,
        ..Defaults::default()
    };
    service.change(&domain(limits), &defaults);
    let mut wrong = String::new();
    for step in steps.lines().filter(|line| !line.is_empty()) {
        if let Some(seconds) = step.strip_prefix('+') {
            let seconds = seconds.parse().expect(step);
            service.clock.advance(Duration::from_secs_f64(seconds));
            continue;
        }
        if let Some(limits) = step.strip_prefix("limits: ") {
            service.change(&domain(limits), &defaults);
            continue;
        }
        let (request, expected) = step.split_once(" => ").expect(step);
        let response = service.try_ask(&read(request));
        let hits = std::mem::take(&mut *counts.0.lock().expect("a lock"));
        let got = match response {
            Err(status) => format!("{:?}: {}", status.code(), status.message()),
            Ok(_) if words.contains(&"hits") => hits.join("; "),
            Ok(response) if words.contains(&"details") => details(&response),
            Ok(response) => words_of(&response),
        };
        if got != expected {
            wrong += &format!("{algorithm}: {request} => {got}\n   instead of {expected}\n");
        }
    }
    wrong
}

#[test]
fn documented_behaviour() {
    let (mut cases, mut wrong) = (0, String::new());
    for section in include_str!("table.txt").split("\n== ").skip(1) {
        let (title, section) = section.split_once('\n').expect("limits");
        let mut parts = section.split("\n-- ");
        let limits = format!("\n{}", parts.next().expect("limits").trim_end());
        for case in parts {
            let (name, steps) = case.split_once('\n').expect("steps");
            let words = [words(title), words(name)].concat();
            let named = ALGORITHMS.into_iter();
            let mut named: Vec<_> = named.filter(|it| words.contains(&it.as_str())).collect();
            if named.is_empty() {
                named.push(Algorithm::FixedWindow);
            }
            for algorithm in named {
                let otherwise = run(&limits, &words, algorithm, steps);
                if !otherwise.is_empty() {
                    wrong += &format!("-- {name}\n{otherwise}");
                }
            }
            cases += 1;
        }
    }
    assert!(wrong.is_empty(), "otherwise than written:\n{wrong}");
    assert!(cases >= 115, "only {cases} cases: is table.txt cut off?");
}
