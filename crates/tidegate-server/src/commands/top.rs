//! `tidegate top`: which server to watch, and with which token.

use std::process::ExitCode;

use tidegate_config::Secret;
use tidegate_lab::client::Client;
use tidegate_lab::top;

use crate::cli::{Source, Top};
use crate::section::{Address, Server};
use crate::settings::{Listen, Settings, reveal};

pub(super) async fn run(arguments: &Top) -> anyhow::Result<ExitCode> {
    let mut server = Server::default();
    let mut token = arguments
        .token
        .as_ref()
        .and_then(Secret::text)
        .map(str::to_owned);
    if let Some(file) = &arguments.config {
        let source = Source {
            config: Some(file.clone()),
            store: None,
        };
        let loaded = Settings::new(&source, Listen::default())?.load()?;
        server = loaded.server;
        if let (None, Some(secret)) = (&token, &server.admin_token) {
            token = Some(reveal(secret, "server.admin_token", &loaded.folder)?);
        }
    }
    let url = arguments.server.clone().unwrap_or_else(|| url(&server));
    let client = Client::new(&url, &arguments.tls)?;
    top::run(client, token.as_deref()).await?;
    Ok(ExitCode::SUCCESS)
}

/// Where operators ask a server with this section.
fn url(server: &Server) -> String {
    let mut addresses = server.admin.iter().chain(&server.http);
    match addresses.next() {
        Some(Address::Unix(path)) => format!("unix:{path}"),
        Some(Address::Tcp(place)) if server.tls_cert.is_some() => format!("https://{place}"),
        Some(Address::Tcp(place)) => format!("http://{place}"),
        None => "http://127.0.0.1:8080".into(),
    }
}
