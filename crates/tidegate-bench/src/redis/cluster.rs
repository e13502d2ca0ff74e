//! Checks through clusters of one, two and three masters: how many a second, and what each
//! costs all masters together. The machine's cores are shared by all of them and by those
//! who ask, so it is the second figure that says what more machines would bring.

use std::cell::RefCell;
use std::rc::Rc;

use tokio::runtime::Runtime;

use super::askers::{ADMITS, Plain, Tidegate};
use super::ceiling::{self, Target, Travel};
use super::load::{self, DIGITS, KEYS, Order, Orders};
use super::sent::Sent;
use super::{admitted, batches, cost, crosscheck, runtime};
use crate::cpu::Cpu;
use crate::report::{machine, table, thousands};
use crate::rounds::{Series, interleave};
use tidegate_testkit::cluster::{Cluster, SLOTS, run as send};
use tidegate_testkit::redis::Server;

/// How many masters.
const MASTERS: [usize; 3] = [1, 2, 3];

/// The clients that are compared on each cluster.
const WHO: [&str; 3] = ["500 callers", "the ceiling", "`redis-benchmark`"];

const CALLERS: usize = 500;

/// What `redis-benchmark` is first taken to reach in a second.
const PACE: f64 = 30_000.0;

/// A cluster, and all that is measured on it.
struct Rig {
    cluster: Cluster,
    tidegate: Tidegate,
    targets: Vec<Target>,
    bucket: Plain,
    travel: Travel,
    pace: RefCell<f64>,
    /// Per client: microseconds of the masters' processors per check.
    costs: [RefCell<Vec<f64>>; 3],
}

/// Prints the table of clusters in `docs/benchmarks.md`.
pub(crate) fn run() {
    let (runtime, orders) = (runtime(), Orders::new());
    let one = Server::start();
    let sent = Sent::by(Tidegate::new(&one, "tg", ADMITS), &one, &runtime);
    drop(one);
    let rigs = MASTERS.map(|masters| {
        eprintln!("starting: masters: {masters}");
        Rig::start(masters, &runtime, orders.uniform)
    });
    eprintln!("measuring: all clusters in turns");
    let lanes: [Box<dyn FnMut() -> f64 + '_>; 9] = std::array::from_fn(|lane| {
        let (rig, who) = (&rigs[lane / 3], lane % 3);
        let (runtime, sent) = (&runtime, &sent);
        let measure = move || rig.measure(who, runtime, orders.uniform, sent);
        Box::new(measure) as Box<dyn FnMut() -> f64 + '_>
    });
    let series = interleave(lanes);
    println!("{}\n", machine());
    println!("{}", report(&rigs, &series));
}

impl Rig {
    fn start(masters: usize, runtime: &Runtime, order: Order) -> Self {
        let cluster = Cluster::start_with(masters, 0, &[]);
        let tidegate = Tidegate::at(&cluster.url(), "tg", Tidegate::policy(ADMITS));
        // Every node knows the script afterwards, and it is known how batches turn out.
        admitted(runtime, &tidegate, CALLERS, order);
        let travel = Travel::like(CALLERS, batches(tidegate).0 * batches(tidegate).1);
        let buckets = cluster.nodes.iter().map(Plain::token_bucket);
        let buckets: Vec<Plain> = buckets.map(|bucket| runtime.block_on(bucket)).collect();
        Self {
            targets: targets(&cluster),
            bucket: buckets.into_iter().next().expect("a master"),
            cluster,
            tidegate,
            travel,
            pace: RefCell::new(PACE),
            costs: Default::default(),
        }
    }

    /// One round of one client: checks per second.
    fn measure(&self, who: usize, runtime: &Runtime, order: Order, sent: &Sent) -> f64 {
        let mut nodes: Vec<_> = self.cluster.nodes.iter().map(Server::connect).collect();
        for node in &mut nodes {
            send::<()>(node, "CONFIG RESETSTAT");
        }
        let servers: Vec<u32> = self.cluster.nodes.iter().map(Server::pid).collect();
        let before = Cpu::of_all(&servers);
        let (targets, travel) = (&self.targets, self.travel);
        let measured = match who {
            0 => Some(admitted(runtime, &self.tidegate, CALLERS, order)),
            1 => Some(ceiling::measure_all(targets, &sent.command(DIGITS), travel)),
            _ => None,
        };
        let a_second = measured.map_or_else(|| self.redis_benchmark(), |it| it.a_second);
        let after = Cpu::of_all(&servers);
        // Checks that are alike share a call.
        let checks = measured.map_or_else(
            || nodes.iter_mut().map(|node| cost::evalsha(node).1).sum(),
            |it| it.checks,
        );
        let cpu = after.each_since(before, checks);
        self.costs[who].borrow_mut().push(cpu.server_us);
        a_second
    }

    /// With a script whose arguments it can pass, for about as long as the others.
    fn redis_benchmark(&self) -> f64 {
        // It replaces `{tag}` by a tag of the node it asks.
        let words = self.bucket.words("{tag}:__rand_int__");
        let mut pace = self.pace.borrow_mut();
        let first = &self.cluster.nodes[0];
        // Of one node it says that it is no cluster, and needs not be told.
        let options: &[&str] = match self.targets.len() {
            1 => &[],
            _ => &["--cluster"],
        };
        *pace = crosscheck::run(first, &words, self.travel, *pace, options);
        *pace
    }
}

/// Every master with its keys, which are tags of their own.
fn targets(cluster: &Cluster) -> Vec<Target> {
    let slots = usize::from(SLOTS);
    let every = slots.div_ceil(cluster.nodes.len());
    let place = |key: usize| {
        let sum = crc16::State::<crc16::XMODEM>::calculate(load::name(key).as_bytes());
        usize::from(sum) % slots / every
    };
    let nodes = cluster.nodes.iter().enumerate();
    let targets = nodes.map(|(number, node)| {
        let own = (0..KEYS).filter(|key| place(*key) == number);
        Target {
            port: node.port(),
            keys: Some(own.collect::<Rc<[usize]>>()),
        }
    });
    targets.collect()
}

fn report(rigs: &[Rig; 3], series: &[Series; 9]) -> String {
    let header = [
        "masters, client",
        "per second",
        "masters' time per check",
        "a core could",
    ];
    let rows = (0..series.len()).map(|lane| {
        let (rig, who) = (&rigs[lane / 3], lane % 3);
        // The first round only warms up.
        let costs = rig.costs[who].borrow().iter().skip(1).copied().collect();
        let server_us = Series::of(costs).median();
        [
            format!("{}, {}", MASTERS[lane / 3], WHO[who]),
            thousands(series[lane].median()),
            format!("{server_us:.1} us"),
            thousands(1e6 / server_us),
        ]
    });
    table(header, rows)
}
