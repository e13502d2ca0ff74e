//! Instructions per call.

use super::load::Load;
use crate::callgrind::{self, PAUSE};
use crate::report::table;
use crate::server::process::Process;

/// The table, or why there is none.
pub(super) fn counted(config: &str) -> String {
    if !callgrind::is_installed() {
        return callgrind::MISSING.into();
    }
    let lanes = [("the ceiling", None), ("in memory", Some(config))];
    let rows = lanes.map(|(label, config)| {
        eprintln!("counting instructions: {label}");
        let start = |valgrind| match config {
            None => Process::tonic_under(valgrind),
            Some(config) => Process::tidegate_grpc_under(valgrind, config),
        };
        [label.to_owned(), callgrind::each(start, ask).to_string()]
    });
    table(["call", "instructions per call"], rows.into_iter())
}

/// Calls a server so many times, on one connection.
fn ask(server: &Process, calls: usize) {
    let mut load = Load::open(server, 1, 1);
    load.fill(100);
    let mut left = 0..calls;
    load.ask(|_| {
        std::thread::sleep(PAUSE);
        left.next().map(|number| number % 100)
    });
}
