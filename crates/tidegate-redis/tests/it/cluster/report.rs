//! What a fleet has met: held against the bounds of its limits, and against what the servers
//! have counted.

use std::collections::{BTreeMap, HashMap};

use tidegate::audit::{Audit, Record, Stretch};
use tidegate::{Cost, Limit};
use tidegate_redis::RedisStore;

use crate::cluster::fleet::{
    ALL, ALONE, DEADLINE, KEYS, LEASED, ONE, TENANTS, attributes, policies,
};
use crate::support::{limiter_over, patient};

/// What all members have met.
pub(crate) struct Report(pub(crate) Vec<Member>);

/// What one of them has.
#[derive(Default)]
pub(crate) struct Member {
    /// When requests were admitted, by policy and key.
    admitted: HashMap<(String, usize), Vec<u64>>,
    /// How many of them by a lease.
    leased: usize,
    /// By policy, key and kind.
    errors: BTreeMap<(String, usize, String), u64>,
    /// What one of a thousand checks took longer than.
    rare_us: u64,
    longest_us: u64,
    checks: u64,
}

impl Member {
    /// Reads what it has printed.
    pub(crate) fn read(text: &str) -> Self {
        let mut member = Self::default();
        let number = |word: &str| word.parse::<u64>().expect("a number");
        let key = |word: &str| word.parse::<usize>().expect("a key");
        for line in text.lines().filter_map(|line| line.strip_prefix("@ ")) {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["admitted", policy, of, at_us, source] => {
                    let key = (policy.to_owned(), key(of));
                    member.admitted.entry(key).or_default().push(number(at_us));
                    member.leased += usize::from(source == "lease");
                }
                ["error", policy, of, kind, count] => {
                    let key = (policy.to_owned(), key(of), kind.to_owned());
                    member.errors.insert(key, number(count));
                }
                ["latency", rare, longest, checks] => {
                    member.rare_us = number(rare);
                    member.longest_us = number(longest);
                    member.checks = number(checks);
                }
                _ => panic!("{line}"),
            }
        }
        assert!(member.checks > 0, "it has not come to its end:\n{text}");
        member
    }
}

impl Report {
    /// For how many milliseconds the machine has stalled at most: no check takes longer than
    /// its deadline otherwise.
    pub(crate) fn stalled_ms(&self) -> u64 {
        let longest_us = self.0.iter().map(|member| member.longest_us).max();
        let deadline_us = u64::try_from(DEADLINE.as_micros()).expect("short");
        longest_us.unwrap_or(0).saturating_sub(deadline_us) / 1_000
    }

    /// All errors, by kind.
    pub(crate) fn errors(&self) -> BTreeMap<&str, u64> {
        let mut errors = BTreeMap::new();
        for ((_, _, kind), count) in self.0.iter().flat_map(|member| &member.errors) {
            *errors.entry(kind.as_str()).or_default() += count;
        }
        errors
    }

    /// How many requests a lease has admitted.
    pub(crate) fn leased(&self) -> usize {
        self.0.iter().map(|member| member.leased).sum()
    }

    /// When requests were admitted, in order.
    pub(crate) fn admitted(&self, policy: &str, key: usize) -> Vec<u64> {
        let of = (policy.to_owned(), key);
        let all = self.0.iter().filter_map(|it| it.admitted.get(&of));
        let mut times: Vec<u64> = all.flatten().copied().collect();
        times.sort_unstable();
        times
    }

    /// Where any of the limits has admitted more than its bound, when its servers may have
    /// forgotten so many times what it admits at once.
    pub(crate) fn broken(&self, losses: u32) -> Option<Stretch> {
        let limits = [
            ("one", ONE, KEYS),
            ("two", ONE, KEYS),
            ("two", ALL, TENANTS),
            ("leased", LEASED, KEYS),
            ("alone", ALONE, KEYS),
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
                let answers = &member.admitted[&("count".to_owned(), *key)];
                let first = answers.iter().filter(|at| **at >= since_us).min();
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
        let look = limiter.peek("count", &attributes, Cost::ONE).await;
        let look = look.expect("a cluster that is well");
        let used = i64::from(look.limit() - look.remaining());
        let told = i64::try_from(self.admitted("count", key).len()).expect("few");
        let errors = self.0.iter().flat_map(|member| &member.errors);
        let unknown = errors.filter(|((policy, of, kind), _)| {
            let is_unknown = ["timeout", "outcome_unknown"].contains(&kind.as_str());
            policy == "count" && *of == key && is_unknown
        });
        let unknown: u64 = unknown.map(|(_, count)| count).sum();
        let beyond = used - told;
        assert!(
            beyond <= i64::try_from(unknown).expect("few"),
            "charged twice: key {key}: {used} charged, {told} told, {unknown} unknown"
        );
        beyond
    }

    pub(crate) fn print(&self, what: &str) {
        let checks: u64 = self.0.iter().map(|member| member.checks).sum();
        let rare = self.0.iter().map(|member| member.rare_us / 1_000).max();
        println!(
            "{what}: {checks} checks by 3 processes, p99.9 {} ms, errors {:?}, stalled for {} ms \
             at most",
            rare.unwrap_or(0),
            self.errors(),
            self.stalled_ms(),
        );
    }
}
