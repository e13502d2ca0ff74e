//! The master behind sentinels: the server that most of them name, if it agrees. They are
//! asked again every now and then, since a master that was cut off does not know that it is
//! none any more.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{RedisResult, Value};
use tidegate_config::RedisUrl;
use tokio::time::{Instant, timeout};

use crate::agreement::ask_several;
use crate::connect::{Connection, Direct, failed, wrong};
use crate::credentials::Credentials;
use crate::lock::lock;
use crate::slots::address;

/// How often sentinels are asked whether the master is still the same.
const NEWS: Duration = Duration::from_secs(2);

/// How long the master may take to be connected to: sentinels may name another one then.
const MASTER: Duration = Duration::from_millis(500);

/// How long a sentinel may take to answer: there are others to ask.
const SENTINEL: Duration = Duration::from_millis(250);

/// The servers that know where the master is.
pub(crate) struct Sentinels {
    url: RedisUrl,
    master: String,
    credentials: Credentials,
    leader: Mutex<Leader>,
}

/// Who leads, as far as is known, and when that was last asked.
#[derive(Default)]
struct Leader {
    address: Option<Arc<str>>,
    asked: Option<Instant>,
}

impl Sentinels {
    pub(crate) fn new(
        url: &RedisUrl,
        master: &str,
        credentials: &Credentials,
    ) -> RedisResult<Self> {
        for address in url.addresses() {
            Direct::new(&url.server(&address), credentials)?;
        }
        Ok(Self {
            url: url.clone(),
            master: master.into(),
            credentials: credentials.clone(),
            leader: Mutex::default(),
        })
    }

    /// Whether this server leads, as far as is known. Finds out every now and then, without
    /// holding up the caller.
    pub(crate) fn follow(self: &Arc<Self>, server: &str) -> bool {
        let mut leader = lock(&self.leader);
        if leader.asked.is_none_or(|asked| asked.elapsed() >= NEWS) {
            leader.asked = Some(Instant::now());
            let sentinels = Arc::clone(self);
            tokio::spawn(async move {
                // The last sentinel hears of a change some seconds after the first. As long as
                // they differ, a connection stays.
                let masters = sentinels.masters().await.unwrap_or_default();
                if let [(master, votes), ..] = &masters[..]
                    && *votes > sentinels.url.addresses().len() / 2
                {
                    lock(&sentinels.leader).address = Some(master.as_str().into());
                }
            });
        }
        leader.address.as_deref().is_none_or(|it| it == server)
    }

    /// A connection to the master: the server that most sentinels name, if it agrees.
    pub(crate) async fn connect(self: &Arc<Self>) -> RedisResult<Connection> {
        let mut last = None;
        for (master, _) in self.masters().await? {
            // One that is down may be replaced while it is waited for.
            let connected = timeout(MASTER, self.connect_to(&master)).await;
            match connected.unwrap_or_else(|_| failed("the master does not answer")) {
                Ok(mut connection) => {
                    connection.server = Some(master.into());
                    *lock(&self.leader) = Leader {
                        address: connection.server.clone(),
                        asked: Some(Instant::now()),
                    };
                    return Ok(connection);
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| wrong("no sentinel in the URL")))
    }

    /// Where the master is, as the sentinels have it, and how many of them: most first.
    async fn masters(self: &Arc<Self>) -> RedisResult<Vec<(String, usize)>> {
        let addresses = self.url.addresses();
        let at_once = addresses.len();
        let masters = ask_several(addresses, at_once, |address| {
            let sentinels = Arc::clone(self);
            async move { sentinels.master(&address).await }
        });
        masters.await
    }

    /// Where the master is, according to a sentinel, which needs no password or the
    /// master's.
    async fn master(&self, sentinel: &str) -> RedisResult<String> {
        let answer = match self.ask(sentinel, false).await {
            Err(error) if error.code() == Some("NOAUTH") => self.ask(sentinel, true).await?,
            answer => answer?,
        };
        match answer {
            Some((host, port)) => Ok(address(&host, port)),
            None => Err(wrong("a sentinel does not know the master")),
        }
    }

    async fn ask(&self, sentinel: &str, is_known: bool) -> RedisResult<Option<(String, u16)>> {
        let mut credentials = self.credentials.clone();
        if !is_known {
            (credentials.username, credentials.password) = (None, None);
        }
        let direct = Direct::new(&self.url.sentinel(sentinel, is_known), &credentials)?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("get-master-addr-by-name").arg(&self.master);
        direct.ask(&question, SENTINEL).await
    }

    async fn connect_to(&self, master: &str) -> RedisResult<Connection> {
        let direct = Direct::new(&self.url.server(master), &self.credentials)?;
        let mut connection = direct.connect(MASTER).await?;
        // A sentinel may not have heard yet that it is none any more.
        let role: Vec<Value> = connection.ask(&redis::cmd("ROLE"), MASTER).await?;
        match role.first() {
            Some(Value::BulkString(role)) if role == b"master" => Ok(connection),
            _ => failed("the server that a sentinel named is not a master"),
        }
    }
}
