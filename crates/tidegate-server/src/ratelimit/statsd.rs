//! The statistics for statsd: what was added since the last time, in datagrams.

use std::fmt::Write;
use std::io;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::net::{UdpSocket, lookup_host};
use tokio::sync::Mutex;
use tokio::time::{MissedTickBehavior, interval};

use super::statistics::{COUNTERS, Limit, Statistics};
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
    /// Held while statistics are sent, so that none are sent twice.
    sending: Mutex<()>,
}

/// Lines for statsd, and what it has heard once they are sent.
#[derive(Default)]
struct Datagram<'s> {
    text: String,
    counts: Vec<(&'s AtomicU64, u64)>,
}

impl Statsd {
    pub(crate) fn new(address: &str, statistics: &Arc<Statistics>, engine: &Arc<Engine>) -> Self {
        Self {
            address: address.into(),
            statistics: Arc::clone(statistics),
            engine: Arc::clone(engine),
            loads: Default::default(),
            sending: Mutex::new(()),
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
        self.send(&socket).await
    }

    /// Sends all that is new. What cannot be sent is new the next time, too.
    async fn send(&self, socket: &UdpSocket) -> io::Result<()> {
        let _alone = self.sending.lock().await;
        let limits = self.statistics.limits();
        for datagram in self.datagrams(&limits) {
            socket.send(datagram.text.as_bytes()).await?;
            for (sent, count) in datagram.counts {
                sent.store(count, Relaxed);
            }
        }
        Ok(())
    }

    fn datagrams<'s>(&'s self, limits: &'s [Arc<Limit>]) -> Vec<Datagram<'s>> {
        let (mut datagrams, mut datagram) = (Vec::new(), Datagram::default());
        let mut add = |name: &str, count: u64, sent: &'s AtomicU64| {
            let new = count.saturating_sub(sent.load(Relaxed));
            if new == 0 {
                return;
            }
            let text = &datagram.text;
            if text.len() + name.len() + 24 > MAX_DATAGRAM && !text.is_empty() {
                datagrams.push(std::mem::take(&mut datagram));
            }
            // Into a string, nothing fails.
            let _ = writeln!(datagram.text, "{name}:{new}|c");
            datagram.counts.push((sent, count));
        };
        for limit in limits {
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
        datagrams.retain(|datagram| !datagram.counts.is_empty());
        datagrams
    }
}

/// A name without the signs that mean something to statsd.
fn sanitized(name: &str) -> String {
    name.replace([':', '|', '\n'], "_")
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::ratelimit::statistics::tests::count;
    use crate::settings::Settings;

    #[tokio::test]
    async fn s23_statistics_that_could_not_be_sent_are_sent_the_next_time() {
        let statistics = Arc::new(Statistics::default());
        (0..3).for_each(|_| count(&statistics, &["user"]));
        let engine = Engine::new(Settings::default().load().unwrap()).unwrap();
        let receiver = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = receiver.local_addr().unwrap().to_string();
        let statsd = Statsd::new(&address, &statistics, &Arc::new(engine));
        // A socket that is not connected sends nothing.
        let unconnected = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        statsd.send(&unconnected).await.unwrap_err();
        statsd.flush().await.unwrap();
        let mut datagram = [0; MAX_DATAGRAM];
        let received = timeout(Duration::from_secs(10), receiver.recv(&mut datagram)).await;
        let length = received.expect("a datagram").unwrap();
        assert_eq!(
            String::from_utf8_lossy(&datagram[..length]),
            "ratelimit.service.rate_limit.d.user.total_hits:3|c\n\
             ratelimit.service.rate_limit.d.user.within_limit:3|c\n"
        );
        // Once is enough.
        assert!(statsd.datagrams(&statistics.limits()).is_empty());
    }
}
