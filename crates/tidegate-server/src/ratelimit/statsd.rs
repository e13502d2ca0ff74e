//! The statistics for statsd: what was added since the last time, in datagrams.

use std::fmt::Write;
use std::io;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::net::{UdpSocket, lookup_host};
use tokio::time::{MissedTickBehavior, interval};

use super::statistics::{COUNTERS, Statistics};
use crate::engine::Engine;

/// The longest datagram: one that fits into a packet of the usual network.
const MAX_DATAGRAM: usize = 1_400;

/// Sends statistics to statsd.
pub(crate) struct Statsd {
    address: String,
    statistics: Arc<Statistics>,
    engine: Arc<Engine>,
    /// What it has heard about configs.
    loads: [AtomicU64; 2],
}

impl Statsd {
    pub(crate) fn new(address: &str, statistics: &Arc<Statistics>, engine: &Arc<Engine>) -> Self {
        Self {
            address: address.into(),
            statistics: Arc::clone(statistics),
            engine: Arc::clone(engine),
            loads: Default::default(),
        }
    }

    /// Sends what is new, for ever. A statsd that is not there is not waited for.
    pub(crate) async fn run(self: Arc<Self>, period: Duration) {
        let mut tick = interval(period);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_down = false;
        loop {
            tick.tick().await;
            let sent = self.flush().await;
            if let Err(error) = &sent
                && !is_down
            {
                let address = &self.address;
                tracing::warn!(%error, "cannot send statistics to statsd at {address}; trying again");
            }
            is_down = sent.is_err();
        }
    }

    /// Sends what was counted since the last time.
    pub(crate) async fn flush(&self) -> io::Result<()> {
        let address = lookup_host(&self.address).await?.next();
        let address = address.ok_or(io::ErrorKind::NotFound)?;
        let own = match address.is_ipv4() {
            true => ([0, 0, 0, 0], 0).into(),
            false => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind::<std::net::SocketAddr>(own).await?;
        socket.connect(address).await?;
        for datagram in self.datagrams() {
            socket.send(datagram.as_bytes()).await?;
        }
        Ok(())
    }

    fn datagrams(&self) -> Vec<String> {
        let (mut datagrams, mut datagram) = (Vec::new(), String::new());
        let mut add = |name: &str, count: u64, sent: &AtomicU64| {
            let new = count.saturating_sub(sent.swap(count, Relaxed));
            if new == 0 {
                return;
            }
            if datagram.len() + name.len() + 24 > MAX_DATAGRAM && !datagram.is_empty() {
                datagrams.push(std::mem::take(&mut datagram));
            }
            // Into a string, nothing fails.
            let _ = writeln!(datagram, "{name}:{new}|c");
        };
        for limit in self.statistics.limits() {
            let parts: Vec<String> = limit.path.iter().map(|part| sanitized(part)).collect();
            let path = parts.join(".");
            for (index, counter) in COUNTERS.iter().enumerate() {
                let name = format!("ratelimit.service.rate_limit.{path}.{counter}");
                let count = limit.counts[index].load(Relaxed);
                add(&name, count, &limit.sent[index]);
            }
        }
        let loads = ["success", "error"].into_iter();
        let loads = loads.zip(self.engine.metrics.reloads()).zip(&self.loads);
        for ((result, count), sent) in loads {
            let name = format!("ratelimit.service.config_load_{result}");
            add(&name, count, sent);
        }
        datagrams.push(datagram);
        datagrams.retain(|datagram| !datagram.is_empty());
        datagrams
    }
}

/// A name without the signs that mean something to statsd.
fn sanitized(name: &str) -> String {
    name.replace([':', '|', '\n'], "_")
}
