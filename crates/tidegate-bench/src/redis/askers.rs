//! The clients that are compared: tidegate, the scripts it replaces, and the least a counter can cost.

use std::time::Duration;

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tidegate::{Cost, Limit, Policy, PolicyBuilder};
use tidegate_redis::{PolicyLimiter, RedisOptions, RedisStore};

use super::callers::Ask;
use tidegate_testkit::redis::Server;

/// Every check is admitted, and leaves a debt of half a minute: no key is ever new.
pub(super) const ADMITS: Limit = Limit::per(1, Duration::from_secs(30)).burst(100_000_000);

/// So long that nothing is cut off: what takes long must be in the figures.
const PATIENCE: Duration = Duration::from_secs(10);

const TOKEN_BUCKET: &str = include_str!("token_bucket.lua");
const SORTED_SET: &str = include_str!("sorted_set.lua");

/// A limiter over one policy, and its store.
#[derive(Clone, Copy)]
pub(super) struct Tidegate {
    limiter: &'static PolicyLimiter,
    pub(super) store: &'static RedisStore,
}

impl Tidegate {
    /// A limiter over a policy of this limit, by user.
    pub(super) fn new(server: &Server, prefix: &str, limit: Limit) -> Self {
        Self::of(server, prefix, Self::policy(limit))
    }

    /// A policy of this limit, by user.
    pub(super) fn policy(limit: Limit) -> PolicyBuilder {
        let policy = Policy::builder("api").key("{user}").limit(limit);
        // Refusals are to be measured, not remembered.
        policy.refusal_memory(Duration::ZERO)
    }

    /// A limiter over a policy, with keys of its own by their prefix. It lives as long
    /// as the program, so that callers share it without counting who does.
    pub(super) fn of(server: &Server, prefix: &str, policy: PolicyBuilder) -> Self {
        Self::at(&server.url(), prefix, policy)
    }

    /// The same at any URL.
    pub(super) fn at(url: &str, prefix: &str, policy: PolicyBuilder) -> Self {
        let policy = policy.build().expect("a policy that is right");
        let options = RedisOptions::default().prefix(prefix).timeout(PATIENCE);
        let store = RedisStore::new(url, options).expect("a url that is right");
        let limiter = PolicyLimiter::over(store.clone(), policy);
        Self {
            limiter: Box::leak(Box::new(limiter.expect("one policy"))),
            store: Box::leak(Box::new(store)),
        }
    }
}

impl Ask for Tidegate {
    async fn ask(&mut self, key: &'static str) -> bool {
        let attributes = [("service", "search"), ("user", key)];
        // A machine that stands still for a second breaks connections. Who waits goes
        // on waiting: it is in the figures.
        for _ in 0..100 {
            let decision = self.limiter.try_check(&attributes, Cost::ONE);
            if let Ok(decision) = decision.await {
                return decision.allowed();
            }
            tokio::time::sleep(self.store.next_probe()).await;
        }
        panic!("the server does not answer: {:?}", self.store.stats());
    }
}

/// One command per request, over one connection that all callers share.
#[derive(Clone)]
pub(super) struct Plain {
    connection: MultiplexedConnection,
    command: Command,
}

/// What is sent, but for the key.
#[derive(Clone)]
enum Command {
    Increment,
    Script {
        sha: String,
        prefix: &'static str,
        arguments: [&'static str; 2],
    },
}

impl Plain {
    /// `INCR`.
    pub(super) async fn increment(server: &Server) -> Self {
        Self {
            connection: connect(server).await,
            command: Command::Increment,
        }
    }

    /// The tutorial's token bucket, with the limit of [`ADMITS`].
    pub(super) async fn token_bucket(server: &Server) -> Self {
        Self::script(server, TOKEN_BUCKET, "bucket:", ["0.0333", "100000000"]).await
    }

    /// The tutorial's log of a minute, with a limit that is never reached.
    pub(super) async fn log(server: &Server) -> Self {
        Self::script(server, SORTED_SET, "log:", ["60000", "100000000"]).await
    }

    async fn script(
        server: &Server,
        text: &str,
        prefix: &'static str,
        arguments: [&'static str; 2],
    ) -> Self {
        let mut connection = connect(server).await;
        let mut load = redis::cmd("SCRIPT");
        let sha = load.arg("LOAD").arg(text).query_async(&mut connection);
        let sha = sha.await.expect("a script that is right");
        Self {
            connection,
            command: Command::Script {
                sha,
                prefix,
                arguments,
            },
        }
    }

    /// What it sends for a key.
    pub(super) fn command(&self, key: &str) -> redis::Cmd {
        match &self.command {
            Command::Increment => {
                let mut command = redis::cmd("INCR");
                command.arg(format!("count:{key}"));
                command
            }
            Command::Script {
                sha,
                prefix,
                arguments,
            } => {
                let mut command = redis::cmd("EVALSHA");
                command.arg(sha).arg(1).arg(format!("{prefix}{key}"));
                command.arg(arguments);
                command
            }
        }
    }

    /// The same, as text.
    pub(super) fn words(&self, key: &str) -> Vec<String> {
        let command = self.command(key);
        let words = command.args_iter().map(|word| match word {
            redis::Arg::Simple(word) => String::from_utf8_lossy(word).into_owned(),
            _ => String::new(),
        });
        words.collect()
    }
}

impl Ask for Plain {
    async fn ask(&mut self, key: &'static str) -> bool {
        let command = self.command(key);
        let answer = command.query_async::<i64>(&mut self.connection).await;
        answer.expect("a server that answers") > 0
    }
}

async fn connect(server: &Server) -> MultiplexedConnection {
    let client = redis::Client::open(server.url()).expect("a url that is right");
    // The limiter's own timeout.
    let patient = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
    let connection = client.get_multiplexed_async_connection_with_config(&patient);
    connection.await.expect("a server that answers")
}
