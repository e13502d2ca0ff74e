//! `tidegate serve`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tidegate::Policy;
use tidegate_config::{Config, Secret};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::api::door::Http;
use crate::api::{self, Api, Scope};
use crate::cli::Serve;
use crate::engine::{Engine, Redaction};
use crate::grpc::Grpc;
use crate::record::Recorder;
use crate::reload::Started;
use crate::resp::Resp;
use crate::section::Server;
use crate::serve::{Listener, Protocol, Room, Signals, Tls};
use crate::settings::Settings;
use crate::{envoy, log, reload, serve};

/// How long the last lines of a record may take.
const LAST_LINES: Duration = Duration::from_secs(10);

/// Connections of operators at once.
pub(super) const ADMINS: usize = 100;

pub(super) async fn run(arguments: &Serve) -> anyhow::Result<ExitCode> {
    // Before any client can know that it runs.
    let (signals, hangup) = (Signals::new()?, signal(SignalKind::hangup())?);
    let settings = Settings::new(&arguments.source, arguments.listen())?;
    let loaded = settings.load()?;
    let (config, server) = (loaded.config.clone(), loaded.server.clone());
    let started = Started {
        seen: loaded.seen.clone(),
        server: server.clone(),
        log: log::start(server.log, arguments.log_format),
    };
    for replaced in &loaded.replaced {
        tracing::warn!("{replaced}");
    }
    let salt = arguments.record_salt.as_ref().and_then(Secret::text);
    let redaction = Arc::new(Redaction::new(salt));
    let recorder = recorder(arguments, Arc::clone(&redaction))?;
    let engine = Arc::new(Engine::new(loaded)?.recording(redaction, recorder));
    engine.verify().await?;
    let listeners = listen(&engine, &server).await?;
    if let Some(first) = listeners.first() {
        tracing::info!("try: {}", example(&config, &first.url()));
    }
    attend(&engine, settings, started, hangup);
    serve::run(Arc::clone(&engine), listeners, signals).await?;
    // A disk that hangs is no reason to stay.
    let finish = spawn_blocking(move || engine.finish_record());
    if timeout(LAST_LINES, finish).await.is_err() {
        tracing::warn!("stopped; some decisions are missing from the record");
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts what goes on beside requests: stores are probed, and changes of the config are
/// taken.
pub(super) fn attend(engine: &Arc<Engine>, settings: Settings, started: Started, hangup: Signal) {
    let probe = Arc::clone(engine);
    tokio::spawn(async move {
        for warning in api::warnings(&probe.current().config) {
            tracing::warn!("{warning}");
        }
        probe.probe().await;
    });
    tokio::spawn(Arc::clone(engine).probe_idle_stores());
    tokio::spawn(Arc::clone(engine).keep_watch());
    let engine = Arc::clone(engine);
    tokio::spawn(reload::watch(engine, settings, started, hangup));
}

/// Opens the sockets. Operators with an address of their own are served there alone.
async fn listen(engine: &Arc<Engine>, server: &Server) -> anyhow::Result<Vec<Listener>> {
    let clients = Room::new(serve::MAX_CONNECTIONS, serve::SPARE_CONNECTIONS);
    let public = match &server.admin[..] {
        [] => Scope::All,
        _ => Scope::Public,
    };
    let http = |scope| -> Arc<dyn Protocol> { Http::new(Api::new(Arc::clone(engine), scope)) };
    let admins = Room::new(ADMINS, 0);
    let askers = Room::new(serve::MAX_CONNECTIONS, serve::SPARE_CONNECTIONS);
    let resp = Resp::new(Arc::clone(engine));
    let proxies = Room::new(serve::MAX_CONNECTIONS, serve::SPARE_CONNECTIONS);
    let grpc = Http::new(Grpc(envoy::services(engine)));
    let operators = match &server.admin[..] {
        [] => &server.http,
        _ => &server.admin,
    };
    let (mut listeners, mut dashboard) = (Vec::new(), None);
    let doors = [
        (&server.http, "--http", http(public), clients, ""),
        (
            &server.admin,
            "--admin",
            http(Scope::Admin),
            admins,
            " (admin)",
        ),
        (&server.resp, "--resp", resp, askers, ""),
        (&server.grpc, "--grpc", grpc, proxies, ""),
    ];
    for (addresses, flag, door, room, role) in doors {
        let (own, name) = (Arc::clone(engine), flag.trim_start_matches("--"));
        let tls: Tls = Arc::new(move || own.current().tls(name));
        for address in addresses {
            let (door, tls, room) = (Arc::clone(&door), Arc::clone(&tls), room.clone());
            let mode = server.socket_mode;
            let listener = Listener::open_with_mode(address, flag, door, tls, room, mode);
            let listener = listener.await?;
            tracing::info!("listening on {}{role}", listener.url());
            // A browser opens no unix socket.
            if std::ptr::eq(addresses, operators) && listener.address().is_some() {
                dashboard.get_or_insert_with(|| listener.url());
            }
            listeners.push(listener);
        }
    }
    if let Some(url) = dashboard {
        tracing::info!("dashboard: {url}/");
    }
    Ok(listeners)
}

/// Opens the record, if there is to be one.
fn recorder(arguments: &Serve, redaction: Arc<Redaction>) -> anyhow::Result<Option<Recorder>> {
    let Some(file) = &arguments.record else {
        return Ok(None);
    };
    let recorder = Recorder::open(file, arguments.record_limit, redaction);
    let name = file.display();
    let recorder = recorder.with_context(|| format!("the record {name}"))?;
    tracing::info!("recording decisions in {name}");
    Ok(Some(recorder))
}

/// A command that asks for a decision.
fn example(config: &Config, url: &str) -> String {
    let policy = config.policies.first();
    let name = policy.map_or("default", |policy| policy.name());
    let attributes: Vec<&str> = policy.into_iter().flat_map(Policy::attributes).collect();
    let attributes = match attributes[..] {
        ["key"] => "\"key\":\"you\"".into(),
        _ => {
            let attributes: Vec<String> = attributes
                .iter()
                .map(|name| format!("\"{name}\":\"x\""))
                .collect();
            format!("\"attributes\":{{{}}}", attributes.join(","))
        }
    };
    let body = format!("{{\"policy\":\"{name}\",{attributes}}}");
    match url.strip_prefix("unix:") {
        Some(path) => format!("curl -d '{body}' --unix-socket {path} http://localhost/v1/check"),
        None => format!("curl -d '{body}' {url}/v1/check"),
    }
}
