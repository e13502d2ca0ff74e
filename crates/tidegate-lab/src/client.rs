//! A small HTTP client: one request to a server, one response.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::Args;
use http::header::{AUTHORIZATION, HOST};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::ResolvesClientCert;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{
    CertificateError as Wrong, ClientConfig, Error as TlsError, RootCertStore, SignatureScheme,
};

const PATIENCE: Duration = Duration::from_secs(10);

/// The files for `https://`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
pub struct Tls {
    /// A PEM file with the CA that signed the server's certificate, if it is not a public
    /// one.
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CA")]
    pub ca: Option<PathBuf>,
    /// A PEM file with a client certificate, for a server that asks for one.
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CLIENT_CERT")]
    pub cert: Option<PathBuf>,
    /// A PEM file with the private key of --cert.
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CLIENT_KEY")]
    pub key: Option<PathBuf>,
}

/// A client of one server.
pub struct Client {
    url: String,
    address: Address,
}

/// Where the server listens.
enum Address {
    /// Host and port.
    Tcp(String),
    /// Host and port, the name in the certificate, who may have signed it, and what to
    /// show.
    Tls(
        String,
        ServerName<'static>,
        TlsConnector,
        Arc<ClientCertificate>,
    ),
    /// The path of a socket.
    Unix(String),
}

/// The certificate to show, and whether the server has asked for it.
#[derive(Debug)]
struct ClientCertificate {
    key: Option<Arc<CertifiedKey>>,
    is_needed: AtomicBool,
}

impl ResolvesClientCert for ClientCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.is_needed.store(true, Ordering::Relaxed);
        self.key.clone()
    }

    fn has_certs(&self) -> bool {
        self.key.is_some()
    }
}

impl Client {
    /// A client of the server at this URL.
    pub fn new(url: &str, tls: &Tls) -> anyhow::Result<Self> {
        match (&tls.cert, &tls.key) {
            (Some(cert), None) => bail!(
                "--cert {}: a certificate without its key: expected the key with --key FILE",
                cert.display()
            ),
            (None, Some(key)) => bail!(
                "--key {}: a key without its certificate: expected the certificate with --cert FILE",
                key.display()
            ),
            _ => {}
        }
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
                let (connector, shown) = connector(tls)?;
                Address::Tls(format!("{host}:{port}"), name, connector, shown)
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
            Address::Tls(place, name, connector, _) => {
                let stream = TcpStream::connect(place).await;
                let stream = stream.with_context(|| self.nobody())?;
                stream.set_nodelay(true)?;
                let stream = connector.connect(name.clone(), stream).await;
                opened(stream.map_err(|error| self.no_tls(error))?).await
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
        let url = &self.url;
        let has_token = request.headers().contains_key(AUTHORIZATION);
        let another = || match &self.address {
            // Whether an alert arrives or only the end of the connection is a race.
            Address::Tls(.., shown) if shown.is_needed.load(Ordering::Relaxed) => format!(
                "the server at {url} asks for a client certificate: pass one that it trusts with --cert and --key"
            ),
            _ => format!("the server at {url} is not Tidegate (its answer was not a decision)"),
        };
        let answer = sender.send_request(request);
        // A connection that ends just now may leave the request in the queue to it. It is
        // freed, and the wait for its answer ends, only with the last sender.
        drop(sender);
        let answer = answer.await.with_context(another)?;
        let status = answer.status();
        let body = answer.into_body().collect().await.with_context(another)?;
        let body: Value = serde_json::from_slice(&body.to_bytes()).with_context(another)?;
        let detail = body["detail"].as_str().unwrap_or("no reason given");
        match status {
            _ if status.is_success() => Ok(body),
            StatusCode::UNAUTHORIZED if has_token => {
                bail!("the server at {url} refused this admin token")
            }
            StatusCode::UNAUTHORIZED => bail!(
                "the server at {url} needs the admin token: pass --token or set TIDEGATE_ADMIN_TOKEN"
            ),
            _ => bail!("the server answers {status}: {detail}"),
        }
    }

    /// Why there is no TLS connection, and what to do.
    fn no_tls(&self, error: std::io::Error) -> anyhow::Error {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        let advice = match inner {
            Some(TlsError::InvalidCertificate(Wrong::UnknownIssuer)) => {
                ": its certificate is signed by a CA that this command does not trust: pass that CA with --ca"
            }
            Some(TlsError::InvalidCertificate(
                Wrong::NotValidForName | Wrong::NotValidForNameContext { .. },
            )) => ": its certificate is for another host: use a name that is in it",
            Some(TlsError::InvalidCertificate(Wrong::Expired | Wrong::ExpiredContext { .. })) => {
                ": its certificate has expired: renew it on the server"
            }
            Some(TlsError::InvalidMessage(_)) => {
                ": it does not speak TLS: expected http:// in its URL"
            }
            _ => "",
        };
        anyhow::Error::new(error).context(format!("{}: no TLS connection{advice}", self.url))
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

/// What makes connections secure: certificates signed by the authority in a file, or by a
/// public one, and the certificate to show.
fn connector(tls: &Tls) -> anyhow::Result<(TlsConnector, Arc<ClientCertificate>)> {
    let wrong = |flag: &str, file: &Path| format!("{flag} {}: expected a PEM file", file.display());
    let mut roots = RootCertStore::empty();
    match &tls.ca {
        Some(file) => {
            let name = || wrong("--ca", file);
            for certificate in CertificateDer::pem_file_iter(file).with_context(name)? {
                roots
                    .add(certificate.with_context(name)?)
                    .with_context(name)?;
            }
        }
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
    }
    let provider = Arc::new(default_provider());
    let key = match (&tls.cert, &tls.key) {
        (Some(cert), Some(key)) => {
            let name = || wrong("--cert", cert);
            let chain = CertificateDer::pem_file_iter(cert).with_context(name)?;
            let chain = chain.collect::<Result<Vec<_>, _>>().with_context(name)?;
            let private = PrivateKeyDer::from_pem_file(key);
            let private = private.with_context(|| wrong("--key", key))?;
            let both = CertifiedKey::from_der(chain, private, &provider);
            Some(Arc::new(both.with_context(|| {
                let (cert, key) = (cert.display(), key.display());
                format!("--cert {cert} and --key {key}: expected a certificate and its key")
            })?))
        }
        _ => None,
    };
    let is_needed = AtomicBool::new(false);
    let shown = Arc::new(ClientCertificate { key, is_needed });
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_cert_resolver(Arc::clone(&shown) as _);
    Ok((TlsConnector::from(Arc::new(config)), shown))
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
