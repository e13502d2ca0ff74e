//! Envoy's rate limit service over gRPC, in memory and on Redis in the mode `lease`, beside
//! a bare handler of tonic.
//!
//! Each of them is a process of its own. [`load`] asks all of them the same way, in turns,
//! what [`wire`] has laid out.

mod instructions;
mod load;
mod report;
mod wire;

use std::cell::RefCell;
use std::time::Duration;

use load::Load;

use crate::cpu::Cpu;
use crate::rounds::interleave;
use crate::server::process::Process;
use crate::waits::Measured;
use tidegate_testkit::redis::Server;

/// Connections, and calls at once on each: one idle Envoy, and busy ones.
const LOADS: [(usize, usize); 2] = [(1, 1), (4, 16)];

/// Keys that are asked for at random: many, and a few that are worth a lease.
const MANY: usize = 100_000;
const FEW: usize = 100;

/// How long one measurement takes, and one that is only to see whether all works.
const LENGTH: Duration = Duration::from_millis(1_000);
const QUICK: Duration = Duration::from_millis(60);

/// Admits everything, and leaves a debt that keeps a key in use to the end.
const MEMORY: &str = "
[stores.default]
url = \"memory:\"
max_keys = 2000000

[[policies]]
name = \"api\"
limit = \"1/600s\"
burst = 1000000
";

/// The limit for leases is one that they can be cut from.
fn leased(redis: &Server) -> String {
    format!(
        "[stores.default]\nurl = \"{}\"\ntimeout = \"10s\"\n\n[[policies]]\nname = \"api\"\n\
         limit = \"1000000r/s\"\nburst = 1000000\nmode = \"lease\"\n",
        redis.url()
    )
}

/// One server under one load, round after round.
struct Lane<'a> {
    label: &'static str,
    server: &'a Process,
    keys: usize,
    load: (usize, usize),
}

/// How it has fared.
struct Fared {
    label: &'static str,
    rounds: Vec<(Measured, Cpu)>,
}

/// Prints the tables of this part of `docs/benchmarks.md`.
pub(crate) fn run(quick: bool) {
    println!("{}\n", crate::report::machine());
    let length = if quick { QUICK } else { LENGTH };
    let redis = Server::start();
    let ceiling = Process::tonic();
    let memory = Process::tidegate_grpc(MEMORY);
    let lease = Process::tidegate_grpc(&leased(&redis));
    eprintln!("bringing in the keys");
    let many = if quick { FEW } else { MANY };
    Load::open(&memory, 4, 16).fill(many);
    let compared = LOADS.map(|load| {
        let (connections, calls) = load;
        eprintln!("measuring: {connections} connections, {calls} calls on each");
        let lane = |label, server, keys| Lane {
            label,
            server,
            keys,
            load,
        };
        let lanes = [
            lane("the ceiling", &ceiling, many),
            lane("in memory, 100 thousand keys", &memory, many),
            lane("in memory, 100 keys", &memory, FEW),
            lane("Redis, leases, 100 keys", &lease, FEW),
        ];
        (load, in_turns(lanes, length))
    });
    println!("{}", report::compared(&compared));
    crate::report::print_goals(report::goals(&compared));
    println!("{}", instructions::counted(MEMORY));
}

fn in_turns<const LANES: usize>(lanes: [Lane<'_>; LANES], length: Duration) -> [Fared; LANES] {
    let rounds: [RefCell<Vec<_>>; LANES] = std::array::from_fn(|_| RefCell::default());
    let turns: [usize; LANES] = std::array::from_fn(|lane| lane);
    interleave(turns.map(|lane| -> Box<dyn FnMut() -> f64 + '_> {
        let (lane, rounds) = (&lanes[lane], &rounds[lane]);
        Box::new(move || {
            let (connections, calls) = lane.load;
            let load = Load::open(lane.server, connections, calls);
            let measured = load.measure(lane.keys, length);
            rounds.borrow_mut().push(measured);
            measured.0.a_second
        })
    }));
    let mut rounds = rounds.into_iter();
    lanes.map(|lane| Fared {
        label: lane.label,
        // The first only warms up.
        rounds: rounds
            .next()
            .map_or_else(Vec::new, |rounds| rounds.into_inner().split_off(1)),
    })
}
