//! What tidegate sends for a check, as the server sees it: read off `MONITOR`, so that
//! what is compared with it is certainly the same script with the same arguments.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use tokio::runtime::Runtime;

use super::askers::Tidegate;
use super::callers::Ask;
use super::load::DIGITS;
use tidegate_testkit::redis::Server;

/// A command, with [`DIGITS`] where those of the key stand.
pub(super) struct Sent(Vec<Vec<u8>>);

impl Sent {
    /// What a limiter sends. The server knows its script afterwards.
    pub(super) fn by(mut tidegate: Tidegate, server: &Server, runtime: &Runtime) -> Self {
        let watch = TcpStream::connect(("127.0.0.1", server.port()));
        let mut watch = watch.expect("a server that listens");
        watch.write_all(b"MONITOR\r\n").expect("a server");
        let mut lines = BufReader::new(watch).lines();
        let mut line = || lines.next().and_then(Result::ok).expect("a watched server");
        assert_eq!(line(), "+OK");
        runtime.block_on(tidegate.ask(DIGITS));
        loop {
            let words = words(&line());
            if words.first().is_some_and(|word| word == b"EVALSHA") {
                return Self(words);
            }
        }
    }

    /// The command for the key of these digits.
    pub(super) fn command(&self, digits: &str) -> redis::Cmd {
        let mut command = redis::Cmd::new();
        for word in &self.0 {
            command.arg(with(word, digits));
        }
        command
    }
}

/// The word with other digits.
fn with(word: &[u8], digits: &str) -> Vec<u8> {
    let mut places = word.windows(DIGITS.len());
    match places.position(|part| part == DIGITS.as_bytes()) {
        Some(at) => [&word[..at], digits.as_bytes(), &word[at + DIGITS.len()..]].concat(),
        None => word.to_vec(),
    }
}

/// The words of a line of `MONITOR`: quoted, with escapes.
fn words(line: &str) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut bytes = line.bytes();
    while let Some(byte) = bytes.next() {
        match (byte, &mut word) {
            (b'"', None) => word = Some(Vec::new()),
            (b'"', Some(_)) => words.extend(word.take()),
            (_, None) => {}
            (b'\\', Some(word)) => word.push(match bytes.next() {
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(b't') => b'\t',
                Some(b'a') => 7,
                Some(b'b') => 8,
                Some(b'x') => {
                    let mut digit = || bytes.next().and_then(|it| char::from(it).to_digit(16));
                    let value = digit().zip(digit()).map(|(high, low)| high * 16 + low);
                    let value = value.and_then(|value| u8::try_from(value).ok());
                    value.expect("two digits after \\x")
                }
                other => other.expect("an escape has a letter"),
            }),
            (byte, Some(word)) => word.push(byte),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watched_line_is_read_byte_by_byte() {
        let line = r#"1.5 [0 127.0.0.1:1] "EVALSHA" "a\"\\" "k:999999999999" "\x00\xffx\n""#;
        let words = words(line);
        let expected: [&[u8]; 4] = [b"EVALSHA", b"a\"\\", b"k:999999999999", b"\0\xffx\n"];
        assert_eq!(words, expected);
        assert_eq!(with(&words[2], "12"), b"k:12");
        assert_eq!(with(&words[3], "12"), words[3]);
    }
}
