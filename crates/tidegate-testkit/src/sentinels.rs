//! Three sentinels of the test's own, and what they watch: a master and two replicas.

use std::time::Duration;

use crate::cluster::{is_master, replication, run, until};
use crate::redis::Server;

/// A master that is silent for so long is down: longer than a machine that does other
/// things, too, keeps it waiting.
pub const DOWN_AFTER: Duration = Duration::from_millis(2_000);

/// A running trio. The first of the servers is the master at the start.
pub struct Trio {
    pub servers: Vec<Server>,
    pub sentinels: Vec<Server>,
}

impl Trio {
    pub fn start() -> Self {
        let own = ["--repl-diskless-sync-delay", "0"];
        let master = Server::start_with(&own);
        let port = master.port().to_string();
        let replica = ["--replicaof", "127.0.0.1", &port];
        let replica = || Server::start_with(&[&own[..], &replica].concat());
        let down_after = DOWN_AFTER.as_millis();
        let config = format!(
            "port {{port}}\nbind 127.0.0.1\n\
             sentinel monitor main 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds main {down_after}\n\
             sentinel failover-timeout main 4000\n\
             sentinel parallel-syncs main 2"
        );
        let sentinels = (0..3).map(|_| Server::start_sentinel(&config)).collect();
        let servers = vec![master, replica(), replica()];
        let trio = Self { servers, sentinels };
        trio.settle();
        trio
    }

    /// Waits until the sentinels know each other and both replicas, and those have their
    /// master's data.
    pub fn settle(&self) {
        until("the sentinels are content", || {
            self.sentinels.iter().all(|sentinel| {
                let counts = ["num-slaves", "num-other-sentinels", "flags"];
                counts.map(|name| known(sentinel, name)) == ["2", "2", "master"]
            }) && self.servers.iter().filter(|it| is_master(it)).count() == 1
                && self.servers.iter().all(|server| {
                    let role = replication(server);
                    role.contains("role:master") || role.contains("master_link_status:up")
                })
        });
    }

    /// The number of the last failover.
    pub fn epoch(&self) -> u64 {
        let epochs = self.sentinels.iter().map(|sentinel| {
            let epoch = known(sentinel, "config-epoch");
            epoch.parse().expect("a number")
        });
        epochs.max().expect("a sentinel")
    }

    pub fn url(&self) -> String {
        let hosts: Vec<String> = self
            .sentinels
            .iter()
            .map(|sentinel| format!("127.0.0.1:{}", sentinel.port()))
            .collect();
        format!("redis-sentinel://{}/main", hosts.join(","))
    }

    /// The place of the master, as a sentinel has it.
    pub fn master(&self) -> usize {
        let (_, port): (String, u16) = run(
            &mut self.sentinels[0].connect(),
            "SENTINEL get-master-addr-by-name main",
        );
        let place = self.servers.iter().position(|it| it.port() == port);
        place.expect("one of the servers")
    }
}

/// What a sentinel has to say about the master.
fn known(sentinel: &Server, field: &str) -> String {
    let known: Vec<String> = run(&mut sentinel.connect(), "SENTINEL MASTER main");
    let mut pairs = known.chunks(2).filter(|pair| pair[0] == field);
    pairs.next().map(|pair| pair[1].clone()).unwrap_or_default()
}
