//! A small TCP proxy of our own between a store and its server, which does to replies
//! what networks do to them: delays them, loses them, cuts them in the middle.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// What happens to replies.
#[derive(Debug, Clone, Copy)]
pub enum Replies {
    /// Nothing.
    Pass,
    /// Each comes so much later; they do not wait for each other.
    Delay(Duration),
    /// They are lost, and so is everything else on a connection that has met this,
    /// although it stays open: even afterwards.
    BlackHole,
    /// Some bytes of the next one arrive, then the connection is closed.
    Cut { after: usize },
    /// Half of the next one arrives, and then nothing more.
    Half,
    /// What arrives is no reply.
    Junk,
    /// One in so many is cut at a random place.
    CutSome { one_in: u64 },
}

/// A running proxy; stopped when it is dropped.
pub struct Proxy {
    shared: Arc<Shared>,
    port: u16,
    accepting: JoinHandle<()>,
}

struct Shared {
    target: AtomicU16,
    replies: Mutex<Replies>,
    accepted: AtomicUsize,
    /// Connections end when this changes.
    round: watch::Sender<u64>,
    random: AtomicU64,
}

impl Proxy {
    /// A proxy for a server at this port.
    pub async fn start(target: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared {
            target: AtomicU16::new(target),
            replies: Mutex::new(Replies::Pass),
            accepted: AtomicUsize::new(0),
            round: watch::Sender::new(0),
            random: AtomicU64::new(1),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self {
            shared,
            port,
            accepting,
        }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// From now on, on all connections.
    pub fn set(&self, replies: Replies) {
        *self.shared.replies.lock().expect("no panic") = replies;
    }

    /// Where new connections lead to; those that are there stay.
    pub fn lead_to(&self, target: u16) {
        self.shared.target.store(target, Relaxed);
    }

    /// Closes every connection.
    pub fn cut_all(&self) {
        self.shared.round.send_modify(|round| *round += 1);
    }

    /// Connections that were ever made.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut_all();
    }
}

impl Shared {
    fn replies(&self) -> Replies {
        *self.replies.lock().expect("no panic")
    }

    /// A number below `end`, from a sequence that is the same each time.
    fn below(&self, end: u64) -> u64 {
        let mut z = self.random.fetch_add(0x9E37_79B9_7F4A_7C15, Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        shared.accepted.fetch_add(1, Relaxed);
        tokio::spawn(connection(client, Arc::clone(&shared)));
    }
}

async fn connection(client: TcpStream, shared: Arc<Shared>) {
    let mut round = shared.round.subscribe();
    let target = SocketAddr::from(([127, 0, 0, 1], shared.target.load(Relaxed)));
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    drop((client.set_nodelay(true), server.set_nodelay(true)));
    let ((mut from_client, to_client), (from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let (later, due) = mpsc::unbounded_channel();
    // Whichever ends first, ends all: dropping the halves closes both connections.
    tokio::select! {
        _ = round.changed() => {}
        _ = tokio::io::copy(&mut from_client, &mut to_server) => {}
        () = read(from_server, later, &shared) => {}
        () = write(to_client, due) => {}
    }
}

type Later = (Instant, Vec<u8>);

/// Takes replies from the server, and decides their fate.
async fn read(
    mut server: tokio::net::tcp::OwnedReadHalf,
    later: mpsc::UnboundedSender<Later>,
    shared: &Shared,
) {
    let mut buffer = vec![0; 1 << 16];
    let mut lost = false;
    while let Ok(length @ 1..) = server.read(&mut buffer).await {
        let now = Instant::now();
        let mut reply = buffer[..length].to_vec();
        let mut ends = false;
        let mut due = now;
        match shared.replies() {
            Replies::Pass => {}
            Replies::Delay(delay) => due += delay,
            Replies::BlackHole => lost = true,
            Replies::Cut { after } => {
                reply.truncate(after);
                ends = true;
            }
            Replies::Half if !lost => {
                let half = reply[..length / 2].to_vec();
                drop(later.send((now, half)));
                lost = true;
            }
            Replies::Half => {}
            Replies::Junk => reply = b"?!\r\nthis is no reply\r\n".to_vec(),
            Replies::CutSome { one_in } => {
                if shared.below(one_in) == 0 {
                    let after = shared.below(length as u64);
                    reply.truncate(usize::try_from(after).expect("below a length"));
                    ends = true;
                }
            }
        }
        if !lost && later.send((due, reply)).is_err() {
            return;
        }
        if ends {
            break;
        }
    }
    // Of what is lost, nobody is told; otherwise the writer ends it, after the last byte.
    let _later = lost.then_some(later);
    std::future::pending::<()>().await;
}

async fn write(
    mut client: tokio::net::tcp::OwnedWriteHalf,
    mut due: mpsc::UnboundedReceiver<Later>,
) {
    while let Some((due, reply)) = due.recv().await {
        sleep_until(due).await;
        if client.write_all(&reply).await.is_err() {
            return;
        }
    }
}
