//! Makes connections: to a server with a known address, or to the master that the sentinels
//! name.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ErrorKind as Client, RedisError, RedisResult, Value,
};
use rustls::ClientConfig;
use tokio::time::{Instant, timeout};

use crate::access::Access;
use crate::agreement::ask_several;
use crate::place::{Login, address};
use crate::socket::{Socket, tls};

/// How long a connection may take to be made, and how long it may be silent at least,
/// before it is given up. A caller's deadline is usually much shorter: it does not wait
/// for this.
pub(crate) const SILENCE: Duration = Duration::from_secs(1);

/// How long a sentinel may take to answer: there are others to ask.
const SENTINEL: Duration = Duration::from_millis(250);

/// How long the master may take to be connected to: sentinels may name another one then.
const MASTER: Duration = Duration::from_millis(500);

/// How often sentinels are asked whether the master is still the same.
const NEWS: Duration = Duration::from_secs(2);

/// Makes connections.
#[derive(Clone)]
pub(crate) enum Connector {
    /// To this server.
    Direct(Arc<Direct>),
    /// To the master of a name.
    Sentinel(Arc<Sentinels>),
}

/// One server, and how it lets us in.
pub(crate) struct Direct {
    client: redis::Client,
    tls: Option<Arc<ClientConfig>>,
    access: Access,
}

/// The servers that know where the master is.
pub(crate) struct Sentinels {
    addresses: Vec<String>,
    master: String,
    login: Login,
    access: Access,
    leader: Mutex<Leader>,
}

/// Who leads, as far as is known, and when that was last asked.
#[derive(Default)]
struct Leader {
    address: Option<Arc<str>>,
    asked: Option<Instant>,
}

/// A connection, and the server that sentinels have named for it.
pub(crate) type Connected = (Socket, Option<Arc<str>>);

impl Connector {
    /// A connector to the server at this URL.
    pub(crate) fn direct(url: &str, access: &Access) -> RedisResult<Self> {
        Ok(Self::Direct(Arc::new(Direct::new(url, access.clone())?)))
    }

    /// A connection.
    pub(crate) async fn connect(&self) -> RedisResult<Connected> {
        match self {
            Self::Direct(direct) => {
                let (socket, _) = direct.connect(false).await?;
                Ok((socket, None))
            }
            Self::Sentinel(sentinels) => sentinels.connect().await,
        }
    }

    /// Whether a connection leads where a new one would. A master that was cut off from
    /// the others, or was away, does not know that it is none any more.
    pub(crate) fn leads_to(&self, server: Option<&str>) -> bool {
        match (self, server) {
            (Self::Sentinel(sentinels), Some(server)) => sentinels.follow(server),
            _ => true,
        }
    }
}

impl Direct {
    fn new(url: &str, access: Access) -> RedisResult<Self> {
        let client = access.client(url)?;
        Ok(Self {
            tls: tls_of(&client, access.certificates())?,
            client,
            access,
        })
    }

    /// Connects, and tries once more when the password was changed on the way. With
    /// `role`, the server is asked for it.
    async fn connect(&self, role: bool) -> RedisResult<(Socket, Option<Value>)> {
        let Self {
            client,
            tls,
            access,
        } = self;
        let shown = access.settings(client).await?;
        let connected = Socket::connect(client, &shown, tls.as_ref(), SILENCE, role).await;
        match connected {
            Err(error) if access.has_changed(&error, client, &shown).await => {
                let now = access.settings(client).await?;
                Socket::connect(client, &now, tls.as_ref(), SILENCE, role).await
            }
            connected => connected,
        }
    }
}

impl Sentinels {
    pub(crate) fn new(
        addresses: Vec<String>,
        master: String,
        login: Login,
        access: Access,
    ) -> Self {
        Self {
            addresses,
            master,
            login,
            access,
            leader: Mutex::default(),
        }
    }

    /// Whether this server leads, as far as is known. Finds out every now and then, without
    /// holding up the caller.
    fn follow(self: &Arc<Self>, server: &str) -> bool {
        let mut leader = self.leader();
        if leader.asked.is_none_or(|asked| asked.elapsed() >= NEWS) {
            leader.asked = Some(Instant::now());
            let sentinels = Arc::clone(self);
            tokio::spawn(async move {
                // The last sentinel hears of a change some seconds after the first. As long as
                // they differ, a connection stays.
                let masters = sentinels.masters().await.unwrap_or_default();
                if let [(master, votes), ..] = &masters[..]
                    && *votes > sentinels.addresses.len() / 2
                {
                    sentinels.leader().address = Some(master.as_str().into());
                }
            });
        }
        leader.address.as_deref().is_none_or(|it| it == server)
    }

    fn leader(&self) -> MutexGuard<'_, Leader> {
        self.leader.lock().expect("nothing panics under this lock")
    }

    /// A connection to the master: the server that most sentinels name, if it agrees.
    async fn connect(self: &Arc<Self>) -> RedisResult<Connected> {
        let mut last = None;
        for (master, _) in self.masters().await? {
            // One that is down may be replaced while it is waited for.
            let connected = timeout(MASTER, self.connect_to(&master)).await;
            match connected
                .unwrap_or_else(|_| Err((Client::Io, "the master does not answer").into()))
            {
                Ok(connection) => {
                    let address: Arc<str> = master.into();
                    *self.leader() = Leader {
                        address: Some(Arc::clone(&address)),
                        asked: Some(Instant::now()),
                    };
                    return Ok((connection, Some(address)));
                }
                Err(error) => last = Some(error),
            }
        }
        let nobody = || RedisError::from((Client::InvalidClientConfig, "no sentinel in the URL"));
        Err(last.unwrap_or_else(nobody))
    }

    /// Where the master is, as the sentinels have it, and how many of them: most first.
    async fn masters(self: &Arc<Self>) -> RedisResult<Vec<(String, usize)>> {
        let (addresses, at_once) = (self.addresses.clone(), self.addresses.len());
        let masters = ask_several(addresses, at_once, |address| {
            let sentinels = Arc::clone(self);
            async move { sentinels.master(&address).await }
        });
        masters.await
    }

    /// Where the master is, according to a sentinel, which needs no password or the
    /// master's.
    async fn master(&self, sentinel: &str) -> RedisResult<String> {
        let anybody = self.access.client(&self.login.anonymous().url(sentinel))?;
        let answer = match self.ask(&anybody).await {
            Err(error) if error.code() == Some("NOAUTH") => {
                let url = self.login.without_database().url(sentinel);
                self.ask(&self.access.client_now(&url).await?).await?
            }
            answer => answer?,
        };
        match answer {
            Some((host, port)) => Ok(address(&host, port)),
            None => Err((
                Client::InvalidClientConfig,
                "a sentinel does not know the master",
            )
                .into()),
        }
    }

    async fn ask(&self, client: &redis::Client) -> RedisResult<Option<(String, u16)>> {
        let mut connection = connect(client, SENTINEL, SENTINEL).await?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("get-master-addr-by-name").arg(&self.master);
        question.query_async(&mut connection).await
    }

    async fn connect_to(&self, master: &str) -> RedisResult<Socket> {
        let url = self.login.url(master);
        let direct = Direct::new(&url, self.access.clone())?;
        // A sentinel may not have heard yet that it is none any more.
        let (connection, role) = direct.connect(true).await?;
        let role = role.unwrap_or(Value::Nil);
        let is_master = match &role {
            Value::Array(parts) => matches!(
                parts.first(),
                Some(Value::BulkString(role)) if role == b"master"
            ),
            _ => false,
        };
        match is_master {
            true => Ok(connection),
            false => Err((
                Client::Io,
                "the server that a sentinel named is not a master",
            )
                .into()),
        }
    }
}

/// The settings for TLS, where the client's server has it.
fn tls_of(
    client: &redis::Client,
    certificates: Option<&redis::TlsCertificates>,
) -> RedisResult<Option<Arc<ClientConfig>>> {
    match client.get_connection_info().addr() {
        ConnectionAddr::TcpTls { .. } => Ok(Some(Arc::new(tls(certificates)?))),
        _ => Ok(None),
    }
}

/// A connection that is given up when it takes so long to be made, or is silent for so
/// long.
pub(crate) async fn connect(
    client: &redis::Client,
    making: Duration,
    silence: Duration,
) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(making))
        .set_response_timeout(Some(silence));
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
}
