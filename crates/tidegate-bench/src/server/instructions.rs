//! Instructions per request, counted by callgrind, which does not care what else the
//! machine does.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::process::Process;
use super::request::Request;
use crate::report::table;

/// Requests of the two runs; what differs between them is what requests take.
const RUNS: [usize; 2] = [500, 1_500];

/// Before each request, so that it is not answered together with another one.
const PAUSE: Duration = Duration::from_micros(500);

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
    let mut valgrind = Command::new("valgrind");
    let found = valgrind.arg("--version").stdout(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        return "Instructions were not counted: valgrind is not installed.\n".into();
    }
    let rows = LANES.map(|(label, server, request, goal)| {
        eprintln!("counting instructions: {label}");
        let [fewer, more] = RUNS.map(|requests| run(server, request(), requests));
        let each = (more - fewer) / (RUNS[1] - RUNS[0]) as u64;
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

/// The instructions of a server that answers so many requests on one connection.
fn run(server: Server, mut request: Request, requests: usize) -> u64 {
    let name = format!("tidegate-callgrind-{}", std::process::id());
    let profile = std::env::temp_dir().join(name);
    let mut valgrind = Command::new("valgrind");
    let out = format!("--callgrind-out-file={}", profile.display());
    valgrind.args(["--quiet", "--tool=callgrind", &out]);
    let server = match server {
        Server::Hello => Process::hello_under(valgrind),
        Server::Tidegate => Process::tidegate_under(valgrind),
    };
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
    server.terminate();
    let text = std::fs::read_to_string(&profile).expect("callgrind's profile");
    drop(std::fs::remove_file(&profile));
    let line = |start| text.lines().find_map(|line| line.strip_prefix(start));
    let total = line("totals: ").or_else(|| line("summary: "));
    let total = total.and_then(|total| total.trim().parse().ok());
    total.expect("a total")
}
