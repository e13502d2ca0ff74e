//! What all requests share: the limiter in force, the metrics, and whether to send more.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use arc_swap::ArcSwap;
use foldhash::fast::FixedState;
use http::{HeaderName, HeaderValue};
use subtle::ConstantTimeEq;
use tidegate::{Config, Limit, Limiter};
use tidegate_redis::{ErrorKind, SetupError, SharedLimiter, Store, StoreError};
use tokio_rustls::TlsAcceptor;

use crate::api::body::Room;
use crate::api::outgoing::Unsent;
use crate::api::query::RESERVED;
use crate::metrics::{Meters, Metrics};
use crate::record::Recorder;
use crate::serve::tls;
use crate::settings::{LoadError, Loaded, reveal};

/// One for the whole process.
pub struct App {
    running: ArcSwap<Running>,
    pub(crate) metrics: Metrics,
    /// The stores have been asked once, whatever they said.
    probed: AtomicBool,
    draining: AtomicBool,
    /// Tells this process from others that keep counts in memory.
    pub(crate) instance: u64,
    /// Room for the bodies of requests.
    pub(crate) room: Room,
    /// Room for the bodies of responses.
    pub(crate) unsent: Unsent,
    /// Makes of a key what stands in the log.
    pub(crate) redaction: RandomState,
    /// Keeps log lines about requests from flooding.
    pub(crate) lines: Limiter,
    /// Where decisions are recorded, if they are.
    pub(crate) recorder: Option<Recorder>,
}

/// A config in force.
pub(crate) struct Running {
    pub(crate) config: Config,
    pub(crate) limiter: SharedLimiter,
    pub(crate) meters: Meters,
    /// What policies of one level always say of their limits in a header.
    pub(crate) constant_values: HashMap<Box<str>, HeaderValue, FixedState>,
    /// The gate's headers, and the attributes they are.
    pub(crate) gate_headers: Vec<(HeaderName, String)>,
    pub(crate) tls: Option<TlsAcceptor>,
    admin_token: Option<String>,
}

/// Why a config cannot be in force.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// It does not fit together.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// A script cannot be run.
    #[error("the script of policy {0:?}: {1}")]
    Script(String, StoreError),
    /// The certificate cannot be used.
    #[error("{0}")]
    Tls(String),
}

/// Whether somebody may change anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Granted,
    /// The token is missing, or wrong.
    Refused,
    /// No token is configured, so nobody may.
    Nobody,
}

impl App {
    /// Puts a config in force.
    pub fn new(loaded: Loaded) -> Result<Self, StartError> {
        let metrics = Metrics::new();
        let running = Running::new(loaded, &metrics, None)?;
        Ok(Self {
            running: ArcSwap::from_pointee(running),
            metrics,
            probed: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            room: Room::new(),
            unsent: Unsent::new(),
            redaction: RandomState::new(),
            instance: RandomState::new().build_hasher().finish(),
            lines: Limiter::in_memory(Limit::per_minute(6).burst(1)),
            recorder: None,
        })
    }

    /// And records every decision.
    #[must_use]
    pub(crate) fn recording(self, recorder: Option<Recorder>) -> Self {
        Self { recorder, ..self }
    }

    /// Puts another config in force: requests under way go on with the old one.
    pub(crate) async fn change(&self, loaded: Loaded) -> Result<Arc<Running>, StartError> {
        let before = self.running();
        let running = Arc::new(Running::new(loaded, &self.metrics, Some(&before))?);
        running.verify().await?;
        self.running.store(Arc::clone(&running));
        Ok(running)
    }

    /// Whether the stores take the scripts of the config in force, as far as they can
    /// be reached.
    pub async fn verify(&self) -> Result<(), StartError> {
        self.running().verify().await
    }

    /// The config in force.
    pub(crate) fn running(&self) -> Arc<Running> {
        self.running.load_full()
    }

    /// Whether requests should come here. A store that is down is no reason against it:
    /// then `on_error` is in force.
    pub(crate) fn is_ready(&self) -> Result<(), &'static str> {
        match (self.draining.load(Relaxed), self.probed.load(Relaxed)) {
            (true, _) => Err("shutting down"),
            (false, false) => Err("the stores have not been asked yet"),
            (false, true) => Ok(()),
        }
    }

    /// Whether the end has begun.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    pub(crate) fn drain(&self) {
        self.draining.store(true, Relaxed);
    }

    /// Asks every store once, and says what looks wrong.
    pub(crate) async fn probe(&self, running: &Running) {
        for warning in running.warnings() {
            tracing::warn!("{warning}");
        }
        for warning in running.limiter.warnings().await {
            tracing::warn!("{warning}");
        }
        for (name, store) in running.limiter.stores() {
            if let Store::Redis(store) = store
                && !store.stats().up
            {
                tracing::warn!(
                    store = name,
                    "the store does not answer: until it does, on_error decides"
                );
            }
        }
        self.probed.store(true, Relaxed);
    }
}

impl Running {
    fn new(loaded: Loaded, metrics: &Metrics, before: Option<&Self>) -> Result<Self, StartError> {
        let Loaded { config, folder, .. } = loaded;
        let server = &config.server;
        let admin_token = server.admin_token.as_ref();
        let admin_token = admin_token.map(|token| reveal(token, "server.admin_token"));
        let gate_headers = server.gate_headers.iter().filter_map(|attribute| {
            let name = format!("x-tidegate-{}", attribute.to_lowercase().replace('_', "-"));
            Some((HeaderName::try_from(name).ok()?, attribute.clone()))
        });
        let constant_values = config.policies.iter().filter_map(|policy| {
            let [level] = policy.levels() else {
                return None;
            };
            let value = HeaderValue::from_str(level.header_item()).ok()?;
            Some((level.header_item().into(), value))
        });
        Ok(Self {
            constant_values: constant_values.collect(),
            admin_token: admin_token.transpose()?,
            gate_headers: gate_headers.collect(),
            tls: tls::acceptor(server, &folder).map_err(StartError::Tls)?,
            limiter: match before {
                Some(before) => before.limiter.reconfigured(&config, &folder)?,
                None => SharedLimiter::from_config(&config, &folder)?,
            },
            meters: metrics.meters(&config.policies),
            config,
        })
    }

    /// What is allowed and yet looks like a mistake.
    fn warnings(&self) -> Vec<String> {
        let mut warnings = self.config.warnings();
        for policy in &self.config.policies {
            let levels = policy.levels().iter();
            let mut names = levels.flat_map(|level| level.key().attributes());
            if let Some(name) = names.find(|name| RESERVED.contains(name)) {
                warnings.push(format!(
                    "policy {:?}: the attribute {name:?} means something else in a URL: only /v1/check can be asked",
                    policy.name()
                ));
            }
        }
        warnings
    }

    /// Finds scripts that no store could run. A store that is down is asked again by
    /// the first check.
    async fn verify(&self) -> Result<(), StartError> {
        let wrong = self.limiter.verify_scripts().await;
        let script = wrong
            .into_iter()
            .find(|(_, error)| error.kind() == ErrorKind::Script);
        match script {
            Some((policy, error)) => Err(StartError::Script(policy.into(), error)),
            None => Ok(()),
        }
    }

    /// Whether this token lets somebody change anything.
    pub(crate) fn access(&self, token: Option<&[u8]>) -> Access {
        let Some(expected) = &self.admin_token else {
            return Access::Nobody;
        };
        // In constant time, so that nobody can feel their way to it.
        match token {
            Some(token) if bool::from(token.ct_eq(expected.as_bytes())) => Access::Granted,
            _ => Access::Refused,
        }
    }
}
