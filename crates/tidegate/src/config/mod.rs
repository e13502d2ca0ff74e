//! The file `tidegate.toml`: text in, policies out, or everything that is wrong with
//! it. Opening the file and reading the environment is left to others.

mod error;
mod limits;
mod policies;
mod print;
mod read;
mod sections;
mod syntax;
mod url;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use toml::de::DeTable;

pub use error::{ConfigError, ConfigErrors};
pub use url::StoreUrl;

use error::Errors;
use read::Fields;

use crate::limit::Limit;
use crate::memory::{MemoryStore, WhenFull};
use crate::policy::{PoliciesError, Policy, PolicyLimiter};

/// What a config file says.
///
/// ```
/// use tidegate::{Config, Cost, PolicyLimiter};
///
/// let config: Config = r#"
///     [[policies]]
///     name = "login"
///     key = "{ip}"
///     limit = "5r/m"
/// "#
/// .parse()?;
/// let limiter = PolicyLimiter::from_config(&config)?;
/// assert!(limiter.check("login", &[("ip", "203.0.113.7")], Cost::ONE)?.allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// `Display` prints what `parse` reads, but for a secret that stands in the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// How the server listens.
    pub server: Server,
    /// The stores, by name; there is always one of the name `default`.
    pub stores: BTreeMap<String, Store>,
    /// The policies, in the order of the file; never empty.
    pub policies: Vec<Policy>,
}

/// How the server listens, and whom it obeys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// The addresses of the HTTP server.
    pub http: Vec<Address>,
    /// What a client must show to change anything.
    pub admin_token: Option<Secret>,
    /// Attributes that the gate may also read from headers.
    pub gate_headers: Vec<String>,
    /// The file of the certificate, where the TCP addresses speak TLS.
    pub tls_cert: Option<String>,
    /// And the file of its key.
    pub tls_key: Option<String>,
    /// Whether log lines show keys as they are.
    pub log_keys: bool,
}

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A host and a port, such as `127.0.0.1:8080` or `[::1]:8080`.
    Tcp(String),
    /// A socket at this path.
    Unix(String),
}

/// A text that does not belong into a log.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// The value of an environment variable.
    Env(String),
    /// The text itself.
    Text(String),
}

/// Where counts are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    /// Where it is.
    pub url: StoreUrl,
    /// For `rediss://`, the file of the authority that has signed the server's
    /// certificate, where that is not a public one.
    pub tls_ca: Option<String>,
    /// For a server that asks for one, the file of our own certificate.
    pub tls_cert: Option<String>,
    /// And the file of its key.
    pub tls_key: Option<String>,
    /// How keys in a shared store begin.
    pub prefix: String,
    /// The deadline of a check, retries included.
    pub timeout: Duration,
    /// Connections to each server.
    pub connections: u32,
    /// How many replicas must have a charge.
    pub replica_acks: u32,
    /// The most keys held at once, in memory.
    pub max_keys: usize,
    /// What to do with a new key when all keys held are in use, in memory.
    pub when_full: WhenFull,
}

impl Default for Config {
    /// What holds without a file: ten requests a second for each `key`, in memory.
    fn default() -> Self {
        let policy = Policy::builder("default").limit(Limit::per_second(10));
        Self {
            server: Server::default(),
            stores: [("default".into(), Store::default())].into(),
            policies: vec![policy.build().expect("a policy that is right")],
        }
    }
}

impl Default for Server {
    fn default() -> Self {
        Self {
            http: vec![Address::Tcp("127.0.0.1:8080".into())],
            admin_token: None,
            gate_headers: Vec::new(),
            tls_cert: None,
            tls_key: None,
            log_keys: false,
        }
    }
}

impl Default for Store {
    fn default() -> Self {
        Self {
            url: StoreUrl::Memory,
            tls_ca: None,
            tls_cert: None,
            tls_key: None,
            prefix: "tg".into(),
            timeout: Duration::from_millis(50),
            connections: 2,
            replica_acks: 0,
            max_keys: 1_000_000,
            when_full: WhenFull::Evict,
        }
    }
}

impl Config {
    /// Reads the text of a file; its name is for the messages.
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigErrors> {
        Self::read(text, file, None)
    }

    /// The same, with another place for the store `default` than the file says.
    pub fn parse_with_store(text: &str, file: &str, url: &StoreUrl) -> Result<Self, ConfigErrors> {
        Self::read(text, file, Some(url))
    }

    fn read(text: &str, file: &str, url: Option<&StoreUrl>) -> Result<Self, ConfigErrors> {
        // Some editors begin a file with a byte-order mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let errors = Errors::new(text);
        let (document, syntax) = DeTable::parse_recoverable(text);
        if !syntax.is_empty() {
            // What could not be read cannot be judged.
            syntax::report(text, &syntax, &errors);
            return Err(errors.into_errors(file));
        }
        let root = Fields::root(document.get_ref(), &errors);
        let config = sections::config(&root, url);
        root.finish();
        if errors.is_empty() {
            Ok(config)
        } else {
            Err(errors.into_errors(file))
        }
    }

    /// What is allowed and yet looks like a mistake: one line each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let levels = self.policies.iter().flat_map(|policy| {
            let levels = policy.levels().iter();
            levels.map(move |level| (policy.name(), level))
        });
        let constant = levels.filter(|(_, level)| {
            level.key().attributes().len() == 0 && !level.key().as_str().is_empty()
        });
        constant
            .map(|(policy, level)| {
                format!(
                    "policy {policy:?}, level {:?}: the key {:?} has no attribute in braces, so all requests share one counter",
                    level.name(),
                    level.key().as_str()
                )
            })
            .collect()
    }
}

impl Config {
    /// Whether every policy's counts are kept in memory.
    fn check_in_memory(&self) -> Result<(), PoliciesError> {
        let elsewhere = |policy: &&Policy| {
            let store = self.stores.get(policy.store());
            store.is_some_and(|store| store.url != StoreUrl::Memory)
        };
        match self.policies.iter().find(elsewhere) {
            Some(policy) => Err(PoliciesError::NotInMemory(policy.name().into())),
            None => Ok(()),
        }
    }
}

impl FromStr for Config {
    type Err = ConfigErrors;

    fn from_str(text: &str) -> Result<Self, ConfigErrors> {
        Self::parse(text, "tidegate.toml")
    }
}

impl PolicyLimiter {
    /// A limiter over the policies and stores of a config.
    pub fn from_config(config: &Config) -> Result<Self, PoliciesError> {
        config.check_in_memory()?;
        let stores = config.stores.iter();
        let stores = stores.filter_map(|(name, store)| Some((name.as_str(), store.in_memory()?)));
        Self::with_stores(stores, config.policies.iter().cloned())
    }

    /// A limiter over another config that keeps the counts of this one, in every store
    /// that stays in memory under its name. New bounds of such a store take effect in
    /// place, once the whole config is found to be right.
    pub fn reconfigured(&self, config: &Config) -> Result<Self, PoliciesError> {
        config.check_in_memory()?;
        let same = |name: &str| self.stores().find(|(other, _)| *other == name);
        let stores = config.stores.iter().filter_map(|(name, store)| {
            let memory = match same(name).filter(|_| store.url == StoreUrl::Memory) {
                Some((_, memory)) => memory.clone(),
                None => store.in_memory()?,
            };
            Some((name.as_str(), memory))
        });
        let limiter = Self::with_stores(stores, config.policies.iter().cloned())?;
        for (name, memory) in limiter.stores() {
            if let Some(store) = config.stores.get(name) {
                memory.set_bounds(store.max_keys, store.when_full);
            }
        }
        Ok(limiter)
    }
}

impl Store {
    /// The store, if it is in memory.
    #[must_use]
    pub fn in_memory(&self) -> Option<MemoryStore> {
        let builder = MemoryStore::builder()
            .max_keys(self.max_keys)
            .when_full(self.when_full);
        (self.url == StoreUrl::Memory).then(|| builder.build())
    }
}

impl FromStr for Address {
    type Err = String;

    /// What is wrong is said in the words of a config's error.
    fn from_str(text: &str) -> Result<Self, String> {
        sections::address(text)
    }
}

impl FromStr for StoreUrl {
    type Err = String;

    /// What is wrong is said in the words of a config's error, without a password.
    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "env:{name}"),
            Self::Text(_) => f.write_str("(not shown)"),
        }
    }
}
