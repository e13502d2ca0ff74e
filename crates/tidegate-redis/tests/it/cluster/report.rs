//! What a fleet has met: held against the bounds of its limits, and against what the servers
//! have counted.

use std::collections::BTreeMap;
use std::fmt;

use tidegate::audit::{Audit, Record, Stretch};
use tidegate::{Cost, Limit};
use tidegate_redis::RedisStore;

use crate::cluster::fleet::{
    ALL, ALONE, DEADLINE, KEYS, LEASED, ONE, TENANTS, attributes, policies,
};
use crate::support::{Named, limiter_over, patient};

/// What all members have met: the checks of each.
pub(crate) struct Report(pub(crate) Vec<Vec<Check>>);

/// A check, which is a line of what a member prints.
pub(crate) struct Check {
    pub(crate) policy: String,
    pub(crate) key: usize,
    pub(crate) took_us: u64,
    /// When it was admitted, and whether by a lease, if it was; or the kind of the error.
    pub(crate) result: Result<Option<(u64, bool)>, String>,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@ {} {} {} ", self.policy, self.key, self.took_us)?;
        match &self.result {
            Ok(Some((at_us, is_leased))) => write!(f, "admitted {at_us} {is_leased}"),
            Ok(None) => f.write_str("refused"),
            Err(kind) => write!(f, "error {kind}"),
        }
    }
}

impl Check {
    pub(crate) fn read(line: &str) -> Self {
        let number = |word: &str| word.parse::<u64>().expect(line);
        let words: Vec<&str> = line.split(' ').collect();
        let result = match words[4..] {
            ["admitted", at_us, is_leased] => Ok(Some((number(at_us), is_leased == "true"))),
            ["refused"] => Ok(None),
            ["error", kind] => Err(kind.to_owned()),
            _ => panic!("{line}"),
        };
        Self {
            policy: words[1].to_owned(),
            key: words[2].parse().expect(line),
            took_us: number(words[3]),
            result,
        }
    }

    fn admitted_us(&self) -> Option<u64> {
        let admitted = self.result.as_ref().ok()?.as_ref();
        admitted.map(|(at_us, _)| *at_us)
    }

    fn is_of(&self, policy: &str, key: usize) -> bool {
        self.policy == policy && self.key == key
    }
}

impl Report {
    fn checks(&self) -> impl Iterator<Item = &Check> {
        self.0.iter().flatten()
    }

    /// For how many milliseconds the machine has stalled at most: no check takes longer than
    /// its deadline otherwise.
    pub(crate) fn stalled_ms(&self) -> u64 {
        let longest_us = self.checks().map(|check| check.took_us).max();
        let deadline_us = u64::try_from(DEADLINE.as_micros()).expect("short");
        longest_us.unwrap_or(0).saturating_sub(deadline_us) / 1_000
    }

    /// All errors, by kind.
    pub(crate) fn errors(&self) -> BTreeMap<&str, u64> {
        let mut errors = BTreeMap::new();
        for kind in self.checks().filter_map(|it| it.result.as_ref().err()) {
            *errors.entry(kind.as_str()).or_default() += 1;
        }
        errors
    }

    /// How many requests a lease has admitted.
    pub(crate) fn leased(&self) -> usize {
        let leased = self.checks();
        let leased = leased.filter(|it| matches!(it.result, Ok(Some((_, true)))));
        leased.count()
    }

    /// When requests were admitted, in order.
    pub(crate) fn admitted(&self, policy: &str, key: usize) -> Vec<u64> {
        let all = self.checks().filter(|it| it.is_of(policy, key));
        let mut times: Vec<u64> = all.filter_map(Check::admitted_us).collect();
        times.sort_unstable();
        times
    }

    /// Where any of the limits has admitted more than its bound, when its servers may have
    /// forgotten this many times what it admits at once.
    pub(crate) fn broken(&self, losses: u32) -> Option<Stretch> {
        let limits = [
            ("one", ONE, KEYS),
            ("two", ONE, KEYS),
            ("two", ALL, TENANTS),
            ("leased", LEASED, KEYS),
            ("alone", ALONE, KEYS),
            ("remembering", ALONE, KEYS),
            ("asking", ALONE, KEYS),
        ];
        limits.into_iter().find_map(|(policy, rate, keys)| {
            let mut audit = Audit::new(Limit::per_second(rate)).allow_losses(losses);
            for key in 0..KEYS {
                let name = format!("{policy} {}", key % keys);
                for at_us in self.admitted(policy, key) {
                    audit.push(&Record::admitted(&name, at_us, Cost::ONE));
                }
            }
            audit.verdict().broken
        })
    }

    /// The longest, in milliseconds, that any member has waited for an answer about any of
    /// these keys after this time.
    pub(crate) fn back_ms(&self, keys: &[usize], since_us: u64) -> u64 {
        let waited = self.0.iter().flat_map(|member| {
            keys.iter().map(move |key| {
                let answers = member.iter().filter(|it| it.is_of("count", *key));
                let after = answers.filter_map(Check::admitted_us);
                let first = after.filter(|at_us| *at_us >= since_us).min();
                (first.expect("an answer after it") - since_us) / 1_000
            })
        });
        waited.max().unwrap_or(0)
    }

    /// Holds what was admitted of a key against what is counted: how many requests that nobody
    /// was told of were charged, or (below zero) how many were forgotten. Only those whose
    /// outcome is unknown can be the former.
    pub(crate) async fn charged_beyond(&self, url: &str, prefix: &str, key: usize) -> i64 {
        let store = RedisStore::new(url, patient().prefix(prefix)).expect("a right url");
        let limiter = limiter_over(store, policies());
        let attributes = attributes(key);
        let look = limiter.of("count").peek(&attributes, Cost::ONE).await;
        let look = look.expect("a cluster that is well");
        let used = i64::from(look.limit() - look.remaining());
        let told = i64::try_from(self.admitted("count", key).len()).expect("few");
        let unknown = self.checks().filter(|check| {
            let kind = check.result.as_ref().err().map(String::as_str);
            check.is_of("count", key) && matches!(kind, Some("timeout" | "outcome_unknown"))
        });
        let (unknown, beyond) = (unknown.count(), used - told);
        assert!(
            beyond <= i64::try_from(unknown).expect("few"),
            "charged twice: key {key}: {used} charged, {told} told, {unknown} unknown"
        );
        beyond
    }

    pub(crate) fn print(&self, what: &str) {
        let mut took_us: Vec<u64> = self.checks().map(|check| check.took_us).collect();
        took_us.sort_unstable();
        println!(
            "{what}: {} checks by 3 processes, p99.9 {} ms, errors {:?}, stalled for {} ms at most",
            took_us.len(),
            took_us[took_us.len() * 999 / 1_000] / 1_000,
            self.errors(),
            self.stalled_ms(),
        );
    }
}
