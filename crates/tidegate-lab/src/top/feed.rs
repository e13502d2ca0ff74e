//! What a server says: `/v1/live` as a stream of messages, and `/v1/top` on demand.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, bail};
use http::header::CONTENT_TYPE;
use http::{Method, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Deserialize;
use tokio::time::timeout;

use crate::client::{Client, request};

/// How long a server may say nothing: it has a message each second.
const SILENCE: Duration = Duration::from_secs(5);

/// The longest message: a server sends at most 500 policies.
const LONGEST: usize = 8 << 20;

/// What happened in a second.
#[derive(Debug, Deserialize)]
pub(super) struct Message {
    pub(super) version: String,
    pub(super) uptime_s: u64,
    pub(super) connections: i64,
    pub(super) policies: Vec<Policy>,
    pub(super) policies_left_out: usize,
    pub(super) stores: Vec<Store>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Policy {
    pub(super) name: String,
    pub(super) enabled: bool,
    pub(super) shadow: bool,
    pub(super) trial_of: Option<String>,
    pub(super) levels: Vec<Level>,
    pub(super) per_s: Option<Rates>,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Level {
    pub(super) limit: String,
}

/// Decisions per second.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
pub(super) struct Rates {
    pub(super) allowed: f64,
    pub(super) denied: f64,
    pub(super) would_deny: f64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Store {
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) up: bool,
    pub(super) breaker_open: bool,
    pub(super) keys: Option<u64>,
    pub(super) evicted: u64,
    pub(super) errors: u64,
    pub(super) outages: u64,
    pub(super) down_s: Option<u64>,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
}

/// The keys of a policy.
#[derive(Debug, Deserialize)]
pub(super) struct Top {
    pub(super) error: u64,
    pub(super) keys: Vec<Key>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Key {
    pub(super) key: BTreeMap<String, String>,
    pub(super) requests: u64,
    pub(super) denied: u64,
}

/// A stream of messages.
pub(super) struct Feed {
    url: String,
    body: Incoming,
    /// What has come of the next line.
    rest: Vec<u8>,
    /// Keeps the connection.
    _sender: Box<dyn std::any::Any + Send>,
}

impl Feed {
    /// Asks a server for its messages.
    pub(super) async fn open(client: &Client) -> anyhow::Result<Self> {
        let opened = async {
            let mut sender = client.connect().await?;
            let request = request(Method::GET, "/v1/live", None, String::new(), client.host())?;
            let answer = sender.send_request(request).await;
            let answer = answer.with_context(|| another(client.url()))?;
            anyhow::Ok((answer, sender))
        };
        let opened = timeout(SILENCE, opened).await;
        let (answer, sender) =
            opened.with_context(|| format!("{}: no answer within {SILENCE:?}", client.url()))??;
        let kind = answer.headers().get(CONTENT_TYPE);
        let is_stream = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        if !answer.status().is_success() || !is_stream {
            return Err(refused(answer, client.url()).await);
        }
        Ok(Self {
            url: client.url().to_owned(),
            body: answer.into_body(),
            rest: Vec::new(),
            _sender: Box::new(sender),
        })
    }

    /// The next message. An error when the stream ends, or nothing comes. Nothing is lost
    /// when this is dropped before it is ready.
    pub(super) async fn next(&mut self) -> anyhow::Result<Message> {
        loop {
            while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                if let Some(json) = line.strip_prefix(b"data: ") {
                    return serde_json::from_slice(json).with_context(|| another(&self.url));
                }
            }
            if self.rest.len() > LONGEST {
                bail!(another(&self.url));
            }
            let frame = timeout(SILENCE, self.body.frame()).await;
            let frame = frame.with_context(|| format!("{}: silent", self.url))?;
            let frame = frame.with_context(|| format!("{}: gone", self.url))?;
            let frame = frame.with_context(|| format!("{}: gone", self.url))?;
            if let Some(data) = frame.data_ref() {
                self.rest.extend(data);
            }
        }
    }
}

fn another(url: &str) -> String {
    format!("the server at {url} is not Tidegate (it sends no events at /v1/live)")
}

/// Why an answer is none: what Tidegate says, or that it is another server.
async fn refused(answer: Response<Incoming>, url: &str) -> anyhow::Error {
    let status = answer.status();
    let body = http_body_util::Limited::new(answer.into_body(), LONGEST);
    let body = timeout(SILENCE, body.collect()).await;
    let body = body.ok().and_then(Result::ok).map(|body| body.to_bytes());
    let body = body.and_then(|body| serde_json::from_slice::<serde_json::Value>(&body).ok());
    let detail = body.as_ref().and_then(|body| body["detail"].as_str());
    match detail {
        Some(detail) if !status.is_success() => {
            anyhow::anyhow!("the server answers {status}: {detail}")
        }
        _ => anyhow::anyhow!(another(url)),
    }
}
