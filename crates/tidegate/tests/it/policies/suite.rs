//! Policies over the in-memory store, as data.
//!
//! `suite.txt` holds the cases. A case is `--- ` and its title, a config file, and steps. `$a`
//! and `$b` in the config stand for an algorithm: the case runs once under each, or under each
//! pair. A step is a time since the start, a verb, ` -> ` and what comes of it, which may be
//! cut off at any comma, colon or semicolon. Control characters stand as their pictures (U+2400 and following).
//!
//! | verb | |
//! | --- | --- |
//! | `check p key=x cost=2` | one check of the policy `p`, or of several: `check p,q` |
//! | `many 5 p key=x` | this many checks: how many pass, then the last answer |
//! | `look p key=x` | the numbers, charging nothing |
//! | `headers p key=x` | a check: its header fields |
//! | `body p key=x`, `violated p key=x` | a check: the body of a refusal, or what it names |
//! | `refund 0 p key=x` | hands in the receipt of the first charge of the case, then looks |
//! | `reset p key=x level=total` | forgets the key of one level (`level=*`: of all) |
//! | `explain p key=x` | the settings and numbers of each level |
//! | `edit "old" "new"` | replaces text in the config, which takes over the counts |
//! | `keys`, `logs` | how many keys each store holds, and how many bytes of logs |
//! | `stored p key=x` | the key of each level in Redis |

use std::fmt::Write as _;
use std::time::Duration;

use tidegate::{
    CheckError, Cost, Headers, ManualClock, MemoryStore, Policies, PolicyDecision, Receipt, Which,
};
use tidegate_testkit::cases::controls;
use tidegate_testkit::conformance::micros;

use super::config;
use crate::headers::fields;
use crate::support::START;

const SUITE: &str = include_str!("suite.txt");

const ALGORITHMS: [&str; 5] = [
    r#"algorithm = "token_bucket""#,
    r#"algorithm = "fixed_window""#,
    r#"algorithm = "fixed_window", align = "epoch""#,
    r#"algorithm = "sliding_window""#,
    r#"algorithm = "sliding_log""#,
];

#[test]
fn suite() {
    let (mut wrong, mut runs) = (String::new(), 0);
    for case in SUITE.split("\n--- ").skip(1) {
        let (title, case) = case.split_once('\n').expect(case);
        let (text, steps): (Vec<&str>, Vec<&str>) = case
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with("# "))
            .partition(|line| !line.contains(" -> "));
        let mut texts: Vec<String> = Vec::new();
        for (a, b) in ALGORITHMS.iter().flat_map(|a| ALGORITHMS.map(|b| (a, b))) {
            let text = text.join("\n").replace("$a", a).replace("$b", b);
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        for text in texts {
            let mut run = Run::new(&text);
            let mut failed = String::new();
            for line in &steps {
                let (step, expected) = line.split_once(" -> ").expect(line);
                let got = run.take(step).unwrap_or_else(|it| format!("error: {it}"));
                let rest = got.strip_prefix(expected);
                if !rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([',', ':', ';'])) {
                    writeln!(failed, "{step} -> {got}\n   instead of {expected}").expect("text");
                }
            }
            if !failed.is_empty() {
                write!(wrong, "--- {title}\n{text}\n{failed}").expect("text");
            }
            runs += 1;
        }
    }
    assert!(wrong.is_empty(), "otherwise than written:\n{wrong}");
    assert!(runs > 150, "only {runs} runs: is suite.txt cut off?");
}

type Named = Vec<(String, String)>;

struct Run {
    text: String,
    clock: ManualClock,
    limiter: Policies,
    receipts: Vec<Receipt>,
}

/// What a check gets.
struct Answer {
    shown: String,
    allowed: bool,
    headers: String,
    body: String,
    receipt: Option<Receipt>,
}

impl Run {
    fn new(text: &str) -> Self {
        let clock = ManualClock::at_us(START);
        let config = config(text);
        let stores = config.stores.iter().map(|(name, store)| {
            let builder = MemoryStore::builder().clock(clock.clone());
            let builder = builder.max_keys(store.max_keys).when_full(store.when_full);
            (&**name, builder.build())
        });
        let limiter = Policies::with_stores(stores, config.policies);
        Self {
            text: text.to_owned(),
            clock,
            limiter: limiter.expect(text),
            receipts: Vec::new(),
        }
    }

    fn take(&mut self, step: &str) -> Result<String, CheckError> {
        let mut words = step.split(' ');
        self.clock
            .set_us(START + micros(words.next().expect("a time")));
        let verb = words.next().expect("a verb");
        let mut number = || words.next().and_then(|it| it.parse().ok()).expect(step);
        let times: usize = match verb {
            "many" | "refund" => number(),
            "edit" => return Ok(self.edit(step)),
            "keys" => return Ok(self.of_stores(|store| store.stats().keys)),
            "logs" => return Ok(self.of_stores(|store| store.stats().log_bytes)),
            _ => 1,
        };
        let policy = controls(words.next().expect("a policy"));
        let attributes = words.map(|word| word.split_once('=').expect(step));
        let mut attributes: Named = attributes
            .map(|(name, value)| (name.to_owned(), controls(value)))
            .collect();
        let mut option = |name: &str| {
            let at = attributes.iter().position(|(other, _)| other == name);
            at.map(|at| attributes.remove(at).1)
        };
        let cost = option("cost").map_or(1, |cost| cost.parse().expect(step));
        let level = option("level");
        let mut check = || {
            let mut answer = self.ask(&policy, &attributes, Cost::of(cost))?;
            self.receipts.extend(answer.receipt.take());
            Ok::<_, CheckError>(answer)
        };
        Ok(match verb {
            "check" => check()?.shown,
            "many" => {
                let answers = (0..times).map(|_| check()).collect::<Result<Vec<_>, _>>()?;
                let passed = answers.iter().filter(|answer| answer.allowed).count();
                format!("{passed} pass, {}", answers.last().expect("one").shown)
            }
            "headers" => check()?.headers,
            "body" => check()?.body,
            "violated" => {
                let body: serde_json::Value = serde_json::from_str(&check()?.body).expect("JSON");
                body["violated-policies"].to_string()
            }
            "look" => show(
                &self
                    .limiter
                    .handle(&policy)?
                    .peek(&attributes, Cost::of(cost))?,
            ),
            "refund" => {
                let receipt = &self.receipts[times];
                let given = self.limiter.handle(&policy)?.refund(&attributes, receipt)?;
                let look = self.limiter.handle(&policy)?.peek(&attributes, Cost::ONE)?;
                let given = if given { "taken" } else { "refused" };
                format!("{given}, {}", show(&look))
            }
            "reset" => {
                let which = match level.as_deref() {
                    None => Which::Only,
                    Some("*") => Which::All,
                    Some(level) => Which::Level(level),
                };
                let policy = self.limiter.handle(&policy)?;
                policy.reset(&attributes, which)?.to_string()
            }
            "explain" => self.explain(&policy, &attributes)?,
            "stored" => {
                let policy = self.limiter.policy(&policy).expect(step);
                let keys = policy.keys(&attributes)?;
                let keys: Vec<String> = keys.iter().map(|key| key.stored("tg")).collect();
                keys.join("; ")
            }
            _ => panic!("unknown verb {verb:?}"),
        })
    }

    fn ask(&self, policy: &str, attributes: &Named, cost: Cost) -> Result<Answer, CheckError> {
        if !policy.contains(',') {
            let decision = self.limiter.check(policy, attributes, cost)?;
            let (status, body) = ("\"status\":429", decision.problem(429));
            assert_eq!(
                decision.problem(503),
                body.replace(status, "\"status\":503")
            );
            return Ok(Answer {
                shown: show(&decision),
                allowed: decision.allowed(),
                headers: sent(&decision.headers()),
                body: decision.problem(429),
                receipt: decision.receipt(),
            });
        }
        let names: Vec<&str> = policy.split(',').filter(|name| !name.is_empty()).collect();
        let decisions = self.limiter.check_all(&names, attributes, cost)?;
        let each = decisions.as_slice().iter().map(|one| {
            let name = one.policy().name();
            format!("{name} {}", show(one))
        });
        let by = decisions.refusal().map(|one| one.policy().name());
        assert_eq!(by.is_none(), decisions.allowed());
        Ok(Answer {
            shown: format!("{}: {}", passed(by), each.collect::<Vec<_>>().join("; ")),
            allowed: decisions.allowed(),
            headers: sent(&decisions.headers()),
            body: decisions.problem(429),
            receipt: None,
        })
    }

    fn explain(&self, policy: &str, attributes: &Named) -> Result<String, CheckError> {
        let levels = self.limiter.handle(policy)?.explain(attributes)?;
        let levels = levels.iter().map(|one| {
            let mut text = format!("{} {:?}", one.level.name(), one.key);
            if let Some(number) = one.overridden_by {
                write!(text, " override {number}").expect("text");
            }
            if let Some(limit) = one.limit {
                write!(text, ": {limit}").expect("text");
            }
            if let Some(numbers) = one.numbers {
                let full = numbers.reset_after();
                write!(text, ", {} left, full in {full:?}", numbers.remaining()).expect("text");
            }
            text
        });
        Ok(levels.collect::<Vec<_>>().join("; "))
    }

    fn edit(&mut self, step: &str) -> String {
        let parts: Vec<&str> = step.split('"').collect();
        assert!(self.text.contains(parts[1]), "{step}");
        self.text = self.text.replace(parts[1], parts[3]);
        match config(&self.text).limiter_after(&self.limiter) {
            Ok(limiter) => self.limiter = limiter,
            Err(error) => return format!("error: {error}"),
        }
        self.of_stores(|store| store.bounds().0)
    }

    fn of_stores(&self, number: impl Fn(&MemoryStore) -> usize) -> String {
        let stores = self.limiter.stores();
        let numbers = stores.map(|(name, store)| format!("{name} {}", number(store)));
        numbers.collect::<Vec<_>>().join(", ")
    }
}

fn passed(refused_by: Option<&str>) -> String {
    refused_by.map_or("yes".to_owned(), |by| format!("no by {by}"))
}

fn show(decision: &PolicyDecision<'_>) -> String {
    let mut text = passed(decision.denied_by());
    assert_eq!(
        decision.would_deny(),
        decision.allowed() && decision.denied_by().is_some()
    );
    if decision.would_deny() {
        text.insert_str(0, "yes, ");
    }
    for (index, level) in decision.levels().enumerate() {
        let (remaining, limit) = (level.numbers().remaining(), level.numbers().limit());
        let start = if index == 0 { ", " } else { " " };
        write!(text, "{start}{remaining}/{limit}").expect("text");
    }
    match decision.retry_after() {
        Some(Duration::ZERO) => {}
        Some(wait) => write!(text, ", wait {wait:?}").expect("text"),
        None => text.push_str(", never"),
    }
    write!(text, ", full in {:?}", decision.reset_after()).expect("text");
    text
}

/// Header fields as they would be sent.
fn sent(headers: &Headers<'_>) -> String {
    let sent: Vec<String> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    let taken = headers.clone().into_iter();
    let taken: Vec<String> = taken
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    assert_eq!(taken, sent);
    for name in ["ratelimit-policy", "RATELIMIT"] {
        // A panic where it is no structured field.
        headers.get(name).map(fields);
    }
    match sent.is_empty() {
        true => "none".to_owned(),
        false => sent.join(" | "),
    }
}
