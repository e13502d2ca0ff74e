//! Checks through Redis, beside the bare server with the same script and beside the
//! scripts that tidegate replaces.
//!
//! It starts a server of its own. [`askers`] are the clients that are compared, [`mod@callers`]
//! call them, by an order of keys from [`load`]. The ceiling
//! ([`ceiling`]) sends what the limiter was seen to send ([`sent`]), the way its
//! batches travel, and is held against `redis-benchmark` ([`crosscheck`]). [`cost`] is
//! what the server says about the scripts.

mod askers;
mod callers;
mod ceiling;
mod cluster;
mod cost;
mod crosscheck;
mod load;
mod report;
mod sent;

use std::cell::RefCell;

use tokio::runtime::Runtime;

pub(crate) use cluster::run as run_clusters;

use askers::{ADMITS, Plain, Tidegate};
use callers::{Ask, measure};
use ceiling::Travel;
use load::{DIGITS, Order, Orders};
use report::Row;
use sent::Sent;
use tidegate_testkit::redis::Server;

use crate::cpu::Cpu;
use crate::report::{Goal, print_goals};
use crate::rounds::interleave;
use crate::waits::Measured;

/// How many ask at once.
const CALLERS: [usize; 3] = [1, 50, 500];

/// Prints the tables of the Redis part of `docs/benchmarks.md`.
pub(crate) fn run() {
    let (server, runtime) = (Server::start(), runtime());
    println!("{}\n", crate::report::machine());
    let mut goals = callers(&server, &runtime, &CALLERS);
    eprintln!("measuring: what scripts cost the server");
    let costs = cost::measure(&server, &runtime);
    println!("{}", report::cost(&costs));
    goals.extend(report::cost_goal(&costs));
    print_goals(goals);
}

/// Prints only what so many callers come to.
pub(crate) fn run_callers(count: usize) {
    print_goals(callers(&Server::start(), &runtime(), &[count]));
}

/// Prints what so many callers come to, and returns the goals.
fn callers(server: &Server, runtime: &Runtime, counts: &[usize]) -> Vec<(String, f64, Goal)> {
    let orders = Orders::new();
    let (mut rows, mut checked) = (Vec::new(), Vec::new());
    for &count in counts {
        let (compared, check) = throughput(server, runtime, orders, count);
        rows.extend(compared);
        checked.push(check);
    }
    println!("{}", report::throughput(&rows));
    eprintln!("{}", report::crosscheck(&checked));
    report::goals(&rows)
}

/// Two workers, as a small service has them.
fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build();
    runtime.expect("a runtime of two threads")
}

/// One thing that is measured, round after round.
struct Lane<'a> {
    label: String,
    goal: Option<f64>,
    /// The rounds, the first of which only warms up.
    rounds: RefCell<Vec<(Measured, Cpu)>>,
    store: Option<Tidegate>,
    measure: Box<dyn Fn() -> Measured + 'a>,
}

impl<'a> Lane<'a> {
    fn new(label: String, measure: impl Fn() -> Measured + 'a) -> Self {
        Self {
            label,
            goal: None,
            rounds: RefCell::default(),
            store: None,
            measure: Box::new(measure),
        }
    }

    fn goal(mut self, goal: Option<f64>) -> Self {
        self.goal = goal;
        self
    }

    fn of(mut self, tidegate: Tidegate) -> Self {
        self.store = Some(tidegate);
        self
    }

    fn run(&self, server: &Server) -> f64 {
        let before = Cpu::now(server.pid());
        let measured = (self.measure)();
        let cpu = Cpu::now(server.pid()).each_since(before, measured.checks);
        self.rounds.borrow_mut().push((measured, cpu));
        measured.a_second
    }
}

/// All who are compared, in turns, with so many callers; and the ceiling as a share of
/// `redis-benchmark`.
fn throughput(
    server: &Server,
    runtime: &Runtime,
    orders: Orders,
    callers: usize,
) -> (Vec<Row>, (Travel, f64)) {
    eprintln!("measuring: callers at once: {callers}");
    let mut connection = server.connect();
    redis::cmd("FLUSHALL")
        .exec(&mut connection)
        .expect("a server");
    let uniform = Tidegate::new(server, "tg", ADMITS);
    let zipf = Tidegate::new(server, "tg-zipf", ADMITS);
    let bucket = runtime.block_on(Plain::token_bucket(server));
    let increment = runtime.block_on(Plain::increment(server));
    let sent = Sent::by(uniform, server, runtime);
    // How its batches turn out, for the ceiling to do the same.
    admitted(runtime, &uniform, callers, orders.uniform);
    let (commands, checks) = batches(uniform);
    let travel = Travel::like(callers, commands * checks);
    let Travel {
        connections,
        pipelined,
    } = travel;
    let many = callers > 1;
    let lanes = [
        Lane::new(
            format!("{callers}, the ceiling, {connections} x {pipelined} on their way"),
            || ceiling::measure(server, &sent.command(DIGITS), travel),
        ),
        Lane::new(format!("{callers}, uniform"), || {
            admitted(runtime, &uniform, callers, orders.uniform)
        })
        .goal(match callers {
            500 => Some(1.3),
            _ => many.then_some(0.9),
        })
        .of(uniform),
        Lane::new(format!("{callers}, Zipf"), || {
            admitted(runtime, &zipf, callers, orders.zipf)
        })
        .goal((callers == 500).then_some(1.5))
        .of(zipf),
        Lane::new(format!("{callers}, tutorial's token bucket"), || {
            admitted(runtime, &bucket, callers, orders.uniform)
        }),
        Lane::new(format!("{callers}, INCR"), || {
            admitted(runtime, &increment, callers, orders.uniform)
        }),
    ];
    let turns = lanes.each_ref();
    let series =
        interleave(turns.map(|lane| Box::new(|| lane.run(server)) as Box<dyn FnMut() -> f64>));
    for tidegate in lanes.iter().filter_map(|lane| lane.store) {
        let errors = tidegate.store.stats().errors;
        let errors: Vec<_> = errors.iter().filter(|(_, count)| *count > 0).collect();
        if !errors.is_empty() {
            eprintln!("the machine stood still, and checks were asked again: {errors:?}");
        }
    }
    let rows = lanes.into_iter().zip(&series).map(|(lane, own)| Row {
        ratio: own.ratio_to(&series[0]),
        label: lane.label,
        rounds: lane.rounds.into_inner().split_off(1),
        goal: lane.goal,
    });
    let rows = rows.collect();
    (rows, (travel, crosscheck::measure(server, &bucket, travel)))
}

/// Callers of a limiter that must admit everything.
fn admitted<A: Ask>(runtime: &Runtime, asker: &A, callers: usize, order: Order) -> Measured {
    let measured = runtime.block_on(measure(asker, callers, order));
    assert!(measured.admitted == 1.0, "a check is refused");
    measured
}

/// Commands of a write, and checks of a command, on average so far.
fn batches(tidegate: Tidegate) -> (f64, f64) {
    let stats = tidegate.store.stats();
    let commands = stats.commands as f64;
    (
        commands / stats.batches as f64,
        stats.questions as f64 / commands,
    )
}
