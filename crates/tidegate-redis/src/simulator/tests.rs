//! What must hold in every run, and runs that are broken on purpose.

use std::ops::Range;
use std::time::Duration;

use tidegate::{Align, Kind, Limit};

use super::Random;
use super::network::Network;
use super::world::{Outcome, Setting, run};

/// Seeds that have failed once: with a refund handed in twice, and with windows told from
/// a record that lacks what nobody heard of.
const KEPT: [u64; 5] = [150, 467, 1_078, 3_562, 3_683];

/// Some limit of every algorithm.
pub(super) fn some_limit(random: &mut Random) -> Limit {
    let requests = u32::try_from(random.within(1, 40)).expect("a few");
    let window = Duration::from_millis(random.one_of(&[20, 100, 1_000, 60_000]));
    let limit = Limit::per(requests, window);
    match random.below(6) {
        0 => limit,
        1 => limit.burst(u32::try_from(random.within(1, 10)).expect("a few")),
        2 => limit.fixed_window(),
        3 => limit.fixed_window().align(Align::Epoch),
        4 => limit.sliding_window(),
        _ => limit.sliding_log(),
    }
}

/// Whether windows lie on the grid of the clock. A step moves the grid; what they promise
/// is then told on no clock that a record could have.
pub(super) fn is_aligned(limit: &Limit) -> bool {
    match limit.kind() {
        Kind::FixedWindow(window) => window.align() == Align::Epoch,
        Kind::SlidingWindow(_) => true,
        Kind::TokenBucket(_) | Kind::SlidingLog(_) | Kind::Block(_) => false,
    }
}

/// The one seed that is asked for.
pub(super) fn seed_alone() -> Option<u64> {
    let seed = std::env::var("TIDEGATE_SEED").ok();
    seed.and_then(|seed| seed.parse().ok())
}

/// Some run. In a calm one nothing happens that would make a remembered refusal wrong.
fn some_setting(seed: u64, calm: bool) -> Setting {
    let mut random = Random::new(seed ^ 0xfeed);
    let trouble = |random: &mut Random| match calm {
        true => 0,
        false => random.one_of(&[0, 0, 2, 20]),
    };
    let limit = some_limit(&mut random);
    let clock_steps = trouble(&mut random);
    Setting {
        limit,
        refusal_memory: Duration::from_millis(random.one_of(&[0, 50, 1_000, 1_000])),
        nodes: random.within(1, 5),
        keys: random.within(1, 3),
        pause_us: random.one_of(&[100, 1_000, 10_000]),
        requests: 120,
        costs: random.within(1, 3),
        network: Network::some(&mut random),
        faults: random.one_of(&[0, 2, 20]),
        clock_steps: if is_aligned(&limit) { 0 } else { clock_steps },
        failovers: trouble(&mut random),
        refunds: trouble(&mut random),
        drift: if calm { 0 } else { 500 },
    }
}

/// What must hold in every run.
fn judge(seed: u64, setting: &Setting, outcome: &Outcome) {
    let context = || format!("seed {seed}: {setting:?}: {outcome:?}");
    assert!(outcome.verdict.held(), "the bound is broken, {}", context());
    assert_eq!(outcome.answered, setting.requests, "{}", context());
}

/// Runs seeds on two threads, and hands each of them on with what it came to.
pub(super) fn each(seeds: Range<u64>, check: impl Fn(u64) + Sync) {
    let middle = seeds.start + (seeds.end - seeds.start) / 2;
    std::thread::scope(|scope| {
        for half in [seeds.start..middle, middle..seeds.end] {
            scope.spawn(|| half.for_each(&check));
        }
    });
}

#[test]
fn exact_never_breaks_its_bound() {
    let check = |seed| {
        let setting = some_setting(seed, false);
        let outcome = run(setting.clone(), seed);
        judge(seed, &setting, &outcome);
    };
    // One alone: TIDEGATE_SEED=3683 cargo test -p tidegate-redis --lib simulator
    if let Some(seed) = seed_alone() {
        return check(seed);
    }
    KEPT.into_iter().for_each(check);
    each(0..7_000, check);
}

#[test]
fn a_remembered_refusal_is_what_the_store_would_say() {
    each(0..4_000, |seed| {
        let setting = some_setting(seed, true);
        let outcome = run(setting.clone(), seed);
        judge(seed, &setting, &outcome);
        assert_eq!(outcome.wrongly, 0, "seed {seed}: {setting:?}: {outcome:?}");
    });
}

/// Three nodes, ten times the limit offered: it is used, and far fewer are asked for.
#[test]
fn under_overload_the_limit_is_used_and_the_store_is_spared() {
    let asked = [0, 1_000].map(|memory| {
        let setting = Setting {
            limit: Limit::per_second(100).burst(20),
            refusal_memory: Duration::from_millis(memory),
            nodes: 3,
            keys: 1,
            pause_us: 2_000,
            requests: 10_000,
            costs: 1,
            network: Network::PERFECT,
            faults: 0,
            clock_steps: 0,
            failovers: 0,
            refunds: 0,
            drift: 0,
        };
        let outcome = run(setting.clone(), 7);
        judge(7, &setting, &outcome);
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let admitted = outcome.verdict.admitted as f64;
        let bound = 20.0 + 100.0 * outcome.span.as_secs_f64();
        assert!(admitted >= 0.95 * bound, "{admitted} of {bound}");
        outcome.asked
    });
    assert!(asked[1] * 2 < asked[0], "{asked:?}");
}
