//! What a fleet has met: held against the bounds of its limits, and against what the
//! servers have counted.

use std::collections::{BTreeMap, HashMap};

use tidegate::Cost;
use tidegate_redis::RedisStore;

use crate::cluster::fleet::{
    ALL, DEADLINE, KEYS, LEASED, LEASED_KEYS, ONE, TENANTS, attributes, policies,
};
use crate::support::{limiter_over, patient};

/// What all members have met.
pub(crate) struct Report(pub(crate) Vec<Member>);

/// What one of them has.
#[derive(Default)]
pub(crate) struct Member {
    /// When requests were admitted, by policy and key.
    admitted: HashMap<(String, usize), Vec<u64>>,
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
                ["admitted", policy, of, at_us] => {
                    let key = (policy.to_owned(), key(of));
                    member.admitted.entry(key).or_default().push(number(at_us));
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
        let deadline_ms = u64::try_from(DEADLINE.as_millis()).expect("short");
        (longest_us.unwrap_or(0) / 1_000).saturating_sub(deadline_ms)
    }

    /// Whether it has stalled for so long that a server which is well may have seemed not to
    /// be.
    pub(crate) fn was_stopped(&self) -> bool {
        let deadline_ms = u64::try_from(DEADLINE.as_millis()).expect("short");
        self.stalled_ms() > 3 * deadline_ms
    }

    /// All errors, by kind.
    pub(crate) fn errors(&self) -> BTreeMap<&str, u64> {
        let mut errors = BTreeMap::new();
        for ((_, _, kind), count) in self.0.iter().flat_map(|member| &member.errors) {
            *errors.entry(kind.as_str()).or_default() += count;
        }
        errors
    }

    /// When a policy has admitted requests of these keys, in order.
    fn admitted(&self, policy: &str, keys: impl IntoIterator<Item = usize>) -> Vec<u64> {
        let keys: Vec<usize> = keys.into_iter().collect();
        let mut times: Vec<u64> = Vec::new();
        for ((other, key), admitted) in self.0.iter().flat_map(|member| &member.admitted) {
            if other == policy && keys.contains(key) {
                times.extend(admitted);
            }
        }
        times.sort_unstable();
        times
    }

    /// By how many requests more than its bound any of the limits has admitted, in
    /// multiples of what it admits at once.
    pub(crate) fn excess(&self) -> f64 {
        let mut most = 0.0_f64;
        for key in 0..KEYS {
            most = most.max(excess(&self.admitted("one", [key]), ONE));
            most = most.max(excess(&self.admitted("two", [key]), ONE));
        }
        for key in 0..LEASED_KEYS {
            most = most.max(excess(&self.admitted("leased", [key]), LEASED));
        }
        for tenant in 0..TENANTS {
            let keys = (0..KEYS).filter(|key| key % TENANTS == tenant);
            most = most.max(excess(&self.admitted("two", keys), ALL));
        }
        most
    }

    /// The longest, in milliseconds, that any member has waited for an answer about any of
    /// these keys after this time.
    pub(crate) fn back_ms(&self, keys: &[usize], since_us: u64) -> u64 {
        let waited = |member: &Member, key: usize| {
            let answers = &member.admitted[&("count".to_owned(), key)];
            let first = answers.iter().copied().filter(|at| *at >= since_us).min();
            (first.expect("an answer after it") - since_us) / 1_000
        };
        let all = self
            .0
            .iter()
            .flat_map(|it| keys.iter().map(move |&key| (it, key)));
        all.map(|(member, key)| waited(member, key))
            .max()
            .unwrap_or(0)
    }

    /// Holds what was admitted of a key against what is counted: how many requests that
    /// nobody was told of were charged, or (below zero) how many were forgotten. Only those
    /// whose outcome is unknown can be the former.
    pub(crate) async fn charged_beyond(&self, url: &str, prefix: &str, key: usize) -> i64 {
        let store = RedisStore::new(url, patient().prefix(prefix)).expect("a right url");
        let limiter = limiter_over(store, policies());
        let attributes = attributes(key);
        let look = limiter.peek("count", &attributes, Cost::ONE).await;
        let look = look.expect("a cluster that is well");
        let used = i64::from(look.limit() - look.remaining());
        let told = i64::try_from(self.admitted("count", [key]).len()).expect("few");
        let unknown: u64 = self
            .0
            .iter()
            .flat_map(|member| &member.errors)
            .filter(|((policy, of, kind), _)| {
                let unknown = ["timeout", "outcome_unknown"].contains(&kind.as_str());
                policy == "count" && *of == key && unknown
            })
            .map(|(_, count)| count)
            .sum();
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
        let admitted = |policy| self.admitted(policy, 0..KEYS).len();
        println!(
            "{what}: {checks} checks by 3 processes, p99.9 {} ms, admitted {} + {} + {}, at \
             most {:.2} bursts above the bound, errors {:?}, stalled for {} ms at most",
            rare.unwrap_or(0),
            admitted("one"),
            admitted("two"),
            admitted("count"),
            self.excess(),
            self.errors(),
            self.stalled_ms(),
        );
    }
}

/// By how many bursts more than `rate` in a second, and as many at once, were admitted.
fn excess(times: &[u64], rate: u32) -> f64 {
    let cost = 1_000_000 / u64::from(rate);
    let (mut debt, mut last, mut most) = (0, 0, 0);
    for &at in times {
        debt = u64::saturating_sub(debt, at - last) + cost;
        last = at;
        most = most.max(debt);
    }
    #[expect(clippy::cast_precision_loss, reason = "a few millions")]
    let bursts = most.saturating_sub(1_000_000) as f64 / 1_000_000.0;
    bursts
}

#[test]
fn what_is_above_the_bound_is_seen() {
    let at_once = |count: usize| vec![5_000_000; count];
    for (times, expected) in [
        (at_once(10), 0.0),
        (at_once(15), 0.5),
        ([at_once(10), vec![5_100_000]].concat(), 0.0),
        ([at_once(10), vec![5_099_999]].concat(), 0.000_001),
    ] {
        assert!((excess(&times, 10) - expected).abs() < 1e-9, "{times:?}");
    }
}
