//! Building a policy in code, with the names of the file format.

use std::time::Duration;

use super::fields::LimitFields;
use super::script::CustomScript;
use super::settings::{Mode, OnError, Settings};
use crate::headers::Dialect;
use crate::limit::Limit;

/// Builds a [`Policy`](crate::Policy). The methods have the names of the file format's fields.
///
/// A program that reads policies from text fills in the fields instead: see
/// [`draft`](crate::draft).
#[derive(Debug, Clone, Default)]
#[must_use = "a builder does nothing until `build`"]
pub struct PolicyBuilder {
    /// Its name.
    pub name: String,
    /// The script that decides instead of limits, if there is one.
    pub script: Option<CustomScript>,
    /// The fields outside of `levels`: the only level, if there are none. It has the
    /// policy's name.
    pub only: LevelDraft,
    /// Its levels, if it has a list of them.
    pub levels: Vec<LevelDraft>,
    /// Its tag, as a template.
    pub tag: Option<String>,
    /// Overrides, first match first.
    pub overrides: Vec<Override>,
    /// The headers that clients see.
    pub headers: Dialect,
    /// All settings that are not limits.
    pub settings: Settings,
}

/// A level before validation.
#[derive(Debug, Clone, Default)]
pub struct LevelDraft {
    /// Its name.
    pub name: String,
    /// Its key, as a template.
    pub key: Option<String>,
    /// Its limit.
    pub limit: LimitFields,
}

/// Different numbers for some keys of a policy.
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
    /// The attributes, with the values they must have.
    pub matches: Vec<(String, String)>,
    /// The name of the only level it applies to.
    pub level: Option<String>,
    /// The fields of the limit that it changes.
    pub limit: LimitFields,
    /// `false`: these checks are not counted. They are matched by any attributes.
    pub enabled: bool,
}

impl Override {
    /// Applies to keys in which this attribute has this value.
    pub fn of(attribute: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            matches: vec![(attribute.into(), value.into())],
            level: None,
            limit: LimitFields::default(),
            enabled: true,
        }
    }

    /// Also requires this attribute to have this value.
    pub fn and(mut self, attribute: impl Into<String>, value: impl Into<String>) -> Self {
        self.matches.push((attribute.into(), value.into()));
        self
    }

    /// Applies to this level only. By default, it applies to every level whose key has all
    /// the attributes; an exemption applies to every level.
    pub fn level(mut self, name: impl Into<String>) -> Self {
        self.level = Some(name.into());
        self
    }

    /// The limit of these keys.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limit = limit.into();
        self
    }

    /// Refuses these keys.
    pub fn block(self) -> Self {
        self.limit(Limit::block())
    }

    /// Exempts checks with these attributes, which need not be in any key, from the whole
    /// policy; with [`level`](Self::level), from that level only.
    pub fn exempt(mut self) -> Self {
        self.enabled = false;
        self
    }
}

/// Makes the methods that set one of the [`Settings`].
macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident: $kind:ty),+) => {$(
        $(#[$doc])*
        pub fn $name(mut self, $name: $kind) -> Self {
            self.settings.$name = $name.into();
            self
        }
    )+};
}

impl PolicyBuilder {
    /// The key of a policy with one level; `{key}` by default.
    pub fn key(mut self, template: impl Into<String>) -> Self {
        self.only.key = Some(template.into());
        self
    }

    /// The limit of a policy with one level.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.only.limit = limit.into();
        self
    }

    /// Adds a level, instead of [`key`](Self::key) and [`limit`](Self::limit). Either all
    /// levels are charged, or none.
    pub fn level(mut self, name: impl Into<String>, key: impl Into<String>, limit: Limit) -> Self {
        self.levels.push(LevelDraft {
            name: name.into(),
            key: Some(key.into()),
            limit: limit.into(),
        });
        self
    }

    /// The attributes that select the cluster slot of the keys. Every level must have them
    /// in its key; by default, all attributes that every level has.
    pub fn tag(mut self, template: impl Into<String>) -> Self {
        self.tag = Some(template.into());
        self
    }

    /// Lets your own script decide instead of the levels' limits. Redis only.
    pub fn script(mut self, script: CustomScript) -> Self {
        self.script = Some(script);
        self
    }

    /// Adds a level with a key for [`script`](Self::script), and without a limit.
    pub fn script_key(mut self, name: impl Into<String>, key: impl Into<String>) -> Self {
        self.levels.push(LevelDraft {
            name: name.into(),
            key: Some(key.into()),
            limit: LimitFields::default(),
        });
        self
    }

    /// Adds an override: different numbers for some keys. The first match wins.
    pub fn overrides(mut self, change: Override) -> Self {
        self.overrides.push(change);
        self
    }

    /// Refuses everything.
    pub fn block(mut self, block: bool) -> Self {
        self.only.limit.block = Some(block);
        self
    }

    /// Makes this policy a trial of another one: the server checks it whenever it checks that
    /// one, with the same attributes and cost. It never refuses.
    pub fn trial_of(mut self, policy: impl Into<String>) -> Self {
        self.settings.trial_of = Some(policy.into());
        self
    }

    /// The headers that clients see.
    pub fn headers(mut self, dialect: Dialect) -> Self {
        self.headers = dialect;
        self
    }

    settings! {
        /// When to ask the store.
        mode: Mode,

        /// How often a node in background mode sends its counts to the store: from 1 ms to 60 s,
        /// 50 ms by default.
        sync_interval: Duration,

        /// The longest time that a refusal is remembered; zero turns it off.
        refusal_memory: Duration,

        /// What to answer when the store fails: [`OnError::Local`] by default, and
        /// [`OnError::Allow`] for a script.
        on_error: OnError,

        /// This node's share of the limit under [`OnError::Local`].
        local_share: f64,

        /// Counts refused requests too, so that a client that keeps retrying stays out.
        count_denied: bool,

        /// Shadow mode: everything is allowed, and measured as if the limit were enforced.
        shadow: bool,

        /// `false` allows everything and measures nothing.
        enabled: bool,

        /// The name of the store that keeps the counters; `default` by default.
        store: impl Into<String>
    }
}
