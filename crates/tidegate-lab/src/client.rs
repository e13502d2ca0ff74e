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

use crate::section::Address;

const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Client {
    url: String,
    address: Address,
}

impl Client {
    /// A client of the server at this URL.
    pub(crate) fn new(url: &str) -> anyhow::Result<Self> {
        let place = match url.strip_prefix("http://") {
            Some(place) => {
                let place = place.trim_end_matches('/');
                let has_port = place.rsplit_once(':').is_some_and(|(_, port)| {
                    !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
                });
                match has_port {
                    true => place.to_owned(),
                    false => format!("{place}:80"),
                }
            }
            None if url.starts_with("unix:") => url.to_owned(),
            None => bail!("{url:?}: expected http://host:port or unix:PATH"),
        };
        let address = place.parse().map_err(anyhow::Error::msg)?;
        Ok(Self {
            url: url.to_owned(),
            address,
        })
    }

    /// The JSON of an answer. A problem is an error.
    pub(crate) async fn ask(
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
    pub(crate) async fn connect(&self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
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
    pub(crate) fn host(&self) -> &str {
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
pub(crate) fn request(
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
