//! Where keys are: on the one server there is, or on those of a cluster. Of a cluster, which
//! server has which slots, and finding out when that has changed.
//!
//! The map is fetched by a task of its own whenever a server's answer, or the lack of
//! one, makes it doubtful: never by a caller, whose deadline is short, never by two at
//! once, and ever more seldom while it says nothing new. Until a new one is there,
//! redirections lead the way.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use redis::{RedisResult, Value};
use tidegate_config::{RedisUrl, Servers};
use tokio::runtime::Handle;
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::time::{Instant, sleep, timeout_at};

use crate::agreement::ask_several;
use crate::connect::{Connector, Direct, failed};
use crate::credentials::Credentials;
use crate::error::{ErrorKind, StoreError};
use crate::lane::LaneOptions;
use crate::lock::{lock, read, write};
use crate::sentinel::Sentinels;
use crate::server::{Server, jitter};
use crate::slots::{Range, SLOTS, ranges, redirection, slot};

/// How long a server may take to tell the map, and how many are asked at once: one of them
/// may have been away.
const PATIENCE: Duration = Duration::from_millis(500);
const ASKED: usize = 3;

/// The pause after a map, which doubles while they say nothing new, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// After so long without a doubt, a new one has nothing to do with those before.
const CALM: Duration = Duration::from_secs(3);

/// A server that has no slots is forgotten when nobody was sent to it for so long.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// Where keys are.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<Inner>);

struct Inner {
    /// What knows the map; `None` for one server, which has all slots.
    url: Option<RedisUrl>,
    credentials: Credentials,
    options: LaneOptions,
    map: RwLock<Arc<Map>>,
    /// Every server that the map or a redirection has named, by address, and when.
    servers: Mutex<HashMap<String, (Arc<Server>, Instant)>>,
    /// Who answers for slots that nobody has.
    nowhere: Arc<Server>,
    /// Whoever fetches the map has this.
    pauses: Arc<AsyncMutex<Pauses>>,
    /// Counts the maps that were fetched, or could not be.
    fetched: watch::Sender<u64>,
}

/// When the last pause between two maps has ended, and how long it was.
#[derive(Default)]
struct Pauses(Option<(Instant, Duration)>);

/// Which server has which slots: ranges in order, first and last.
#[derive(Default)]
struct Map(Vec<SlotRange>);

type SlotRange = (u16, u16, Arc<Server>);

impl Cluster {
    /// The servers of a store with this URL.
    pub(crate) fn new(
        text: &str,
        credentials: Credentials,
        mut options: LaneOptions,
    ) -> RedisResult<Self> {
        // One that only the client knows, such as `redis+unix:`, is for it to judge.
        let url = text.parse::<RedisUrl>().ok();
        let (mut cluster, mut map) = (None, Map::default());
        let one = |address, connector, options: &LaneOptions| {
            let server = Server::new(address, &connector, options);
            Map(vec![(0, SLOTS - 1, Arc::new(server))])
        };
        match url.as_ref().map(|url| (url, url.servers())) {
            None | Some((_, Servers::One)) => {
                let direct = Direct::new(text, &credentials)?;
                map = one(
                    direct.address(),
                    Connector::Direct(Arc::new(direct)),
                    &options,
                );
            }
            Some((url, Servers::Sentinel(master))) => {
                let sentinels = Sentinels::new(url, master, &credentials)?;
                let connector = Connector::Sentinel(Arc::new(sentinels));
                map = one(master.clone(), connector, &options);
            }
            Some((url, Servers::Cluster)) => {
                for seed in url.addresses() {
                    Direct::new(&url.server(&seed), &credentials)?;
                }
                options.is_cluster = true;
                cluster = Some(url.clone());
            }
        }
        let nowhere = Server::nowhere(options.timeout);
        let detail = "the slot map is not known yet";
        *lock(&nowhere.why) = Some(StoreError::new(ErrorKind::Timeout, detail));
        Ok(Self(Arc::new(Inner {
            url: cluster,
            credentials,
            options,
            map: RwLock::new(Arc::new(map)),
            servers: Mutex::default(),
            nowhere: Arc::new(nowhere),
            pauses: Arc::default(),
            fetched: watch::Sender::new(0),
        })))
    }

    /// Whether keys are spread over servers.
    pub(crate) fn is_spread(&self) -> bool {
        self.0.url.is_some()
    }

    /// The server that has a key. The first to ask wait for the map.
    pub(crate) async fn server(&self, key: Option<&str>, deadline: Instant) -> Arc<Server> {
        let mut map = self.map();
        if map.0.is_empty() && !self.0.nowhere.is_open() {
            let mut fetched = self.0.fetched.subscribe();
            self.fetch();
            // It may have come between the two.
            if self.map().0.is_empty() {
                drop(timeout_at(deadline, fetched.changed()).await);
            }
            map = self.map();
        }
        let server = match key {
            Some(key) if self.is_spread() => map.server(slot(key.as_bytes())),
            _ => map.0.first().map(|(_, _, server)| server),
        };
        Arc::clone(server.unwrap_or(&self.0.nowhere))
    }

    /// Where an error leads, and whether to ask there for keys on their way.
    pub(crate) fn redirected(
        &self,
        error: &StoreError,
        from: &Server,
    ) -> Option<(Arc<Server>, bool)> {
        let (address, asking) = redirection(error, &from.address)?;
        if !self.is_spread() {
            return None;
        }
        if !asking {
            self.fetch();
        }
        Some((self.named(&address).ok()?, asking))
    }

    /// Fetches the map again, if this error makes it doubtful.
    pub(crate) fn doubt(&self, kind: ErrorKind) {
        if matches!(
            kind,
            ErrorKind::Connect
                | ErrorKind::Timeout
                | ErrorKind::OutcomeUnknown
                | ErrorKind::BreakerOpen
                | ErrorKind::ReadOnly
                | ErrorKind::MasterDown
                | ErrorKind::ClusterDown
                | ErrorKind::Moved
        ) {
            self.fetch();
        }
    }

    /// All servers that have slots.
    pub(crate) fn servers(&self) -> Vec<Arc<Server>> {
        let servers = self.map().servers();
        match servers.is_empty() {
            true => vec![Arc::clone(&self.0.nowhere)],
            false => servers,
        }
    }

    fn map(&self) -> Arc<Map> {
        Arc::clone(&read(&self.0.map))
    }

    /// The server at an address, made if need be.
    fn named(&self, address: &str) -> RedisResult<Arc<Server>> {
        let mut servers = lock(&self.0.servers);
        if let Some((server, named)) = servers.get_mut(address) {
            *named = Instant::now();
            return Ok(Arc::clone(server));
        }
        let inner = &self.0;
        let connector = Connector::Direct(Arc::new(inner.direct(address)?));
        let server = Arc::new(Server::new(address.into(), &connector, &inner.options));
        servers.insert(address.into(), (Arc::clone(&server), Instant::now()));
        Ok(server)
    }

    /// Fetches the map, unless somebody does, or there is only one server.
    fn fetch(&self) {
        if !self.is_spread() {
            return;
        }
        // A caller without a runtime panics a moment later, with nothing changed here.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let Ok(mut pauses) = Arc::clone(&self.0.pauses).try_lock_owned() else {
            return;
        };
        let cluster = self.clone();
        runtime.spawn(async move {
            let is_new = match cluster.ask_for_map().await {
                Ok(map) => cluster.take(map),
                Err(error) => {
                    if cluster.map().0.is_empty() {
                        *lock(&cluster.0.nowhere.why) = Some(error);
                    }
                    false
                }
            };
            cluster.0.fetched.send_modify(|count| *count += 1);
            pauses.pause(is_new).await;
        });
    }

    /// The map that most of some servers tell.
    async fn ask_for_map(&self) -> Result<Vec<Range>, StoreError> {
        // Servers with slots first, because they hear of changes first; then the servers
        // named at the start. Not the same ones each time: they may be down.
        let random = RandomState::new();
        let shuffle = |addresses: &mut [String]| {
            addresses.sort_by_cached_key(|address| random.hash_one(address));
        };
        let servers = self.map().servers();
        let mut addresses: Vec<String> = servers.iter().map(|it| it.address.clone()).collect();
        shuffle(&mut addresses);
        let seeds = self.0.url.as_ref().map(RedisUrl::addresses);
        let mut seeds = seeds.unwrap_or_default();
        shuffle(&mut seeds);
        seeds.retain(|seed| !addresses.contains(seed));
        addresses.extend(seeds);
        let maps = ask_several(addresses, ASKED, |address| {
            let inner = Arc::clone(&self.0);
            async move { inner.map_of(&address).await }
        });
        let maps = maps.await;
        let maps = maps.map_err(|error| StoreError::from_client(&error, false))?;
        Ok(maps.into_iter().next().unwrap_or_default().0)
    }

    /// Puts a map in force, and says whether it is another one. Servers that are in none any
    /// more go with their connections.
    fn take(&self, ranges: Vec<Range>) -> bool {
        let map = ranges
            .into_iter()
            .filter_map(|(first, last, address)| Some((first, last, self.named(&address).ok()?)));
        let map = Map(map.collect());
        *lock(&self.0.nowhere.why) = None;
        let with_slots = map.servers();
        lock(&self.0.servers).retain(|_, (server, named)| {
            let has_slots = with_slots.iter().any(|other| Arc::ptr_eq(server, other));
            has_slots || named.elapsed() < FORGOTTEN
        });
        let old = std::mem::replace(&mut *write(&self.0.map), Arc::new(map));
        !old.is(&self.map())
    }
}

impl Pauses {
    /// Many processes ask for the map when a server fails, and the servers that are left
    /// have to answer them all.
    async fn pause(&mut self, is_new: bool) {
        let pause = match self.0.filter(|(ended, _)| ended.elapsed() < CALM) {
            Some((_, pause)) if !is_new => LONGEST_PAUSE.min(pause * 2),
            _ => FIRST_PAUSE,
        };
        sleep(pause.mul_f64(1.0 - jitter() / 2.0)).await;
        self.0 = Some((Instant::now(), pause));
    }
}

impl Inner {
    /// A server of the cluster.
    fn direct(&self, address: &str) -> RedisResult<Direct> {
        let url = self.url.as_ref().map(|url| url.server(address));
        Direct::new(&url.unwrap_or_default(), &self.credentials)
    }

    /// The map as one server knows it.
    async fn map_of(&self, asked: &str) -> RedisResult<Vec<Range>> {
        let direct = self.direct(asked)?;
        let mut question = redis::cmd("CLUSTER");
        let slots: Value = direct.ask(question.arg("SLOTS"), PATIENCE).await?;
        match ranges(&slots, asked) {
            ranges if ranges.is_empty() => failed("the server has no slots"),
            ranges => Ok(ranges),
        }
    }
}

impl Map {
    fn server(&self, slot: u16) -> Option<&Arc<Server>> {
        let after = self.0.partition_point(|(first, _, _)| *first <= slot);
        let (_, last, server) = self.0.get(after.checked_sub(1)?)?;
        (slot <= *last).then_some(server)
    }

    /// Its servers, each once.
    fn servers(&self) -> Vec<Arc<Server>> {
        let mut servers: Vec<Arc<Server>> = Vec::new();
        for (_, _, server) in &self.0 {
            if !servers.iter().any(|other| Arc::ptr_eq(other, server)) {
                servers.push(Arc::clone(server));
            }
        }
        servers
    }

    /// Whether it says the same.
    fn is(&self, other: &Self) -> bool {
        let same = |(one, other): (&SlotRange, &SlotRange)| {
            (one.0, one.1) == (other.0, other.1) && Arc::ptr_eq(&one.2, &other.2)
        };
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(same)
    }
}
