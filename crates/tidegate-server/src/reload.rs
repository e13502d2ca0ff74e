//! A new config while requests go on: when the file changes, or on SIGHUP.
//!
//! The file is read twice a second and taken when it has read the same twice. That
//! needs no help from the file system: it works with editors that replace a file, with
//! Kubernetes, which swaps a link, and over a network; and a file that is still being
//! written is not taken.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::time::{MissedTickBehavior, interval};

use crate::api;
use crate::engine::Engine;
use crate::settings::{Seen, Settings};

const PERIOD: Duration = Duration::from_millis(500);

/// Takes a new config whenever there is one, for ever. `taken` is what was read of the
/// one in force.
pub async fn watch(engine: Arc<Engine>, settings: Settings, mut taken: Seen, mut hangup: Signal) {
    let mut tick = interval(PERIOD);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut candidate = None;
    loop {
        let asked = tokio::select! {
            _ = hangup.recv() => true,
            _ = tick.tick() => false,
        };
        let now = look(&settings, &taken).await;
        if !asked {
            // Nothing: in the middle of being replaced.
            if now.is_none() || now.as_ref() == Some(&taken) {
                candidate = None;
                continue;
            }
            if now != candidate {
                candidate = now;
                continue;
            }
        }
        // A config that cannot be read at all has no other files.
        let read = reload(&engine, &settings).await;
        if let Some(read) = read.or(now) {
            taken = read;
        }
        candidate = None;
    }
}

/// What there is to read now. Reading may take a while where files are far away.
async fn look(settings: &Settings, taken: &Seen) -> Option<Seen> {
    let (settings, taken) = (settings.clone(), taken.clone());
    let read = tokio::task::spawn_blocking(move || settings.look(&taken));
    read.await.ok().flatten()
}

/// Reads the config and puts it in force, or says why not and goes on with the old one.
/// Returns what was read, if it was a config.
async fn reload(engine: &Engine, settings: &Settings) -> Option<Seen> {
    let before = Arc::clone(&engine.current());
    let (seen, changed) = match settings.load() {
        Ok(loaded) => (Some(loaded.seen.clone()), engine.change(loaded).await),
        Err(error) => (None, Err(error.into())),
    };
    engine.metrics.reloaded(changed.is_ok());
    match changed {
        Ok(current) => {
            tracing::info!(
                policies = current.config.policies.len(),
                "the config is in force"
            );
            for (field, is_same) in [
                ("http", current.server.http == before.server.http),
                ("admin", current.server.admin == before.server.admin),
            ] {
                if !is_same {
                    tracing::warn!("server.{field} has changed: it takes effect at the next start");
                }
            }
            for warning in api::warnings(&current.config) {
                tracing::warn!("{warning}");
            }
            engine.probe().await;
        }
        Err(error) => {
            for error in error.to_string().lines() {
                tracing::error!(error, "the config is wrong, and the old one stays in force");
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests;
