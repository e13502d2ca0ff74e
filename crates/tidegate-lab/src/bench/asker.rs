//! How a caller asks: a limiter in this process, or a server over the caller's own
//! connection.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use futures_util::future::join_all;
use http::Method;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use serde::Deserialize;
use serde_json::json;
use tidegate::{Cost, Source};
use tidegate_redis::{AnyStore, ErrorKind, Policies, TryCheckError};
use tokio::time::{sleep, timeout};

use super::keys::Keys;
use super::plan::Plan;
use super::tally::Answer;
use super::target::Target;
use crate::client::{Client, request};

/// How many questions are put before the start, so that connections are there: on a
/// cluster, to as many keys.
const WARM_UP: usize = 64;

/// How long a store may take to answer the first of them.
const WARM_UP_PATIENCE: Duration = Duration::from_secs(1);

/// How long a caller waits before it connects again.
const PAUSE: Duration = Duration::from_millis(10);

/// Whom all callers of a process ask.
#[derive(Clone)]
pub(super) enum Asked {
    Store(Arc<Policies>),
    Server {
        client: Arc<Client>,
        timeout: Duration,
    },
}

/// A caller's way to ask.
pub(super) enum Asker {
    Store {
        limiter: Arc<Policies>,
        policy: String,
    },
    Server(Box<Connection>),
}

/// A connection to a server, which is made again when it is lost.
pub(super) struct Connection {
    client: Arc<Client>,
    timeout: Duration,
    sender: Option<SendRequest<Full<Bytes>>>,
    /// What stands between the values of attributes in a question.
    pieces: Vec<String>,
    /// Whether the last question had no answer.
    failed: bool,
}

/// What is needed of a server's answer.
#[derive(Deserialize)]
struct Decision<'a> {
    allowed: bool,
    would_deny: bool,
    #[serde(borrow)]
    source: Cow<'a, str>,
    decided_at_us: u64,
}

impl Asked {
    pub(super) fn new(plan: &Plan) -> anyhow::Result<Self> {
        match &plan.target {
            Target::Store { folder, .. } => {
                let limiter = Policies::from_config(&plan.target.config()?, folder);
                let limiter = limiter.context("the config cannot be used")?;
                Ok(Self::Store(Arc::new(limiter)))
            }
            Target::Server {
                url,
                timeout_ms,
                tls,
            } => Ok(Self::Server {
                client: Arc::new(Client::new(url, tls)?),
                timeout: Duration::from_millis(*timeout_ms),
            }),
        }
    }

    /// Has connections made. A store that answers nothing at all is an error: what a
    /// policy does without its store is nothing to measure.
    pub(super) async fn warm_up(&self, plan: &Plan) -> anyhow::Result<()> {
        let Self::Store(limiter) = self else {
            return Ok(());
        };
        if plan_has_no_peek(limiter, plan) {
            return Ok(());
        }
        let policy = limiter.handle(&plan.policy)?;
        let start = Instant::now();
        let keys: Vec<_> = (0..WARM_UP)
            .map(|number| {
                let value = format!("{}-warm-up-{number}", plan.run);
                let names = plan.attributes.iter();
                let value = |name: &String| plan.fixed.get(name).unwrap_or(&value).clone();
                names
                    .map(|name| (name.clone(), value(name)))
                    .collect::<Vec<_>>()
            })
            .collect();
        let mut last = None;
        while start.elapsed() < WARM_UP_PATIENCE {
            let peeks = keys.iter().map(|key| policy.peek(key, Cost::ONE));
            let answers = join_all(peeks).await;
            if answers.iter().all(Result::is_ok) {
                return Ok(());
            }
            // One answer is enough: the rest is what is to be measured.
            let is_up = answers.iter().any(Result::is_ok);
            let errors = answers.into_iter().filter_map(Result::err);
            // That a store is left alone for a while says nothing about why.
            let why = |error: &TryCheckError| match error {
                TryCheckError::Store(error) => error.kind() != ErrorKind::BreakerOpen,
                TryCheckError::Check(_) => true,
            };
            last = errors.filter(why).last().or(last).filter(|_| !is_up);
            sleep(PAUSE).await;
        }
        match last {
            Some(TryCheckError::Store(error)) => {
                let what = match error.kind() {
                    ErrorKind::Auth => "refused the password",
                    _ => "does not answer",
                };
                bail!(
                    "the store {what}: {}: nothing was measured",
                    error.redacted()
                )
            }
            Some(TryCheckError::Check(error)) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// A way to ask for one caller, connected if it can be.
    pub(super) async fn asker(&self, plan: &Plan) -> Asker {
        match self {
            Self::Store(limiter) => Asker::Store {
                limiter: Arc::clone(limiter),
                policy: plan.policy.clone(),
            },
            Self::Server { client, timeout } => {
                let mut connection = Connection {
                    client: Arc::clone(client),
                    timeout: *timeout,
                    sender: None,
                    pieces: pieces(plan),
                    failed: false,
                };
                connection.sender = connection.client.connect().await.ok();
                Asker::Server(Box::new(connection))
            }
        }
    }

    /// What the stores could not answer so far, by kind.
    pub(super) fn store_errors(&self) -> BTreeMap<String, u64> {
        let mut errors = BTreeMap::new();
        for store in self.stores() {
            if let AnyStore::Redis(store) = store {
                for (kind, count) in store.stats().errors {
                    *errors.entry(kind.to_string()).or_default() += count;
                }
            }
        }
        errors
    }

    /// Keys in use that stores in memory had to forget.
    pub(super) fn evicted(&self) -> u64 {
        let stores = self.stores().map(|store| match store {
            AnyStore::Memory(store) => store.stats().evicted,
            AnyStore::Redis(_) => 0,
        });
        stores.sum()
    }

    /// Commands that were sent to a Redis.
    pub(super) fn store_commands(&self) -> u64 {
        let stores = self.stores().map(|store| match store {
            AnyStore::Redis(store) => store.stats().commands,
            AnyStore::Memory(_) => 0,
        });
        stores.sum()
    }

    fn stores(&self) -> impl Iterator<Item = &AnyStore> {
        let limiter = match self {
            Self::Store(limiter) => Some(limiter),
            Self::Server { .. } => None,
        };
        limiter
            .into_iter()
            .flat_map(|limiter| limiter.stores().map(|(_, store)| store))
    }
}

/// A user-defined script has no numbers to peek at.
fn plan_has_no_peek(limiter: &Policies, plan: &Plan) -> bool {
    let policy = limiter.policy(&plan.policy);
    policy.is_none_or(|policy| policy.script().is_some())
}

impl Asker {
    pub(super) async fn ask(&mut self, keys: &Keys, cost: Cost) -> Answer {
        match self {
            Self::Store { limiter, policy } => match limiter.check(policy, keys, cost).await {
                Ok(decision) => Answer::Decided {
                    source: decision.source(),
                    // As the counts have it, which go on as if a policy that only
                    // watches refused.
                    allowed: decision.allowed() && !decision.would_deny(),
                    at_us: decision.decided_at_us(),
                },
                Err(error) => Answer::Failed(error.to_string()),
            },
            Self::Server(connection) => connection.ask(keys.text()).await,
        }
    }
}

impl Connection {
    async fn ask(&mut self, key: &str) -> Answer {
        let body = self.pieces.join(key);
        let answer = match timeout(self.timeout, self.send(body)).await {
            Ok(answer) => answer,
            Err(_) => Err("timeout".to_owned()),
        };
        self.failed = answer.is_err();
        answer.unwrap_or_else(|kind| {
            // An answer that is still to come would be taken for the next one's.
            self.sender = None;
            Answer::Failed(kind)
        })
    }

    async fn send(&mut self, body: String) -> Result<Answer, String> {
        if self.failed {
            sleep(PAUSE).await;
        }
        let mut sender = match self.sender.take() {
            Some(sender) => sender,
            None => self
                .client
                .connect()
                .await
                .map_err(|_| "connect".to_owned())?,
        };
        let host = self.client.host();
        let request = request(Method::POST, "/v1/check", None, body, host);
        let request = request.map_err(|error| error.to_string())?;
        let lost = |_| "connection_lost".to_owned();
        let answer = sender.send_request(request).await.map_err(lost)?;
        let status = answer.status();
        let body = answer.into_body().collect().await.map_err(lost)?;
        if !status.is_success() {
            return Err(format!("status_{}", status.as_u16()));
        }
        let unreadable = || "unreadable".to_owned();
        let body = body.to_bytes();
        let decision: Decision<'_> = serde_json::from_slice(&body).map_err(|_| unreadable())?;
        let mut sources = Source::ALL.into_iter();
        let source = sources.find(|source| source.as_str() == decision.source);
        self.sender = Some(sender);
        Ok(Answer::Decided {
            source: source.ok_or_else(unreadable)?,
            allowed: decision.allowed && !decision.would_deny,
            at_us: decision.decided_at_us,
        })
    }
}

/// A question, cut where the key belongs.
fn pieces(plan: &Plan) -> Vec<String> {
    // No text of JSON has this sign as it is.
    const KEY: &str = "\u{1}";
    let attributes = plan
        .attributes
        .iter()
        .map(|name| match plan.fixed.get(name) {
            Some(value) => (name.clone(), json!(value)),
            None => (name.clone(), json!(KEY)),
        });
    let question = json!({
        "policy": plan.policy,
        "attributes": serde_json::Map::from_iter(attributes),
        "cost": plan.cost,
    });
    let escaped = json!(KEY).to_string();
    let question = question.to_string();
    let pieces = question.split(escaped.trim_matches('"'));
    pieces.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::plan;
    use super::*;

    #[test]
    fn a_question_has_the_key_wherever_it_belongs() {
        let plan = Plan {
            attributes: vec!["ip".into(), "user \"x\"".into()],
            cost: 3,
            ..plan()
        };
        let question = pieces(&plan).join("run-7");
        let question: serde_json::Value = serde_json::from_str(&question).unwrap();
        let attributes = json!({"ip": "run-7", "user \"x\"": "run-7"});
        let expected = json!({"policy": "bench", "attributes": attributes, "cost": 3});
        assert_eq!(question, expected);
    }
}
