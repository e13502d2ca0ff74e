//! Who worked: processor time of the server and of this program.

use std::path::Path;

use super::server::Server;

/// Processor time so far, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cpu {
    pub(super) server_us: f64,
    pub(super) own_us: f64,
}

impl Cpu {
    pub(super) fn now(server: &Server) -> Self {
        Self {
            server_us: of(server.pid()),
            own_us: of(std::process::id()),
        }
    }

    /// What each of so many checks took of both since then.
    pub(super) fn each_since(self, before: Self, checks: f64) -> Self {
        Self {
            server_us: (self.server_us - before.server_us) / checks,
            own_us: (self.own_us - before.own_us) / checks,
        }
    }
}

/// Of all threads of a process; none of ours ends during a measurement.
fn of(process: u32) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("a running process");
    threads
        .filter_map(|thread| nanoseconds(&thread.ok()?.path().join("schedstat")))
        .sum::<f64>()
        / 1e3
}

fn nanoseconds(file: &Path) -> Option<f64> {
    let text = std::fs::read_to_string(file).ok()?;
    text.split(' ').next()?.parse().ok()
}
