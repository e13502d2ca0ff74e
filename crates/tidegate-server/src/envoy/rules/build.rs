//! From drafts to domains: the only place that validates them.

use std::sync::Arc;
use std::time::Duration;

use tidegate::text::DurationText;
use tidegate::{Algorithm, Align, LimitSpec, MAX_WINDOW, Mode, Rate};

use super::{
    Defaults, DescriptorDraft, DomainDraft, Domains, Level, LimitDraft, Node, Place, Quota, Rule,
    RulesError, RulesErrors, Window,
};

/// Levels of descriptors. A request of more entries finds nothing.
const MAX_DEPTH: usize = 32;

impl Domains {
    /// Validates drafts, all together: if one is wrong, none is used.
    pub fn build(drafts: Vec<DomainDraft>, defaults: &Defaults) -> Result<Self, RulesErrors> {
        let mut building = Building {
            defaults,
            domains: Self::default(),
            errors: Vec::new(),
            firsts: Vec::new(),
        };
        for draft in drafts {
            building.domain(draft);
        }
        let Building {
            domains, errors, ..
        } = building;
        match errors.is_empty() {
            true => Ok(domains),
            false => Err(RulesErrors(errors)),
        }
    }
}

struct Building<'d> {
    defaults: &'d Defaults,
    domains: Domains,
    errors: Vec<RulesError>,
    /// Where each domain was first.
    firsts: Vec<(String, Place)>,
}

/// The descriptors above the one that is read.
struct Above<'a> {
    domain: &'a str,
    path: &'a [Box<str>],
}

impl Above<'_> {
    /// A name for errors, as statistics have it.
    fn named(&self, name: &str) -> String {
        let mut text = self.domain.to_owned();
        for part in self.path {
            text.push('.');
            text.push_str(part);
        }
        text.push('.');
        text.push_str(name);
        text
    }
}

impl Building<'_> {
    fn wrong(&mut self, place: &Place, message: impl Into<String>) {
        self.errors.push(RulesError {
            place: place.clone(),
            message: message.into(),
        });
    }

    fn domain(&mut self, draft: DomainDraft) {
        let DomainDraft {
            place,
            domain,
            descriptors,
        } = draft;
        if domain.is_empty() {
            self.wrong(&place, "domain is empty: expected a name");
            return;
        }
        let first = self.firsts.iter().find(|(other, _)| *other == domain);
        match first {
            Some((_, first)) if !self.defaults.merge_domains => {
                let message = format!(
                    "domain {domain:?} is also in {first}: expected each domain in one file"
                );
                self.wrong(&place, message);
            }
            Some(_) => {}
            None => self.firsts.push((domain.clone(), place)),
        }
        let mut level = self
            .domains
            .domains
            .remove(domain.as_str())
            .unwrap_or_default();
        let above = Above {
            domain: &domain,
            path: &[],
        };
        self.level(&mut level, descriptors, &above);
        self.domains.domains.insert(domain.into(), level);
    }

    fn level(&mut self, level: &mut Level, drafts: Vec<DescriptorDraft>, above: &Above<'_>) {
        for draft in drafts {
            self.descriptor(level, draft, above);
        }
    }

    fn descriptor(&mut self, level: &mut Level, draft: DescriptorDraft, above: &Above<'_>) {
        let DescriptorDraft {
            place,
            key,
            value,
            rate_limit,
            descriptors,
            shadow_mode,
            quota_mode,
            detailed_metric,
            value_to_metric,
            share_threshold,
            metadata,
        } = draft;
        if key.is_empty() {
            self.wrong(&place, "descriptor has no key: expected a name");
            return;
        }
        let name = match value.is_empty() {
            true => key,
            false => format!("{key}_{value}"),
        };
        if above.path.len() >= MAX_DEPTH {
            let named = above.named(&name);
            let message =
                format!("{named:?} is nested too deeply: expected at most {MAX_DEPTH} levels");
            self.wrong(&place, message);
            return;
        }
        if level.nodes.contains_key(name.as_bytes()) {
            let named = above.named(&name);
            let message =
                format!("descriptor {named:?} occurs twice: expected each key and value once");
            self.wrong(&place, message);
            return;
        }
        let is_wildcard = name.contains('*');
        if share_threshold && !is_wildcard {
            let message = format!(
                "share_threshold is true, but {name:?} has no wildcard: expected a value with a *"
            );
            self.wrong(&place, message);
        }
        let mut path = above.path.to_vec();
        path.push(name.as_str().into());
        let rule = rate_limit.and_then(|limit| {
            let quota = self.limit(&limit)?;
            let rule = Arc::new(Rule {
                index: self.domains.rules.len(),
                domain: above.domain.into(),
                path: path.clone(),
                quota,
                name: limit.name.into(),
                replaces: limit.replaces.into_iter().map(Into::into).collect(),
                shadow_mode,
                quota_mode,
                detailed_metric,
                metadata,
            });
            self.domains.rules.push(Arc::clone(&rule));
            Some(rule)
        });
        let mut below = Level::default();
        let above = Above {
            domain: above.domain,
            path: &path,
        };
        self.level(&mut below, descriptors, &above);
        if is_wildcard {
            level.wildcards.push(name.as_str().into());
        }
        let node = Node {
            rule,
            below,
            shared: share_threshold.then(|| name.as_str().into()),
            value_to_metric,
        };
        level.nodes.insert(name.into_bytes().into(), node);
    }

    /// What a limit allows; `None` if something is wrong with it.
    fn limit(&mut self, draft: &LimitDraft) -> Option<Quota> {
        let before = self.errors.len();
        let place = &draft.place;
        for replaced in &draft.replaces {
            if replaced.is_empty() {
                self.wrong(
                    place,
                    "rate_limit.replaces has an empty name: expected the name of another limit",
                );
            } else if *replaced == draft.name {
                let message = format!(
                    "rate_limit.replaces has {replaced:?}, the limit's own name: expected the name of another limit"
                );
                self.wrong(place, message);
            }
        }
        let quota = match draft.unlimited {
            true => {
                self.unlimited(draft);
                Some(Quota::Unlimited)
            }
            false => self.limited(draft),
        };
        quota.filter(|_| self.errors.len() == before)
    }

    fn unlimited(&mut self, draft: &LimitDraft) {
        for (field, is_there) in [
            ("unit", draft.unit.is_some()),
            ("window", draft.window.is_some()),
            ("algorithm", draft.algorithm.is_some()),
            ("burst", draft.burst.is_some()),
        ] {
            if is_there {
                let message =
                    format!("rate_limit has unlimited: true and {field}: expected one of the two");
                self.wrong(&draft.place, message);
            }
        }
    }

    fn limited(&mut self, draft: &LimitDraft) -> Option<Quota> {
        let place = &draft.place;
        let window = match (draft.unit, draft.window) {
            (Some(_), Some(_)) => {
                self.wrong(
                    place,
                    "rate_limit has unit and window: expected one of the two",
                );
                return None;
            }
            (None, None) => {
                self.wrong(
                    place,
                    "rate_limit has no unit: expected second, minute, hour, day, week, month or year, or a window such as 30s",
                );
                return None;
            }
            (Some(unit), None) => Duration::from_secs(unit.seconds()),
            (None, Some(window)) => window,
        };
        let is_whole = window.subsec_nanos() == 0 && !window.is_zero();
        if !is_whole || window > MAX_WINDOW {
            let text = DurationText(window);
            let message =
                format!("rate_limit.window is \"{text}\": expected whole seconds, from 1s to 366d");
            self.wrong(place, message);
            return None;
        }
        let Some(requests) = draft.requests_per_unit else {
            self.wrong(
                place,
                "rate_limit has no requests_per_unit: expected a number (0 refuses everything) or unlimited: true",
            );
            return None;
        };
        let window = Window {
            requests,
            seconds: window.as_secs(),
        };
        self.counted(draft, window)
    }

    /// How a limit of this window counts.
    fn counted(&mut self, draft: &LimitDraft, window: Window) -> Option<Quota> {
        let place = &draft.place;
        let algorithm = draft.algorithm.unwrap_or(self.defaults.algorithm);
        if let Some(burst) = draft.burst
            && algorithm != Algorithm::TokenBucket
        {
            let message = format!(
                "rate_limit.burst is {burst}, but the algorithm is {algorithm}: expected burst with token_bucket only"
            );
            self.wrong(place, message);
            return None;
        }
        if algorithm == Algorithm::FixedWindow {
            return Some(Quota::Counted(window));
        }
        if self.defaults.mode == Mode::Lease && algorithm == Algorithm::SlidingLog {
            self.wrong(
                place,
                "rate_limit.algorithm is sliding_log, which cannot lease: expected token_bucket or fixed_window while envoy.mode is \"lease\"",
            );
            return None;
        }
        if window.requests == 0 {
            // Refuses all there is, which needs no bucket.
            return Some(Quota::Counted(window));
        }
        let limit = Rate::new(window.requests.into(), window.duration()).and_then(|rate| {
            LimitSpec {
                algorithm,
                burst: draft.burst.map(u64::from),
                align: Align::First,
                ..LimitSpec::new(rate)
            }
            .build()
        });
        match limit {
            Ok(limit) => Some(Quota::Exact(window, limit)),
            Err(error) => {
                self.wrong(place, format!("rate_limit: {error}"));
                None
            }
        }
    }
}
