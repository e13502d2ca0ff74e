//! One run of `tidegate bench`, and what Redis was asked meanwhile.

use std::process::Command;

use serde_json::Value;

use crate::server::process::sibling;
use tidegate_testkit::redis::Server;

/// What to ask for.
pub(super) struct Load(Vec<String>);

/// What a run came to.
#[derive(Clone, Copy)]
pub(super) struct Figures {
    pub(super) checks: f64,
    pub(super) admitted: f64,
    pub(super) a_second: f64,
    pub(super) p99_us: f64,
    /// Commands that Redis was sent.
    pub(super) calls: f64,
    pub(super) use_of_rate: f64,
}

impl Load {
    /// As fast as 64 callers of one process go.
    pub(super) fn closed(flags: &[&str]) -> Self {
        Self::new(flags, &["--duration", "4s"])
    }

    /// Checks offered per second, admitted or not.
    pub(super) fn open(flags: &[&str], rate: u32) -> Self {
        Self::new(flags, &["--duration", "5s", "--rate", &rate.to_string()])
    }

    /// The same for so long that how it begins hardly counts.
    pub(super) fn long(flags: &[&str], rate: u32) -> Self {
        Self::new(flags, &["--duration", "20s", "--rate", &rate.to_string()])
    }

    fn new(flags: &[&str], more: &[&str]) -> Self {
        let flags = flags.iter().chain(more);
        Self(flags.map(|flag| (*flag).to_owned()).collect())
    }
}

/// Runs it, and checks that the limit held.
pub(super) fn run(server: &Server, load: &Load) -> Figures {
    let mut command = Command::new(sibling("tidegate"));
    command.arg("bench").arg(server.url()).arg("--json");
    let output = command.args(&load.0).output().expect("tidegate is built");
    let told = String::from_utf8_lossy(&output.stderr);
    let found: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("tidegate bench: {error}: {told}"));
    let number = |pointer: &str| {
        let number = found.pointer(pointer).and_then(Value::as_f64);
        number.unwrap_or_else(|| panic!("no {pointer} in {found}"))
    };
    let held = found.pointer("/verdict/held") == Some(&Value::Bool(true));
    assert!(held, "the limit was broken: {found}");
    Figures {
        checks: number("/checks"),
        admitted: number("/admitted"),
        a_second: number("/checks_per_second"),
        p99_us: number("/latency_us/p99"),
        calls: number("/store_commands"),
        use_of_rate: number("/verdict/levels/0/use_of_rate"),
    }
}
