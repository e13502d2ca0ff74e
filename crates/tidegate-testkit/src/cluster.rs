//! A cluster of the test's own: real servers, put together by the commands that
//! `redis-cli --cluster` would send.

use std::time::{Duration, Instant};

use redis::{Connection, FromRedisValue, RedisResult};

use crate::redis::Server;

/// Slots of a cluster.
pub const SLOTS: u16 = 16_384;

/// A master that is silent for so long has failed, and a replica takes its place: longer
/// than a machine that does other things, too, keeps all of them waiting.
pub const NODE_TIMEOUT: Duration = Duration::from_millis(2_000);

/// A running cluster: each shard's master when it was made, then its replica if it has one.
pub struct Cluster {
    pub nodes: Vec<Server>,
    shards: usize,
    /// Whether nodes talk to each other over TLS, at the port `{third}`.
    tls: bool,
}

impl Cluster {
    /// Three masters, each with a replica.
    pub fn start() -> Self {
        Self::start_with(3, 1, &[])
    }

    /// So many masters, each with so many replicas, all with more arguments.
    pub fn start_with(shards: usize, replicas: usize, arguments: &[&str]) -> Self {
        let nodes = (0..shards * (1 + replicas)).map(|_| node(arguments));
        let cluster = Self {
            nodes: nodes.collect(),
            shards,
            tls: arguments.contains(&"--tls-cluster"),
        };
        let every = u32::from(SLOTS).div_ceil(u32::try_from(shards).expect("few"));
        for (index, node) in cluster.nodes.iter().enumerate() {
            let redis = &mut node.connect();
            let number = u32::try_from(index).expect("few");
            run::<()>(redis, &format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1));
            if index < shards {
                let last = ((number + 1) * every).min(SLOTS.into()) - 1;
                run::<()>(
                    redis,
                    &format!("CLUSTER ADDSLOTSRANGE {} {last}", number * every),
                );
            }
            cluster.meet(node);
        }
        let all = cluster.nodes.len();
        until("all nodes know each other", || {
            cluster.nodes.iter().all(|node| {
                let nodes: String = run(&mut node.connect(), "CLUSTER NODES");
                nodes.lines().count() == all && !nodes.contains("handshake")
            })
        });
        for (index, replica) in cluster.nodes.iter().enumerate().skip(shards) {
            let master = id(&cluster.nodes[index % shards]);
            run::<()>(
                &mut replica.connect(),
                &format!("CLUSTER REPLICATE {master}"),
            );
        }
        cluster.settle();
        cluster
    }

    /// Another node, which has no slots yet.
    pub fn join(&mut self) {
        let node = node(&[]);
        self.meet(&node);
        self.nodes.push(node);
        until("all nodes know the new one", || {
            self.nodes.iter().all(|node| {
                let nodes: String = run(&mut node.connect(), "CLUSTER NODES");
                nodes.lines().count() == self.nodes.len() && !nodes.contains("handshake")
            })
        });
        self.settle();
    }

    /// The last node leaves.
    pub fn leave(&mut self) {
        let gone = self.nodes.pop().expect("a node that has joined");
        let id = id(&gone);
        drop(gone);
        for node in &self.nodes {
            run::<()>(&mut node.connect(), &format!("CLUSTER FORGET {id}"));
        }
    }

    fn meet(&self, node: &Server) {
        let first = &self.nodes[0];
        let (port, bus) = (first.port(), first.others()[0]);
        let meet = format!("CLUSTER MEET 127.0.0.1 {port} {bus}");
        run::<()>(&mut node.connect(), &meet);
    }

    /// Waits until every node is content, and every replica has its master's data.
    pub fn settle(&self) {
        until("the cluster is well", || {
            self.nodes.iter().all(|node| {
                let redis = &mut node.connect();
                let state: String = run(redis, "CLUSTER INFO");
                let role: String = run(redis, "INFO replication");
                let nodes: String = run(redis, "CLUSTER NODES");
                let linked = role.contains("role:master") || role.contains("master_link_status:up");
                state.contains("cluster_state:ok") && linked && !nodes.contains("fail")
            }) && (0..self.shards).all(|shard| {
                let [a, b] = [shard, shard + self.shards].map(|index| self.nodes.get(index));
                let masters = [a, b].into_iter().flatten().filter(|node| is_master(node));
                masters.count() == 1
            })
        });
    }

    pub fn url(&self) -> String {
        let hosts: Vec<String> = self
            .nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port()))
            .collect();
        format!("redis-cluster://{}", hosts.join(","))
    }

    /// The place among the nodes of the master that has a slot, by its own account.
    pub fn owner(&self, slot: u16) -> usize {
        let owner = |node: &Server| {
            let nodes: String = run(&mut node.connect(), "CLUSTER NODES");
            let own = nodes.lines().find(|line| line.contains("myself"));
            let words = own.expect("a line of its own").split(' ').skip(8);
            words.filter(|word| !word.starts_with('[')).any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let [first, last] =
                    [first, last].map(|it| it.parse::<u16>().expect("a slot of CLUSTER NODES"));
                (first..=last).contains(&slot)
            })
        };
        let place = self.nodes.iter().position(owner);
        place.expect("a master for the slot")
    }

    /// Who leads: the places of all masters.
    pub fn masters(&self) -> Vec<usize> {
        let places = 0..self.nodes.len();
        places
            .filter(|place| is_master(&self.nodes[*place]))
            .collect()
    }

    /// The number of the last election, which no two have in common.
    pub fn epoch(&self) -> u64 {
        let epochs = self.nodes.iter().map(|node| {
            let info: String = run(&mut node.connect(), "CLUSTER INFO");
            let mut lines = info.lines();
            let epoch = lines.find_map(|line| line.strip_prefix("cluster_current_epoch:"));
            epoch.expect("an epoch").parse().expect("a number")
        });
        epochs.max().expect("a node")
    }

    /// The other node of a shard.
    pub fn partner(&self, place: usize) -> usize {
        (place + self.shards) % (2 * self.shards)
    }

    /// A connection to the master that has a slot.
    pub fn master_of(&self, slot: u16) -> Connection {
        self.nodes[self.owner(slot)].connect()
    }

    /// The slot of a key, as the cluster says.
    pub fn slot(&self, key: &str) -> u16 {
        let mut question = redis::cmd("CLUSTER");
        question.arg("KEYSLOT").arg(key);
        question
            .query(&mut self.nodes[0].connect())
            .expect("a slot")
    }

    /// Moves a slot to another master as `redis-cli --cluster reshard` does, key by key.
    /// `each` is called when it has begun, and after every key.
    pub fn move_slot(&self, slot: u16, to: usize, mut each: impl FnMut()) {
        let from = self.owner(slot);
        assert_ne!(from, to);
        let [(source, mut out), (target, mut into)] =
            [from, to].map(|place| (id(&self.nodes[place]), self.nodes[place].connect()));
        let port = match self.tls {
            true => self.nodes[to].others()[1],
            false => self.nodes[to].port(),
        };
        run::<()>(
            &mut into,
            &format!("CLUSTER SETSLOT {slot} IMPORTING {source}"),
        );
        run::<()>(
            &mut out,
            &format!("CLUSTER SETSLOT {slot} MIGRATING {target}"),
        );
        each();
        loop {
            let keys: Vec<String> = run(&mut out, &format!("CLUSTER GETKEYSINSLOT {slot} 100"));
            if keys.is_empty() {
                break;
            }
            for key in keys {
                let mut migrate = redis::cmd("MIGRATE");
                migrate.arg("127.0.0.1").arg(port).arg(&key).arg(0);
                let moved: RedisResult<String> = migrate.arg(5_000).query(&mut out);
                moved.expect("a key that can be moved");
                each();
            }
        }
        // The new owner first, or no server would have the slot for a moment.
        let node = format!("CLUSTER SETSLOT {slot} NODE {target}");
        run::<()>(&mut into, &node);
        run::<()>(&mut out, &node);
    }
}

fn node(arguments: &[&str]) -> Server {
    let timeout = NODE_TIMEOUT.as_millis().to_string();
    let own = [
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        "{other}",
        "--cluster-node-timeout",
        &timeout,
        "--cluster-require-full-coverage",
        "no",
        "--cluster-allow-replica-migration",
        "no",
        "--cluster-replica-validity-factor",
        "0",
        "--repl-diskless-sync-delay",
        "0",
    ];
    Server::start_with(&[&own, arguments].concat())
}

/// The name of a node.
pub fn id(node: &Server) -> String {
    run(&mut node.connect(), "CLUSTER MYID")
}

pub fn is_master(node: &Server) -> bool {
    replication(node).contains("role:master")
}

/// What a server says of its replication: nothing, while sentinels give it another part
/// to play and close its connections.
pub fn replication(node: &Server) -> String {
    let client = redis::Client::open(node.url()).expect("a right url");
    let info = client.get_connection().and_then(|mut redis| {
        let mut question = redis::cmd("INFO");
        question.arg("replication").query(&mut redis)
    });
    info.unwrap_or_default()
}

/// Sends a command whose words have no spaces in them.
pub fn run<T: FromRedisValue>(redis: &mut Connection, command: &str) -> T {
    let mut words = command.split(' ');
    let mut question = redis::cmd(words.next().expect("a command"));
    for word in words {
        question.arg(word);
    }
    let answer = question.query(redis);
    answer.unwrap_or_else(|error| panic!("{command}: {error}"))
}

/// Waits until it is so.
pub fn until(what: &str, mut so: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(120), "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
    start.elapsed()
}
