//! The server on in-memory streams and tokio's paused clock: time passes only while every
//! task waits, so deadlines of half a minute are exact and take no time. Real sockets and
//! processes are in `tests/it`.

mod crowds;
mod deadlines;
mod shutdown;
mod spans;

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::clock::TICK;
use super::worker::Workers;
use super::{Listener, Room, Signals, Told, run_on};
use crate::api::door::Http;
use crate::api::{Api, Scope};
use crate::engine::Engine;
use crate::settings::Settings;

/// What a stream holds before its writer has to wait.
const BUFFER: usize = 4 << 10;

/// The head of a request that never ends.
const HALF_HEAD: &[u8] = b"GET /v1/gate/default?key=k HTTP/1.1\r\nHost:";

/// A request whose body never ends.
const HALF_BODY: &[u8] =
    b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{\"policy\"";

/// A running server with the default config.
struct Server {
    engine: Arc<Engine>,
    streams: UnboundedSender<DuplexStream>,
    signals: UnboundedSender<Told>,
    running: JoinHandle<()>,
}

/// The other end of a connection.
struct Client {
    stream: DuplexStream,
    /// Bytes that were received and not looked at.
    rest: Vec<u8>,
}

struct Answer {
    status: u16,
    /// In lower case.
    head: String,
    body: String,
}

impl Server {
    /// With the times of `tidegate serve`.
    fn start() -> Self {
        Self::with(Duration::from_secs(2), Duration::from_secs(75))
    }

    fn with(drain: Duration, idle: Duration) -> Self {
        let room = Room::new(super::MAX_CONNECTIONS, super::SPARE_CONNECTIONS);
        Self::with_room(room, drain, idle)
    }

    fn with_room(room: Room, drain: Duration, idle: Duration) -> Self {
        let mut loaded = Settings::default().load().unwrap();
        (loaded.server.drain, loaded.server.idle) = (drain, idle);
        let engine = Arc::new(Engine::new(loaded).unwrap());
        let door = Http::new(Api::new(Arc::clone(&engine), Scope::All));
        let (listener, streams) = Listener::in_memory(door, room);
        let (signals, told) = unbounded_channel();
        let (asked, told) = (Arc::clone(&engine), Signals(told));
        let running = run_on(Workers::here(), asked, vec![listener], told);
        Self {
            engine,
            streams,
            signals,
            running: tokio::spawn(running),
        }
    }

    fn connect(&self) -> Client {
        self.connect_with(BUFFER)
    }

    /// A connection whose client takes so many bytes without reading them.
    fn connect_with(&self, buffer: usize) -> Client {
        let (near, far) = duplex(buffer);
        self.streams.send(far).unwrap();
        Client {
            stream: near,
            rest: Vec::new(),
        }
    }

    /// A GET on a connection of its own.
    async fn get(&self, path: &str) -> Answer {
        self.connect().get(path).await
    }

    fn signal(&self, told: Told) {
        self.signals.send(told).unwrap();
    }

    /// How many connections are open.
    fn open(&self) -> i64 {
        self.engine.metrics.connections().get()
    }

    /// Waits until so many connections are open.
    async fn until_open(&self, expected: i64) {
        let start = Instant::now();
        while self.open() != expected {
            let open = self.open();
            assert!(start.elapsed().as_secs() < 600, "{open} are open");
            sleep(TICK / 10).await;
        }
    }

    /// Waits until the server has stopped.
    async fn stopped(self) {
        self.running.await.unwrap();
    }
}

impl Client {
    async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    async fn get(&mut self, path: &str) -> Answer {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        self.send(request.as_bytes()).await;
        self.answer().await.expect("an answer")
    }

    /// The next answer; `None` when the connection ends without one.
    async fn answer(&mut self) -> Option<Answer> {
        let end = loop {
            let found = self.rest.windows(4).position(|four| four == b"\r\n\r\n");
            if let Some(end) = found {
                break end + 4;
            }
            if !self.read().await {
                assert_eq!(self.rest, b"", "an answer that is cut off");
                return None;
            }
        };
        let head: Vec<u8> = self.rest.drain(..end).collect();
        let head = String::from_utf8(head).unwrap().to_lowercase();
        let length = head.split("content-length: ").nth(1);
        let length = length.map_or(0, |it| it.lines().next().unwrap().parse().unwrap());
        while self.rest.len() < length {
            assert!(self.read().await, "a body that is cut off");
        }
        let body: Vec<u8> = self.rest.drain(..length).collect();
        Some(Answer {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head,
            body: String::from_utf8(body).unwrap(),
        })
    }

    /// Waits for the end of the connection, which must send nothing more.
    async fn ended(&mut self) {
        assert!(!self.read().await && self.rest.is_empty());
    }

    /// Whether there was anything more.
    async fn read(&mut self) -> bool {
        self.stream.read_buf(&mut self.rest).await.unwrap() > 0
    }
}

/// Something that takes this long, or up to two ticks of the coarse clock longer.
fn assert_about(start: Instant, expected: Duration) {
    let passed = start.elapsed();
    let late = expected + 2 * TICK;
    assert!(expected <= passed && passed <= late, "{passed:?}");
}
