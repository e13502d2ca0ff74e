//! The heart that every front end asks: a policy's name, attributes and a cost in, a
//! decision out, counted, logged and recorded on the way.
//!
//! The config in force is one pointer ([`Engine::current`]) that a reload swaps. It holds
//! an [`Entry`] for each policy, with everything that an answer needs.

mod adhoc;
mod current;
mod decide;
mod entry;
mod group;
mod home;
mod lines;
mod probe;
mod question;
mod redaction;
mod trial;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Guard};
use tidegate::{Explained, PolicyError, Receipt, Which};
use tidegate_redis::{AnyStore, SetupError, StoreError, TryCheckError};
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use crate::envoy::options::Options;
use crate::envoy::rules::Domains;
use crate::envoy::tally::Tally as LimitTally;
use crate::live::Live;
use crate::metrics::Metrics;
use crate::record::Recorder;
use crate::settings::{LoadError, Loaded, Seen};
pub use adhoc::{ADHOC, AdHoc, Bucket, Numbers};
pub use current::{Access, Current};
use current::{Prepared, verify};
pub use entry::Entry;
use home::at;
use lines::Notes;
pub use question::{Answer, AnyAttributes, Call, Kind};
pub(crate) use redaction::Redaction;

/// One for the whole process.
pub struct Engine {
    current: ArcSwap<Current>,
    /// Held while the config changes: each change begins from the result of the one before.
    changing: Mutex<()>,
    pub(crate) metrics: Metrics,
    /// Where tasks live that belong to no connection.
    home: Option<Handle>,
    /// The stores have been asked once, whatever they said.
    probed: AtomicBool,
    draining: AtomicBool,
    /// Tells this process from others that keep counts in memory.
    instance: u64,
    /// Whether every request has a log line.
    logs_access: AtomicBool,
    notes: Arc<Notes>,
    /// State behind the dashboard's live view.
    pub(crate) live: Live,
    start: Instant,
    /// How Envoy's limits are answered.
    pub(crate) options: Options,
    /// Who publishes their statistics.
    pub(crate) tally: Option<Arc<dyn LimitTally>>,
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
    /// Envoy's limits make no policy.
    #[error("envoy: {0}")]
    Rules(#[from] PolicyError),
    /// A script cannot be run.
    #[error("the script of policy {0:?}: {1}")]
    Script(String, StoreError),
    /// The certificate cannot be used.
    #[error("{0}")]
    Tls(String),
    /// It has no policies, and those in force would be gone: a file that was cut short
    /// looks like this.
    #[error(
        "the file has no policies, and {0} in force would be removed: expected [[policies]], or policies = [] to remove them"
    )]
    NoPolicies(usize),
    /// The policy behind limits that come with each call cannot be used for them.
    #[error(
        "policy \"adhoc\" {0}: expected mode (exact or background), on_error, local_share, sync_interval, refusal_memory, store and a limit, and nothing else, since ad-hoc commands use it"
    )]
    AdHoc(&'static str),
}

/// What is different in Envoy's limits, in words for the log.
pub(crate) fn changed_rules(before: &Current, after: &Current) -> Vec<String> {
    let nothing = Domains::default();
    let domains = |current: &'_ Current| current.dropin().map(|it| Arc::clone(&it.domains));
    let (before, after) = (domains(before), domains(after));
    Domains::changes(
        before.as_deref().unwrap_or(&nothing),
        after.as_deref().unwrap_or(&nothing),
    )
}

impl Engine {
    /// Puts a config in force. Tasks of stores live on the runtime that calls this.
    pub fn new(loaded: Loaded) -> Result<Self, StartError> {
        let metrics = Metrics::new();
        let instance = RandomState::new().build_hasher().finish();
        let current = Prepared::new(loaded, None)?.commit(&metrics, instance, None);
        Ok(Self {
            logs_access: AtomicBool::new(current.server.access_log),
            current: ArcSwap::from_pointee(current),
            changing: Mutex::new(()),
            metrics,
            home: Handle::try_current().ok(),
            probed: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            instance,
            notes: Arc::new(Notes::new(Arc::new(Redaction::new(None)), None)),
            live: Live::new(),
            start: Instant::now(),
            options: Options::default(),
            tally: None,
        })
    }

    /// An engine without a file, whose counts are in this store.
    #[cfg(test)]
    pub(crate) fn on_store(store: tidegate::MemoryStore) -> Self {
        let loaded = || {
            crate::settings::Settings::default()
                .load()
                .expect("no file")
        };
        let engine = Self::new(loaded()).expect("a config");
        let limiter = tidegate_redis::Policies::new([("default", store)], []);
        let before = Prepared::new(loaded(), None).expect("a config");
        let mut before = before.commit(&engine.metrics, engine.instance, None);
        before.limiter = limiter.expect("a store");
        let current = Prepared::new(loaded(), Some(&before)).expect("a config");
        let current = current.commit(&engine.metrics, engine.instance, Some(&before));
        engine.current.store(Arc::new(current));
        engine
    }

    /// And hashes keys like this, and records every decision, where there is a recorder.
    #[must_use]
    pub(crate) fn recording(self, redaction: Arc<Redaction>, recorder: Option<Recorder>) -> Self {
        Self {
            notes: Arc::new(Notes::new(redaction, recorder)),
            ..self
        }
    }

    /// And answers Envoy like this where its limits are in the form of envoyproxy/ratelimit,
    /// and tells somebody what it counts.
    #[must_use]
    pub fn answering(self, options: Options, tally: Option<Arc<dyn LimitTally>>) -> Self {
        Self {
            options,
            tally,
            ..self
        }
    }

    /// Puts other limits of Envoy in force, in the form of envoyproxy/ratelimit, and all
    /// else as it is. Says what has changed. They stay until others come, or until the
    /// config names files of its own.
    pub async fn change_rules(&self, rules: Domains) -> Result<Vec<String>, StartError> {
        let _alone = self.changing.lock().await;
        let before = self.current.load_full();
        let loaded = Loaded {
            config: before.config.clone(),
            server: before.server.clone(),
            rules: Some(rules),
            folder: before.folder.clone(),
            names_policies: before.names_policies,
            seen: Seen::nothing(),
            replaced: Vec::new(),
        };
        let current = self.change_from(&before, loaded).await?;
        Ok(changed_rules(&before, &current))
    }

    /// What stands for a key in log lines and records.
    pub(crate) fn key_hash(&self, key: &str) -> String {
        self.notes.redaction.hash(key)
    }

    /// Whether every request has a log line.
    #[inline]
    pub(crate) fn logs_access(&self) -> bool {
        self.logs_access.load(Relaxed)
    }

    /// How long this process has been deciding.
    pub(crate) fn uptime(&self) -> Duration {
        self.start.elapsed()
    }

    /// The config in force. A caller that holds it keeps using it after a reload.
    #[inline]
    pub fn current(&self) -> Guard<Arc<Current>> {
        self.current.load()
    }

    /// Every level of a policy as it stands for these attributes, charging nothing.
    pub async fn explain<'c>(
        &self,
        entry: &'c Entry,
        attributes: &AnyAttributes<'_>,
    ) -> Result<Vec<Explained<'c>>, TryCheckError> {
        entry.count_peek();
        at(self.home.as_ref(), entry.handle().explain(attributes)).await
    }

    /// Forgets the keys of these attributes. Says how many there were.
    pub async fn reset(
        &self,
        entry: &Entry,
        attributes: &AnyAttributes<'_>,
        which: Which<'_>,
    ) -> Result<usize, TryCheckError> {
        let reset = entry.handle().reset(attributes, which);
        let forgotten = at(self.home.as_ref(), reset).await?;
        self.log_reset(entry, attributes, which, forgotten);
        Ok(forgotten)
    }

    /// Gives back what a check with these attributes charged, as far as it still counts.
    pub async fn refund(
        &self,
        entry: &Entry,
        attributes: &AnyAttributes<'_>,
        receipt: &Receipt,
    ) -> Result<(), TryCheckError> {
        let refund = entry.handle().refund(attributes, receipt);
        let is_paid = at(self.home.as_ref(), refund).await?;
        if let (true, Some(recorder)) = (is_paid, &self.notes.recorder) {
            recorder.refunded(entry, attributes, receipt);
        }
        Ok(())
    }

    /// Puts another config in force; requests in progress finish with the old one.
    pub(crate) async fn change(&self, loaded: Loaded) -> Result<Arc<Current>, StartError> {
        let _alone = self.changing.lock().await;
        self.change_from(&self.current.load_full(), loaded).await
    }

    /// [`change`](Self::change) for a caller that holds `changing`.
    async fn change_from(
        &self,
        before: &Arc<Current>,
        loaded: Loaded,
    ) -> Result<Arc<Current>, StartError> {
        let shared = Arc::clone(before);
        let prepare = move || Prepared::new(loaded, Some(&shared));
        let prepared = match &self.home {
            // The files that it names may be far away.
            Some(home) => {
                let prepared = home.spawn_blocking(prepare).await;
                prepared.expect("reading a config does not panic")?
            }
            None => prepare()?,
        };
        verify(&prepared.limiter).await?;
        let current = prepared.commit(&self.metrics, self.instance, Some(before));
        let current = Arc::new(current);
        self.logs_access.store(current.server.access_log, Relaxed);
        self.current.store(Arc::clone(&current));
        Ok(current)
    }

    /// Whether the stores take the scripts of the config in force, as far as they can
    /// be reached.
    pub async fn verify(&self) -> Result<(), StartError> {
        verify(&self.current.load_full().limiter).await
    }

    /// Whether requests should come here. A store that is down is no reason against it:
    /// then `on_error` is in force.
    pub fn is_ready(&self) -> Result<(), &'static str> {
        match (self.draining.load(Relaxed), self.probed.load(Relaxed)) {
            (true, _) => Err("shutting down"),
            (false, false) => Err("the stores have not been contacted yet"),
            (false, true) => Ok(()),
        }
    }

    /// Whether the end has begun.
    #[inline]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    pub(crate) fn drain(&self) {
        self.draining.store(true, Relaxed);
    }

    /// Asks every store once, and says what looks wrong.
    pub async fn probe(&self) {
        let current = self.current.load_full();
        for warning in current.limiter.warnings().await {
            tracing::warn!("{warning}");
        }
        for (_, store) in current.limiter.stores() {
            if let AnyStore::Redis(store) = store {
                store.probe().await;
            }
        }
        self.probed.store(true, Relaxed);
    }

    /// Waits until all that was recorded is in its file.
    pub(crate) fn finish_record(&self) {
        if let Some(recorder) = &self.notes.recorder {
            recorder.finish();
        }
    }
}
