//! A cluster: which node has which slots, and finding out when that has changed.
//!
//! The map is fetched by a task of its own whenever a node's answer, or the lack of
//! one, makes it doubtful: never by a caller, whose deadline is short, and never by two
//! at once. Until a new one is there, redirections lead the way.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use redis::{RedisResult, Value};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::connector::{Connector, client, connect};
use crate::error::{ErrorKind, StoreError};
use crate::node::{Node, Wiring, jitter};
use crate::place::{Login, address};

/// The slots of a cluster.
const SLOTS: u16 = 16_384;

/// How long a node may take to tell the map, and how many are asked at once.
const PATIENCE: Duration = Duration::from_millis(500);
const ASKED: usize = 3;

/// The map is not fetched more often than this.
const PAUSE: Duration = Duration::from_millis(100);

/// Where keys are in a cluster.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<Inner>);

struct Inner {
    seeds: Vec<String>,
    login: Login,
    certificates: Option<redis::TlsCertificates>,
    wiring: Wiring,
    map: RwLock<Arc<Map>>,
    /// Every node that the map or a redirection has named, by address.
    nodes: Mutex<HashMap<String, Arc<Node>>>,
    /// Who answers for slots that nobody has.
    nowhere: Arc<Node>,
    fetching: AtomicBool,
    /// Counts the maps that were fetched, or could not be.
    fetched: watch::Sender<u64>,
}

/// Who has which slots: ranges in order, first and last.
#[derive(Default)]
struct Map(Vec<(u16, u16, Arc<Node>)>);

/// Where a node sends those who ask it for what it does not have.
#[derive(Debug, PartialEq, Eq)]
struct Redirection {
    address: String,
    /// Only this question: the slot is still on its way.
    asking: bool,
}

impl Cluster {
    pub(crate) fn new(
        seeds: Vec<String>,
        login: Login,
        certificates: Option<redis::TlsCertificates>,
        wiring: Wiring,
    ) -> Self {
        Self(Arc::new(Inner {
            seeds,
            login,
            certificates,
            wiring,
            map: RwLock::default(),
            nodes: Mutex::default(),
            nowhere: Arc::new(Node::nowhere()),
            fetching: AtomicBool::new(false),
            fetched: watch::Sender::new(0),
        }))
    }

    /// The node that has a key. The first to ask wait for the map.
    pub(crate) async fn node(&self, key: Option<&str>, deadline: Instant) -> Arc<Node> {
        if self.map().0.is_empty() && !self.0.nowhere.is_open() {
            let mut fetched = self.0.fetched.subscribe();
            self.fetch();
            drop(timeout_at(deadline, fetched.changed()).await);
        }
        let map = self.map();
        let node = match key {
            Some(key) => map.node(slot(key.as_bytes())),
            None => map.0.first().map(|(_, _, node)| node),
        };
        Arc::clone(node.unwrap_or(&self.0.nowhere))
    }

    /// Where an error leads, and whether to ask there for keys on their way.
    pub(crate) fn redirected(&self, error: &StoreError, from: &Node) -> Option<(Arc<Node>, bool)> {
        let redirection = Redirection::read(error, &from.address)?;
        if !redirection.asking {
            self.fetch();
        }
        let node = self.named(&redirection.address).ok()?;
        Some((node, redirection.asking))
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

    /// All nodes that have slots.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        for (_, _, node) in &self.map().0 {
            if !nodes.iter().any(|other| Arc::ptr_eq(other, node)) {
                nodes.push(Arc::clone(node));
            }
        }
        match nodes.is_empty() {
            true => vec![Arc::clone(&self.0.nowhere)],
            false => nodes,
        }
    }

    fn map(&self) -> Arc<Map> {
        let map = self.0.map.read();
        Arc::clone(&map.expect("nothing panics under this lock"))
    }

    /// The node at an address, made if need be.
    fn named(&self, address: &str) -> RedisResult<Arc<Node>> {
        let nodes = self.0.nodes.lock();
        let mut nodes = nodes.expect("nothing panics under this lock");
        if let Some(node) = nodes.get(address) {
            return Ok(Arc::clone(node));
        }
        let inner = &self.0;
        let client = client(&inner.login.url(address), inner.certificates.as_ref())?;
        let connector = Connector::Direct(Arc::new(client));
        let node = Arc::new(Node::new(address.into(), &connector, &inner.wiring));
        nodes.insert(address.into(), Arc::clone(&node));
        Ok(node)
    }

    /// Fetches the map, unless somebody does.
    fn fetch(&self) {
        if self.0.fetching.swap(true, SeqCst) {
            return;
        }
        let cluster = self.clone();
        tokio::spawn(async move {
            // Given back even if this task is dropped with its runtime.
            let fetching = Fetching(cluster);
            let inner = &fetching.0.0;
            if let Some(map) = fetching.0.ask_for_map().await {
                fetching.0.take(map);
            }
            inner.fetched.send_modify(|count| *count += 1);
            tokio::time::sleep(PAUSE).await;
        });
    }

    /// The map, from whichever of some nodes tells it first.
    async fn ask_for_map(&self) -> Option<Vec<(u16, u16, String)>> {
        let mut addresses: Vec<String> = self.nodes().iter().map(|it| it.address.clone()).collect();
        addresses.retain(|address| *address != self.0.nowhere.address);
        addresses.extend(self.0.seeds.iter().cloned());
        let mut seen = Vec::new();
        addresses.retain(|address| {
            let new = !seen.contains(address);
            seen.push(address.clone());
            new
        });
        // Not the same ones each time: they may be those that are down.
        if !addresses.is_empty() {
            let length = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let first = (jitter() * f64::from(length)) as usize % addresses.len();
            addresses.rotate_left(first);
        }
        let mut waiting = addresses.into_iter();
        let mut asked = JoinSet::new();
        let ask = |asked: &mut JoinSet<_>, address: String| {
            let inner = Arc::clone(&self.0);
            asked.spawn(async move { inner.map_of(&address).await });
        };
        for address in waiting.by_ref().take(ASKED) {
            ask(&mut asked, address);
        }
        while let Some(told) = asked.join_next().await {
            if let Ok(Ok(map)) = told
                && !map.is_empty()
            {
                return Some(map);
            }
            if let Some(address) = waiting.next() {
                ask(&mut asked, address);
            }
        }
        None
    }

    /// Puts a map in force. Nodes that are in none any more go with their connections.
    fn take(&self, ranges: Vec<(u16, u16, String)>) {
        let mut map: Vec<(u16, u16, Arc<Node>)> = ranges
            .into_iter()
            .filter_map(|(first, last, address)| Some((first, last, self.named(&address).ok()?)))
            .collect();
        map.sort_unstable_by_key(|(first, _, _)| *first);
        let nodes = self.0.nodes.lock();
        let mut nodes = nodes.expect("nothing panics under this lock");
        nodes.retain(|_, node| map.iter().any(|(_, _, other)| Arc::ptr_eq(node, other)));
        let old = self.0.map.write();
        *old.expect("nothing panics under this lock") = Arc::new(Map(map));
    }
}

/// Lets others fetch when it goes.
struct Fetching(Cluster);

impl Drop for Fetching {
    fn drop(&mut self) {
        self.0.0.fetching.store(false, SeqCst);
    }
}

impl Inner {
    /// The map as one node knows it.
    async fn map_of(&self, asked: &str) -> RedisResult<Vec<(u16, u16, String)>> {
        let client = client(&self.login.url(asked), self.certificates.as_ref())?;
        let mut connection = connect(&client, PATIENCE).await?;
        let mut question = redis::cmd("CLUSTER");
        let slots: Value = question.arg("SLOTS").query_async(&mut connection).await?;
        Ok(ranges(&slots, asked))
    }
}

impl Map {
    fn node(&self, slot: u16) -> Option<&Arc<Node>> {
        let after = self.0.partition_point(|(first, _, _)| *first <= slot);
        let (_, last, node) = self.0.get(after.checked_sub(1)?)?;
        (slot <= *last).then_some(node)
    }
}

/// Reads the answer to `CLUSTER SLOTS`: a range is its first and last slot, its master,
/// and its replicas. A master that does not know its own host is where it was asked.
fn ranges(slots: &Value, asked: &str) -> Vec<(u16, u16, String)> {
    let Value::Array(slots) = slots else {
        return Vec::new();
    };
    let range = |range: &Value| {
        let Value::Array(parts) = range else {
            return None;
        };
        let [
            Value::Int(first),
            Value::Int(last),
            Value::Array(master),
            ..,
        ] = &parts[..]
        else {
            return None;
        };
        let [host, Value::Int(port), ..] = &master[..] else {
            return None;
        };
        let host = match host {
            Value::BulkString(host) => std::str::from_utf8(host).ok()?,
            Value::SimpleString(host) => host,
            _ => "",
        };
        Some((
            u16::try_from(*first).ok()?,
            u16::try_from(*last).ok()?,
            located(host, u16::try_from(*port).ok()?, asked),
        ))
    };
    slots.iter().filter_map(range).collect()
}

fn located(host: &str, port: u16, asked: &str) -> String {
    let own = asked.rsplit_once(':').map_or(asked, |(host, _)| host);
    match host {
        "" | "?" => address(own, port),
        host => address(host, port),
    }
}

impl Redirection {
    /// Reads `MOVED 3999 10.0.0.1:6379`, and `ASK` likewise.
    fn read(error: &StoreError, asked: &str) -> Option<Self> {
        if error.kind() != ErrorKind::Moved {
            return None;
        }
        let mut words = error.detail().split(' ');
        let asking = words.next()? == "ASK";
        let _slot = words.next()?;
        let (host, port) = words.next()?.rsplit_once(':')?;
        Some(Self {
            address: located(host, port.parse().ok()?, asked),
            asking,
        })
    }
}

/// The slot of a key: of what stands between its first braces, if anything does.
fn slot(key: &[u8]) -> u16 {
    let position = |bytes: &[u8], sign| bytes.iter().position(|byte| *byte == sign);
    let tag = position(key, b'{').and_then(|open| {
        let inside = &key[open + 1..];
        position(inside, b'}')
            .filter(|length| *length > 0)
            .map(|length| &inside[..length])
    });
    crc16::State::<crc16::XMODEM>::calculate(tag.unwrap_or(key)) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_slots_that_the_cluster_says() {
        // As `CLUSTER KEYSLOT` answers.
        for (key, expected) in [
            ("foo", 12_182),
            ("{foo}:x", 12_182),
            ("x{foo}{bar}", 12_182),
            ("", 0),
            ("{}foo", 9_500),
        ] {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
    }

    #[test]
    fn redirections_are_read() {
        let read = |kind, detail: &str| Redirection::read(&StoreError::new(kind, detail), "h:1");
        let to = |address: &str, asking| {
            let address = address.to_owned();
            Some(Redirection { address, asking })
        };
        let moved = ErrorKind::Moved;
        assert_eq!(
            read(moved, "MOVED 3999 10.0.0.1:7"),
            to("10.0.0.1:7", false)
        );
        assert_eq!(read(moved, "ASK 3999 ::1:7"), to("[::1]:7", true));
        assert_eq!(read(moved, "MOVED 3999 :7"), to("h:7", false));
        assert_eq!(read(moved, "MOVED"), None);
        assert_eq!(read(moved, "MOVED 3999 10.0.0.1:x"), None);
        assert_eq!(read(ErrorKind::Other, "MOVED 3999 10.0.0.1:7"), None);
    }

    #[test]
    fn the_map_is_read() {
        let bulk = |text: &str| Value::BulkString(text.into());
        let node = |host: Value, port| Value::Array(vec![host, Value::Int(port), bulk("id")]);
        let range =
            |first, last, node| Value::Array(vec![Value::Int(first), Value::Int(last), node]);
        let slots = Value::Array(vec![
            range(0, 5, node(bulk("10.0.0.1"), 1)),
            range(6, 9, node(bulk(""), 2)),
            range(10, 11, node(Value::Nil, 3)),
            range(12, 70_000, node(bulk("h"), 4)),
            Value::Nil,
        ]);
        let expected = [(0, 5, "10.0.0.1:1"), (6, 9, "asked:2"), (10, 11, "asked:3")];
        let expected = expected.map(|(first, last, address)| (first, last, address.to_owned()));
        assert_eq!(ranges(&slots, "asked:9"), expected);
    }
}
