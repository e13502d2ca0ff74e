//! Instructions per call, counted by callgrind, which does not care what else the machine
//! does.

use std::process::{Command, Stdio};
use std::time::Duration;

use super::load::Load;
use crate::report::table;
use crate::server::process::Process;

/// Calls of the two runs; what differs between them is what calls take.
const RUNS: [usize; 2] = [500, 1_500];

/// Before each call, so that it is not answered together with another one.
const PAUSE: Duration = Duration::from_micros(500);

/// The table, or why there is none.
pub(super) fn counted(config: &str) -> String {
    let mut valgrind = Command::new("valgrind");
    let found = valgrind.arg("--version").stdout(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        return "Instructions were not counted: valgrind is not installed.\n".into();
    }
    let lanes = [("the ceiling", None), ("in memory", Some(config))];
    let rows = lanes.map(|(label, config)| {
        eprintln!("counting instructions: {label}");
        let [fewer, more] = RUNS.map(|calls| run(config, calls));
        let each = (more - fewer) / (RUNS[1] - RUNS[0]) as u64;
        [label.to_owned(), each.to_string()]
    });
    table(["call", "instructions per call"], rows.into_iter())
}

/// The instructions of a server that answers so many calls on one connection.
fn run(config: Option<&str>, calls: usize) -> u64 {
    let name = format!("tidegate-callgrind-{}", std::process::id());
    let profile = std::env::temp_dir().join(name);
    let mut valgrind = Command::new("valgrind");
    let out = format!("--callgrind-out-file={}", profile.display());
    valgrind.args(["--quiet", "--tool=callgrind", &out]);
    let server = match config {
        None => Process::tonic_under(valgrind),
        Some(config) => Process::tidegate_grpc_under(valgrind, config),
    };
    let mut load = Load::open(&server, 1, 1);
    load.fill(100);
    let mut left = 0..calls;
    load.ask(|_| {
        std::thread::sleep(PAUSE);
        left.next().map(|number| number % 100)
    });
    server.terminate();
    let text = std::fs::read_to_string(&profile).expect("callgrind's profile");
    drop(std::fs::remove_file(&profile));
    let line = |start| text.lines().find_map(|line| line.strip_prefix(start));
    let total = line("totals: ").or_else(|| line("summary: "));
    let total = total.and_then(|total| total.trim().parse().ok());
    total.expect("a total")
}
