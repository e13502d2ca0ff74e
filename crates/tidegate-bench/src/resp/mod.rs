//! The server over the Redis protocol, beside throttlecrab-server and beside `INCR` of
//! Redis, all asked by `redis-benchmark` with random keys, in turns.

mod report;

use std::path::Path;
use std::process::Command;

use crate::cpu::Cpu;
use crate::rounds::in_turns;
use crate::server::process::Process;
use tidegate_testkit::redis::Server;

/// Connections that ask at once.
const CONNECTIONS: usize = 50;

/// Commands on their way per connection, and how many commands a measurement has.
const PIPELINES: [(usize, usize); 3] = [(1, 100_000), (16, 800_000), (32, 1_200_000)];

/// The keys of a comparison.
const KEYS: usize = 100_000;

/// The numbers of keys for tidegate alone, and what the table calls them.
const SIZES: [(usize, &str); 3] = [
    (1_000, "1 thousand"),
    (KEYS, "100 thousand"),
    (1_000_000, "1 million"),
];

/// How many times fewer commands a quick run sends.
const QUICK: usize = 100;

/// throttlecrab answers pipelines at a fortieth of the others' speed or less, so its
/// measurements of pipelines have this many times fewer commands.
const PEER_PIPELINES: usize = 10;

/// A check that is always admitted, and leaves a debt that keeps its key in use.
const THROTTLE: [&str; 5] = ["THROTTLE", "key:__rand_int__", "1000000", "1", "600"];
const INCR: [&str; 2] = ["INCR", "key:__rand_int__"];

/// What redis-benchmark says of a run, and the processor time of the server per command.
#[derive(Clone, Copy)]
struct Round {
    a_second: f64,
    p99_us: f64,
    server_us: f64,
}

/// A server, and what it is asked.
struct Lane<'a> {
    label: &'static str,
    port: u16,
    process: u32,
    words: &'a [&'a str],
    keys: usize,
    /// How many times fewer commands it gets in pipelines.
    fewer: usize,
}

/// Prints the tables of this part of `docs/benchmarks.md`. `throttlecrab` is the program to
/// compare with.
pub(crate) fn run(throttlecrab: &Path, quick: bool) {
    println!("{}\n", crate::report::machine());
    let divisor = if quick { QUICK } else { 1 };
    let (tidegate, peer) = (
        Process::tidegate_resp(),
        Process::throttlecrab_resp(throttlecrab),
    );
    let redis = Server::start();
    let lanes = || {
        [
            Lane::new(
                "tidegate, `THROTTLE`",
                tidegate.port(),
                tidegate.id(),
                &THROTTLE,
                KEYS,
            ),
            Lane::new(
                "throttlecrab, `THROTTLE`",
                peer.port(),
                peer.id(),
                &THROTTLE,
                KEYS,
            )
            .fewer(PEER_PIPELINES),
            Lane::new("Redis, `INCR`", redis.port(), redis.pid(), &INCR, KEYS),
        ]
    };
    eprintln!("bringing in the keys");
    lanes().iter().for_each(|lane| lane.fill(divisor));
    let compared = PIPELINES.map(|(pipeline, commands)| {
        eprintln!("measuring: {pipeline} commands on their way per connection");
        let lanes = lanes().map(|lane| lane.turn(pipeline, commands / divisor));
        (pipeline, in_turns(lanes))
    });
    println!("{}", report::compared(&compared));
    drop((tidegate, peer, redis));
    eprintln!("measuring: numbers of keys");
    let servers = SIZES.map(|_| Process::tidegate_resp());
    let lanes: [Lane<'_>; 3] = std::array::from_fn(|index| {
        let ((keys, label), server) = (SIZES[index], &servers[index]);
        Lane::new(label, server.port(), server.id(), &THROTTLE, keys)
    });
    lanes.iter().for_each(|lane| lane.fill(divisor));
    let [.., (pipeline, commands)] = PIPELINES;
    let fared = in_turns(lanes.map(|lane| lane.turn(pipeline, commands / divisor)));
    crate::report::print_goals(report::goals(&compared));
    println!("{}", report::growth(&fared));
}

impl<'a> Lane<'a> {
    fn new(
        label: &'static str,
        port: u16,
        process: u32,
        words: &'a [&'a str],
        keys: usize,
    ) -> Self {
        Self {
            label,
            port,
            process,
            words,
            keys,
            fewer: 1,
        }
    }

    fn fewer(self, fewer: usize) -> Self {
        Self { fewer, ..self }
    }

    /// Asks for nearly all keys at least once.
    fn fill(&self, divisor: usize) {
        self.run(32, (4 * self.keys / divisor).max(10_000));
    }

    /// Its label, and a round of it.
    fn turn(self, pipeline: usize, commands: usize) -> (&'static str, impl FnMut() -> Round) {
        (self.label, move || self.run(pipeline, commands))
    }

    fn run(&self, pipeline: usize, commands: usize) -> Round {
        let commands = match pipeline {
            1 => commands,
            _ => commands / self.fewer,
        };
        let before = Cpu::now(self.process);
        let mut benchmark = Command::new("redis-benchmark");
        for (flag, value) in [
            ("-p", usize::from(self.port)),
            ("-c", CONNECTIONS),
            ("-P", pipeline),
            ("-n", commands),
            ("-r", self.keys),
        ] {
            benchmark.args([flag, &value.to_string()]);
        }
        let output = benchmark.arg("--csv").args(self.words).output();
        let output = output.expect("redis-benchmark is installed by `cargo xtask bench resp`");
        #[expect(clippy::cast_precision_loss, reason = "a few million")]
        let cpu = Cpu::now(self.process).each_since(before, commands as f64);
        let text = String::from_utf8(output.stdout).expect("text");
        // test, rps, average, least, p50, p95, p99, most: milliseconds.
        let line = text
            .lines()
            .rfind(|line| !line.is_empty())
            .expect("a result");
        let fields: Vec<&str> = line.split("\",\"").collect();
        let figure = |index: usize| -> f64 {
            let text = fields.get(index).map(|it| it.trim_matches('"'));
            let figure = text.and_then(|text| text.parse().ok());
            figure.unwrap_or_else(|| panic!("no figures in {text:?}: {line}"))
        };
        Round {
            a_second: figure(1),
            p99_us: figure(6) * 1e3,
            server_us: cpu.server_us,
        }
    }
}
