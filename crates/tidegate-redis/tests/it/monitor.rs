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
    /// As the line has them: what is no text is escaped.
    pub(crate) arguments: Vec<String>,
}

impl Command {
    /// The keys that an EVALSHA or EVAL declares.
    pub(crate) fn declared(&self) -> Vec<String> {
        let count: usize = self.arguments[1].parse().expect("a number of keys");
        self.arguments[2..2 + count].to_vec()
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
        let echo = redis::cmd("ECHO").arg(&mark).query(&mut self.marker);
        assert_eq!(echo.as_ref(), Ok(&mark));
        let mut commands = Vec::new();
        loop {
            let mut line = String::new();
            self.lines.read_line(&mut line).expect("a line");
            let command = parse(&line);
            match command.name.as_str() {
                "ECHO" if command.arguments[0] == mark => return commands,
                "ECHO" | "CLIENT" => {}
                _ => commands.push(command),
            }
        }
    }
}

/// `+1700000000.123456 [0 127.0.0.1:5000] "GET" "a\x00key"`
fn parse(line: &str) -> Command {
    let (origin, rest) = line.split_once("] ").expect("a line of MONITOR");
    // Quotes within a word have a backslash before them.
    let words = rest.trim_end().trim_matches('"').split("\" \"");
    let mut words: Vec<String> = words.map(str::to_owned).collect();
    Command {
        by_script: origin.ends_with(" lua"),
        name: words.remove(0).to_uppercase(),
        arguments: words,
    }
}
