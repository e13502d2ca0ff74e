//! `tidegate ratelimit`: the server as a replacement for envoyproxy/ratelimit.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;

use super::serve::{ADMINS, attend};
use crate::api::door::Http;
use crate::engine::{Engine, StartError};
use crate::envoy::rules::Domains;
use crate::envoy::xds::{self, ControlPlane, wire::RateLimitConfig};
use crate::grpc::Grpc;
use crate::ratelimit::environment::{Environment, Limits};
use crate::ratelimit::pages::{Pages, Part};
use crate::ratelimit::statistics::Statistics;
use crate::ratelimit::statsd::Statsd;
use crate::reload::Started;
use crate::section::Address;
use crate::serve::{Listener, Protocol, Room, Signals, Tls};
use crate::settings::{Loaded, Settings};
use crate::{envoy, log, serve};

/// How long the last statistics may take.
const LAST_STATISTICS: Duration = Duration::from_secs(2);

pub(super) async fn run() -> anyhow::Result<ExitCode> {
    let (mut signals, hangup) = (Signals::new()?, signal(SignalKind::hangup())?);
    let set = std::env::vars_os();
    let set =
        set.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let environment = Environment::read(set).map_err(|errors| anyhow!(errors.join("\n")))?;
    let settings = Settings::written(environment.config());
    let loaded = settings.load()?;
    let started = Started {
        seen: loaded.seen.clone(),
        server: loaded.server.clone(),
        log: log::start(environment.log, environment.log_format),
    };
    for warning in &environment.warnings {
        tracing::warn!("{warning}");
    }
    let statistics = Arc::new(Statistics::default());
    let engine = start(&environment, loaded)?;
    let engine = engine.answering(environment.options.clone(), Some(statistics.clone()));
    let engine = Arc::new(engine);
    engine.verify().await?;
    if let Limits::Xds(plane) = &environment.limits {
        let arrived = receive(&engine, plane);
        if !environment.start_without_limits {
            tokio::select! {
                () = arrived => {}
                () = signals.stopped() => return Ok(ExitCode::SUCCESS),
            }
        }
    }
    let listeners = listen(&environment, &engine, &statistics).await?;
    attend(&engine, settings, started, hangup);
    let statsd = environment.statsd.as_ref().map(|(address, period)| {
        let statsd = Arc::new(Statsd::new(address, &statistics, &engine));
        tokio::spawn(Arc::clone(&statsd).run(*period));
        statsd
    });
    serve::run(engine, listeners, signals).await?;
    if let Some(statsd) = statsd {
        // Nobody waits longer for a statsd that is not there.
        drop(timeout(LAST_STATISTICS, statsd.flush()).await);
    }
    Ok(ExitCode::SUCCESS)
}

/// Puts the limits of the files in force. Those of a control plane come later.
fn start(environment: &Environment, loaded: Loaded) -> Result<Engine, StartError> {
    let empty = Loaded {
        config: loaded.config.clone(),
        server: loaded.server.clone(),
        rules: Some(Domains::default()),
        folder: loaded.folder.clone(),
        names_policies: loaded.names_policies,
        seen: loaded.seen.clone(),
        replaced: Vec::new(),
    };
    if matches!(environment.limits, Limits::Xds(_)) {
        return Engine::new(empty);
    }
    match Engine::new(loaded) {
        Ok(engine) => {
            engine.metrics.reloaded(true);
            Ok(engine)
        }
        Err(error @ StartError::Load(_)) if environment.start_without_limits => {
            for error in error.to_string().lines() {
                tracing::error!(error, "starting without limits until the files are valid");
            }
            let mut empty = empty;
            empty.server.envoy.config = None;
            let engine = Engine::new(empty)?;
            engine.metrics.reloaded(false);
            Ok(engine)
        }
        Err(error) => Err(error),
    }
}

/// Takes limits from a control plane from now on. The future is ready when the first have
/// come.
fn receive(engine: &Arc<Engine>, plane: &ControlPlane) -> impl Future<Output = ()> + use<> {
    let (came, mut arrived) = watch::channel(false);
    let (engine, came) = (Arc::clone(engine), Arc::new(came));
    tokio::spawn(xds::watch(plane.clone(), move |configs| {
        let (engine, came) = (Arc::clone(&engine), Arc::clone(&came));
        async move {
            let changed = apply(&engine, configs).await;
            engine.metrics.reloaded(changed.is_ok());
            for change in changed? {
                tracing::info!("changed: {change}");
            }
            came.send_replace(true);
            Ok(())
        }
    }));
    async move {
        // Who sends lives as long as the process.
        drop(arrived.wait_for(|came| *came).await);
    }
}

async fn apply(engine: &Engine, configs: Vec<RateLimitConfig>) -> Result<Vec<String>, String> {
    let defaults = engine.current().server.envoy.defaults();
    let domains = Domains::build(xds::drafts(configs), &defaults);
    let domains = domains.map_err(|errors| errors.to_string())?;
    let changed = engine.change_rules(domains).await;
    changed.map_err(|error| error.to_string())
}

/// Opens the sockets. Certificates are for gRPC alone.
async fn listen(
    environment: &Environment,
    engine: &Arc<Engine>,
    statistics: &Arc<Statistics>,
) -> anyhow::Result<Vec<Listener>> {
    let pages = |part| -> Arc<dyn Protocol> { Http::new(Pages::new(engine, statistics, part)) };
    let clients = || Room::new(serve::MAX_CONNECTIONS, serve::SPARE_CONNECTIONS);
    let own = Arc::clone(engine);
    let certificate: Tls = Arc::new(move || own.current().tls("grpc"));
    let clear: Tls = Arc::new(|| None);
    let grpc = Http::new(Grpc(envoy::services(engine)));
    let operators = || Room::new(ADMINS, 0);
    let (http, debug) = (pages(Part::Service), pages(Part::Debug));
    let mut listeners = vec![
        open(&environment.http, "PORT", http, &clear, clients(), "").await?,
        open(
            &environment.grpc,
            "GRPC_PORT",
            grpc,
            &certificate,
            clients(),
            "",
        )
        .await?,
        open(
            &environment.debug,
            "DEBUG_PORT",
            debug,
            &clear,
            operators(),
            " (debug)",
        )
        .await?,
    ];
    if let Some((address, path)) = &environment.prometheus {
        let page = pages(Part::Statistics(path.clone()));
        let role = " (statistics)";
        let listener = open(address, "PROMETHEUS_ADDR", page, &clear, operators(), role);
        listeners.push(listener.await?);
    }
    Ok(listeners)
}

/// Opens one, whose address a variable says.
async fn open(
    address: &str,
    variable: &'static str,
    door: Arc<dyn Protocol>,
    tls: &Tls,
    room: Room,
    role: &str,
) -> anyhow::Result<Listener> {
    let address: Result<Address, String> = address.parse();
    let address = address.map_err(|error| anyhow!("{variable}: {error}"))?;
    let listener = Listener::open(&address, variable, door, Arc::clone(tls), room).await?;
    tracing::info!("listening on {}{role}", listener.url());
    Ok(listener)
}
