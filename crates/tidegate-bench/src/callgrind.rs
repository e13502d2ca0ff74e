//! Instructions of a server, counted by callgrind, which does not care what else the machine
//! does.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::server::process::Process;

/// How often the two runs ask; what differs between them is what asking takes.
const RUNS: [usize; 2] = [500, 1_500];

/// Before each request, so that it is not answered together with another one.
pub(crate) const PAUSE: Duration = Duration::from_micros(500);

/// In place of a table, where callgrind is missing.
pub(crate) const MISSING: &str = "Instructions were not counted: valgrind is not installed.\n";

pub(crate) fn is_installed() -> bool {
    let mut valgrind = Command::new("valgrind");
    let found = valgrind.arg("--version").stdout(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

/// What a server, started under this command, takes each time it is asked.
pub(crate) fn each(start: impl Fn(Command) -> Process, ask: impl Fn(&Process, usize)) -> u64 {
    let [fewer, more] = RUNS.map(|times| {
        let name = format!("tidegate-callgrind-{}", std::process::id());
        let profile = std::env::temp_dir().join(name);
        let mut valgrind = Command::new("valgrind");
        let out = format!("--callgrind-out-file={}", profile.display());
        valgrind.args(["--quiet", "--tool=callgrind", &out]);
        let server = start(valgrind);
        ask(&server, times);
        server.terminate();
        let text = std::fs::read_to_string(&profile).expect("callgrind's profile");
        drop(std::fs::remove_file(&profile));
        let line = |start| text.lines().find_map(|line| line.strip_prefix(start));
        let total = line("totals: ").or_else(|| line("summary: "));
        let total: Option<u64> = total.and_then(|total| total.trim().parse().ok());
        total.expect("a total")
    });
    (more - fewer) / (RUNS[1] - RUNS[0]) as u64
}
