//! Who worked: processor time of a server and of this program.

use std::path::Path;

/// Processor time so far, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cpu {
    pub(crate) server_us: f64,
    pub(crate) own_us: f64,
}

impl Cpu {
    /// Of the server with this process id, and of this program.
    pub(crate) fn now(server: u32) -> Self {
        Self::of_all(&[server])
    }

    /// Of all servers together, and of this program.
    pub(crate) fn of_all(servers: &[u32]) -> Self {
        Self {
            server_us: servers.iter().map(|server| of(*server)).sum(),
            own_us: of(std::process::id()),
        }
    }

    /// What each of so many checks took of both since then.
    pub(crate) fn each_since(self, before: Self, checks: f64) -> Self {
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
