//! The ceiling: the same script with the same arguments, as fast as the server goes.
//!
//! This does what `redis-benchmark` does, on one thread: so many connections, each of
//! which writes so many commands at once, reads all their replies, and writes again.
//! The commands are laid out before; only the digits of their keys change. It stands
//! in for `redis-benchmark` because that ends an argument at a zero byte, and a packed
//! limit is full of them. [`super::crosscheck`] holds the two against each other.

use std::ops::Range;
use std::rc::Rc;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use super::callers::LENGTH;
use super::load::{DIGITS, KEYS};
use crate::keys::{Random, write_digits};
use crate::waits::{Measured, Waits};
use tidegate_testkit::redis::Server;

/// How requests travel: so many connections, each with so many on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Travel {
    pub(super) connections: usize,
    pub(super) pipelined: usize,
}

impl Travel {
    /// As those of a client do that has so many callers, and on average so many
    /// commands in a write.
    pub(super) fn like(callers: usize, batch: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a batch is at least one command and at most a few hundred"
        )]
        let pipelined = batch.round() as usize;
        let pipelined = pipelined.clamp(1, callers);
        Self {
            connections: (callers + pipelined / 2) / pipelined,
            pipelined,
        }
    }
}

/// A server, and which keys to ask it for: all, unless it has only some of them.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) port: u16,
    pub(super) keys: Option<Rc<[usize]>>,
}

/// Sends a command for random keys, for a while. The command has [`DIGITS`] where the
/// digits of its key stand.
pub(super) fn measure(server: &Server, command: &redis::Cmd, travel: Travel) -> Measured {
    let target = Target {
        port: server.port(),
        keys: None,
    };
    measure_all(&[target], command, travel)
}

/// The same on several servers at once: connections are shared out among them.
pub(super) fn measure_all(targets: &[Target], command: &redis::Cmd, travel: Travel) -> Measured {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().expect("a runtime");
    let packed = command.get_packed_command();
    let tasks = LocalSet::new();
    tasks.block_on(&runtime, async {
        let mut connections = Vec::new();
        let shared = targets.iter().cycle();
        for (number, target) in shared
            .take(travel.connections.max(targets.len()))
            .enumerate()
        {
            let stream = TcpStream::connect(("127.0.0.1", target.port)).await;
            let stream = stream.expect("a server that listens");
            stream.set_nodelay(true).expect("a socket");
            let batch = Batch::new(
                &packed,
                travel.pipelined,
                number as u64,
                target.keys.clone(),
            );
            connections.push((stream, batch));
        }
        let start = Instant::now();
        let end = start + LENGTH;
        let tasks = connections.into_iter();
        let tasks = tasks.map(|(stream, batch)| tokio::task::spawn_local(send(stream, batch, end)));
        let mut waits = Waits::default();
        for task in tasks.collect::<Vec<_>>() {
            waits.join(task.await.expect("a connection that lasts"));
        }
        waits.measured(start.elapsed())
    })
}

/// One connection: a batch, its replies, and the next batch.
async fn send(mut stream: TcpStream, mut batch: Batch, end: Instant) -> Waits {
    let (mut waits, mut buffer) = (Waits::default(), vec![0; 64 << 10]);
    loop {
        let asked_at = Instant::now();
        let sent = stream.write_all(batch.next()).await;
        sent.expect("a server that reads");
        let mut replies = Replies::default();
        while replies.whole < batch.places.len() {
            let length = stream.read(&mut buffer).await.expect("a server");
            assert!(length > 0, "the server has closed a connection");
            replies.read(&buffer[..length]);
        }
        let now = Instant::now();
        for _ in 0..replies.whole {
            waits.add(now - asked_at, true);
        }
        if now >= end {
            return waits;
        }
    }
}

/// Commands one behind the other, and where the digits of their keys are.
struct Batch {
    bytes: Vec<u8>,
    places: Vec<Range<usize>>,
    random: Random,
    keys: Option<Rc<[usize]>>,
}

impl Batch {
    fn new(command: &[u8], commands: usize, seed: u64, keys: Option<Rc<[usize]>>) -> Self {
        let mut parts = command.windows(DIGITS.len());
        let at = parts.position(|part| part == DIGITS.as_bytes());
        let at = at.expect("a command with a key");
        let places = (0..commands).map(|number| {
            let start = number * command.len() + at;
            start..start + DIGITS.len()
        });
        Self {
            places: places.collect(),
            bytes: command.repeat(commands),
            random: Random::new(seed),
            keys,
        }
    }

    /// The same commands for other keys.
    fn next(&mut self) -> &[u8] {
        for place in &self.places {
            let number = match &self.keys {
                Some(keys) => keys[self.random.index(keys.len())],
                None => self.random.index(KEYS),
            };
            write_digits(&mut self.bytes[place.clone()], number);
        }
        &self.bytes
    }
}

/// Counts replies: numbers, texts, and lists of them.
#[derive(Default)]
struct Replies {
    whole: usize,
    /// The kind of the line that has begun, and its number so far.
    line: Option<(u8, usize)>,
    /// Parts that are still to come in a list.
    missing: usize,
    /// Bytes that are still to come of a text.
    text: usize,
}

impl Replies {
    fn read(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.text > 0 {
                self.text -= 1;
                if self.text == 0 {
                    self.end_part();
                }
                continue;
            }
            match (&mut self.line, byte) {
                (None, kind) => self.line = Some((kind, 0)),
                (Some(_), b'\n') => self.end_line(),
                (Some((b'*' | b'$', length)), b'0'..=b'9') => {
                    *length = *length * 10 + usize::from(byte - b'0');
                }
                (Some(_), _) => {}
            }
        }
    }

    fn end_line(&mut self) {
        match self.line.take() {
            Some((b'*', length)) => self.missing = length,
            Some((b'$', length)) => self.text = length + 2,
            Some((b':', _)) => self.end_part(),
            other => panic!("a reply that is neither a number nor a text: {other:?}"),
        }
    }

    fn end_part(&mut self) {
        match self.missing {
            0 | 1 => (self.missing, self.whole) = (0, self.whole + 1),
            _ => self.missing -= 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_counted_wherever_they_are_cut() {
        let bytes = b"*3\r\n:1\r\n$2\r\n\n\n\r\n:-3\r\n:1\r\n*12\r\n:1\r\n";
        for cut in 0..bytes.len() {
            let mut replies = Replies::default();
            replies.read(&bytes[..cut]);
            replies.read(&bytes[cut..]);
            assert_eq!((replies.whole, replies.missing), (2, 11));
        }
    }

    #[test]
    fn a_batch_is_the_command_with_other_keys() {
        let command = format!("a{DIGITS}b");
        let mut batch = Batch::new(command.as_bytes(), 2, 1, None);
        let text = String::from_utf8(batch.next().to_vec()).unwrap();
        let (first, second) = text.split_at(14);
        assert_ne!(first, second);
        for text in [first, second] {
            assert!(
                text.starts_with("a0000000") && text.ends_with('b'),
                "{text}"
            );
        }
    }

    #[test]
    fn as_many_requests_are_on_their_way_as_there_are_callers() {
        let table = [
            (1, 1.0, 1, 1),
            (50, 8.2, 6, 8),
            (500, 90.0, 6, 90),
            (500, 256.0, 2, 256),
        ];
        for (callers, batch, connections, pipelined) in table {
            let expected = Travel {
                connections,
                pipelined,
            };
            assert_eq!(Travel::like(callers, batch), expected);
        }
    }
}
