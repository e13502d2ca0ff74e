//! Policies: what a user configures.
//!
//! A policy is data: its levels, the attributes that make their keys, the limit for each
//! key, and how to ask the store. A limiter makes the decisions
//! ([`PolicyLimiter`](crate::PolicyLimiter)).

mod build;
mod builder;
mod decision;
mod error;
mod fields;
mod keys;
mod limiter;
mod overrides;
mod policies;
mod script;
mod settings;
pub(crate) mod template;
mod which;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

pub use build::PolicyError;
pub use builder::{Override, PolicyBuilder};
pub use decision::{Decisions, LevelReport, OwnedDecision, PolicyDecision};
pub use error::{CheckError, PoliciesError};
pub use keys::{Keys, LevelKey, MissingAttribute};
pub use limiter::{Case, PolicyLimiter, Question};
pub use policies::Policies;
pub use script::{CustomScript, ScriptAnswer, ScriptSource};
pub use settings::{Mode, OnError};
pub use template::Template;
pub use which::{Explained, Which};

pub use build::{Place, Problem};
pub use builder::LevelDraft;
pub use fields::LimitFields;
pub use settings::Settings;

use overrides::{Attribute, Overrides};

use crate::headers::{Dialect, Item};
use crate::limit::Limit;

/// A named, ordered list of levels, and how to ask the store.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Limit, Policy};
///
/// let login = Policy::builder("login")
///     .key("{ip}")
///     .limit(Limit::per_second(100).burst(20))
///     .build()?;
///
/// let api = Policy::builder("api")
///     .level("resource", "{resource}", Limit::per(5, Duration::from_secs(10)).sliding_log())
///     .level("consumer", "{resource}:{consumer}", Limit::per(3, Duration::from_secs(10)).sliding_log())
///     .build()?;
/// # Ok::<(), tidegate::PolicyError>(())
/// ```
///
/// The crate `tidegate-config` reads policies from a file.
///
/// Clones share one policy and are cheap.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy(Arc<Parts>);

/// The parts of a policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Parts {
    name: Box<str>,
    levels: Box<[PolicyLevel]>,
    tag: Tag,
    /// What overrides match on beyond the keys.
    optional: Box<[Box<str>]>,
    /// Decides instead of the levels' limits.
    script: Option<CustomScript>,
    headers: Dialect,
    settings: Settings,
}

impl Deref for Policy {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// One limit of a policy, and the attributes that make its key.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyLevel {
    name: Box<str>,
    key: Template,
    overrides: Overrides,
    /// The positions of the tag's attributes in the key.
    tag_slots: Box<[u16]>,
    /// Its parts of header fields.
    pub(crate) item: Item,
}

/// The attributes that select the cluster slot of a policy's keys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Tag {
    /// The template, if the policy has one.
    text: Option<Box<str>>,
    attributes: Box<[Box<str>]>,
}

impl Tag {
    fn slots(&self, key: &Template) -> Box<[u16]> {
        let slots = self.attributes.iter().map(|name| key.position(name));
        slots.filter_map(|slot| u16::try_from(slot?).ok()).collect()
    }
}

impl Policy {
    /// Builds a policy in code.
    pub fn builder(name: impl Into<String>) -> PolicyBuilder {
        PolicyBuilder {
            name: name.into(),
            ..PolicyBuilder::default()
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its levels, in order. If a policy has only one level, the level has the policy's
    /// name.
    pub fn levels(&self) -> &[PolicyLevel] {
        &self.levels
    }

    /// The attributes that select the cluster slot of its keys. Without any, all its keys
    /// are in one slot.
    pub fn tag(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tag.attributes.iter().map(|attribute| &**attribute)
    }

    /// The script that decides instead of the levels' limits, if there is one.
    pub fn script(&self) -> Option<&CustomScript> {
        self.script.as_ref()
    }

    /// The headers that clients see.
    pub fn headers(&self) -> &Dialect {
        &self.headers
    }

    /// When its store is asked.
    pub fn mode(&self) -> Mode {
        self.settings.mode
    }

    /// How often a node in background mode sends its counts to the store.
    pub fn sync_interval(&self) -> Duration {
        self.settings.sync_interval
    }

    /// The longest time that a refusal is remembered.
    pub fn refusal_memory(&self) -> Duration {
        self.settings.refusal_memory
    }

    /// What to answer when the store fails.
    pub fn on_error(&self) -> OnError {
        self.settings.on_error.unwrap_or_default()
    }

    /// This node's share of the limit under [`OnError::Local`].
    pub fn local_share(&self) -> f64 {
        self.settings.local_share
    }

    /// Whether refused requests are counted.
    pub fn count_denied(&self) -> bool {
        self.settings.count_denied
    }

    /// Whether it measures but never refuses: in shadow mode, or as a trial.
    pub fn shadow(&self) -> bool {
        self.settings.shadow || self.settings.trial_of.is_some()
    }

    /// The policy whose checks it is tried on.
    pub fn trial_of(&self) -> Option<&str> {
        self.settings.trial_of.as_deref()
    }

    /// The attributes in the keys of its levels, each once, in the order they first occur.
    pub fn attributes(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for name in self.levels.iter().flat_map(|level| level.key.attributes()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// The attributes that are in no key of its levels, but that an exemption matches on. A
    /// check may leave them out.
    pub fn optional_attributes(&self) -> impl ExactSizeIterator<Item = &str> {
        self.optional.iter().map(|attribute| &**attribute)
    }

    /// Whether it is enabled.
    pub fn enabled(&self) -> bool {
        self.settings.enabled
    }

    /// The name of the store that keeps its counters.
    pub fn store(&self) -> &str {
        &self.settings.store
    }

    /// The same policy with other limits, in another store.
    pub fn with_limits(&self, store: &str, change: impl Fn(&Limit) -> Limit) -> Self {
        let levels = self.levels.iter().map(|level| {
            let overrides = level.overrides.with_limits(&change);
            PolicyLevel {
                item: Item::new(level.item.name.clone(), overrides.own()),
                overrides,
                ..level.clone()
            }
        });
        Self(Arc::new(Parts {
            levels: levels.collect(),
            settings: Settings {
                store: store.into(),
                ..self.settings.clone()
            },
            ..Parts::clone(&self.0)
        }))
    }

    /// All its settings that are not limits.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Its tag as a template, if the policy sets one.
    pub fn tag_text(&self) -> Option<&str> {
        self.tag.text.as_deref()
    }
}

impl PolicyLevel {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The attributes that make its key.
    pub fn key(&self) -> &Template {
        &self.key
    }

    /// Its limit for keys without an override.
    pub fn limit(&self) -> &Limit {
        self.overrides.own()
    }

    /// Its limit as an item of the header `RateLimit-Policy`, for keys without an override.
    pub fn header_item(&self) -> &str {
        &self.item.limit
    }

    /// Its overrides in order: the attributes with the values they must have, and the
    /// limit; `None` for keys that are not counted.
    pub fn overrides(&self) -> impl ExactSizeIterator<Item = (Vec<(&str, &[u8])>, Option<&Limit>)> {
        let all = self.overrides.all();
        all[..all.len() - 1].iter().map(|change| {
            let conditions = change.conditions.iter().map(|(attribute, value)| {
                let name = match attribute {
                    Attribute::InKey(slot) => &self.key.names()[usize::from(*slot)],
                    Attribute::Other(name) => name,
                };
                (&**name, &**value)
            });
            (conditions.collect(), change.limit.as_ref())
        })
    }
}
