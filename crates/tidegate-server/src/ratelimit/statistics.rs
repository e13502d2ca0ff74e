//! The hits of each limit, under the names of envoyproxy/ratelimit.
//!
//! Names may hold values of requests. They are bounded: a limit that comes when there are
//! as many as may be is counted together with the others of its domain.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use foldhash::fast::FixedState;

use crate::engine::Engine;
use crate::envoy::tally::{Hits, Tally};

/// The most limits with statistics of their own.
const MAX_LIMITS: usize = 10_000;

/// The longest name.
const MAX_NAME: usize = 1_000;

/// What stands for the name of a limit that has none of its own.
const OTHER: &str = "other";

/// What is counted of each limit.
pub(super) const COUNTERS: [&str; 6] = [
    "total_hits",
    "over_limit",
    "near_limit",
    "within_limit",
    "over_limit_with_local_cache",
    "shadow_mode",
];

/// The statistics of all limits.
#[derive(Default)]
pub(crate) struct Statistics {
    limits: RwLock<HashMap<Box<str>, Arc<Limit>, FixedState>>,
    is_full: AtomicBool,
}

/// Those of one.
pub(super) struct Limit {
    /// The domain, and below it one part per entry.
    pub(super) path: Vec<Box<str>>,
    pub(super) counts: [AtomicU64; COUNTERS.len()],
    /// What statsd has heard of.
    pub(super) sent: [AtomicU64; COUNTERS.len()],
}

impl Limit {
    fn new<'p>(path: impl IntoIterator<Item = &'p str>) -> Self {
        Self {
            path: path.into_iter().map(Into::into).collect(),
            counts: Default::default(),
            sent: Default::default(),
        }
    }
}

impl Tally for Statistics {
    fn count(&self, hits: &Hits<'_>) {
        let limit = self.limit(hits);
        let counts = [
            hits.total,
            hits.over_limit,
            hits.near_limit,
            hits.within_limit,
            0,
            hits.shadow_mode,
        ];
        for (counter, count) in limit.counts.iter().zip(counts) {
            if count > 0 {
                counter.fetch_add(count, Relaxed);
            }
        }
    }
}

impl Statistics {
    fn limit(&self, hits: &Hits<'_>) -> Arc<Limit> {
        let mut name = String::with_capacity(128);
        name.push_str(hits.domain);
        for part in hits.path {
            name.push('\0');
            name.push_str(part);
        }
        let path = hits.path.iter().map(|part| &**part);
        let path = std::iter::once(hits.domain).chain(path);
        let has_room = |limits: usize| limits < MAX_LIMITS && name.len() <= MAX_NAME;
        let other = || format!("{}\0{OTHER}", hits.domain);
        {
            let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
            let known = limits.get(&*name);
            // Without room, all further names have one counter, which is mostly there.
            let known = known.or_else(|| match has_room(limits.len()) {
                true => None,
                false => limits.get(&*other()),
            });
            if let Some(limit) = known {
                return Arc::clone(limit);
            }
        }
        let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        if has_room(limits.len()) {
            let limit = limits.entry(name.into());
            return Arc::clone(limit.or_insert_with(|| Arc::new(Limit::new(path))));
        }
        // Domains are those of the config, which are not bounded here.
        if !self.is_full.swap(true, Relaxed) {
            tracing::warn!(
                "statistics: more than {MAX_LIMITS} names, or a name of more than {MAX_NAME} bytes: the rest is counted as {OTHER:?}"
            );
        }
        let limit = limits.entry(other().into());
        Arc::clone(limit.or_insert_with(|| Arc::new(Limit::new([hits.domain, OTHER]))))
    }

    /// All limits, by name.
    pub(super) fn limits(&self) -> Vec<Arc<Limit>> {
        let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        let mut limits: Vec<Arc<Limit>> = limits.values().map(Arc::clone).collect();
        limits.sort_unstable_by(|one, other| one.path.cmp(&other.path));
        limits
    }

    /// All of it for Prometheus, and the server's own metrics.
    pub(super) fn text(&self, engine: &Engine) -> String {
        let (mut text, limits) = (String::new(), self.limits());
        // Into a string, nothing fails.
        for (index, counter) in COUNTERS.iter().enumerate() {
            let name = format!("ratelimit_service_rate_limit_{counter}");
            let _ = writeln!(text, "# TYPE {name} counter");
            for limit in &limits {
                let count = limit.counts[index].load(Relaxed);
                let _ = writeln!(text, "{name}{{{}}} {count}", labels(&limit.path));
            }
        }
        let loads = ["success", "error"].into_iter();
        for (result, count) in loads.zip(engine.metrics.reloads()) {
            let name = format!("ratelimit_service_config_load_{result}");
            let _ = writeln!(text, "# TYPE {name} counter\n{name} {count}");
        }
        let own = engine.metrics.text(&engine.current().limiter);
        text.push_str(&String::from_utf8_lossy(&own));
        text
    }
}

/// `domain`, `key1`, `key2` and so on.
fn labels(path: &[Box<str>]) -> String {
    let labels = path.iter().enumerate().map(|(index, value)| {
        let value = value.replace('\\', "\\\\");
        let value = value.replace('"', "\\\"").replace('\n', "\\n");
        match index {
            0 => format!("domain=\"{value}\""),
            key => format!("key{key}=\"{value}\""),
        }
    });
    let labels: Vec<String> = labels.collect();
    labels.join(",")
}

#[cfg(test)]
pub(super) mod tests {
    use std::borrow::Cow;

    use super::*;

    /// Counts a hit below the limit.
    pub(in super::super) fn count(statistics: &Statistics, path: &[&str]) {
        let path: Vec<Cow<'_, str>> = path.iter().map(|part| Cow::Borrowed(*part)).collect();
        statistics.count(&Hits {
            domain: "d",
            path: &path,
            total: 1,
            over_limit: 0,
            near_limit: 0,
            within_limit: 1,
            shadow_mode: 0,
        });
    }

    #[test]
    fn names_of_requests_are_bounded() {
        let statistics = Statistics::default();
        for number in 0..MAX_LIMITS + 50 {
            count(&statistics, &["user", &number.to_string()]);
        }
        count(&statistics, &[&"x".repeat(MAX_NAME)]);
        count(&statistics, &["user", "0"]);
        let limits = statistics.limits();
        assert_eq!(limits.len(), MAX_LIMITS + 1);
        let total = |path: &[&str]| {
            let limit = limits
                .iter()
                .find(|it| it.path.iter().map(|part| &**part).eq(path.iter().copied()));
            limit.unwrap().counts[0].load(Relaxed)
        };
        assert_eq!(total(&["d", OTHER]), 51);
        assert_eq!(total(&["d", "user", "0"]), 2);
    }

    #[test]
    fn s4_further_names_are_counted_without_the_write_lock() {
        let statistics = Arc::new(Statistics::default());
        for number in 0..=MAX_LIMITS {
            count(&statistics, &["user", &number.to_string()]);
        }
        // A reader blocks writers.
        let reading = statistics.limits.read().unwrap();
        let (counted, wait) = std::sync::mpsc::channel();
        let shared = Arc::clone(&statistics);
        let counting = std::thread::spawn(move || {
            count(&shared, &["user", "one more"]);
            counted.send(())
        });
        let is_counted = wait.recv_timeout(std::time::Duration::from_secs(10));
        drop(reading);
        counting.join().unwrap().unwrap();
        assert_eq!(is_counted, Ok(()));
    }

    #[test]
    fn labels_are_escaped() {
        let path = ["d", "a\"b", "c\\\n"].map(Into::into);
        assert_eq!(labels(&path), r#"domain="d",key1="a\"b",key2="c\\\n""#);
    }
}
