//! From what was said about a policy, in code or in a file, to a [`Policy`]: the one
//! place where it is checked. Everything that is wrong is reported, not just the first.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::builder::{Draft, LevelDraft, OverrideDraft};
use super::cases::{Attribute, Case, Cases, Condition};
use super::fields::LimitFields;
use super::name::{self, shown};
use super::settings::{Mode, OnError, Settings};
use super::template::Template;
use super::{Parts, Policy, PolicyLevel, Tag};
use crate::duration::Text;
use crate::headers::Item;
use crate::limit::{Algorithm, Limit};

/// The most levels of one policy.
const MAX_LEVELS: usize = 16;

/// What is wrong with a policy: everything, not just the first thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyError {
    policy: String,
    /// Whether the policy has a list of levels.
    has_levels: bool,
    problems: Vec<Problem>,
}

/// One thing that is wrong, and the field that says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where the field stands.
    pub place: Place,
    /// Its name, as in the file format.
    pub field: &'static str,
    /// What is wrong, and what was expected.
    pub message: String,
}

/// Where a field stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the policy, outside of its levels and overrides.
    Policy,
    /// In the level of this index; the only level of a policy without a list has index 0.
    Level(usize),
    /// In the override of this index.
    Override(usize),
}

impl PolicyError {
    /// Everything that is wrong, one by one.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl Draft {
    /// The policy, or everything that is wrong with it.
    pub fn build(mut self) -> Result<Policy, PolicyError> {
        let on_error = OnError::standard(self.script.is_some());
        self.settings.on_error.get_or_insert(on_error);
        let mut problems = Problems(Vec::new());
        if !name::is_name(&self.name) {
            let message = format!("{}: expected {}", shown(&self.name), name::EXPECTED);
            problems.add(Place::Policy, "name", message);
        }
        check_settings(&self.settings, &mut problems);
        if self.only.limit.block == Some(true) && !self.settings.enabled {
            problems.add(Place::Policy, "block", BLOCK_DISABLED.into());
        }
        if let Err(message) = self.headers.check() {
            problems.add(Place::Policy, "headers", message);
        }
        self.check_script(&mut problems);
        let levels = self.levels(&mut problems);
        if !self.levels.is_empty() {
            check_names(&levels, &mut problems);
        }
        check_mode(&self.settings, &levels, &mut problems);
        let tag = self.tag(&levels, &mut problems);
        let overrides = self.cases(&levels, &mut problems);
        if !problems.0.is_empty() {
            return Err(PolicyError {
                has_levels: !self.levels.is_empty(),
                policy: self.name,
                problems: problems.0,
            });
        }
        let is_only = levels.len() == 1;
        let levels = levels.into_iter().zip(overrides);
        let levels = levels.filter_map(|(level, overrides)| {
            let (key, limit) = (level.key?, level.limit?);
            let item = match is_only {
                true => self.name.clone(),
                false => format!("{}.{}", self.name, level.name),
            };
            Some(PolicyLevel {
                tag_slots: tag.slots(&key),
                name: level.name.into(),
                cases: Cases::new(overrides, limit),
                item: Item::new(item.into(), &limit),
                key,
            })
        });
        let levels: Box<[PolicyLevel]> = levels.collect();
        Ok(Policy(Arc::new(Parts {
            optional: optional(&levels),
            name: self.name.into(),
            levels,
            tag,
            script: self.script,
            headers: self.headers,
            settings: self.settings,
        })))
    }

    /// A script decides by itself: whatever else would is refused.
    fn check_script(&self, problems: &mut Problems) {
        let Some(script) = &self.script else {
            return;
        };
        for (field, message) in script.problems() {
            problems.add(Place::Policy, field, message);
        }
        let beside = "cannot be combined with a script: expected none";
        let tables = self.levels.iter().enumerate();
        let tables = tables.map(|(index, level)| (Place::Level(index), &level.limit));
        for (place, fields) in tables.chain([(Place::Policy, &self.only.limit)]) {
            let block = (fields.block == Some(true)).then_some("block");
            for field in fields.said().chain(block) {
                problems.add(place, field, beside.into());
            }
        }
        if !self.overrides.is_empty() {
            problems.add(Place::Policy, "overrides", beside.into());
        }
        if self.settings.count_denied {
            problems.add(Place::Policy, "count_denied", beside.into());
        }
        if self.settings.on_error == Some(OnError::Local) {
            let message = "\"local\" with a script, which this process cannot run: expected \"allow\" or \"deny\"";
            problems.add(Place::Policy, "on_error", message.into());
        }
        if self.settings.mode == Mode::Background {
            let message = "\"background\" with a script: expected \"exact\"";
            problems.add(Place::Policy, "mode", message.into());
        }
    }

    /// The levels, as far as they are right.
    fn levels(&self, problems: &mut Problems) -> Vec<Checked> {
        let only = &self.only;
        let blocked = only.limit.block == Some(true);
        let check = |index: usize, name: &str, level: &LevelDraft, problems: &mut Problems| {
            let place = Place::Level(index);
            let key = level.key.as_deref().unwrap_or(Template::DEFAULT);
            let key = Template::parse(key);
            let key = key.map_err(|message| problems.add(place, "key", message));
            let limit = match level.limit.limit() {
                // Without its script, such a policy must not let anything through.
                _ if blocked || self.script.is_some() => Some(Limit::block()),
                Ok(limit) => Some(limit),
                Err(wrong) => {
                    problems.add(place, wrong.field, wrong.message);
                    None
                }
            };
            Checked {
                name: name.into(),
                key: key.ok(),
                limit,
                fields: level.limit,
            }
        };
        if self.levels.is_empty() {
            return vec![check(0, &self.name, only, problems)];
        }
        let key = only.key.as_ref().map(|_| "key");
        // Beside a script, limits have no place anywhere, which has been said.
        let limit = only.limit.said().filter(|_| self.script.is_none());
        for field in key.into_iter().chain(limit) {
            let message = "cannot be combined with levels: expected it in each level instead";
            problems.add(Place::Policy, field, message.into());
        }
        if self.levels.len() > MAX_LEVELS {
            let message = format!(
                "{} levels: expected at most {MAX_LEVELS}",
                self.levels.len()
            );
            problems.add(Place::Policy, "levels", message);
        }
        let levels = self.levels.iter().enumerate();
        levels
            .take(MAX_LEVELS)
            .map(|(index, level)| check(index, &level.name, level, problems))
            .collect()
    }

    fn tag(&self, levels: &[Checked], problems: &mut Problems) -> Tag {
        let keys: Option<Vec<&Template>> = levels.iter().map(|level| level.key.as_ref()).collect();
        let Some(keys) = keys else {
            // Nothing can be said about a tag before the keys are right.
            return Tag::default();
        };
        let everywhere = |attribute: &str| keys.iter().all(|key| key.position(attribute).is_some());
        let Some(text) = &self.tag else {
            let first = keys.first().into_iter().flat_map(|key| key.attributes());
            return Tag {
                text: None,
                attributes: first
                    .filter(|name| everywhere(name))
                    .map(Box::from)
                    .collect(),
            };
        };
        let mut add = |message| problems.add(Place::Policy, "tag", message);
        let template = match Template::parse(text) {
            Ok(template) => template,
            Err(message) => {
                add(message);
                return Tag::default();
            }
        };
        if template.attributes().len() == 0 {
            add(format!(
                "{}: no attribute: expected one that every level has in its key",
                shown(text)
            ));
        }
        for attribute in template.attributes().filter(|name| !everywhere(name)) {
            add(format!(
                "{}: the attribute {} is not in the key of every level: one counter would be in several cluster slots",
                shown(text),
                shown(attribute)
            ));
        }
        Tag {
            attributes: template.attributes().map(Box::from).collect(),
            text: Some(text.as_str().into()),
        }
    }

    /// For each level, the overrides that are for it.
    fn cases(&self, levels: &[Checked], problems: &mut Problems) -> Vec<Vec<Case>> {
        let mut cases: Vec<Vec<Case>> = levels.iter().map(|_| Vec::new()).collect();
        let keys_known = levels.iter().all(|level| level.key.is_some());
        if self.levels.len() > MAX_LEVELS {
            // Those left over are unknown here.
            return cases;
        }
        for (index, change) in self.overrides.iter().enumerate() {
            let place = Place::Override(index);
            let before = problems.0.len();
            if change.matches.is_empty() {
                let message = "empty: expected at least one attribute and its value";
                problems.add(place, "match", message.into());
            }
            if change.enabled && change.limit == LimitFields::default() {
                let message = "missing: expected a limit, or block = true, or enabled = false";
                problems.add(place, "limit", message.into());
            }
            if !change.enabled && change.limit.block == Some(true) {
                problems.add(place, "block", BLOCK_DISABLED.into());
            } else if !change.enabled && change.limit.rate.is_some() {
                let message = "with enabled = false, which counts nothing: expected one of the two";
                problems.add(place, "limit", message.into());
            }
            let names = change.matches.iter().enumerate();
            for (number, (name, _)) in names {
                if !change.enabled && !name::is_name(name) {
                    let message = format!("{}: expected {}", shown(name), name::EXPECTED);
                    problems.add(place, "match", message);
                }
                if change.matches[..number]
                    .iter()
                    .any(|(other, _)| other == name)
                {
                    let message = format!("{}: twice: expected it once", shown(name));
                    problems.add(place, "match", message);
                }
            }
            let wanted =
                |level: &Checked| change.level.as_ref().is_none_or(|name| *name == level.name);
            if !levels.iter().any(wanted) {
                let name = change.level.as_deref().unwrap_or_default();
                let message = format!(
                    "{}: no such level: expected one of {}",
                    shown(name),
                    name::listed(levels.iter().map(|level| &*level.name))
                );
                problems.add(place, "level", message);
            }
            if problems.0.len() > before {
                continue;
            }
            let mut used = false;
            for (level, cases) in levels.iter().zip(&mut cases) {
                let Some(conditions) = level.conditions(change).filter(|_| wanted(level)) else {
                    continue;
                };
                used = true;
                if level.limit.is_none_or(|limit| limit == Limit::block()) {
                    // Wrong itself, which has been said; or it refuses everything,
                    // no matter who asks.
                    continue;
                }
                let limit = match level.fields.changed(change.limit).limit() {
                    Ok(limit) => change.enabled.then_some(limit),
                    Err(wrong) => {
                        problems.add(place, wrong.field, wrong.message);
                        continue;
                    }
                };
                cases.push(Case { conditions, limit });
            }
            if !used && keys_known {
                let wanted: Vec<&Checked> = levels.iter().filter(|level| wanted(level)).collect();
                problems.add(place, "match", unused(change, &wanted));
            }
        }
        if cases.iter().any(|cases| cases.len() > Cases::MAX_OVERRIDES) {
            let message = format!(
                "{}: expected at most {} for a level",
                self.overrides.len(),
                Cases::MAX_OVERRIDES
            );
            problems.add(Place::Policy, "overrides", message);
        }
        cases
    }
}

const BLOCK_DISABLED: &str =
    "true: with enabled = false, which allows everything: expected one of the two";

/// Why an override is for none of these levels, whose keys are known.
fn unused(change: &OverrideDraft, levels: &[&Checked]) -> String {
    let keys = || levels.iter().filter_map(|level| level.key.as_ref());
    let names = || change.matches.iter().map(|(name, _)| &**name);
    let in_no_key = |name: &&str| keys().all(|key| key.position(name).is_none());
    let unknown = || name::listed(names().filter(in_no_key));
    let known = || keys().flat_map(Template::attributes);
    let near = names().filter(in_no_key).find_map(|name| {
        let near = known().find(|known| name::is_near(name, known))?;
        Some(format!("{}: did you mean {}?", shown(name), shown(near)))
    });
    match (levels, near) {
        ([level], _) if known().next().is_none() => format!(
            "level {} has key {} (one counter for all), so it cannot match {}",
            shown(&level.name),
            shown(keys().next().map_or("", Template::as_str)),
            unknown()
        ),
        (_, Some(near)) => format!("no level's key has {near}"),
        ([_], None) => format!(
            "{}: not in the key {}: expected attributes of the key",
            unknown(),
            shown(keys().next().map_or("", Template::as_str))
        ),
        (_, None) if names().any(|name| in_no_key(&name)) => format!(
            "no level's key has {}: expected attributes of one key",
            unknown()
        ),
        (_, None) => format!(
            "no level's key has all of {}: expected attributes of one key",
            name::listed(names())
        ),
    }
}

/// The attributes that overrides of these levels match on and no key has.
fn optional(levels: &[PolicyLevel]) -> Box<[Box<str>]> {
    let conditions = levels.iter().flat_map(|level| level.cases.conditions());
    let mut names: Vec<Box<str>> = Vec::new();
    for (attribute, _) in conditions {
        if let Attribute::Other(name) = attribute
            && levels
                .iter()
                .all(|level| level.key.position(name).is_none())
        {
            names.push(name.clone());
        }
    }
    names.sort_unstable();
    names.dedup();
    names.into()
}

/// A level whose parts were looked at; what was wrong is `None`.
struct Checked {
    name: String,
    key: Option<Template>,
    limit: Option<Limit>,
    fields: LimitFields,
}

impl Checked {
    /// The conditions of an override, if it can be for this level: one that changes the
    /// limit matches on attributes of the key, an exemption on any.
    fn conditions(&self, change: &OverrideDraft) -> Option<Box<[Condition]>> {
        let key = self.key.as_ref()?;
        let condition = |(name, value): &(String, String)| {
            let attribute = match key.position(name) {
                Some(slot) => Attribute::InKey(u16::try_from(slot).ok()?),
                None if change.enabled => return None,
                None => Attribute::Other(name.as_str().into()),
            };
            Some((attribute, value.as_bytes().into()))
        };
        change.matches.iter().map(condition).collect()
    }
}

fn check_names(levels: &[Checked], problems: &mut Problems) {
    for (index, level) in levels.iter().enumerate() {
        let name = &level.name;
        let message = if !name::is_name(name) {
            format!("{}: expected {}", shown(name), name::EXPECTED)
        } else if levels[..index].iter().any(|other| other.name == *name) {
            format!(
                "{}: two levels have this name: expected different names",
                shown(name)
            )
        } else {
            continue;
        };
        problems.add(Place::Level(index), "name", message);
    }
}

/// A setting that would have no effect is refused, unless it says what holds anyway.
fn check_settings(settings: &Settings, problems: &mut Problems) {
    let standard = Settings::default();
    let mut add = |field, message| problems.add(Place::Policy, field, message);
    if !name::is_name(&settings.store) {
        add(
            "store",
            format!("{}: expected {}", shown(&settings.store), name::EXPECTED),
        );
    }
    if settings.mode != Mode::Background && settings.sync_interval != standard.sync_interval {
        let value = Text(settings.sync_interval);
        add(
            "sync_interval",
            format!("{value}: only mode = \"background\" has one"),
        );
    }
    let intervals = Duration::from_millis(1)..=Duration::from_secs(60);
    if !intervals.contains(&settings.sync_interval) {
        let value = Text(settings.sync_interval);
        add("sync_interval", format!("{value}: expected 1ms to 60s"));
    }
    if settings.mode != Mode::Exact && settings.refusal_memory != standard.refusal_memory {
        let value = Text(settings.refusal_memory);
        add(
            "refusal_memory",
            format!("{value}: only mode = \"exact\" has one"),
        );
    }
    if settings.refusal_memory > Duration::from_secs(60) {
        let value = Text(settings.refusal_memory);
        add("refusal_memory", format!("{value}: expected 0s to 60s"));
    }
    let share = settings.local_share;
    if !(share > 0.0 && share <= 1.0) {
        add(
            "local_share",
            format!("{share:?}: expected more than 0 and at most 1"),
        );
    } else if settings.on_error != Some(OnError::Local) && share < 1.0 {
        add(
            "local_share",
            format!("{share:?}: only on_error = \"local\" has one"),
        );
    }
}

/// What the modes can do, and which are there.
fn check_mode(settings: &Settings, levels: &[Checked], problems: &mut Problems) {
    let mut add = |message: String| problems.add(Place::Policy, "mode", message);
    let mut algorithms = levels
        .iter()
        .filter_map(|level| Some(level.limit?.algorithm()));
    match settings.mode {
        Mode::Exact => {}
        Mode::Lease => {
            let can_lease = |algorithm: &Algorithm| {
                matches!(
                    algorithm,
                    Algorithm::TokenBucket | Algorithm::FixedWindow | Algorithm::Block
                )
            };
            if let Some(algorithm) = algorithms.find(|algorithm| !can_lease(algorithm)) {
                add(format!(
                    "\"lease\" with {algorithm}: only token_bucket and fixed_window can lease"
                ));
            }
        }
        Mode::Background if settings.count_denied => {
            add("\"background\" with count_denied = true: expected \"exact\", which counts refusals".into());
        }
        Mode::Background => {}
    }
}

struct Problems(Vec<Problem>);

impl Problems {
    fn add(&mut self, place: Place, field: &'static str, message: String) {
        let problem = Problem {
            place,
            field,
            message,
        };
        // An override may be wrong in the same way for several levels.
        let mut same_place = self.0.iter().rev().take_while(|other| other.place == place);
        if !same_place.any(|other| *other == problem) {
            self.0.push(problem);
        }
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "policy {}", shown(&self.policy))?;
        for (index, problem) in self.problems.iter().enumerate() {
            f.write_str(if index == 0 { ": " } else { "; " })?;
            match problem.place {
                Place::Level(level) if self.has_levels => write!(f, "levels[{level}].")?,
                Place::Policy | Place::Level(_) => {}
                Place::Override(change) => write!(f, "overrides[{change}].")?,
            }
            write!(f, "{}: {}", problem.field, problem.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for PolicyError {}
