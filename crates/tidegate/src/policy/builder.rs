//! A policy in code: a builder with the words of the file format.

use std::time::Duration;

use super::Policy;
use super::build::PolicyError;
use super::fields::LimitFields;
use super::script::CustomScript;
use super::settings::{Mode, OnError, Settings};
use crate::headers::Dialect;
use crate::limit::Limit;

/// Makes a [`Policy`], with the words of the file format.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build`"]
pub struct PolicyBuilder(Draft);

/// A policy before it is checked.
#[derive(Debug, Clone, Default)]
pub struct Draft {
    /// Its name.
    pub name: String,
    /// The script that decides in place of limits, if there is one.
    pub script: Option<CustomScript>,
    /// What stands outside of `levels`: the only level, if there are none. Its name is
    /// the policy's.
    pub only: LevelDraft,
    /// Its levels, where it has a list of them.
    pub levels: Vec<LevelDraft>,
    /// Its tag, as a template.
    pub tag: Option<String>,
    /// Other numbers for some keys, first match first.
    pub overrides: Vec<OverrideDraft>,
    /// The headers that clients see.
    pub headers: Dialect,
    /// All that is not a limit.
    pub settings: Settings,
}

/// A level before it is checked.
#[derive(Debug, Clone, Default)]
pub struct LevelDraft {
    /// Its name.
    pub name: String,
    /// Its key, as a template.
    pub key: Option<String>,
    /// Its limit.
    pub limit: LimitFields,
}

/// An override before it is checked.
#[derive(Debug, Clone)]
pub struct OverrideDraft {
    /// The attributes, with the values they must have.
    pub matches: Vec<(String, String)>,
    /// The only level it is for, by name.
    pub level: Option<String>,
    /// The fields of the limit that it changes.
    pub limit: LimitFields,
    /// `false`: these keys are not counted.
    pub enabled: bool,
}

/// Other numbers for some keys of a policy.
///
/// ```
/// use tidegate::{Limit, Override, Policy};
///
/// let policy = Policy::builder("login")
///     .key("{ip}")
///     .limit(Limit::per_minute(5))
///     .overrides(Override::of("ip", "10.1.2.3").limit(Limit::per_second(1000)))
///     .overrides(Override::of("ip", "192.0.2.66").block())
///     .overrides(Override::of("ip", "127.0.0.1").exempt())
///     .build()?;
/// # Ok::<(), tidegate::PolicyError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "an override does nothing until a policy has it"]
pub struct Override(OverrideDraft);

impl Override {
    /// For keys in which this attribute has this value.
    pub fn of(attribute: impl Into<String>, value: impl Into<String>) -> Self {
        Self(OverrideDraft {
            matches: vec![(attribute.into(), value.into())],
            level: None,
            limit: LimitFields::default(),
            enabled: true,
        })
    }

    /// And in which this attribute has this value.
    pub fn and(mut self, attribute: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.matches.push((attribute.into(), value.into()));
        self
    }

    /// For this level only. Otherwise it is for every level that has all the
    /// attributes in its key.
    pub fn level(mut self, name: impl Into<String>) -> Self {
        self.0.level = Some(name.into());
        self
    }

    /// The limit of these keys.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.0.limit = limit.into();
        self
    }

    /// These keys are refused.
    pub fn block(self) -> Self {
        self.limit(Limit::block())
    }

    /// These keys are not counted.
    pub fn exempt(mut self) -> Self {
        self.0.enabled = false;
        self
    }
}

impl PolicyBuilder {
    pub(super) fn new(name: String) -> Self {
        Self(Draft {
            name,
            ..Draft::default()
        })
    }

    /// The key of a policy of one level: `{key}` unless said otherwise.
    pub fn key(mut self, template: impl Into<String>) -> Self {
        self.0.only.key = Some(template.into());
        self
    }

    /// The limit of a policy of one level.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.0.only.limit = limit.into();
        self
    }

    /// One more level, instead of [`key`](Self::key) and [`limit`](Self::limit): all
    /// are charged, or none.
    pub fn level(mut self, name: impl Into<String>, key: impl Into<String>, limit: Limit) -> Self {
        self.0.levels.push(LevelDraft {
            name: name.into(),
            key: Some(key.into()),
            limit: limit.into(),
        });
        self
    }

    /// The attributes that decide where in a cluster the keys live: such that every
    /// level has. All that every level has, unless said otherwise.
    pub fn tag(mut self, template: impl Into<String>) -> Self {
        self.0.tag = Some(template.into());
        self
    }

    /// A script of one's own decides, in place of the levels' limits; in Redis only.
    pub fn script(mut self, script: CustomScript) -> Self {
        self.0.script = Some(script);
        self
    }

    /// One more level that has a key for [`script`](Self::script), and no limit.
    pub fn script_key(mut self, name: impl Into<String>, key: impl Into<String>) -> Self {
        self.0.levels.push(LevelDraft {
            name: name.into(),
            key: Some(key.into()),
            limit: LimitFields::default(),
        });
        self
    }

    /// Other numbers for some keys. The first that fits a key is taken.
    pub fn overrides(mut self, change: Override) -> Self {
        self.0.overrides.push(change.0);
        self
    }

    /// Refuses everything.
    pub fn block(mut self, block: bool) -> Self {
        self.0.only.limit.block = Some(block);
        self
    }

    /// How to ask the store.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.0.settings.mode = mode;
        self
    }

    /// How often a node in background mode tells the store: every 50 ms unless said
    /// otherwise, from 1 ms to a minute.
    pub fn sync_interval(mut self, interval: Duration) -> Self {
        self.0.settings.sync_interval = interval;
        self
    }

    /// How long a refusal is remembered at most; zero turns that off.
    pub fn refusal_memory(mut self, duration: Duration) -> Self {
        self.0.settings.refusal_memory = duration;
        self
    }

    /// What to answer when the store cannot.
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.0.settings.on_error = on_error;
        self
    }

    /// This node's share of the limit under [`OnError::Local`].
    pub fn local_share(mut self, share: f64) -> Self {
        self.0.settings.local_share = share;
        self
    }

    /// Counts refused requests, too: who keeps on asking stays out.
    pub fn count_denied(mut self, count_denied: bool) -> Self {
        self.0.settings.count_denied = count_denied;
        self
    }

    /// Only watches: everything is allowed, and measured as if it were not.
    pub fn shadow(mut self, shadow: bool) -> Self {
        self.0.settings.shadow = shadow;
        self
    }

    /// Tries this policy on the checks of another one: the server asks it beside that one,
    /// with the same attributes and cost. It never refuses.
    pub fn trial_of(mut self, policy: impl Into<String>) -> Self {
        self.0.settings.trial_of = Some(policy.into().into());
        self
    }

    /// `false` allows everything and measures nothing.
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.0.settings.enabled = enabled;
        self
    }

    /// The headers that clients see.
    pub fn headers(mut self, dialect: Dialect) -> Self {
        self.0.headers = dialect;
        self
    }

    /// The store that keeps the counts: `default` unless said otherwise.
    pub fn store(mut self, name: impl Into<String>) -> Self {
        self.0.settings.store = name.into().into();
        self
    }

    /// The policy, or everything that is wrong with it.
    pub fn build(self) -> Result<Policy, PolicyError> {
        self.0.build()
    }
}
