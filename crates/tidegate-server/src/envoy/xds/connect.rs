//! The connection to a control plane.

use std::path::Path;
use std::time::Duration;

use tidegate_redis::read_file;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use super::{ClientTls, ControlPlane};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);

/// How often a quiet control plane is asked whether it is still there, and how long it may
/// take to say so.
const PING: Duration = Duration::from_secs(30);
const PONG: Duration = Duration::from_secs(20);

/// Connects, or says why it cannot.
pub(super) async fn connect(from: &ControlPlane) -> Result<Channel, String> {
    let scheme = match from.tls {
        Some(_) => "https",
        None => "http",
    };
    let address = &from.address;
    let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"));
    let wrong = |_| format!("the address {address:?}: expected host:port");
    let mut endpoint = endpoint
        .map_err(wrong)?
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(PING)
        .keep_alive_timeout(PONG)
        .keep_alive_while_idle(true);
    if let Some(tls) = &from.tls {
        let tls = certificates(tls).await?;
        endpoint = endpoint
            .tls_config(tls)
            .map_err(|error| format!("certificates: {}", with_sources(&error)))?;
    }
    let connected = endpoint.connect().await;
    connected.map_err(|error| with_sources(&error))
}

async fn certificates(tls: &ClientTls) -> Result<ClientTlsConfig, String> {
    let mut config = ClientTlsConfig::new();
    config = match &tls.ca {
        Some(ca) => config.ca_certificate(Certificate::from_pem(read(ca).await?)),
        None => config.with_webpki_roots(),
    };
    if let Some((cert, key)) = &tls.identity {
        let identity = Identity::from_pem(read(cert).await?, read(key).await?);
        config = config.identity(identity);
    }
    if let Some(name) = &tls.server_name {
        config = config.domain_name(name);
    }
    Ok(config)
}

async fn read(file: &Path) -> Result<Vec<u8>, String> {
    let path = file.to_owned();
    let read = tokio::task::spawn_blocking(move || read_file(&path, 1)).await;
    let read = read.map_err(std::io::Error::other).flatten();
    read.map_err(|error| format!("cannot read {}: {error}", file.display()))
}

/// An error with what has caused it: tonic's own words are "transport error".
pub(super) fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let said = error.to_string();
        if !text.ends_with(&said) {
            text = format!("{text}: {said}");
        }
        source = error.source();
    }
    text
}
