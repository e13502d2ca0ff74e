//! Live reload: loads a new config when the file changes, or on SIGHUP.
//!
//! The file is read twice per second, and loaded once two reads in a row are the same. That
//! needs no support from the file system: it works with editors that replace a file, with
//! Kubernetes, which swaps a symlink, and over a network; and a file that is still being
//! written is not loaded.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::time::{MissedTickBehavior, interval};

use crate::engine::{Engine, changed_rules};
use crate::log::Control;
use crate::section::Server;
use crate::settings::{Seen, Settings};
use crate::{api, changes};

const PERIOD: Duration = Duration::from_millis(500);

/// What the server was started with.
pub struct Started {
    /// What was read of the config.
    pub seen: Seen,
    /// Its section `[server]`: some of it takes effect at a start only.
    pub server: Server,
    /// How much is logged.
    pub log: Control,
}

/// Takes a new config whenever there is one, for ever.
pub async fn watch(engine: Arc<Engine>, settings: Settings, started: Started, mut hangup: Signal) {
    let mut taken = started.seen.clone();
    let mut gone = Gone::default();
    let mut tick = interval(PERIOD);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut candidate = None;
    loop {
        let asked = tokio::select! {
            _ = hangup.recv() => true,
            _ = tick.tick() => false,
        };
        let (now, missing) = look(&settings, &taken).await;
        gone.look(missing);
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
        let read = reload(&engine, &settings, &started).await;
        if let Some(read) = read.or(now) {
            taken = read;
        }
        candidate = None;
    }
}

/// Says once that the file is gone, and once that it is back.
#[derive(Default)]
struct Gone {
    /// How often it was not there, one look after the other.
    looks: u32,
}

impl Gone {
    /// One look may fall between the end of a file and the beginning of the next.
    const CERTAIN: u32 = 2;

    fn look(&mut self, missing: Option<String>) {
        match missing {
            Some(why) => {
                self.looks = self.looks.saturating_add(1);
                if self.looks == Self::CERTAIN {
                    tracing::warn!("{why}: the config in force stays, but a restart would fail");
                }
            }
            None if self.looks >= Self::CERTAIN => {
                tracing::info!("the config file is back");
                self.looks = 0;
            }
            None => self.looks = 0,
        }
    }
}

/// What there is to read now, or why the file is not there. Reading may take a while where
/// files are far away.
async fn look(settings: &Settings, taken: &Seen) -> (Option<Seen>, Option<String>) {
    let (settings, taken) = (settings.clone(), taken.clone());
    let read = tokio::task::spawn_blocking(move || (settings.look(&taken), settings.missing()));
    read.await.unwrap_or_default()
}

/// Reads the config and puts it in force, or logs why not and keeps the old one.
/// Returns what was read, if it was a config.
async fn reload(engine: &Engine, settings: &Settings, started: &Started) -> Option<Seen> {
    let before = Arc::clone(&engine.current());
    let reading = settings.clone();
    // The file may be far away.
    let loaded = tokio::task::spawn_blocking(move || reading.load()).await;
    let (seen, changed) = match loaded.expect("reading a config does not panic") {
        Ok(loaded) => (Some(loaded.seen.clone()), engine.change(loaded).await),
        Err(error) => (None, Err(error.into())),
    };
    engine.metrics.reloaded(changed.is_ok());
    match changed {
        Ok(current) => {
            started.log.set(current.server.log);
            let mut changed = changes::between(
                (&before.config, &before.server),
                (&current.config, &current.server),
            );
            changed.extend(changed_rules(&before, &current));
            tracing::info!(
                policies = current.config.policies.len(),
                changes = changed.len(),
                "the config is in force"
            );
            for change in changed {
                tracing::info!("changed: {change}");
            }
            let (server, was) = (&current.server, &started.server);
            for (field, is_same) in [
                ("http", server.http == was.http),
                ("admin", server.admin == was.admin),
                ("resp", server.resp == was.resp),
                ("grpc", server.grpc == was.grpc),
                ("socket_mode", server.socket_mode == was.socket_mode),
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
