//! The Redis protocol, as clients meet it.

mod clients;
mod frames;
mod live;
mod module;
mod pipelines;
mod policies;
mod stores;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{PATIENCE, Start, Tidegate};

/// A server with a listener that speaks the protocol.
pub(crate) struct Served {
    pub(crate) server: Tidegate,
    /// Host and port.
    pub(crate) address: String,
}

impl Served {
    pub(crate) fn start(config: &str) -> Self {
        Self::with(Start::new(config))
    }

    pub(crate) fn with(start: Start) -> Self {
        let server = start.argument("--resp").argument("127.0.0.1:0").start();
        let address = address(&server);
        Self { address, server }
    }

    pub(crate) fn port(&self) -> &str {
        self.address.rsplit_once(':').expect("a port").1
    }

    pub(crate) fn connect(&self) -> Raw {
        connect(&self.address)
    }

    /// The reply to a command of words, on a connection of its own.
    pub(crate) fn ask(&self, words: &str) -> Reply {
        self.connect().ask(words)
    }

    /// What redis-cli prints, line by line.
    pub(crate) fn cli(&self, arguments: &[&str]) -> Vec<String> {
        let mut cli = Command::new("redis-cli");
        cli.args(["-p", self.port()]).args(arguments);
        lines(&mut cli)
    }
}

/// Host and port of the listener.
pub(crate) fn address(server: &Tidegate) -> String {
    let line = server.line("listening on redis");
    let (_, address) = line.rsplit_once("://").expect("a url");
    let address = address.split(['"', '\u{1b}']).next().expect("its end");
    address.trim().to_owned()
}

pub(crate) fn connect(address: &str) -> Raw {
    let stream = TcpStream::connect(address).expect("a listener");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream.set_nodelay(true).expect("a socket");
    Raw(stream)
}

/// What a command prints, line by line.
pub(crate) fn lines(command: &mut Command) -> Vec<String> {
    let output = command.output().expect("installed by `cargo xtask test`");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    let (out, err) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{command:?}: {out}{err}");
    out.lines().map(str::to_owned).collect()
}

/// Where `cargo xtask test` puts what is built or downloaded to compare with.
pub(crate) fn peer(path: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/peers");
    let path = root.join(path);
    let shown = path.display();
    assert!(path.exists(), "{shown} is made by `cargo xtask test`");
    path
}

/// A connection, byte by byte.
pub(crate) struct Raw(pub(crate) TcpStream);

/// A reply.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Reply {
    Simple(String),
    Error(String),
    Number(i64),
    Bulk(Vec<u8>),
    Null,
    Array(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
    Flag(bool),
    Double(f64),
}

impl Reply {
    pub(crate) fn bulk(text: &str) -> Self {
        Self::Bulk(text.as_bytes().to_vec())
    }

    /// The numbers of a list of them.
    pub(crate) fn numbers(&self) -> Vec<i64> {
        let Self::Array(elements) = self else {
            panic!("{self:?} is no list");
        };
        let number = |element: &Self| match element {
            Self::Number(number) => *number,
            other => panic!("{other:?} is no number"),
        };
        elements.iter().map(number).collect()
    }

    pub(crate) fn error(&self) -> &str {
        match self {
            Self::Error(text) => text,
            other => panic!("{other:?} is no error"),
        }
    }

    /// A value of a map, whichever version of the protocol it came by.
    pub(crate) fn get(&self, name: &str) -> &Self {
        let found = match self {
            Self::Map(pairs) => {
                let pair = pairs.iter().find(|(key, _)| *key == Self::bulk(name));
                pair.map(|(_, value)| value)
            }
            Self::Array(elements) => {
                let (pairs, _) = elements.as_chunks::<2>();
                let pair = pairs.iter().find(|[key, _]| *key == Self::bulk(name));
                pair.map(|[_, value]| value)
            }
            _ => None,
        };
        found.unwrap_or_else(|| panic!("no {name} in {self:?}"))
    }

    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Bulk(bytes) => std::str::from_utf8(bytes).expect("text"),
            Self::Simple(text) => text,
            other => panic!("{other:?} is not UTF-8"),
        }
    }
}

/// A command of these words, as clients send it.
pub(crate) fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend(*word);
        bytes.extend(b"\r\n");
    }
    bytes
}

impl Raw {
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("a server that reads");
    }

    pub(crate) fn ask(&mut self, words: &str) -> Reply {
        let words: Vec<&[u8]> = words.split_whitespace().map(str::as_bytes).collect();
        self.send(&command(&words));
        self.reply()
    }

    pub(crate) fn reply(&mut self) -> Reply {
        self.next().expect("a reply")
    }

    /// The next reply; nothing when the server has closed the connection.
    pub(crate) fn next(&mut self) -> Option<Reply> {
        let line = self.line()?;
        let (sign, rest) = line.split_at(1);
        let length = || rest.parse::<i64>().expect("a length");
        Some(match sign {
            "+" => Reply::Simple(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Number(rest.parse().expect("a number")),
            "_" => Reply::Null,
            "#" => Reply::Flag(rest == "t"),
            "," => Reply::Double(rest.parse().expect("a double")),
            "$" if length() < 0 => Reply::Null,
            "$" => {
                let length = usize::try_from(length()).expect("not negative");
                let mut bytes = vec![0; length + 2];
                self.0.read_exact(&mut bytes).expect("a whole reply");
                bytes.truncate(length);
                Reply::Bulk(bytes)
            }
            "*" => Reply::Array((0..length()).map(|_| self.reply()).collect()),
            "%" => {
                let pairs = (0..length()).map(|_| (self.reply(), self.reply()));
                Reply::Map(pairs.collect())
            }
            _ => panic!("{line:?} is no reply"),
        })
    }

    /// A line without its end, byte by byte: nothing is read that belongs to others.
    fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            match self.0.read(&mut byte) {
                Ok(1) => line.extend(byte),
                Ok(_) => {
                    assert!(line.is_empty(), "closed in the middle of {line:?}");
                    return None;
                }
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no reply: {error}"),
            }
        }
        line.truncate(line.len() - 2);
        Some(String::from_utf8(line).expect("text"))
    }
}
