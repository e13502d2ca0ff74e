//! Named scenarios, with the numbers that both stores must give written down.
//!
//! A line is when (since the start), what, and what comes of it: whether it is allowed
//! or which level refuses, what each level has left of its limit, how long to wait, and
//! until the reported level's quota is full.
//!
//! | what | |
//! | --- | --- |
//! | `check 2` | one check of this cost |
//! | `many 5 2` | five checks of this cost in one call: how many pass, then the last answer |
//! | `look 2` | the numbers for this cost, charging nothing |
//! | `refund 0` | gives back the first charge of the scenario, then looks |
//! | `reset 0` | forgets the first level's key, then looks |
//! | `limits 5r/s, 3r/s` | other limits, then looks |

use std::fmt::Write as _;
use std::time::Duration;

use tidegate::{Charge, Cost, Decision, Limit};

use super::pair::{Host, Pair};
use crate::harness::server::Server;

struct Scenario {
    name: &'static str,
    limits: &'static str,
    counting: bool,
    steps: &'static str,
}

const fn scenario(name: &'static str, limits: &'static str, steps: &'static str) -> Scenario {
    Scenario {
        name,
        limits,
        counting: false,
        steps,
    }
}

const fn counting(name: &'static str, limits: &'static str, steps: &'static str) -> Scenario {
    Scenario {
        counting: true,
        ..scenario(name, limits, steps)
    }
}

const SCENARIOS: &[Scenario] = &[
    scenario(
        "a token bucket: the burst at once, then the rate",
        "10r/s burst=3",
        "0ms check 1 -> yes, 2/3, new in 100ms
         0ms check 2 -> yes, 0/3, new in 300ms
         0ms check 1 -> no by 0, 0/3, wait 100ms, new in 300ms
         99ms check 1 -> no by 0, 0/3, wait 1ms, new in 201ms
         100ms check 1 -> yes, 0/3, new in 300ms
         100ms check 4 -> no by 0, 0/3, never, new in 300ms
         10s check 3 -> yes, 0/3, new in 300ms",
    ),
    scenario(
        "a token bucket that does not divide: three in 1001 us",
        "3/1001us",
        "0us check 3 -> yes, 0/3, new in 1.001ms
         333us check 1 -> no by 0, 0/3, wait 1µs, new in 668µs
         334us check 1 -> yes, 0/3, new in 1.001ms
         667us check 1 -> no by 0, 0/3, wait 1µs, new in 668µs
         668us check 1 -> yes, 0/3, new in 1.001ms
         1001us check 1 -> yes, 0/3, new in 1.001ms",
    ),
    scenario(
        "a strict bucket: at most 15 in any minute",
        "15r/m burst=3 strict",
        "0s many 5 1 -> 3 pass, no by 0, 0/3, wait 5s, new in 15s
         5s check 1 -> yes, 0/3, new in 15s
         5s check 1 -> no by 0, 0/3, wait 5s, new in 15s
         60s check 3 -> yes, 0/3, new in 15s",
    ),
    scenario(
        "a fixed window opens with the first charge",
        "3/10s fixed_window",
        "0s look 1 -> yes, 3/3, new in 0ns
         0s check 4 -> no by 0, 3/3, never, new in 0ns
         4s check 1 -> yes, 2/3, new in 10s
         5s check 2 -> yes, 0/3, new in 9s
         5s check 1 -> no by 0, 0/3, wait 9s, new in 9s
         13999999us check 1 -> no by 0, 0/3, wait 1µs, new in 1µs
         14s check 1 -> yes, 2/3, new in 10s",
    ),
    scenario(
        "a fixed window on the clock",
        "3/10s fixed_window align=epoch",
        "4s check 3 -> yes, 0/3, new in 6s
         4s check 1 -> no by 0, 0/3, wait 6s, new in 6s
         9999999us check 1 -> no by 0, 0/3, wait 1µs, new in 1µs
         10s check 1 -> yes, 2/3, new in 10s",
    ),
    scenario(
        "a sliding window: six in the last minute, one in this, 10 s into it",
        "10r/m sliding_window",
        "0s many 6 1 -> 6 pass, yes, 4/10, new in 120s
         70s check 1 -> yes, 4/10, new in 110s
         70s look 4 -> yes, 4/10, new in 110s
         70s look 5 -> no by 0, 4/10, wait 10s, new in 110s
         80s many 9 1 -> 5 pass, no by 0, 0/10, wait 10s, new in 100s
         180s check 1 -> yes, 9/10, new in 120s",
    ),
    scenario(
        "a sliding log: what is as old as the window is gone",
        "3/10s sliding_log",
        "0s check 1 -> yes, 2/3, new in 10s
         1s check 2 -> yes, 0/3, new in 10s
         1s check 1 -> no by 0, 0/3, wait 9s, new in 10s
         9999999us check 1 -> no by 0, 0/3, wait 1µs, new in 1.000001s
         10s check 1 -> yes, 0/3, new in 10s
         10s check 2 -> no by 0, 0/3, wait 1s, new in 10s
         11s check 2 -> yes, 0/3, new in 10s
         30s look 1 -> yes, 3/3, new in 0ns",
    ),
    scenario(
        "a long log: more than is read at once",
        "100/10s sliding_log",
        "0s many 60 1 -> 60 pass, yes, 40/100, new in 10s
         1s many 60 1 -> 40 pass, no by 0, 0/100, wait 9s, new in 10s
         9s check 1 -> no by 0, 0/100, wait 1s, new in 2s
         10s check 61 -> no by 0, 60/100, wait 1s, new in 1s
         10s check 60 -> yes, 0/100, new in 10s
         11s check 40 -> yes, 0/100, new in 10s",
    ),
    scenario(
        "many levels: all are charged, or none",
        "5/10s sliding_log, 3/10s fixed_window, 10r/s burst=4, 20r/m sliding_window",
        "0s check 2 -> yes, 3/5 1/3 2/4 18/20, new in 10s
         0s check 2 -> no by 1, 3/5 1/3 2/4 18/20, wait 10s, new in 10s
         0s many 5 1 -> 1 pass, no by 1, 2/5 0/3 1/4 17/20, wait 10s, new in 10s
         10s check 3 -> yes, 2/5 0/3 1/4 14/20, new in 10s
         10s check 4 -> no by 0, 2/5 0/3 1/4 14/20, never, new in 10s",
    ),
    scenario(
        "a level that blocks refuses for all, and nothing is charged",
        "5r/s, block, 5r/s fixed_window",
        "0s check 1 -> no by 1, 5/5 0/0 5/5, never, new in 0ns
         0s look 1 -> no by 1, 5/5 0/0 5/5, never, new in 0ns
         1s many 3 1 -> 0 pass, no by 1, 5/5 0/0 5/5, never, new in 0ns",
    ),
    scenario(
        "costs: what does not fit now, and what never will",
        "100r/s burst=50",
        "0s check 50 -> yes, 0/50, new in 500ms
         0s check 50 -> no by 0, 0/50, wait 500ms, new in 500ms
         0s check 51 -> no by 0, 0/50, never, new in 500ms
         250ms check 25 -> yes, 0/50, new in 500ms
         250ms check 1 -> no by 0, 0/50, wait 10ms, new in 500ms",
    ),
    scenario(
        "a look charges nothing and opens nothing",
        "2r/m, 2r/m fixed_window, 2r/m sliding_window, 2r/m sliding_log",
        "1s look 2 -> yes, 2/2 2/2 2/2 2/2, new in 0ns
         2s look 3 -> no by 0, 2/2 2/2 2/2 2/2, never, new in 0ns
         3s check 2 -> yes, 0/2 0/2 0/2 0/2, new in 60s
         3s look 1 -> no by 0, 0/2 0/2 0/2 0/2, wait 87s, new in 60s",
    ),
    scenario(
        "a refund of a bucket: what has drained is not given back",
        "10r/s burst=10",
        "0ms check 10 -> yes, 0/10, new in 1s
         400ms look 1 -> yes, 4/10, new in 600ms
         400ms refund 0 -> yes, 10/10, new in 0ns",
    ),
    scenario(
        "g1 a receipt is refunded once",
        "100r/h, 100r/h fixed_window, 100r/h sliding_window, 100r/h sliding_log",
        "0s many 3 1 -> 3 pass, yes, 97/100 97/100 97/100 97/100, new in 108s
         0s refund 0 -> yes, 98/100 98/100 98/100 98/100, new in 72s
         0s refund 0 -> yes, 98/100 98/100 98/100 98/100, new in 72s
         0s refund 1 -> yes, 99/100 99/100 99/100 99/100, new in 36s
         1s refund 1 -> yes, 99/100 99/100 99/100 99/100, new in 35s
         1s refund 0 -> yes, 99/100 99/100 99/100 99/100, new in 35s",
    ),
    scenario(
        "a refund of windows and logs: only while the charge still counts",
        "10/10s fixed_window, 10/10s sliding_window, 10/10s sliding_log",
        "1s check 4 -> yes, 6/10 6/10 6/10, new in 10s
         2s check 3 -> yes, 3/10 3/10 3/10, new in 9s
         3s refund 0 -> yes, 7/10 7/10 7/10, new in 8s
         12s refund 1 -> yes, 10/10 10/10 10/10, new in 0ns
         20s look 1 -> yes, 10/10 10/10 10/10, new in 0ns",
    ),
    scenario(
        "a refund out of the middle of a long log",
        "100/10s sliding_log",
        "0s check 1 -> yes, 99/100, new in 10s
         1s check 2 -> yes, 97/100, new in 10s
         2s check 3 -> yes, 94/100, new in 10s
         3s check 4 -> yes, 90/100, new in 10s
         4s refund 1 -> yes, 92/100, new in 9s
         4s refund 2 -> yes, 95/100, new in 9s
         4s check 94 -> yes, 1/100, new in 10s
         10s check 1 -> yes, 1/100, new in 10s
         12s check 3 -> no by 0, 1/100, wait 1s, new in 8s",
    ),
    scenario(
        "a lowered limit: what was used stays used",
        "5/10s, 5/10s fixed_window, 5/10s sliding_window, 5/10s sliding_log",
        "0s check 5 -> yes, 0/5 0/5 0/5 0/5, new in 10s
         0s limits 3/10s, 3/10s fixed_window, 3/10s sliding_window, 3/10s sliding_log -> no by 0, 0/3 0/3 0/3 0/3, wait 16s, new in 16.666667s
         0s check 1 -> no by 0, 0/3 0/3 0/3 0/3, wait 16s, new in 16.666667s
         10s check 1 -> no by 0, 0/3 3/3 0/3 3/3, wait 6s, new in 6.666667s",
    ),
    scenario(
        "another window: a bucket's tokens, a window's start, an estimate, a log",
        "6/60s, 6/60s fixed_window, 6/60s sliding_window, 6/60s sliding_log",
        "0s check 3 -> yes, 3/6 3/6 3/6 3/6, new in 30s
         10s limits 6/30s, 6/30s fixed_window, 6/30s sliding_window, 6/30s sliding_log -> yes, 5/6 3/6 3/6 3/6, new in 20s
         10s check 1 -> yes, 4/6 2/6 2/6 2/6, new in 20s
         31s look 1 -> yes, 6/6 6/6 2/6 5/6, new in 29s",
    ),
    scenario(
        "g2 every algorithm has a counter of its own",
        "3r/m",
        "0s check 3 -> yes, 0/3, new in 60s
         0s limits 3r/m sliding_log -> yes, 3/3, new in 0ns
         0s check 3 -> yes, 0/3, new in 60s
         0s limits 3r/m -> no by 0, 0/3, wait 20s, new in 60s",
    ),
    scenario(
        "a reset of one level leaves the others",
        "3r/m, 3r/m sliding_log",
        "0s check 3 -> yes, 0/3 0/3, new in 60s
         0s reset 1 -> no by 0, 0/3 3/3, wait 20s, new in 60s
         0s check 1 -> no by 0, 0/3 3/3, wait 20s, new in 60s
         0s reset 0 -> yes, 3/3 3/3, new in 0ns",
    ),
    scenario(
        "the clock steps back: no time has passed, and none is owed",
        "3/10s, 3/10s fixed_window, 3/10s sliding_window, 3/10s sliding_log",
        "60s check 3 -> yes, 0/3 0/3 0/3 0/3, new in 10s
         30s check 1 -> no by 0, 0/3 0/3 0/3 0/3, wait 13.333334s, new in 10s
         33s check 1 -> no by 0, 0/3 0/3 0/3 0/3, wait 10.333334s, new in 7s
         40s check 1 -> no by 2, 3/3 3/3 0/3 3/3, wait 3.333334s, new in 10s
         46s check 1 -> yes, 2/3 2/3 0/3 2/3, new in 14s",
    ),
    scenario(
        "a receipt from before the clock stepped back is void",
        "3/10s, 3/10s fixed_window, 3/10s sliding_window, 3/10s sliding_log",
        "60s check 2 -> yes, 1/3 1/3 1/3 1/3, new in 6.666667s
         30s check 1 -> yes, 0/3 0/3 0/3 0/3, new in 10s
         30s refund 0 -> no by 0, 0/3 0/3 0/3 0/3, wait 13.333334s, new in 10s",
    ),
    scenario(
        "seed 96: refused under another number of requests, then a step back",
        "5/10s sliding_log, 5/10s fixed_window, 5/10s sliding_window, 5/10s",
        "0s check 3 -> yes, 2/5 2/5 2/5 2/5, new in 10s
         1s limits 3/10s sliding_log, 3/10s fixed_window, 3/10s sliding_window, 5/10s burst=3 -> no by 0, 0/3 0/3 0/3 0/3, wait 12.333334s, new in 9s
         1s check 3 -> no by 0, 0/3 0/3 0/3 0/3, wait 19s, new in 9s
         3s check 3 -> no by 0, 0/3 0/3 0/3 1/3, wait 17s, new in 7s
         0s check 3 -> no by 0, 0/3 0/3 0/3 0/3, wait 20s, new in 10s",
    ),
    counting(
        "refusals count: only those of the level that refuses, up to full",
        "10r/s burst=3, 5/10s fixed_window",
        "0ms check 2 -> yes, 1/3 3/5, new in 200ms
         0ms check 2 -> no by 0, 0/3 3/5, wait 200ms, new in 300ms
         100ms check 2 -> no by 0, 0/3 3/5, wait 200ms, new in 300ms
         300ms check 3 -> no by 0, 0/3 3/5, wait 300ms, new in 300ms
         600ms check 2 -> yes, 1/3 1/5, new in 200ms",
    ),
    counting(
        "refusals count in windows and logs",
        "5/10s sliding_window, 5/10s sliding_log",
        "0s check 3 -> yes, 2/5 2/5, new in 20s
         1s check 3 -> no by 0, 0/5 0/5, wait 15s, new in 19s
         10s check 1 -> no by 0, 0/5 3/5, wait 4s, new in 20s
         12s check 1 -> no by 0, 0/5 5/5, wait 4s, new in 18s
         30s check 1 -> yes, 4/5 4/5, new in 20s",
    ),
];

fn duration_us(text: &str) -> u64 {
    let digits = text.trim_end_matches(|it: char| it.is_ascii_alphabetic());
    let number: u64 = digits.parse().expect("a number");
    number
        * match &text[digits.len()..] {
            "us" => 1,
            "ms" => 1_000,
            "s" => 1_000_000,
            unit => panic!("{unit} is no unit"),
        }
}

fn limits(text: &str) -> Vec<Limit> {
    let texts = text.split(',').map(str::trim);
    texts
        .map(|text| Limit::parse(text).expect("a limit"))
        .collect()
}

fn shown(decision: &Decision) -> String {
    let mut text = match decision.denied_by() {
        None => "yes,".to_owned(),
        Some(level) => format!("no by {level},"),
    };
    for level in decision.levels() {
        let (remaining, limit) = (level.remaining(), level.limit());
        write!(text, " {remaining}/{limit}").expect("a string");
    }
    match decision.retry_after() {
        Some(Duration::ZERO) => {}
        Some(wait) => write!(text, ", wait {wait:?}").expect("a string"),
        None => text.push_str(", never"),
    }
    write!(text, ", new in {:?}", decision.reset_after()).expect("a string");
    text
}

fn take(pair: &mut Pair, step: &str) -> String {
    let (verb, rest) = step.split_once(' ').expect("a verb");
    let cost = |text: &str| Cost::of(text.parse().expect("a cost"));
    let index = |text: &str| text.parse::<usize>().expect("an index");
    match verb {
        "check" => shown(&pair.check_cost(cost(rest))),
        "look" => shown(&pair.look(cost(rest))),
        "many" => {
            let (asked, each) = rest.split_once(' ').expect("how many, and the cost");
            let decisions = pair.checks(index(asked), cost(each));
            let admitted = decisions.iter().filter(|it| it.allowed()).count();
            format!("{admitted} pass, {}", shown(decisions.last().expect("one")))
        }
        "refund" => {
            let receipt = pair.receipts[index(rest)].clone();
            pair.refund(&receipt);
            shown(&pair.look(Cost::ONE))
        }
        "reset" => {
            pair.reset(index(rest));
            shown(&pair.look(Cost::ONE))
        }
        "limits" => {
            pair.limits = limits(rest);
            shown(&pair.look(Cost::ONE))
        }
        _ => panic!("{verb} is no step"),
    }
}

/// Every scenario, on the store in memory and on this one.
pub(super) fn come_out_as_written(server: &impl Host) {
    let mut wrong = String::new();
    for scenario in SCENARIOS {
        let mut pair = Pair::new(server, scenario.name, &limits(scenario.limits));
        if scenario.counting {
            pair.charge = Charge::Always;
        }
        for line in scenario.steps.lines().map(str::trim) {
            let (step, expected) = line.split_once(" -> ").expect("what comes of it");
            let (at, step) = step.split_once(' ').expect("when");
            let got = take(pair.at(duration_us(at)), step);
            if got != expected {
                writeln!(wrong, "{}: {at} {step} -> {got}", scenario.name).expect("a string");
            }
        }
    }
    assert!(wrong.is_empty(), "otherwise than written:\n{wrong}");
}

#[test]
fn every_scenario_comes_out_as_written_on_both_stores() {
    for server in Server::start_each() {
        come_out_as_written(&server);
    }
}
