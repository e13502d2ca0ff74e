//! A listener: an address, a protocol, TLS and limits.

use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
#[cfg(test)]
use tokio::io::DuplexStream;
use tokio::net::{
    TcpListener, TcpSocket, TcpStream, UnixListener, UnixSocket, UnixStream, lookup_host,
};
#[cfg(test)]
use tokio::sync::mpsc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;

use super::Shared;
use super::connection::Connection;
use super::stream::{Io, Stream};
use super::worker::{Chosen, Place};
use crate::section::Address;

/// Connections that may wait to be accepted; the system may allow fewer
/// (`net.core.somaxconn`).
const BACKLOG: u32 = 4_096;

/// Bytes of a connection that the system holds until the client reads them; it doubles them.
const SEND_BUFFER: u32 = 64 << 10;

/// How long to wait when no connection can be accepted, as without file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// What connections of a listener speak.
pub trait Protocol: Send + Sync + 'static {
    /// Serves a connection until it ends. A protocol calls
    /// [`in_progress`](Connection::in_progress) for each request and ends when
    /// [`ending`](Connection::ending) says so.
    fn serve(&self, stream: Stream, connection: Arc<Connection>) -> Serving;

    /// How the URL of an address begins, in the clear and over TLS.
    fn schemes(&self) -> [&'static str; 2];
}

/// A connection while it is served.
pub type Serving = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where to get the certificate in force; `None` for connections in the clear.
pub type Tls = Arc<dyn Fn() -> Option<TlsAcceptor> + Send + Sync>;

/// How many connections a group of listeners takes at once.
#[derive(Debug, Clone)]
pub struct Room {
    places: Arc<Semaphore>,
    most: usize,
    spare: usize,
}

/// An address that connections come in by, and what becomes of them.
pub struct Listener {
    socket: Socket,
    protocol: Arc<dyn Protocol>,
    tls: Tls,
    room: Room,
}

enum Socket {
    Tcp(TcpListener, SocketAddr),
    /// The path goes with the socket.
    Unix(UnixListener, PathBuf),
    /// A test hands connections over.
    #[cfg(test)]
    Memory(tokio::sync::Mutex<mpsc::UnboundedReceiver<DuplexStream>>),
}

/// A connection that no worker has taken yet.
enum Accepted {
    Tcp(std::net::TcpStream, SocketAddr),
    Unix(std::os::unix::net::UnixStream),
    #[cfg(test)]
    Memory(DuplexStream),
}

impl Room {
    /// Room for so many connections at once, and for so many more that are there for one
    /// short answer each.
    #[must_use]
    pub fn new(most: usize, spare: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(most + spare)),
            most,
            spare,
        }
    }

    /// A place, when there is one.
    async fn take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).acquire_owned().await.ok()
    }

    /// Whether all places but the spare ones are taken.
    fn is_full(&self) -> bool {
        self.places.available_permits() < self.spare
    }

    /// Waits until every place is free.
    pub(super) async fn is_empty(&self) {
        let all = u32::try_from(self.most + self.spare).unwrap_or(u32::MAX);
        drop(self.places.acquire_many(all).await);
    }
}

impl Listener {
    /// Opens the socket. `flag` is where to choose another address.
    pub async fn open(
        address: &Address,
        flag: &str,
        protocol: Arc<dyn Protocol>,
        tls: Tls,
        room: Room,
    ) -> anyhow::Result<Self> {
        Self::open_with_mode(address, flag, protocol, tls, room, None).await
    }

    /// [`open`](Self::open), with these permissions where it is a unix socket.
    pub async fn open_with_mode(
        address: &Address,
        flag: &str,
        protocol: Arc<dyn Protocol>,
        tls: Tls,
        room: Room,
        mode: Option<u32>,
    ) -> anyhow::Result<Self> {
        let socket = match address {
            Address::Tcp(text) => {
                let socket = listen_tcp(text).await.with_context(|| {
                    format!("cannot listen on {text}: choose another address with {flag}")
                })?;
                let address = socket.local_addr()?;
                Socket::Tcp(socket, address)
            }
            Address::Unix(path) => {
                let path = PathBuf::from(path);
                remove_stale(&path, flag).await?;
                let socket = listen_unix(&path, mode).with_context(|| {
                    format!("cannot listen on unix:{}: is the folder there, and may this user write to it?", path.display())
                })?;
                Socket::Unix(socket, path)
            }
        };
        Ok(Self {
            socket,
            protocol,
            tls,
            room,
        })
    }

    /// Takes the connections that are sent to it, in the clear.
    #[cfg(test)]
    pub(super) fn in_memory(
        protocol: Arc<dyn Protocol>,
        room: Room,
    ) -> (Self, mpsc::UnboundedSender<DuplexStream>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let listener = Self {
            socket: Socket::Memory(receiver.into()),
            protocol,
            tls: Arc::new(|| None),
            room,
        };
        (listener, sender)
    }

    /// Where it listens, as a client would write it.
    #[must_use]
    pub fn url(&self) -> String {
        let [clear, secure] = self.protocol.schemes();
        match &self.socket {
            Socket::Tcp(_, address) if (self.tls)().is_some() => format!("{secure}://{address}"),
            Socket::Tcp(_, address) => format!("{clear}://{address}"),
            Socket::Unix(_, path) => format!("unix:{}", path.display()),
            #[cfg(test)]
            Socket::Memory(_) => "memory".to_owned(),
        }
    }

    /// Host and port, where it has them.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::Tcp(_, address) => Some(*address),
            _ => None,
        }
    }

    pub(super) fn room(&self) -> &Room {
        &self.room
    }

    /// Accepts connections until the server stops, including those that arrived before.
    pub(super) async fn accept(self, shared: Arc<Shared>) {
        let mut closing = shared.closing.clone();
        let mut last = false;
        while let Some(place) = self.room.take().await {
            let accepted = tokio::select! {
                biased;
                accepted = self.socket.accept() => accepted,
                () = std::future::ready(()), if last => break,
                _ = closing.wait_for(|closing| *closing) => {
                    last = true;
                    continue;
                }
            };
            match accepted {
                // Asked now and not when the place was taken: that may be long ago.
                Ok(accepted) => self.hand_over(accepted, &shared, place, self.room.is_full()),
                Err(error) => {
                    if shared.lines.check("accept").allowed() {
                        tracing::warn!(%error, "cannot accept a connection; trying again");
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        if let Socket::Unix(_, path) = &self.socket {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Gives a connection to a worker, where it stays.
    fn hand_over(
        &self,
        accepted: Accepted,
        shared: &Arc<Shared>,
        place: OwnedSemaphorePermit,
        is_spare: bool,
    ) {
        let tls = match accepted {
            Accepted::Tcp(..) => (self.tls)(),
            _ => None,
        };
        let (protocol, shared) = (Arc::clone(&self.protocol), Arc::clone(shared));
        let idle = shared.engine.current().server.idle;
        let own = self.address().map(|it| it.ip().to_canonical());
        let is_loopback = own.is_some_and(|own| own.is_loopback());
        shared.workers.choose().run(async move |worker: Chosen| {
            let open = worker.open(idle, is_spare, accepted.peer(), is_loopback);
            let _open = Open::new(&shared);
            let connection = Arc::clone(open.connection());
            let served = serve(accepted, tls, &*protocol, &open);
            connection.run(served).await;
            drop(place);
        });
    }
}

/// Serves a connection from its first byte to its last.
async fn serve(
    accepted: Accepted,
    tls: Option<TlsAcceptor>,
    protocol: &dyn Protocol,
    place: &Place,
) {
    let connection = Arc::clone(place.connection());
    let Ok(io) = accepted.register() else {
        return;
    };
    let io = match (io, tls) {
        (Io::Tcp(stream), Some(tls)) => {
            connection.shake_hands();
            let shaken = tokio::select! {
                biased;
                shaken = tls.accept(stream) => shaken,
                () = connection.ending() => return,
            };
            connection.shook_hands();
            match shaken {
                Ok(stream) => Io::Tls(Box::new(stream)),
                Err(error) => {
                    tracing::debug!(%error, "a TLS handshake failed");
                    return;
                }
            }
        }
        (io, _) => io,
    };
    let stream = Stream::new(io, Arc::clone(&connection));
    protocol.serve(stream, connection).await;
}

impl Accepted {
    /// The client's address, where it has one.
    fn peer(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(_, peer) => Some(*peer),
            _ => None,
        }
    }

    /// Lets the runtime of this thread know about the socket.
    fn register(self) -> io::Result<Io> {
        match self {
            Self::Tcp(stream, _) => {
                stream.set_nodelay(true)?;
                TcpStream::from_std(stream).map(Io::Tcp)
            }
            Self::Unix(stream) => UnixStream::from_std(stream).map(Io::Unix),
            #[cfg(test)]
            Self::Memory(stream) => Ok(Io::Memory(stream)),
        }
    }
}

impl Socket {
    /// The next connection, which no runtime knows about.
    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(socket, _) => {
                let (stream, peer) = socket.accept().await?;
                Ok(Accepted::Tcp(stream.into_std()?, peer))
            }
            Self::Unix(socket, _) => {
                let (stream, _) = socket.accept().await?;
                stream.into_std().map(Accepted::Unix)
            }
            #[cfg(test)]
            Self::Memory(streams) => match streams.lock().await.recv().await {
                Some(stream) => Ok(Accepted::Memory(stream)),
                None => std::future::pending().await,
            },
        }
    }
}

/// A connection that counts as open until it is dropped.
struct Open<'s>(&'s Shared);

impl<'s> Open<'s> {
    fn new(shared: &'s Shared) -> Self {
        shared.open.inc();
        Self(shared)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.dec();
    }
}

/// Opens a socket at the first address of a name that can be had.
async fn listen_tcp(text: &str) -> io::Result<TcpListener> {
    let mut last = None;
    for address in lookup_host(text).await? {
        match listen_at(address) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| ErrorKind::AddrNotAvailable.into()))
}

fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Unread responses should be where they are counted.
    socket.set_send_buffer_size(SEND_BUFFER)?;
    // A restart need not wait for the connections of the last run to be forgotten.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn listen_unix(path: &Path, mode: Option<u32>) -> io::Result<UnixListener> {
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    // Before any client can connect.
    if let Some(mode) = mode {
        std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    socket.listen(BACKLOG)
}

/// A socket without a listener is left over from a process that has died.
async fn remove_stale(path: &Path, flag: &str) -> anyhow::Result<()> {
    match UnixStream::connect(path).await {
        Ok(_) => anyhow::bail!(
            "unix:{}: another process listens there: choose another path with {flag}",
            path.display()
        ),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            let is_socket = |it: std::fs::Metadata| it.file_type().is_socket();
            if !std::fs::symlink_metadata(path).is_ok_and(is_socket) {
                anyhow::bail!(
                    "unix:{} exists and is not a socket: choose another path with {flag}",
                    path.display()
                );
            }
            std::fs::remove_file(path)
                .with_context(|| format!("cannot remove the old socket {}", path.display()))
        }
        Err(_) => Ok(()),
    }
}
