//! The load: connections that stay open, each with so many calls on their way, all served
//! by one thread that does as little as it can for a call.

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::wire::{Said, Wire};
use crate::cpu::Cpu;
use crate::keys::Random;
use crate::server::process::Process;
use crate::waits::{Measured, Waits};

/// How long to wait for any answer before the run is given up.
const PATIENCE: Duration = Duration::from_secs(10);

const BUFFER: usize = 64 << 10;

/// Open connections to a server.
pub(super) struct Load {
    server: u32,
    poll: Poll,
    connections: Vec<Connection>,
}

struct Connection {
    stream: TcpStream,
    wire: Wire,
    calls: Vec<Call>,
    /// What has come and was not read yet.
    received: Vec<u8>,
    /// What is sent next.
    outgoing: Vec<u8>,
}

/// A call on its way, or none yet: stream 0.
#[derive(Clone, Copy)]
struct Call {
    stream: u32,
    asked_at: Instant,
    is_admitted: bool,
}

impl Load {
    /// Opens so many connections, for so many calls at once on each.
    pub(super) fn open(server: &Process, connections: usize, calls: usize) -> Self {
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
            let (wire, outgoing) = Wire::open();
            let none = Call {
                stream: 0,
                asked_at: Instant::now(),
                is_admitted: false,
            };
            Connection {
                stream,
                wire,
                calls: vec![none; calls],
                received: Vec::new(),
                outgoing,
            }
        });
        Self {
            server: server.id(),
            connections: connections.collect(),
            poll,
        }
    }

    /// Asks for each of the first keys once.
    pub(super) fn fill(&mut self, keys: usize) {
        let mut keys = 0..keys;
        self.ask(|_| keys.next());
    }

    /// Asks for random ones of the first keys for a while.
    pub(super) fn measure(mut self, keys: usize, length: Duration) -> (Measured, Cpu) {
        let mut random = Random::new(1);
        // A connection is made when its first calls are answered.
        let calls = self.connections.iter().map(|it| it.calls.len());
        let mut first: usize = calls.sum();
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
    pub(super) fn ask(&mut self, mut next: impl FnMut(Instant) -> Option<usize>) -> Waits {
        let mut waits = Waits::default();
        let mut waiting = 0;
        for connection in &mut self.connections {
            for place in 0..connection.calls.len() {
                let now = Instant::now();
                if let Some(key) = next(now) {
                    connection.call(place, key, now);
                    waiting += 1;
                }
            }
            connection.send();
        }
        let mut events = Events::with_capacity(self.connections.len());
        let mut buffer = vec![0; BUFFER];
        while waiting > 0 {
            match self.poll.poll(&mut events, Some(PATIENCE)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                polled => polled.expect("a way to wait for answers"),
            }
            assert!(!events.is_empty(), "no answer within {PATIENCE:?}");
            for event in &events {
                let connection = &mut self.connections[event.token().0];
                connection.receive(&mut buffer);
                let now = Instant::now();
                let mut start = 0;
                while let Some((said, length)) = {
                    let rest = &connection.received[start..];
                    connection.wire.read(rest, &mut connection.outgoing)
                } {
                    start += length;
                    match said {
                        Said::Nothing => {}
                        Said::Admitted(stream) => {
                            let place = connection.place(stream);
                            connection.calls[place].is_admitted = true;
                        }
                        Said::Ended(stream) => {
                            let place = connection.place(stream);
                            let call = connection.calls[place];
                            assert!(call.is_admitted, "a call ended without an answer");
                            waits.add(now - call.asked_at, true);
                            match next(now) {
                                Some(key) => connection.call(place, key, now),
                                None => waiting -= 1,
                            }
                        }
                    }
                }
                connection.received.drain(..start);
                connection.send();
            }
        }
        waits
    }
}

impl Connection {
    fn call(&mut self, place: usize, key: usize, now: Instant) {
        self.calls[place] = Call {
            stream: self.wire.call(key, &mut self.outgoing),
            asked_at: now,
            is_admitted: false,
        };
    }

    fn place(&self, stream: u32) -> usize {
        let found = self.calls.iter().position(|call| call.stream == stream);
        found.expect("an answer to a call of ours")
    }

    fn send(&mut self) {
        if self.outgoing.is_empty() {
            return;
        }
        let sent = self.stream.write(&self.outgoing);
        let sent = sent.expect("a server that reads");
        assert_eq!(sent, self.outgoing.len(), "a few calls always have room");
        self.outgoing.clear();
    }

    /// Reads all that is there.
    fn receive(&mut self, buffer: &mut [u8]) {
        loop {
            match self.stream.read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                read => {
                    let length = read.expect("a server that answers");
                    assert!(length > 0, "the server has closed a connection");
                    self.received.extend(&buffer[..length]);
                    if length < buffer.len() {
                        return;
                    }
                }
            }
        }
    }
}
