//! A small HTTP client: one request to a server, one response.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

const PATIENCE: Duration = Duration::from_secs(10);

/// A client of one server.
pub struct Client {
    url: String,
    address: Address,
}

/// Where the server listens.
enum Address {
    /// Host and port.
    Tcp(String),
    /// Host and port, the name in the certificate, and who may have signed it.
    Tls(String, ServerName<'static>, TlsConnector),
    /// The path of a socket.
    Unix(String),
}

impl Client {
    /// A client of the server at this URL. `ca` is the file of the authority that has
    /// signed the server's certificate, where that is not a public one.
    pub fn new(url: &str, ca: Option<&Path>) -> anyhow::Result<Self> {
        let wrong =
            || format!("{url:?}: expected https://host:port, http://host:port or unix:PATH");
        let scheme = url.split_inclusive(':').next().unwrap_or_default();
        let rest = &url[scheme.len()..];
        let place = rest.strip_prefix("//").map(|it| it.trim_end_matches('/'));
        let address = match (scheme, place) {
            ("http:", Some(place)) => {
                let (host, port) = host_and_port(place, "80").with_context(wrong)?;
                Address::Tcp(format!("{host}:{port}"))
            }
            ("https:", Some(place)) => {
                let (host, port) = host_and_port(place, "443").with_context(wrong)?;
                let name = host.trim_start_matches('[').trim_end_matches(']');
                let name = ServerName::try_from(name.to_owned()).with_context(wrong)?;
                Address::Tls(format!("{host}:{port}"), name, connector(ca)?)
            }
            ("unix:", _) if !rest.is_empty() => Address::Unix(rest.to_owned()),
            _ => bail!(wrong()),
        };
        Ok(Self {
            url: url.to_owned(),
            address,
        })
    }

    /// The JSON of an answer. A problem is an error.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        token: Option<&str>,
        body: String,
    ) -> anyhow::Result<Value> {
        let request = request(method, path, token, body, self.host())?;
        let asked = async { self.send(self.connect().await?, request).await };
        let answer = timeout(PATIENCE, asked).await;
        answer.with_context(|| format!("{}: no answer within {PATIENCE:?}", self.url))?
    }

    /// A connection for requests, one after the other.
    pub async fn connect(&self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        match &self.address {
            Address::Tcp(place) => {
                let stream = TcpStream::connect(place).await;
                let stream = stream.with_context(|| self.nobody())?;
                stream.set_nodelay(true)?;
                opened(stream).await
            }
            Address::Tls(place, name, connector) => {
                let stream = TcpStream::connect(place).await;
                let stream = stream.with_context(|| self.nobody())?;
                stream.set_nodelay(true)?;
                let stream = connector.connect(name.clone(), stream).await;
                opened(stream.with_context(|| {
                    format!(
                        "{}: no TLS connection: pass the CA of its certificate with --ca",
                        self.url
                    )
                })?)
                .await
            }
            Address::Unix(place) => {
                let stream = UnixStream::connect(place).await;
                opened(stream.with_context(|| self.nobody())?).await
            }
        }
    }

    /// The URL that it was made with.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What requests call the server.
    pub fn host(&self) -> &str {
        match &self.address {
            Address::Tcp(place) | Address::Tls(place, ..) => place,
            Address::Unix(_) => "localhost",
        }
    }

    async fn send(
        &self,
        mut sender: SendRequest<Full<Bytes>>,
        request: Request<Full<Bytes>>,
    ) -> anyhow::Result<Value> {
        let another = || {
            let url = &self.url;
            format!("the server at {url} is not Tidegate (its answer was not a decision)")
        };
        let answer = sender.send_request(request).await;
        let answer = answer.with_context(another)?;
        let status = answer.status();
        let body = answer.into_body().collect().await.with_context(another)?;
        let body: Value = serde_json::from_slice(&body.to_bytes()).with_context(another)?;
        let detail = body["detail"].as_str().unwrap_or("no reason given");
        match status {
            _ if status.is_success() => Ok(body),
            StatusCode::UNAUTHORIZED => bail!(
                "the server answers {status}: {detail}: give it with --token or TIDEGATE_ADMIN_TOKEN"
            ),
            _ => bail!("the server answers {status}: {detail}"),
        }
    }

    fn nobody(&self) -> String {
        format!(
            "no server answers at {}: is `tidegate serve` running?",
            self.url
        )
    }
}

fn host_and_port<'p>(place: &'p str, standard: &'p str) -> Option<(&'p str, &'p str)> {
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ => (place, standard),
    };
    let is_host = !host.is_empty() && !host.contains(['/', '@', ' ', '?', '#']);
    (is_host && port.parse::<u16>().is_ok()).then_some((host, port))
}

/// What makes connections secure: certificates signed by this authority, or by a public
/// one.
fn connector(ca: Option<&Path>) -> anyhow::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(file) => {
            let name = || format!("--ca {}: expected a PEM file", file.display());
            for certificate in CertificateDer::pem_file_iter(file).with_context(name)? {
                roots
                    .add(certificate.with_context(name)?)
                    .with_context(name)?;
            }
        }
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
    }
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Speaks HTTP over a stream.
async fn opened<I>(stream: I) -> anyhow::Result<SendRequest<Full<Bytes>>>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// A request of this body.
pub fn request(
    method: Method,
    path: &str,
    token: Option<&str>,
    body: String,
    host: &str,
) -> anyhow::Result<Request<Full<Bytes>>> {
    let mut request = Request::builder().method(method).uri(path);
    request = request.header(HOST, host);
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    Ok(request.body(Full::new(body.into()))?)
}
