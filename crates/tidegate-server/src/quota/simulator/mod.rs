//! Fleets of model Envoys and the table of quotas in a box: thousands of seeds, each of them
//! held to the formula of docs/modes.md.

mod envoy;
mod world;

use tidegate::Limit;
use tidegate_testkit::simulation::Random;

use super::LIFETIME_S;
use world::{Fault, Fleet, Plan};

/// Limits, with their tokens per second, the most at once, and the same across the edge of a
/// window.
const LIMITS: [(&str, f64, f64, f64); 8] = [
    ("100r/s", 100.0, 100.0, 100.0),
    ("100r/s burst=20", 100.0, 20.0, 20.0),
    ("20r/s burst=200", 20.0, 200.0, 200.0),
    ("1000r/s", 1000.0, 1000.0, 1000.0),
    ("300/60s", 5.0, 300.0, 300.0),
    ("600/60s burst=30", 10.0, 30.0, 30.0),
    ("200/10s fixed_window", 20.0, 200.0, 400.0),
    ("200/10s sliding_log", 20.0, 200.0, 200.0),
];

/// A fleet: a limit, one to four Envoys, and what they are offered.
fn plan(seed: u64) -> Plan {
    let mut random = Random::new(seed);
    let number = usize::try_from(seed).expect("a small seed");
    let (text, rate, burst, edge) = LIMITS[number % LIMITS.len()];
    let envoys = 1 + random.index(4);
    let offers = [0.05, 0.3, 1.0, 3.0];
    let offered = (0..envoys).map(|_| rate * offers[random.index(4)]);
    Plan {
        limit: Limit::parse(text).expect("a limit"),
        rate,
        burst,
        edge,
        offered: offered.collect(),
        servers: 1,
        exact: 0.0,
        delay_s: 0.3,
        fault: None,
        changes_s: Some(6.0),
        seconds: 60.0,
    }
}

/// The sizes of the Envoys' buckets (`S` in docs/modes.md).
fn sizes(plan: &Plan) -> f64 {
    let all = (plan.rate / 4.0).max(10.0).min(plan.burst / 2.0);
    all + plan.offered.len() as f64
}

/// What a Tidegate owes at most (`H` in docs/modes.md).
fn owed(plan: &Plan) -> f64 {
    plan.rate.max(plan.burst.min(10.0 * plan.rate)) + plan.rate / 2.0
}

/// How many times as many seeds as usual: `TIDEGATE_SEEDS=100` for a long search.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let more = std::env::var("TIDEGATE_SEEDS").ok();
    0..count * more.and_then(|more| more.parse().ok()).unwrap_or(1)
}

fn run(plan: &Plan, seed: u64) -> Fleet {
    let mut fleet = Fleet::new(plan.clone(), seed);
    fleet.run();
    fleet
}

/// By how much a run passes what the algorithm admits by itself.
fn excess(plan: &Plan, seed: u64) -> f64 {
    run(plan, seed).worst - plan.edge
}

#[test]
fn one_tidegate_never_assigns_more_than_the_limit() {
    for seed in seeds(800) {
        let plan = plan(seed);
        let world = run(&plan, seed);
        let most = plan.edge + sizes(&plan);
        assert!(
            world.worst <= most,
            "seed {seed}: {} > {most}, {plan:?}",
            world.worst
        );
        let (held, rate) = (world.worst_held, plan.rate);
        assert!(
            held <= rate * 1.000_001,
            "seed {seed}: {held}/s assigned, {plan:?}"
        );
    }
}

#[test]
fn tidegates_that_compete_keep_to_the_formula() {
    for seed in seeds(800) {
        let mut plan = plan(seed);
        let mut random = Random::new(seed + 1_000_000);
        plan.servers = 1 + random.index(4);
        plan.exact = [0.0, 0.2, 1.0, 2.0][random.index(4)] * plan.rate;
        let most = plan.servers as f64 * (owed(&plan) + sizes(&plan));
        let excess = excess(&plan, seed);
        assert!(excess <= most, "seed {seed}: {excess} > {most}, {plan:?}");
    }
}

#[test]
fn faults_add_no_more_than_what_was_assigned() {
    let silent = f64::from(LIFETIME_S) + 1.0;
    for (fault, lasts_s) in [
        (Fault::Stream, 0.0),
        (Fault::Envoy, 0.0),
        (Fault::Tidegate, silent),
        (Fault::Link, silent),
    ] {
        let mut worst = f64::NEG_INFINITY;
        for seed in seeds(240) {
            let mut plan = plan(seed);
            plan.fault = Some(fault);
            plan.servers = if seed / 8 % 2 == 0 { 1 } else { 3 };
            let fleet = match plan.servers {
                1 => sizes(&plan),
                servers => servers as f64 * (owed(&plan) + sizes(&plan)),
            };
            let most = fleet + plan.rate * lasts_s;
            let excess = excess(&plan, seed);
            worst = worst.max((excess - fleet) / plan.rate);
            assert!(excess <= most, "seed {seed}: {excess} > {most}, {plan:?}");
        }
        println!("{fault:?}: at worst {worst:.1} s of the rate above the formula without faults");
    }
}

#[test]
fn limit_is_used() {
    for (servers, least) in [(1, 0.87), (3, 0.85)] {
        for (number, (text, ..)) in LIMITS.iter().enumerate() {
            let (mut used, mut runs) = (0.0, 0.0);
            for seed in seeds(60).map(|seed| seed * 8 + number as u64) {
                let mut plan = plan(seed);
                (plan.servers, plan.changes_s, plan.seconds) = (servers, None, 90.0);
                let offered: f64 = plan.offered.iter().sum();
                let world = run(&plan, seed);
                let admitted: u64 = world.envoys.iter().map(|it| it.admitted).sum();
                used += admitted as f64 / (offered.min(plan.rate) * plan.seconds);
                runs += 1.0;
            }
            used /= runs;
            println!("{servers} Tidegates use {:.1} % of {text}", used * 100.0);
            assert!(used >= least, "{servers} Tidegates use {used} of {text}");
        }
    }
}
