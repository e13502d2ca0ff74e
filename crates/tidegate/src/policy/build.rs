//! From what was said about a policy, in code or in a file, to a [`Policy`]: the one
//! place where it is checked. Everything that is wrong is reported, not just the first.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::builder::{LevelDraft, Override, PolicyBuilder};
use super::fields::LimitFields;
use super::overrides::{Attribute, Condition, ConditionalLimit, Overrides};
use super::settings::{Mode, OnError, Settings};
use super::template::{Template, is_near, listed, name_problem, shown};
use super::{Parts, Policy, PolicyLevel, Tag};
use crate::algorithm::Profile;
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
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl PolicyBuilder {
    /// Validates and builds the policy. The error lists everything that is wrong.
    pub fn build(mut self) -> Result<Policy, PolicyError> {
        let on_error = OnError::standard(self.script.is_some());
        self.settings.on_error.get_or_insert(on_error);
        let mut problems = Problems(Vec::new());
        problems.extend(Place::Policy, "name", name_problem(&self.name));
        check_settings(&self.settings, &mut problems);
        let is_blocked = self.only.limit.block == Some(true);
        let disabled = is_blocked && !self.settings.enabled;
        problems.check(Place::Policy, [(disabled, "block", BLOCK_DISABLED)]);
        problems.extend(Place::Policy, "headers", self.headers.check().err());
        self.check_script(&mut problems);
        let levels = self.checked_levels(&mut problems);
        if !self.levels.is_empty() {
            check_names(&levels, &mut problems);
        }
        check_mode(&self.settings, &levels, &mut problems);
        let tag = self.checked_tag(&levels, &mut problems);
        let overrides = self.checked_limits(&levels, &mut problems);
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
                overrides: Overrides::new(overrides, limit),
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
                problems.add(place, field, beside);
            }
        }
        let settings = &self.settings;
        let local = "\"local\" with a script, which this process cannot run: expected \"allow\" or \"deny\"";
        let background = "\"background\" with a script: expected \"exact\"";
        let rules = [
            (!self.overrides.is_empty(), "overrides", beside),
            (settings.count_denied, "count_denied", beside),
            (settings.on_error == Some(OnError::Local), "on_error", local),
            (settings.mode == Mode::Background, "mode", background),
        ];
        problems.check(Place::Policy, rules);
    }

    /// The levels, as far as they are right.
    fn checked_levels(&self, problems: &mut Problems) -> Vec<LevelParts> {
        if self.levels.is_empty() {
            return vec![self.checked_level(0, &self.name, &self.only, problems)];
        }
        let key = self.only.key.as_ref().map(|_| "key");
        // Beside a script, limits have no place anywhere, which has been said.
        let limit = self.only.limit.said().filter(|_| self.script.is_none());
        for field in key.into_iter().chain(limit) {
            let message = "cannot be combined with levels: expected it in each level instead";
            problems.add(Place::Policy, field, message);
        }
        let count = self.levels.len();
        if count > MAX_LEVELS {
            let message = format!("{count} levels: expected at most {MAX_LEVELS}");
            problems.add(Place::Policy, "levels", message);
        }
        let levels = self.levels.iter().enumerate().take(MAX_LEVELS);
        levels
            .map(|(index, level)| self.checked_level(index, &level.name, level, problems))
            .collect()
    }

    fn checked_level(
        &self,
        index: usize,
        name: &str,
        level: &LevelDraft,
        problems: &mut Problems,
    ) -> LevelParts {
        let place = Place::Level(index);
        let key = Template::parse(level.key.as_deref().unwrap_or(Template::DEFAULT));
        let key = key.map_err(|message| problems.add(place, "key", message));
        // Without its script, such a policy must not let anything through.
        let limit = match self.only.limit.block == Some(true) || self.script.is_some() {
            true => Ok(Limit::block()),
            false => level.limit.limit(),
        };
        let limit = limit.map_err(|(field, message)| problems.add(place, field, message));
        LevelParts {
            name: name.into(),
            key: key.ok(),
            limit: limit.ok(),
            fields: level.limit,
        }
    }

    fn checked_tag(&self, levels: &[LevelParts], problems: &mut Problems) -> Tag {
        let keys: Option<Vec<&Template>> = levels.iter().map(|level| level.key.as_ref()).collect();
        let Some(keys) = keys else {
            // Nothing can be said about a tag before the keys are right.
            return Tag::default();
        };
        let everywhere = |name: &&str| keys.iter().all(|key| key.position(name).is_some());
        let Some(text) = &self.tag else {
            let first = keys.first().into_iter().flat_map(|key| key.attributes());
            let attributes = first.filter(everywhere).map(Box::from).collect();
            return Tag {
                text: None,
                attributes,
            };
        };
        let template = match Template::parse(text) {
            Ok(template) => template,
            Err(message) => {
                problems.add(Place::Policy, "tag", message);
                return Tag::default();
            }
        };
        let shown_text = shown(text);
        if template.attributes().len() == 0 {
            let message =
                format!("{shown_text}: no attribute: expected one that every level has in its key");
            problems.add(Place::Policy, "tag", message);
        }
        for attribute in template.attributes().filter(|name| !everywhere(name)) {
            let message = format!(
                "{shown_text}: the attribute {} is not in the key of every level: one counter would be in several cluster slots",
                shown(attribute)
            );
            problems.add(Place::Policy, "tag", message);
        }
        Tag {
            attributes: template.attributes().map(Box::from).collect(),
            text: Some(text.as_str().into()),
        }
    }

    /// For each level, the limits of the overrides that are for it.
    fn checked_limits(
        &self,
        levels: &[LevelParts],
        problems: &mut Problems,
    ) -> Vec<Vec<ConditionalLimit>> {
        let mut limits: Vec<Vec<ConditionalLimit>> = levels.iter().map(|_| Vec::new()).collect();
        if self.levels.len() > MAX_LEVELS {
            // Those left over are unknown here.
            return limits;
        }
        let keys_known = levels.iter().all(|level| level.key.is_some());
        for (index, change) in self.overrides.iter().enumerate() {
            let place = Place::Override(index);
            let before = problems.0.len();
            check_override(change, levels, place, problems);
            if problems.0.len() > before {
                continue;
            }
            let mut used = false;
            for (level, limits) in levels.iter().zip(&mut limits) {
                let conditions = level.conditions(change);
                let Some(conditions) = conditions.filter(|_| level.is_meant_by(change)) else {
                    continue;
                };
                used = true;
                if level.limit.is_none_or(|limit| limit == Limit::block()) {
                    // Wrong itself, which has been said; or it refuses everything,
                    // no matter who asks.
                    continue;
                }
                match level.fields.changed(change.limit).limit() {
                    Ok(limit) => {
                        let limit = change.enabled.then_some(limit);
                        limits.push(ConditionalLimit { conditions, limit });
                    }
                    Err((field, message)) => problems.add(place, field, message),
                }
            }
            if !used && keys_known {
                let meant = levels.iter().filter(|level| level.is_meant_by(change));
                problems.add(place, "match", unused(change, &meant.collect::<Vec<_>>()));
            }
        }
        let most = Overrides::MAX_OVERRIDES;
        if limits.iter().any(|limits| limits.len() > most) {
            let count = self.overrides.len();
            let message = format!("{count}: expected at most {most} for a level");
            problems.add(Place::Policy, "overrides", message);
        }
        limits
    }
}

/// What is wrong with an override, whatever its level.
fn check_override(change: &Override, levels: &[LevelParts], place: Place, problems: &mut Problems) {
    let (limit, is_exempt) = (change.limit, !change.enabled);
    let blocks = limit.block == Some(true);
    let says_nothing = limit == LimitFields::default();
    let has_rate = limit.rate.is_some() && !blocks;
    let empty = "empty: expected at least one attribute and its value";
    let missing = "missing: expected a limit, or block = true, or enabled = false";
    let uncounted = "with enabled = false, which counts nothing: expected one of the two";
    let rules = [
        (change.matches.is_empty(), "match", empty),
        (!is_exempt && says_nothing, "limit", missing),
        (is_exempt && blocks, "block", BLOCK_DISABLED),
        (is_exempt && has_rate, "limit", uncounted),
    ];
    problems.check(place, rules);
    for (number, (name, _)) in change.matches.iter().enumerate() {
        problems.extend(place, "match", name_problem(name).filter(|_| is_exempt));
        let mut others = change.matches[..number].iter();
        if others.any(|(other, _)| other == name) {
            let message = format!("{}: twice: expected it once", shown(name));
            problems.add(place, "match", message);
        }
    }
    if !levels.iter().any(|level| level.is_meant_by(change)) {
        let message = format!(
            "{}: no such level: expected one of {}",
            shown(change.level.as_deref().unwrap_or_default()),
            listed(levels.iter().map(|level| &*level.name))
        );
        problems.add(place, "level", message);
    }
}

const BLOCK_DISABLED: &str =
    "true: with enabled = false, which allows everything: expected one of the two";

/// Why an override is for none of these levels, whose keys are known.
fn unused(change: &Override, levels: &[&LevelParts]) -> String {
    let keys = || levels.iter().filter_map(|level| level.key.as_ref());
    let names = || change.matches.iter().map(|(name, _)| &**name);
    let in_no_key = |name: &&str| keys().all(|key| key.position(name).is_none());
    let unknown = || listed(names().filter(in_no_key));
    let known = || keys().flat_map(Template::attributes);
    let near = names().filter(in_no_key).find_map(|name| {
        let near = known().find(|known| is_near(name, known))?;
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
            listed(names())
        ),
    }
}

/// The attributes that overrides of these levels match on and no key has.
fn optional(levels: &[PolicyLevel]) -> Box<[Box<str>]> {
    let limits = levels.iter().flat_map(|level| level.overrides.all());
    let in_no_key = |name: &str| {
        levels
            .iter()
            .all(|level| level.key.position(name).is_none())
    };
    let names = limits.flat_map(|limit| &limit.conditions);
    let names = names.filter_map(|(attribute, _)| match attribute {
        Attribute::Other(name) if in_no_key(name) => Some(name.clone()),
        Attribute::Other(_) | Attribute::InKey(_) => None,
    });
    let names: BTreeSet<Box<str>> = names.collect();
    names.into_iter().collect()
}

/// A level whose parts were looked at; what was wrong is `None`.
struct LevelParts {
    name: String,
    key: Option<Template>,
    limit: Option<Limit>,
    fields: LimitFields,
}

impl LevelParts {
    /// Whether an override names this level, or none.
    fn is_meant_by(&self, change: &Override) -> bool {
        change.level.as_ref().is_none_or(|name| *name == self.name)
    }

    /// The conditions of an override, if it can be for this level: one that changes the
    /// limit matches on attributes of the key, an exemption on any.
    fn conditions(&self, change: &Override) -> Option<Box<[Condition]>> {
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

fn check_names(levels: &[LevelParts], problems: &mut Problems) {
    for (index, LevelParts { name, .. }) in levels.iter().enumerate() {
        let is_taken = levels[..index].iter().any(|other| other.name == *name);
        let taken = "two levels have this name: expected different names";
        let taken = is_taken.then(|| format!("{}: {taken}", shown(name)));
        problems.extend(Place::Level(index), "name", name_problem(name).or(taken));
    }
}

/// A setting that would have no effect is refused, unless it says what holds anyway.
fn check_settings(settings: &Settings, problems: &mut Problems) {
    let standard = Settings::default();
    let (mode, share) = (settings.mode, settings.local_share);
    let (sync, memory) = (settings.sync_interval, settings.refusal_memory);
    let mut add = |field, message| problems.extend(Place::Policy, field, message);
    add("store", name_problem(&settings.store));
    let has_sync = mode == Mode::Background || sync == standard.sync_interval;
    let only = "only mode = \"background\" has one";
    add(
        "sync_interval",
        (!has_sync).then(|| format!("{}: {only}", Text(sync))),
    );
    add("sync_interval", beyond(Settings::SYNC_INTERVALS, sync));
    let has_memory = mode == Mode::Exact || memory == standard.refusal_memory;
    let only = "only mode = \"exact\" has one";
    add(
        "refusal_memory",
        (!has_memory).then(|| format!("{}: {only}", Text(memory))),
    );
    add("refusal_memory", beyond(Settings::REFUSAL_MEMORIES, memory));
    let expected = if !(share > 0.0 && share <= 1.0) {
        Some("expected more than 0 and at most 1")
    } else if settings.on_error != Some(OnError::Local) && share < 1.0 {
        Some("only on_error = \"local\" has one")
    } else {
        None
    };
    add(
        "local_share",
        expected.map(|expected| format!("{share:?}: {expected}")),
    );
}

fn beyond(range: RangeInclusive<Duration>, duration: Duration) -> Option<String> {
    let (from, to) = (Text(*range.start()), Text(*range.end()));
    let message = format!("{}: expected {from} to {to}", Text(duration));
    (!range.contains(&duration)).then_some(message)
}

/// What the modes can do, and which are there.
fn check_mode(settings: &Settings, levels: &[LevelParts], problems: &mut Problems) {
    let mut add = |message: String| problems.add(Place::Policy, "mode", message);
    let without = |can: fn(&Profile) -> bool| {
        let mut used = levels
            .iter()
            .filter_map(|level| Some(level.limit?.algorithm()));
        let wrong = used.find(|it| it.profile().counts && !can(it.profile()))?;
        let with = Algorithm::names(can);
        Some((wrong, with.join(" and ")))
    };
    match settings.mode {
        Mode::Exact => {}
        Mode::Lease => {
            if let Some((algorithm, can)) = without(|profile| profile.can_lease) {
                add(format!("\"lease\" with {algorithm}: only {can} can lease"));
            }
        }
        Mode::Background => {
            if settings.count_denied {
                add("\"background\" with count_denied = true: expected \"exact\", which counts refusals".into());
            }
            if let Some((algorithm, can)) = without(|profile| profile.in_background) {
                add(format!(
                    "\"background\" with {algorithm}: only {can} can count in the background"
                ));
            }
        }
    }
}

struct Problems(Vec<Problem>);

impl Problems {
    /// Adds the message of each rule that is broken.
    fn check<M: Into<String>>(
        &mut self,
        place: Place,
        rules: impl IntoIterator<Item = (bool, &'static str, M)>,
    ) {
        for (is_broken, field, message) in rules {
            if is_broken {
                self.add(place, field, message);
            }
        }
    }

    fn extend(&mut self, place: Place, field: &'static str, message: Option<String>) {
        if let Some(message) = message {
            self.add(place, field, message);
        }
    }

    fn add(&mut self, place: Place, field: &'static str, message: impl Into<String>) {
        let problem = Problem {
            place,
            field,
            message: message.into(),
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
