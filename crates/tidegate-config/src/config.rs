//! The stores and policies of a config file.

use std::collections::BTreeMap;
use std::str::FromStr;

use tidegate::{Limit, MemoryStore, Policies, PoliciesError, Policy};

use crate::error::ConfigErrors;
use crate::overrides;
use crate::policies;
use crate::read::{Fields, read};
use crate::stores::{self, StoreConfig};
use crate::url::StoreUrl;

/// The stores and the policies of a file.
///
/// `Display` prints what `parse` reads, except passwords. `{:#}` also prints defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The stores, by name; one of them is always named `default`.
    pub stores: BTreeMap<String, StoreConfig>,
    /// The policies, in the order of the file; never empty.
    pub policies: Vec<Policy>,
}

impl Default for Config {
    /// The config without a file: ten requests per second for each `key`, in memory.
    fn default() -> Self {
        let policy = Policy::builder("default").limit(Limit::per_second(10));
        Self {
            stores: [("default".into(), StoreConfig::default())].into(),
            policies: vec![policy.build().expect("a policy that is right")],
        }
    }
}

impl Config {
    /// Parses the text of a file. Error messages contain its name. The section `[server]`
    /// is ignored; the server reads it.
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigErrors> {
        read(text, file, |root| {
            root.table("server");
            root.table("envoy");
            Self::from_root(root, None)
        })
    }

    /// Reads the stores and policies of a file that [`read`] has opened. `url` replaces the
    /// URL of the store `default`.
    #[must_use]
    pub fn from_root(root: &Fields<'_>, url: Option<&StoreUrl>) -> Self {
        let mut stores = stores::read(root);
        if let (Some(url), Some(store)) = (url, stores.get_mut("default")) {
            store.url = url.clone();
        }
        let policies = policies::read(root, &stores);
        Self {
            stores,
            policies: match root.has("policies") {
                true => policies,
                false => Self::default().policies,
            },
        }
    }

    /// A limiter for these policies. All stores must be in memory.
    pub fn limiter(&self) -> Result<Policies, PoliciesError> {
        self.limiter_with(|_| None)
    }

    /// A limiter that keeps the counters of another one, in every memory store with the same
    /// name. New bounds of such a store take effect in place, once the whole config is
    /// valid.
    pub fn limiter_after(&self, before: &Policies) -> Result<Policies, PoliciesError> {
        let limiter = self.limiter_with(|name| {
            let same = before.stores().find(|(other, _)| *other == name);
            same.map(|(_, memory)| memory.clone())
        })?;
        for (name, memory) in limiter.stores() {
            if let Some(store) = self.stores.get(name) {
                memory.set_bounds(store.max_keys, store.when_full);
            }
        }
        Ok(limiter)
    }

    /// Settings that are valid but look like a mistake, one line each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for policy in &self.policies {
            for level in policy.levels() {
                let (name, key) = (level.name(), level.key());
                if key.attributes().len() == 0 && !key.as_str().is_empty() {
                    warnings.push(format!(
                        "policy {:?}, level {name:?}: the key {:?} has no attribute in braces, so all requests share one counter",
                        policy.name(),
                        key.as_str()
                    ));
                }
            }
        }
        warnings.extend(self.policies.iter().flat_map(overrides::warnings));
        warnings
    }

    /// A limiter for these policies, with stores that are there already.
    fn limiter_with(
        &self,
        existing: impl Fn(&str) -> Option<MemoryStore>,
    ) -> Result<Policies, PoliciesError> {
        let elsewhere = |policy: &&Policy| {
            let store = self.stores.get(policy.store());
            store.is_some_and(|store| store.url != StoreUrl::Memory)
        };
        if let Some(policy) = self.policies.iter().find(elsewhere) {
            return Err(PoliciesError::NotInMemory(policy.name().into()));
        }
        let stores = self.stores.iter().filter_map(|(name, store)| {
            let memory = existing(name).filter(|_| store.url == StoreUrl::Memory);
            Some((name.as_str(), memory.or_else(|| store.in_memory())?))
        });
        Policies::with_stores(stores, self.policies.iter().cloned())
    }
}

impl FromStr for Config {
    type Err = ConfigErrors;

    fn from_str(text: &str) -> Result<Self, ConfigErrors> {
        Self::parse(text, "tidegate.toml")
    }
}
