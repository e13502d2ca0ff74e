//! The current config: its compiled policies, its stores, its secrets.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use foldhash::fast::FixedState;
use http::HeaderName;
use subtle::ConstantTimeEq;
use tidegate::{CheckError, Policy};
use tidegate_config::{Config, StoreUrl};
use tidegate_redis::{ErrorKind, Policies};
use tokio_rustls::TlsAcceptor;

use super::StartError;
use super::adhoc::{self, AdHoc};
use super::entry::Entry;
use crate::envoy::dropin::{self, DropIn};
use crate::envoy::rules::Domains;
use crate::metrics::Metrics;
use crate::section::Server;
use crate::serve::tls::Acceptors;
use crate::settings::{self, Loaded, reveal};
use crate::top::Top;

/// A config in force.
pub struct Current {
    pub(crate) config: Config,
    pub(crate) server: Server,
    pub(crate) limiter: Policies,
    entries: HashMap<Box<str>, Entry, FixedState>,
    /// The gate's headers, and the attributes they are.
    pub(crate) gate_headers: Vec<(HeaderName, String)>,
    tls: Option<Acceptors>,
    admin_token: Option<String>,
    resp_token: Option<String>,
    /// What its relative paths are relative to.
    pub(crate) folder: PathBuf,
    /// Whether the file has policies, or says that there are none.
    pub(super) names_policies: bool,
    /// Envoy's limits, where they are in the form of envoyproxy/ratelimit.
    dropin: Option<DropIn>,
    /// Where the protocol of Redis is spoken, whom its ad-hoc commands ask.
    adhoc: Option<AdHoc>,
}

/// Whether a request may change state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// They may.
    Granted,
    /// The token is missing, or wrong.
    Refused,
    /// No token is configured, so none may.
    Nobody,
}

/// A config with all that it names read and found right. Nothing of it is in force yet.
pub(super) struct Prepared {
    config: Config,
    server: Server,
    folder: PathBuf,
    names_policies: bool,
    pub(super) limiter: Policies,
    rules: Option<Arc<Domains>>,
    is_given: bool,
    adhoc: Option<Policy>,
    tls: Option<Acceptors>,
    admin_token: Option<String>,
    resp_token: Option<String>,
}

impl Prepared {
    /// All that can fail, but for the [scripts](verify).
    pub(super) fn new(loaded: Loaded, before: Option<&Current>) -> Result<Self, StartError> {
        let Loaded {
            config,
            server,
            folder,
            rules,
            names_policies,
            ..
        } = loaded;
        let given = before.and_then(|before| before.dropin.as_ref());
        let given = given.filter(|it| it.is_given && server.envoy.config.is_none());
        let is_given = given.is_some() || server.envoy.config.is_none();
        let rules = match &server.envoy.config {
            Some(path) => Some(settings::rules(&folder.join(path), &server.envoy)?),
            None => rules,
        };
        let rules = rules.map(Arc::new);
        let rules = rules.or_else(|| given.map(|given| Arc::clone(&given.domains)));
        let resp_token = server.resp_token.as_ref();
        let resp_token = resp_token.map(|token| reveal(token, "server.resp_token", &folder));
        let resp_token = resp_token.transpose()?;
        let admin_token = server.admin_token.as_ref();
        let admin_token = admin_token.map(|token| reveal(token, "server.admin_token", &folder));
        let admin_token = admin_token.transpose()?;
        // The config as the stores see it: with the policy behind ad-hoc commands.
        let mut asked = Cow::Borrowed(&config);
        let adhoc = match server.resp.is_empty() {
            true => None,
            false => match adhoc::of(&config)? {
                Some(policy) => Some(policy.clone()),
                None => {
                    let policy = adhoc::standard();
                    asked.to_mut().policies.push(policy.clone());
                    Some(policy)
                }
            },
        };
        if let Some(rules) = &rules {
            let policies = dropin::policies(rules, &server.envoy)?;
            asked.to_mut().policies.extend(policies);
        }
        let limiter = match before {
            Some(before) => before.limiter.prepare(&asked, &folder)?,
            None => Policies::from_config(&asked, &folder)?,
        };
        let removed = before.filter(|before| before.names_policies && !names_policies);
        let removed = removed.map_or(0, |before| before.config.policies.len());
        if removed > 0 {
            return Err(StartError::NoPolicies(removed));
        }
        Ok(Self {
            tls: Acceptors::new(&server, &folder).map_err(StartError::Tls)?,
            admin_token,
            resp_token,
            config,
            server,
            folder,
            names_policies,
            limiter,
            rules,
            is_given,
            adhoc,
        })
    }

    /// Puts the config in force. Nothing can fail any more, so what it shares with the
    /// config before it may change now.
    pub(super) fn commit(
        self,
        metrics: &Metrics,
        instance: u64,
        before: Option<&Current>,
    ) -> Current {
        let Self {
            config,
            server,
            folder,
            names_policies,
            limiter,
            rules,
            is_given,
            adhoc,
            tls,
            admin_token,
            resp_token,
        } = self;
        if before.is_some() {
            limiter.commit(&config);
        }
        let gate_headers = server.gate_headers.iter().filter_map(|attribute| {
            let name = format!("x-tidegate-{}", attribute.to_lowercase().replace('_', "-"));
            Some((HeaderName::try_from(name).ok()?, attribute.clone()))
        });
        let entry = |policy: &Policy| {
            let (name, store) = (policy.name(), policy.store());
            let is_memory = |url: &StoreUrl| *url == StoreUrl::Memory;
            let url = config.stores.get(store).map(|store| &store.url);
            // Every server on a shared store can refund what was charged there.
            let instance = if url.is_some_and(is_memory) {
                instance
            } else {
                0
            };
            let top = before.and_then(|before| before.top(name).ok());
            let top = top.filter(|top| top.is_of(policy));
            let top = top.map_or_else(|| Arc::new(Top::new(policy.attributes())), Arc::clone);
            let handle = limiter.handle(name).ok()?.clone();
            let counted = (Some(metrics.meter(name, store)), top);
            Some(Entry::new(handle, counted, instance, server.log_keys))
        };
        let entries = config.policies.iter();
        let entries = entries.filter_map(|policy| Some((policy.name().into(), entry(policy)?)));
        let mut entries: HashMap<Box<str>, Entry, FixedState> = entries.collect();
        let mut adhoc = match &adhoc {
            // Of one policy there is one list of keys.
            Some(policy) => match entries.get(adhoc::ADHOC) {
                Some(configured) => entry(policy).map(|entry| entry.counted_with(configured)),
                None => entry(policy),
            },
            None => None,
        };
        for trial in &config.policies {
            let Some(of) = trial.trial_of() else {
                continue;
            };
            let tried = match entries.remove(trial.name()) {
                Some(tried) => tried,
                None => continue,
            };
            let beside = adhoc.as_mut().filter(|_| of == adhoc::ADHOC);
            for live in entries.get_mut(of).into_iter().chain(beside) {
                tried.try_on(live);
            }
            entries.insert(trial.name().into(), tried);
        }
        let dropin = rules.map(|rules| {
            let meter = metrics.meter(dropin::NAME, &server.envoy.store);
            let before = before.and_then(|before| before.dropin.as_ref());
            let top = before.map(|before| Arc::clone(&before.top));
            DropIn::new(rules, is_given, &server, &limiter, (meter, top))
        });
        Current {
            dropin,
            gate_headers: gate_headers.collect(),
            tls,
            entries,
            adhoc: adhoc.map(AdHoc::new),
            admin_token,
            resp_token,
            limiter,
            folder,
            names_policies,
            config,
            server,
        }
    }
}

/// Finds scripts that no store could run. A store that is down is asked again by the first
/// check.
pub(super) async fn verify(limiter: &Policies) -> Result<(), StartError> {
    let wrong = limiter.verify_scripts().await;
    let script = wrong
        .into_iter()
        .find(|(_, error)| error.kind() == ErrorKind::Script);
    match script {
        Some((policy, error)) => Err(StartError::Script(policy.into(), error)),
        None => Ok(()),
    }
}

impl Current {
    /// Envoy's limits, where they are in the form of envoyproxy/ratelimit.
    #[inline]
    pub(crate) fn dropin(&self) -> Option<&DropIn> {
        self.dropin.as_ref()
    }

    /// What makes connections to a listener of this name secure, where they are.
    pub(crate) fn tls(&self, listener: &str) -> Option<TlsAcceptor> {
        let asks = self.server.tls_client_listeners.contains(&listener);
        Some(self.tls.as_ref()?.acceptor(asks).clone())
    }

    /// The entry of a policy.
    #[inline]
    pub fn entry(&self, policy: &str) -> Result<&Entry, CheckError> {
        let entry = self.entries.get(policy);
        entry.ok_or_else(|| CheckError::UnknownPolicy(policy.to_owned()))
    }

    /// The most frequent keys of a policy, of ad-hoc commands, or of Envoy's limits.
    pub(crate) fn top(&self, policy: &str) -> Result<&Arc<Top>, CheckError> {
        let entry = match &self.adhoc {
            Some(adhoc) if policy == adhoc::ADHOC => Ok(adhoc.entry()),
            _ => self.entry(policy),
        };
        let dropin = self.dropin.as_ref().filter(|_| policy == dropin::NAME);
        match (entry, dropin) {
            (Err(_), Some(dropin)) => Ok(&dropin.top),
            (entry, _) => entry.map(Entry::top),
        }
    }

    /// The most frequent keys of all that is asked.
    pub(crate) fn tops(&self) -> impl Iterator<Item = &Arc<Top>> {
        let entries = self.watched_all().map(Entry::top);
        entries.chain(self.dropin.iter().map(|dropin| &dropin.top))
    }

    /// All entries, in the order of the config; behind them that of ad-hoc commands, where
    /// the config has none.
    pub(crate) fn watched_all(&self) -> impl Iterator<Item = &Entry> {
        let configured = self.config.policies.iter();
        let configured = configured.filter_map(|policy| self.entries.get(policy.name()));
        let adhoc = self.adhoc.iter().map(AdHoc::entry);
        configured.chain(adhoc.filter(|it| !self.entries.contains_key(it.policy().name())))
    }

    /// Whom ad-hoc commands ask.
    #[inline]
    pub(crate) fn adhoc(&self) -> Option<&AdHoc> {
        self.adhoc.as_ref()
    }

    /// Whether clients of the protocol of Redis must show a token before they may ask.
    #[inline]
    pub(crate) fn needs_resp_token(&self) -> bool {
        self.resp_token.is_some()
    }

    /// Whether this is that token.
    pub(crate) fn is_resp_token(&self, token: &[u8]) -> bool {
        let expected = self.resp_token.as_ref();
        expected.is_some_and(|expected| bool::from(token.ct_eq(expected.as_bytes())))
    }

    /// Whether this token allows changes.
    pub fn access(&self, token: Option<&[u8]>) -> Access {
        let Some(expected) = &self.admin_token else {
            return Access::Nobody;
        };
        // In constant time, so that timing does not reveal the token.
        match token {
            Some(token) if bool::from(token.ct_eq(expected.as_bytes())) => Access::Granted,
            _ => Access::Refused,
        }
    }
}
