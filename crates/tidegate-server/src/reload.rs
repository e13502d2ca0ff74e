//! A new config while requests go on: when the file changes, or on SIGHUP.
//!
//! The file is read twice a second and taken when it has read the same twice. That
//! needs no help from the file system: it works with editors that replace a file, with
//! Kubernetes, which swaps a link, and over a network; and a file that is still being
//! written is not taken.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use crate::app::{App, Running};
use crate::settings::Settings;

const PERIOD: Duration = Duration::from_millis(500);

/// Takes a new config whenever there is one, for ever.
pub async fn watch(app: Arc<App>, settings: Settings) -> std::io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut tick = interval(PERIOD);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut running = app.running();
    let mut taken = read(&settings, &running).await;
    let mut candidate = None;
    loop {
        let asked = tokio::select! {
            _ = hangup.recv() => true,
            _ = tick.tick() => false,
        };
        let now = read(&settings, &running).await;
        if !asked {
            // Not there: in the middle of being replaced.
            if now.is_none() || now == taken {
                candidate = None;
                continue;
            }
            if now != candidate {
                candidate = now;
                continue;
            }
        }
        reload(&app, &settings).await;
        running = app.running();
        taken = read(&settings, &running).await;
        candidate = None;
    }
}

/// What there is to read now. Reading may take a while where files are far away.
async fn read(settings: &Settings, running: &Arc<Running>) -> Option<Vec<u8>> {
    let (settings, running) = (settings.clone(), Arc::clone(running));
    let read = tokio::task::spawn_blocking(move || settings.peek(&running.config));
    read.await.ok().flatten()
}

/// Reads the config and puts it in force, or says why not and goes on with the old one.
async fn reload(app: &App, settings: &Settings) {
    let before = app.running();
    let changed = match settings.load() {
        Ok(loaded) => app.change(loaded).await,
        Err(error) => Err(error.into()),
    };
    app.metrics.reloaded(changed.is_ok());
    match changed {
        Ok(running) => {
            tracing::info!(
                policies = running.config.policies.len(),
                "the config is in force"
            );
            if running.config.server.http != before.config.server.http {
                tracing::warn!("server.http has changed: it takes effect at the next start");
            }
            app.probe(&running).await;
        }
        Err(error) => {
            tracing::error!(%error, "the config is wrong, and the old one stays in force");
        }
    }
}
