//! What a server is really told: its `MONITOR`, read and taken apart.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use crate::server::Server;

/// A connection that is told of every command.
pub(crate) struct Monitor {
    lines: BufReader<TcpStream>,
    /// To say that no more is to come.
    marker: redis::Connection,
    marks: usize,
}

/// One command, by a client or by a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) by_script: bool,
    /// Its name in capitals.
    pub(crate) name: String,
    pub(crate) arguments: Vec<Vec<u8>>,
}

impl Command {
    /// An argument as text.
    pub(crate) fn text(&self, index: usize) -> String {
        String::from_utf8_lossy(&self.arguments[index]).into_owned()
    }

    /// The keys that an EVALSHA or EVAL declares.
    pub(crate) fn declared(&self) -> Vec<String> {
        let count: usize = self.text(1).parse().expect("a number of keys");
        (2..2 + count).map(|index| self.text(index)).collect()
    }
}

impl Monitor {
    pub(crate) fn start(server: &Server) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("a connection");
        stream.write_all(b"MONITOR\r\n").expect("MONITOR");
        let mut lines = BufReader::new(stream);
        let mut answer = String::new();
        lines.read_line(&mut answer).expect("an answer");
        assert_eq!(answer, "+OK\r\n");
        Self {
            lines,
            marker: server.connect(),
            marks: 0,
        }
    }

    /// The commands since the last time.
    pub(crate) fn commands(&mut self) -> Vec<Command> {
        self.marks += 1;
        let mark = format!("mark {}", self.marks);
        let echoed: String = redis::cmd("ECHO")
            .arg(&mark)
            .query(&mut self.marker)
            .expect("an echo");
        assert_eq!(echoed, mark);
        let mut commands = Vec::new();
        loop {
            let mut line = String::new();
            self.lines.read_line(&mut line).expect("a line");
            let command = parse(&line);
            match command.name.as_str() {
                "ECHO" if command.text(0) == mark => return commands,
                "ECHO" | "CLIENT" => {}
                _ => commands.push(command),
            }
        }
    }
}

/// `+1700000000.123456 [0 127.0.0.1:5000] "GET" "a\x00key"`
fn parse(line: &str) -> Command {
    let (origin, rest) = line.split_once("] ").expect("a line of MONITOR");
    let mut words: Vec<Vec<u8>> = Vec::new();
    let mut bytes = rest.trim_end().bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'"' {
            continue;
        }
        let mut word = Vec::new();
        loop {
            match bytes.next().expect("a closing quote") {
                b'"' => break,
                b'\\' => word.push(match bytes.next().expect("what is escaped") {
                    b'x' => {
                        let digits = [bytes.next(), bytes.next()].map(|it| it.expect("a digit"));
                        let digits = str::from_utf8(&digits).expect("digits");
                        u8::from_str_radix(digits, 16).expect("digits")
                    }
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'a' => 7,
                    b'b' => 8,
                    other => other,
                }),
                other => word.push(other),
            }
        }
        words.push(word);
    }
    Command {
        by_script: origin.ends_with(" lua"),
        name: String::from_utf8_lossy(&words[0]).to_uppercase(),
        arguments: words.split_off(1),
    }
}
