//! The conformance suite: scenarios as text, run on every store and mode.
//!
//! `scenarios.txt` holds them. A scenario is a title, the limits of its levels, and steps.
//! Where several lines of limits stand in a row, it runs once under each; `16 x 5r/s` stands
//! for sixteen levels, and a line with `ALGORITHM` runs under each algorithm of the table. A
//! step is a time since the start, a verb, and what comes of it: whether the check is allowed
//! or which level refuses, what each level has left of its limit, how long to wait, and how
//! long until the quota of the reported level is full. What comes of it may be cut off at any
//! comma.
//!
//! | verb | |
//! | --- | --- |
//! | `check 2` | one check of this cost |
//! | `many 5 2` | five checks of this cost in one call: how many pass, then the last answer |
//! | `offer 5 every 2ms` | five checks of cost 1, one after the other: how many pass |
//! | `look 2` | the numbers for this cost, charging nothing |
//! | `refund 0` | gives back the first charge of the scenario, then looks |
//! | `reset 0` | forgets the first level's key, then looks |
//! | `limits 5r/s, 3r/s` | other limits, then looks |

use std::fmt::{Display, Write as _};
use std::time::Duration;

use tidegate::{Algorithm, Charge, Cost, Decision, Limit};

const SCENARIOS: &str = include_str!("scenarios.txt");

/// Something that decides, under the limits of some levels, at times that it is given.
pub trait Subject {
    /// Sets the time, in microseconds since the start.
    fn at(&mut self, since_start_us: u64);

    /// Checks so often in one call.
    fn checks(&mut self, times: usize, cost: Cost) -> Vec<Decision>;

    /// The decision that a check would get.
    fn look(&mut self, cost: Cost) -> Decision;

    /// Gives back a charge, by its number.
    fn refund(&mut self, charge: usize);

    /// Forgets the key of a level.
    fn reset(&mut self, level: usize);

    /// Changes the limits of its levels.
    fn set_limits(&mut self, limits: Vec<Limit>);
}

/// A scenario, under one of its lines of limits.
pub struct Scenario<'s> {
    /// Its title and the line.
    pub name: String,
    pub limits: Vec<Limit>,
    pub charge: Charge,
    steps: &'s [&'s str],
}

impl Scenario<'_> {
    /// Whether any of its steps has this verb.
    pub fn has(&self, verb: &str) -> bool {
        let mut verbs = self.steps.iter().map(|line| line.split(' ').nth(1));
        verbs.any(|it| it == Some(verb))
    }

    /// Whether its clock steps back.
    pub fn steps_back(&self) -> bool {
        let time = |line: &&str| micros(line.split(' ').next().expect("a time"));
        !self.steps.iter().map(time).is_sorted()
    }
}

/// Runs every scenario on a subject of its own, which `start` makes of the title, the limits
/// and what is charged. Panics with the lines that came out otherwise, as they should read.
pub fn run<S: Subject>(mut start: impl FnMut(&str, &[Limit], Charge) -> S) {
    let left_out = run_some(|it| Ok::<_, String>(start(&it.name, &it.limits, it.charge)));
    assert_eq!(left_out, [""; 0]);
}

/// The same for a subject that cannot run all of them: `start` says why. Returns each reason
/// behind the name of the scenario.
pub fn run_some<S: Subject, R: Display>(
    mut start: impl FnMut(&Scenario<'_>) -> Result<S, R>,
) -> Vec<String> {
    let (mut wrong, mut runs, mut left_out) = (String::new(), 0, Vec::new());
    for scenario in SCENARIOS.split("\n# ").skip(1) {
        let mut lines = scenario.lines().filter(|line| !line.is_empty());
        let title = lines.next().expect("a title");
        let lines: Vec<&str> = lines.collect();
        let (all_limits, lines) = lines.split_at(leading(&lines, "limits "));
        let (counting, steps) = lines.split_at(leading(lines, "count_denied"));
        let charge = match counting.is_empty() {
            true => Charge::Admitted,
            false => Charge::Always,
        };
        for limits in all_limits.iter().flat_map(|line| under_each(line)) {
            let scenario = Scenario {
                name: format!("{title} {limits}"),
                limits: parse_limits(limits.trim_start_matches("limits ")),
                charge,
                steps,
            };
            runs += 1;
            let mut subject = match start(&scenario) {
                Ok(subject) => subject,
                Err(reason) => {
                    left_out.push(format!("{}: {reason}", scenario.name));
                    continue;
                }
            };
            let mut failed = String::new();
            for line in steps {
                let (step, expected) = line.split_once(" -> ").expect(line);
                let got = take(&mut subject, step);
                let rest = got.strip_prefix(expected);
                if !rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(',')) {
                    writeln!(failed, "{step} -> {got}\n   instead of {expected}").expect("text");
                }
            }
            if !failed.is_empty() {
                write!(wrong, "# {title}\n{limits}\n{failed}").expect("text");
            }
        }
    }
    assert!(wrong.is_empty(), "otherwise than written:\n{wrong}");
    assert!(runs > 50, "only {runs} runs: is scenarios.txt cut off?");
    left_out
}

/// A line of limits, once for each algorithm if it says `ALGORITHM`.
fn under_each(line: &str) -> Vec<String> {
    let algorithms = Algorithm::counting().map(Algorithm::as_str);
    let mut lines: Vec<_> = algorithms
        .map(|name| line.replace("ALGORITHM", name))
        .collect();
    lines.dedup();
    lines
}

/// How many lines begin with this, from the first on.
fn leading(lines: &[&str], start: &str) -> usize {
    lines
        .iter()
        .take_while(|line| line.starts_with(start))
        .count()
}

/// Limits with commas between them; `16 x 5r/s` stands for sixteen.
fn parse_limits(text: &str) -> Vec<Limit> {
    let limits = text.split(", ").flat_map(|text| {
        let (times, text) = text.split_once(" x ").unwrap_or(("1", text));
        let limit = Limit::parse(text).expect(text);
        std::iter::repeat_n(limit, times.parse().expect(text))
    });
    limits.collect()
}

/// The microseconds of `5us`, `5ms` or `5s`.
pub fn micros(text: &str) -> u64 {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let number: u64 = digits.parse().expect(text);
    let unit = match &text[digits.len()..] {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        unit => panic!("unknown unit {unit:?} in {text:?}"),
    };
    number * unit
}

fn take(subject: &mut impl Subject, step: &str) -> String {
    let (at, step) = step.split_once(' ').expect("a time");
    let (verb, rest) = step.split_once(' ').expect("a verb");
    let number = |text: &str| text.parse::<usize>().expect(step);
    let cost = |text: &str| Cost::of(text.parse().expect(step));
    let at_us = micros(at);
    subject.at(at_us);
    match verb {
        "check" => show(&subject.checks(1, cost(rest))[0]),
        "look" => show(&subject.look(cost(rest))),
        "many" => {
            let (times, each) = rest.split_once(' ').expect("how many, and the cost");
            let decisions = subject.checks(number(times), cost(each));
            let admitted = decisions.iter().filter(|it| it.allowed()).count();
            format!("{admitted} pass, {}", show(decisions.last().expect("one")))
        }
        "offer" => {
            let (times, every) = rest.split_once(" every ").expect("how many, and how often");
            let every_us = micros(every);
            let mut next_us = at_us;
            let admitted = (0..number(times)).filter(|_| {
                subject.at(next_us);
                next_us += every_us;
                subject.checks(1, Cost::ONE)[0].allowed()
            });
            format!("{} pass", admitted.count())
        }
        "refund" => {
            subject.refund(number(rest));
            show(&subject.look(Cost::ONE))
        }
        "reset" => {
            subject.reset(number(rest));
            show(&subject.look(Cost::ONE))
        }
        "limits" => {
            subject.set_limits(parse_limits(rest));
            show(&subject.look(Cost::ONE))
        }
        _ => panic!("unknown verb {verb:?}"),
    }
}

fn show(decision: &Decision) -> String {
    let mut text = match decision.denied_by() {
        None => "yes,".to_owned(),
        Some(level) => format!("no by {level},"),
    };
    for level in decision.levels() {
        let (remaining, limit) = (level.remaining(), level.limit());
        write!(text, " {remaining}/{limit}").expect("text");
    }
    match decision.retry_after() {
        Some(Duration::ZERO) => {}
        Some(wait) => write!(text, ", wait {wait:?}").expect("text"),
        None => text.push_str(", never"),
    }
    write!(text, ", full in {:?}", decision.reset_after()).expect("text");
    text
}
