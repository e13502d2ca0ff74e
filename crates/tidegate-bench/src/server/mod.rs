//! The server over HTTP, beside a bare handler on the same stack and beside
//! throttlecrab-server.
//!
//! Each of them is a process of its own ([`process`]). [`load`] asks all of them the
//! same way what [`request`] has laid out, in turns.

mod instructions;
mod load;
pub(crate) mod process;
mod report;
mod request;
mod viewers;

use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use load::Load;
use process::Process;
use request::Request;
use viewers::Viewers;

use crate::cpu::Cpu;
use crate::report::{Goal, print_goals};
use crate::rounds::in_turns;
use crate::waits::Measured;

/// How many connections ask at once.
const CONNECTIONS: [usize; 2] = [1, 64];

/// How many of them beside a busy loop.
const BUSY: [usize; 2] = [64, 512];

/// The connections by which keys are brought in, and by which their number is measured.
const MANY: usize = 64;

/// The keys of a comparison.
const KEYS: usize = 100_000;

/// The numbers of keys for tidegate alone, and what the table calls them.
const SIZES: [(usize, &str); 3] = [
    (1_000, "1 thousand"),
    (KEYS, "100 thousand"),
    (1_000_000, "1 million"),
];

/// How many watch the dashboard.
const VIEWERS: usize = 3;

/// How long one measurement takes, and one that is only to see whether all works.
const LENGTH: Duration = Duration::from_millis(1_000);
const QUICK: Duration = Duration::from_millis(60);

/// Prints the tables of the server's part of `docs/benchmarks.md`. `throttlecrab` is
/// the program to compare with.
pub(crate) fn run(throttlecrab: &Path, quick: bool) {
    println!("{}\n", crate::report::machine());
    let length = if quick { QUICK } else { LENGTH };
    eprintln!("starting servers, and bringing in their keys");
    let sized = SIZES.map(|(keys, label)| {
        let server = Process::tidegate();
        fill(&server, Request::check(), keys);
        (label, server, keys)
    });
    let [_, (_, tidegate, _), _] = &sized;
    fill(tidegate, Request::first(), KEYS);
    let ceiling = Process::hello();
    let peer = Process::throttlecrab(throttlecrab);
    fill(&peer, Request::throttle(), KEYS);
    let compare = |connections| {
        eprintln!("measuring: connections at once: {connections}");
        let lane = |label, server, request| Lane::new(label, server, request, connections, KEYS);
        let lanes = [
            lane("the ceiling", &ceiling, Request::check()),
            lane("throttlecrab", &peer, Request::throttle()),
            lane("JSON check", tidegate, Request::check()),
            lane("gate", tidegate, Request::gate()),
            lane("gate, refused", tidegate, Request::refused()),
        ];
        (connections, in_turns(lanes.map(|lane| lane.turn(length))))
    };
    let compared = CONNECTIONS.map(compare);
    println!("{}", report::compared(&compared, ""));
    let mut goals = report::goals(&compared, "");
    eprintln!("measuring: numbers of keys");
    let lanes = sized.each_ref();
    let lanes =
        lanes.map(|(label, server, keys)| Lane::new(label, server, Request::check(), MANY, *keys));
    // Flat, but for the cache misses that a larger table brings.
    let what = "keys in use, JSON check";
    let fared = in_turns(lanes.map(|lane| lane.turn(length)));
    let sizes = report::beside_first(what, &fared);
    goals.extend(report::flat(what, &fared, Goal::AtMost(1.1)));
    eprintln!("measuring: beside a busy loop");
    let busy = Busy::start();
    let compared = BUSY.map(compare);
    drop(busy);
    goals.extend(report::goals(&compared, ", beside a busy loop"));
    eprintln!("measuring: viewers of the dashboard");
    let lane = |label, viewers| {
        let lane = Lane::new(label, tidegate, Request::check(), MANY, KEYS);
        Lane { viewers, ..lane }
    };
    let lanes = [lane("nobody", 0), lane("three viewers", VIEWERS)];
    let fared = in_turns(lanes.map(|lane| lane.turn(length)));
    let what = "dashboard watched by, JSON check";
    goals.extend(report::flat(what, &fared, Goal::AtMost(1.02)));
    print_goals(goals);
    println!("{sizes}");
    println!("{}", instructions::counted());
}

/// A process that does nothing, and does not rest.
struct Busy(Child);

impl Busy {
    fn start() -> Self {
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", "while :; do :; done"]).spawn();
        Self(shell.expect("a shell"))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// One thing that is measured, round after round.
struct Lane<'a> {
    label: &'static str,
    server: &'a Process,
    request: Request,
    connections: usize,
    keys: usize,
    /// How many watch the dashboard meanwhile.
    viewers: usize,
}

impl<'a> Lane<'a> {
    fn new(
        label: &'static str,
        server: &'a Process,
        request: Request,
        connections: usize,
        keys: usize,
    ) -> Self {
        Self {
            label,
            server,
            request,
            connections,
            keys,
            viewers: 0,
        }
    }

    /// Its label, and a round of it.
    fn turn(self, length: Duration) -> (&'static str, impl FnMut() -> (Measured, Cpu)) {
        let round = move || {
            let _viewers = Viewers::watch(self.server, self.viewers);
            let load = Load::open(self.server, self.request.clone(), self.connections);
            load.measure(self.keys, length)
        };
        (self.label, round)
    }
}

fn fill(server: &Process, request: Request, keys: usize) {
    Load::open(server, request, MANY).fill(keys);
}
