//! A small HTTP client: one question to a server, one answer.

use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(10);

/// A client of one server.
#[derive(Debug)]
pub struct Client {
    url: String,
    address: Address,
}

/// Where the server listens.
#[derive(Debug)]
enum Address {
    /// Host and port.
    Tcp(String),
    /// The path of a socket.
    Unix(String),
}

impl Client {
    /// A client of the server at this URL.
    pub fn new(url: &str) -> anyhow::Result<Self> {
        let wrong = || format!("{url:?}: expected http://host:port or unix:PATH");
        let address = match (url.strip_prefix("http://"), url.strip_prefix("unix:")) {
            (Some(place), _) => {
                let place = place.trim_end_matches('/');
                let (host, port) = match place.rsplit_once(':') {
                    Some((host, port)) if !port.ends_with(']') => (host, port),
                    _ => (place, "80"),
                };
                let is_host = !host.is_empty() && !host.contains(['/', '@', ' ', '?', '#']);
                if !is_host || port.parse::<u16>().is_err() {
                    bail!(wrong());
                }
                Address::Tcp(format!("{host}:{port}"))
            }
            (None, Some(path)) if !path.is_empty() => Address::Unix(path.to_owned()),
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
            Address::Unix(place) => {
                let stream = UnixStream::connect(place).await;
                opened(stream.with_context(|| self.nobody())?).await
            }
        }
    }

    /// What requests call the server.
    pub fn host(&self) -> &str {
        match &self.address {
            Address::Tcp(place) => place,
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
            format!("{url}: not the answer of a tidegate: is it another server that listens there?")
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
            "nobody answers at {}: is `tidegate serve` running?",
            self.url
        )
    }
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
