//! What must hold of every fleet in the mode `background`, and fleets that are broken on
//! purpose.

use std::time::Duration;

use tidegate::Limit;

use super::Random;
use super::fleet::{Outcome, Setting, run};
use super::network::Network;
use super::tests::{each, is_aligned, seed_alone, some_limit};

/// Seeds that have failed once: a store that forgets what was over the limit, a clock
/// that went back when the store's was first heard of, windows that did not begin
/// together, a window that was opened while the last one was on its way.
const KEPT: [u64; 6] = [62, 2_693, 3_632, 5_014, 7_616, 8_702];

/// Some run. In a calm one, all there is are the nodes and a network that works.
fn some_setting(seed: u64, calm: bool) -> Setting {
    let mut random = Random::new(seed ^ 0xf1ee7);
    let limit = some_limit(&mut random);
    let trouble = |random: &mut Random| match calm {
        true => 0,
        false => random.one_of(&[0, 0, 2, 20]),
    };
    let clock_steps = trouble(&mut random);
    Setting {
        limit,
        sync_interval: Duration::from_millis(random.one_of(&[5, 50, 200])),
        nodes: random.within(1, 5),
        keys: random.within(1, 3),
        pause_us: random.one_of(&[100, 1_000, 10_000]),
        requests: 300,
        costs: random.within(1, 3),
        network: match calm {
            true => Network::PERFECT,
            false => Network::some(&mut random),
        },
        faults: trouble(&mut random),
        failovers: trouble(&mut random),
        clock_steps: if is_aligned(&limit) { 0 } else { clock_steps },
        // Nor is there a grid that a record could have while clocks differ.
        skew_us: if calm || is_aligned(&limit) {
            0
        } else {
            2_000_000
        },
        drift: if calm { 0 } else { 500 },
    }
}

fn judge(seed: u64, setting: &Setting, outcome: &Outcome) {
    let held = outcome.verdict.held();
    assert!(
        held,
        "the bound is broken, seed {seed}: {setting:?}: {outcome:?}"
    );
}

#[test]
fn background_never_breaks_its_formula() {
    let check = |seed| {
        let setting = some_setting(seed, seed % 4 == 0);
        let outcome = run(setting.clone(), seed);
        judge(seed, &setting, &outcome);
    };
    // One alone: TIDEGATE_SEED=3683 cargo test -p tidegate-redis --lib simulator
    if let Some(seed) = seed_alone() {
        return check(seed);
    }
    KEPT.into_iter().for_each(check);
    each(0..10_000, check);
}

/// Ten keys and more, each busy enough that it has something to tell in most intervals.
fn many_keys(seed: u64) -> Setting {
    let mut random = Random::new(seed ^ 0x6e44);
    let setting = some_setting(seed, seed.is_multiple_of(4));
    Setting {
        keys: random.within(10, 20),
        pause_us: random.one_of(&[50, 500]),
        requests: 400,
        ..setting
    }
}

#[test]
fn with_ten_keys_and_more_background_never_breaks_its_formula() {
    let check = |seed| {
        let setting = many_keys(seed);
        let outcome = run(setting.clone(), seed);
        judge(seed, &setting, &outcome);
    };
    if let Some(seed) = seed_alone() {
        return check(seed);
    }
    each(0..10_000, check);
}

/// Nodes that are busy for seconds, on a network that loses much.
fn lossy(seed: u64) -> Setting {
    let mut random = Random::new(seed ^ 0x1055);
    let network = Network {
        lost: 300,
        ..Network::PERFECT
    };
    Setting {
        limit: match random.below(2) {
            0 => Limit::per_second(100).burst(10),
            _ => Limit::per(20, Duration::from_secs(5)).sliding_log(),
        },
        sync_interval: Duration::from_millis(20),
        nodes: 2,
        keys: 1,
        pause_us: 2_000,
        requests: 15_000,
        costs: 1,
        network,
        faults: 0,
        failovers: 0,
        clock_steps: 0,
        skew_us: 0,
        drift: 0,
    }
}

#[test]
fn background_keeps_its_formula_while_messages_are_lost() {
    for seed in 0..10 {
        let setting = lossy(seed);
        let outcome = run(setting.clone(), seed);
        judge(seed, &setting, &outcome);
    }
}

/// Three nodes, ten times the limit offered: it is used, and not much more.
#[test]
fn under_overload_the_limit_is_used() {
    // What a bucket has given too much is waited off; a window starts over.
    for (limit, expected) in [
        (Limit::per_second(100).burst(20), 0.95..1.05),
        (Limit::per_second(100).burst(1), 0.9..1.05),
        (Limit::per_second(100).fixed_window(), 0.95..1.6),
        (Limit::per_second(100).sliding_window(), 0.8..1.3),
        (Limit::per_second(100).sliding_log(), 0.8..1.6),
    ] {
        let setting = Setting {
            limit,
            sync_interval: Duration::from_millis(50),
            nodes: 3,
            keys: 1,
            pause_us: 2_000,
            requests: 10_000,
            costs: 1,
            network: Network::PERFECT,
            faults: 0,
            failovers: 0,
            clock_steps: 0,
            skew_us: 0,
            drift: 0,
        };
        let outcome = run(setting.clone(), 7);
        judge(7, &setting, &outcome);
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let admitted = outcome.verdict.admitted as f64;
        let used = admitted / (100.0 * outcome.span.as_secs_f64());
        println!(
            "{limit}: {used:.3} of the rate, {} flushes",
            outcome.flushes
        );
        assert!(expected.contains(&used), "{limit}: {used} of the rate");
    }
}
