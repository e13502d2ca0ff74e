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
pub struct PolicyBuilder(pub(crate) Draft);

/// What was said about a policy so far.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) name: String,
    pub(crate) script: Option<CustomScript>,
    /// What was said outside of `levels`: the only level, if there are none.
    pub(crate) only: LevelDraft,
    pub(crate) levels: Vec<LevelDraft>,
    pub(crate) tag: Option<String>,
    pub(crate) overrides: Vec<Override>,
    pub(crate) headers: Dialect,
    pub(crate) settings: Settings,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct LevelDraft {
    pub(crate) name: String,
    pub(crate) key: Option<String>,
    pub(crate) limit: LimitFields,
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
pub struct Override {
    pub(crate) matches: Vec<(String, String)>,
    pub(crate) level: Option<String>,
    pub(crate) limit: LimitFields,
    pub(crate) enabled: bool,
}

impl Override {
    /// For keys in which this attribute has this value.
    pub fn of(attribute: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            matches: vec![(attribute.into(), value.into())],
            level: None,
            limit: LimitFields::default(),
            enabled: true,
        }
    }

    /// And in which this attribute has this value.
    pub fn and(mut self, attribute: impl Into<String>, value: impl Into<String>) -> Self {
        self.matches.push((attribute.into(), value.into()));
        self
    }

    /// For this level only. Otherwise it is for every level that has all the
    /// attributes in its key.
    pub fn level(mut self, name: impl Into<String>) -> Self {
        self.level = Some(name.into());
        self
    }

    /// The limit of these keys.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limit = limit.into();
        self
    }

    /// These keys are refused.
    pub fn block(self) -> Self {
        self.limit(Limit::block())
    }

    /// These keys are not counted.
    pub fn exempt(mut self) -> Self {
        self.enabled = false;
        self
    }
}

impl PolicyBuilder {
    pub(super) fn new(name: String) -> Self {
        Self(Draft {
            name,
            script: None,
            only: LevelDraft::default(),
            levels: Vec::new(),
            tag: None,
            overrides: Vec::new(),
            headers: Dialect::default(),
            settings: Settings::default(),
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
        self.0.overrides.push(change);
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
