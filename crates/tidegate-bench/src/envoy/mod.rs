//! Envoy's rate limit service over gRPC, in memory and on Redis in the mode `lease`, beside
//! a bare handler of tonic.
//!
//! Each of them is a process of its own. [`load`] asks all of them the same way, in turns,
//! what [`wire`] has laid out.

mod instructions;
mod load;
mod report;
mod wire;

use std::time::Duration;

use load::Load;

use crate::rounds::in_turns;
use crate::server::process::Process;
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
        let lane = |label, server, keys| {
            let round = move || Load::open(server, connections, calls).measure(keys, length);
            (label, round)
        };
        let lanes = [
            lane("the ceiling", &ceiling, many),
            lane("in memory, 100 thousand keys", &memory, many),
            lane("in memory, 100 keys", &memory, FEW),
            lane("Redis, leases, 100 keys", &lease, FEW),
        ];
        (load, in_turns(lanes))
    });
    println!("{}", report::compared(&compared));
    crate::report::print_goals(report::goals(&compared));
    println!("{}", instructions::counted(MEMORY));
}
