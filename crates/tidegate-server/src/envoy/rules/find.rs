//! From the entries of a descriptor to its limit.
//!
//! Per entry, one descriptor of the level is taken: that of `key_value`, or else the first
//! whose wildcard matches, or else that of the key alone. There is no way back to another
//! one, and the limit has to stand at the last entry.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{Domains, Level, Node, Rule};
use crate::envoy::wire::Entry;

/// A limit, and what it takes from the request.
#[derive(Debug)]
pub struct Found<'d> {
    /// The limit.
    pub rule: &'d Arc<Rule>,
    /// The value of each entry in the key of its counter.
    pub values: SmallVec<[&'d [u8]; 4]>,
    /// The name of its statistics below the domain, one part per entry.
    pub path: SmallVec<[Cow<'d, str>; 4]>,
}

impl Domains {
    /// Whether there is such a domain.
    #[must_use]
    pub fn has(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// The limit of a descriptor with these entries, if it has one.
    #[must_use]
    pub fn find<'d>(&'d self, domain: &str, entries: &'d [Entry]) -> Option<Found<'d>> {
        let mut level = self.domains.get(domain)?;
        let mut steps: SmallVec<[Step<'d>; 4]> = SmallVec::new();
        for (index, entry) in entries.iter().enumerate() {
            let step = level.step(entry)?;
            level = &step.node.below;
            let is_last = index + 1 == entries.len();
            if !is_last && level.nodes.is_empty() {
                return None;
            }
            steps.push(step);
        }
        let rule = steps.last()?.node.rule.as_ref()?;
        Some(Found {
            rule,
            values: steps.iter().map(Step::value).collect(),
            path: steps.iter().map(|step| step.path(rule)).collect(),
        })
    }
}

/// The descriptor that an entry has found.
struct Step<'d> {
    entry: &'d Entry,
    node: &'d Node,
    /// The name it was found by, where that is not the entry itself.
    by: By<'d>,
}

enum By<'d> {
    Value,
    Wildcard(&'d str),
    Key,
}

impl Level {
    fn step<'d>(&'d self, entry: &'d Entry) -> Option<Step<'d>> {
        let name = joined(entry);
        let step = |node, by| Step { entry, node, by };
        if let Some(node) = self.nodes.get(&name[..]) {
            return Some(step(node, By::Value));
        }
        let wildcard = self
            .wildcards
            .iter()
            .find(|it| matches(it.as_bytes(), &name));
        if let Some(wildcard) = wildcard {
            let node = self.nodes.get(wildcard.as_bytes())?;
            return Some(step(node, By::Wildcard(wildcard)));
        }
        let node = self.nodes.get(&entry.key[..])?;
        Some(step(node, By::Key))
    }
}

impl<'d> Step<'d> {
    /// What stands for the entry's value in the key of a counter.
    fn value(&self) -> &'d [u8] {
        match (&self.by, &self.node.shared) {
            (By::Wildcard(_), Some(shared)) => shared.as_bytes(),
            _ => &self.entry.value,
        }
    }

    /// Its part in the name of statistics.
    fn path(&self, rule: &Rule) -> Cow<'d, str> {
        let is_shared = self.node.shared.is_some();
        let of_request = rule.detailed_metric || self.node.value_to_metric;
        match self.by {
            By::Wildcard(wildcard) if is_shared || !of_request => Cow::Borrowed(wildcard),
            By::Key if !of_request => String::from_utf8_lossy(&self.entry.key),
            _ if self.entry.value.is_empty() => String::from_utf8_lossy(&self.entry.key),
            _ => String::from_utf8_lossy(&joined(self.entry))
                .into_owned()
                .into(),
        }
    }
}

/// `key_value`.
pub(in crate::envoy) fn joined(entry: &Entry) -> SmallVec<[u8; 64]> {
    let mut name = SmallVec::with_capacity(entry.key.len() + 1 + entry.value.len());
    name.extend_from_slice(&entry.key);
    name.push(b'_');
    name.extend_from_slice(&entry.value);
    name
}

/// Whether a text is what a pattern says, where a `*` stands for any text, also none.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let Some(first) = pattern.iter().position(|byte| *byte == b'*') else {
        return pattern == text;
    };
    let last = pattern
        .iter()
        .rposition(|byte| *byte == b'*')
        .unwrap_or(first);
    let (begin, end) = (&pattern[..first], &pattern[last + 1..]);
    if text.len() < begin.len() + end.len() || !text.starts_with(begin) || !text.ends_with(end) {
        return false;
    }
    let mut rest = &text[begin.len()..text.len() - end.len()];
    // What stands between two of them: each at its first place.
    let middle = pattern.get(first + 1..last).unwrap_or_default();
    for part in middle
        .split(|byte| *byte == b'*')
        .filter(|part| !part.is_empty())
    {
        let Some(at) = rest.windows(part.len()).position(|it| it == part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Patterns, the texts that match, and those that do not.
    const PATTERNS: &str = "
        a* : a abc / ba
        * : anything /
        *z : z / za
        ab*ba : abba abxba / aba
        a*b*c : abc axxbyyc / acb ac
        a**c : ac /
        a*bb*b : abbb / abb";

    #[test]
    fn wildcard_matches_prefix_suffix_and_parts_between() {
        assert!(matches(b"*", b""));
        for line in PATTERNS.trim().lines() {
            let (pattern, texts) = line.trim().split_once(" :").expect(line);
            let (good, bad) = texts.split_once('/').expect(line);
            let is_match = |text: &str| matches(pattern.as_bytes(), text.as_bytes());
            assert!(good.split_whitespace().all(is_match), "{line}");
            assert!(!bad.split_whitespace().any(is_match), "{line}");
        }
    }
}
