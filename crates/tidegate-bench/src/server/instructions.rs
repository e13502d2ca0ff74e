//! Instructions per request.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::process::Process;
use super::request::Request;
use crate::callgrind::{self, PAUSE};
use crate::report::table;

/// What is counted: its name, the server, the request, and the goal.
type Lane = (&'static str, Server, fn() -> Request, Option<u64>);

const LANES: [Lane; 4] = [
    ("the ceiling", Server::Hello, Request::check, None),
    ("JSON check", Server::Tidegate, Request::check, Some(17_500)),
    ("gate", Server::Tidegate, Request::gate, Some(12_500)),
    ("gate, refused", Server::Tidegate, Request::refused, None),
];

#[derive(Clone, Copy)]
enum Server {
    Hello,
    Tidegate,
}

/// The table, or why there is none.
pub(super) fn counted() -> String {
    if !callgrind::is_installed() {
        return callgrind::MISSING.into();
    }
    let rows = LANES.map(|(label, server, request, goal)| {
        eprintln!("counting instructions: {label}");
        let start = |valgrind| match server {
            Server::Hello => Process::hello_under(valgrind),
            Server::Tidegate => Process::tidegate_under(valgrind),
        };
        let each = callgrind::each(start, |process, requests| run(process, request(), requests));
        let verdict = goal.map(|goal| if each <= goal { "met" } else { "missed" });
        [
            label.to_owned(),
            each.to_string(),
            goal.map_or_else(String::new, |goal| format!("at most {goal}")),
            verdict.unwrap_or_default().to_owned(),
        ]
    });
    let header = ["request", "instructions per request", "goal", ""];
    table(header, rows.into_iter())
}

/// Asks a server so many times, on one connection.
fn run(server: &Process, mut request: Request, requests: usize) {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("a server");
    stream.set_nodelay(true).expect("a socket");
    let mut buffer = [0; 16 << 10];
    // A refusal is the second answer that a key gets.
    let mut ask = |request: &mut Request, key| {
        std::thread::sleep(PAUSE);
        stream.write_all(request.of(key)).expect("a server");
        let mut length = 0;
        loop {
            length += stream.read(&mut buffer[length..]).expect("an answer");
            if request.is_answered_by(&buffer[..length]) {
                break;
            }
        }
    };
    for key in 0..100 {
        ask(&mut Request::first_of(&request), key);
    }
    for number in 0..requests {
        ask(&mut request, number % 100);
    }
}
