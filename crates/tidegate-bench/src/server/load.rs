//! The load: connections that stay open, each with one request on its way, all served
//! by one thread.
//!
//! Server and load share the machine, so this does as little as it can for a request:
//! one read, a look at the answer, one write.

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::request::Request;
use crate::cpu::Cpu;
use crate::keys::Random;
use crate::waits::{Measured, Waits};

use super::process::Process;

/// How long to wait for any answer before the run is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// Longer than any answer.
const BUFFER: usize = 16 << 10;

/// Open connections to a server.
pub(super) struct Load {
    server: u32,
    request: Request,
    poll: Poll,
    connections: Vec<Connection>,
}

struct Connection {
    stream: TcpStream,
    asked_at: Instant,
    /// The beginning of an answer that is not all there yet.
    partial: Vec<u8>,
}

impl Load {
    /// Opens so many connections.
    pub(super) fn open(server: &Process, request: Request, connections: usize) -> Self {
        let poll = Poll::new().expect("a way to wait for answers");
        let connections = (0..connections).map(|number| {
            let stream = std::net::TcpStream::connect(("127.0.0.1", server.port()));
            let stream = stream.expect("a server that listens");
            stream.set_nodelay(true).expect("a socket");
            stream.set_nonblocking(true).expect("a socket");
            let mut stream = TcpStream::from_std(stream);
            let registry = poll.registry();
            let registered = registry.register(&mut stream, Token(number), Interest::READABLE);
            registered.expect("a socket");
            Connection {
                stream,
                asked_at: Instant::now(),
                partial: Vec::new(),
            }
        });
        Self {
            server: server.id(),
            request,
            connections: connections.collect(),
            poll,
        }
    }

    /// Asks for each of the first keys once.
    pub(super) fn fill(mut self, keys: usize) {
        let mut keys = 0..keys;
        self.ask(|_| keys.next());
    }

    /// Asks for random ones of the first keys for a while.
    pub(super) fn measure(mut self, keys: usize, length: Duration) -> (Measured, Cpu) {
        let mut random = Random::new(1);
        // A connection is made when its first request is answered.
        let mut first = self.connections.len();
        self.ask(|_| {
            first = first.checked_sub(1)?;
            Some(random.index(keys))
        });
        let before = Cpu::now(self.server);
        let start = Instant::now();
        let end = start + length;
        let waits = self.ask(|now| (now < end).then(|| random.index(keys)));
        let measured = waits.measured(start.elapsed());
        let cpu = Cpu::now(self.server).each_since(before, measured.checks);
        (measured, cpu)
    }

    /// Asks as long as there is a next key, and waits for the last answer.
    fn ask(&mut self, mut next: impl FnMut(Instant) -> Option<usize>) -> Waits {
        let mut waits = Waits::default();
        let mut waiting = 0;
        for connection in &mut self.connections {
            let now = Instant::now();
            if let Some(key) = next(now) {
                connection.send(self.request.of(key), now);
                waiting += 1;
            }
        }
        let mut events = Events::with_capacity(self.connections.len());
        let mut buffer = [0; BUFFER];
        while waiting > 0 {
            match self.poll.poll(&mut events, Some(PATIENCE)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                polled => polled.expect("a way to wait for answers"),
            }
            assert!(!events.is_empty(), "no answer within {PATIENCE:?}");
            for event in &events {
                let connection = &mut self.connections[event.token().0];
                if !connection.receive(&self.request, &mut buffer) {
                    continue;
                }
                let now = Instant::now();
                waits.add(now - connection.asked_at, true);
                match next(now) {
                    Some(key) => connection.send(self.request.of(key), now),
                    None => waiting -= 1,
                }
            }
        }
        waits
    }
}

impl Connection {
    fn send(&mut self, request: &[u8], now: Instant) {
        self.asked_at = now;
        let sent = self.stream.write(request).expect("a server that reads");
        assert_eq!(sent, request.len(), "one request always has room");
    }

    /// Reads what is there; true when the answer is whole.
    fn receive(&mut self, request: &Request, buffer: &mut [u8]) -> bool {
        let length = match self.stream.read(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            read => read.expect("a server that answers"),
        };
        assert!(length > 0, "the server has closed a connection");
        let read = &buffer[..length];
        if self.partial.is_empty() && request.is_answered_by(read) {
            return true;
        }
        self.partial.extend(read);
        let is_whole = request.is_answered_by(&self.partial);
        if is_whole {
            self.partial.clear();
        }
        is_whole
    }
}
