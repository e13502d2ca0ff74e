//! As many levels as a policy may have: their script must fit into what Lua allows, 200
//! local variables and 250 registers.

use tidegate::{Charge, Cost, Limit};

use super::pair::{Host, Pair, SECOND};
use tidegate_testkit::redis::Server;

const MANY: usize = 16;

const ALGORITHMS: [&str; 5] = [
    "10r/s burst=5",
    "10r/s fixed_window",
    "10r/s sliding_window",
    "10r/s sliding_log",
    "200r/s sliding_log",
];

/// Checks that are admitted and refused, a look, other limits, a refund, a reset.
fn walk(server: &impl Host, name: &str, limits: &[Limit], charge: Charge) {
    let mut pair = Pair::new(server, &format!("{name} {charge:?}"), limits);
    pair.charge = charge;
    let asked = if charge == Charge::Always { 1 } else { 3 };
    for at in 0..20 {
        pair.at(at * SECOND / 10);
        pair.checks(asked, Cost::ONE);
        let _ = pair.look(Cost::of(2));
    }
    if let Some(receipt) = pair.receipts.pop() {
        pair.refund(&receipt);
        let _ = pair.look(Cost::ONE);
    }
    pair.limits.reverse();
    let _ = pair.check();
    let _ = pair.at(SECOND).check();
    pair.reset(MANY - 1);
    let _ = pair.check_cost(Cost::of(u32::MAX));
    let _ = pair.check();
}

/// Sixteen levels of each algorithm, and of all mixed.
pub(super) fn every_shape(server: &impl Host) {
    let mut shapes: Vec<(String, Vec<Limit>)> = Vec::new();
    for text in ALGORITHMS {
        let limit = Limit::parse(text).expect("a limit");
        shapes.push((text.to_owned(), vec![limit; MANY]));
    }
    let mixed = ALGORITHMS.iter().cycle().take(MANY);
    let mixed = mixed.map(|text| Limit::parse(text).expect("a limit"));
    shapes.push(("mixed".to_owned(), mixed.collect()));
    for (name, limits) in shapes {
        for charge in [Charge::Admitted, Charge::Always] {
            walk(server, &name, &limits, charge);
        }
    }
}

#[test]
fn sixteen_levels_of_each_algorithm_and_of_all_mixed() {
    for server in Server::start_each() {
        every_shape(&server);
    }
}

#[test]
fn the_largest_costs_count() {
    let server = Server::start();
    let most = u32::MAX;
    for text in [
        "4294967295/1ms",
        "4294967295/366d",
        "4294967295r/s fixed_window",
        "1r/s burst=3155760000",
    ] {
        let limit = Limit::parse(text).expect("a limit");
        let mut pair = Pair::one(&server, "costs", limit);
        let size = pair.look(Cost::ONE).limit();
        let all = pair.check_cost(Cost::of(size));
        assert_eq!((all.allowed(), all.remaining()), (true, 0), "{text}");
        assert!(!pair.check().allowed(), "{text}");
        assert!(!pair.check_cost(Cost::of(most)).allowed(), "{text}");
        // A thousand of the largest at once: their product must stay exact.
        let many = pair.checks(1_000, Cost::of(most));
        assert!(many.iter().all(|decision| !decision.allowed()), "{text}");
        pair.reset(0);
        let halves = pair.checks(1_000, Cost::of(size / 2));
        let admitted = halves.iter().filter(|decision| decision.allowed()).count();
        assert_eq!(admitted, 2, "{text}");
    }
    // What can never be admitted is refused for good, and nothing is charged.
    for text in [
        "5/10s",
        "5/10s fixed_window",
        "5/10s sliding_window",
        "5/10s sliding_log",
    ] {
        let mut pair = Pair::one(&server, "never", Limit::parse(text).expect("a limit"));
        let refused = pair.check_cost(Cost::of(most));
        assert_eq!(
            (
                refused.allowed(),
                refused.retry_after(),
                refused.remaining()
            ),
            (false, None, 5),
            "{text}"
        );
    }
}
