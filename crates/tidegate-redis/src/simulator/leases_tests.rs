//! What must hold for fleets that lease, and fleets that are broken on purpose.

use std::time::Duration;

use tidegate::{Align, Limit};

use super::Random;
use super::leases::{Outcome, Setting, calm, run};
use super::network::Network;
use super::tests::{each, seed_alone};
use crate::lease::fault::Fault;

/// Seeds that have failed once.
const KEPT: [u64; 0] = [];

/// Some limit that can lease, and the same with half of everything.
fn some_limits(random: &mut Random) -> [Limit; 2] {
    let requests = u32::try_from(random.one_of(&[2, 3, 10, 40, 200, 1_000])).expect("a few");
    let window = Duration::from_millis(random.one_of(&[100, 300, 1_000, 1_000, 5_000]));
    let burst = u32::try_from(random.one_of(&[1, 2, 5, 50, 400])).expect("a few");
    let half = |count: u32| (count / 2).max(1);
    let (whole, less) = (
        Limit::per(requests, window),
        Limit::per(half(requests), window),
    );
    match random.below(5) {
        0 | 1 => [whole, less],
        2 => [whole.burst(burst), less.burst(half(burst))],
        3 => [whole.fixed_window(), less.fixed_window()],
        _ => [
            whole.fixed_window().align(Align::Epoch),
            less.fixed_window().align(Align::Epoch),
        ],
    }
}

fn is_aligned(limits: &[[Limit; 2]]) -> bool {
    let text = |limit: &Limit| limit.to_string();
    limits.iter().flatten().any(|it| text(it).contains("epoch"))
}

/// Some run.
fn some_setting(seed: u64, fault: Fault) -> Setting {
    let mut random = Random::new(seed ^ 0x1ea5e);
    let trouble = |random: &mut Random| random.one_of(&[0, 0, 0, 5, 20]);
    let levels = random.one_of(&[1, 1, 1, 2]);
    let limits: Vec<_> = (0..levels).map(|_| some_limits(&mut random)).collect();
    let clock_steps = trouble(&mut random);
    Setting {
        clock_steps: if is_aligned(&limits) { 0 } else { clock_steps },
        limits,
        nodes: usize::try_from(random.within(1, 4)).expect("a few"),
        exact: usize::try_from(random.one_of(&[0, 0, 1, 2])).expect("a few"),
        pause_us: random.one_of(&[200, 1_000, 1_000, 5_000, 20_000]),
        requests: 400,
        costs: random.one_of(&[1, 1, 3]),
        network: Network {
            slow: random.one_of(&[0, 5, 100]),
            ..Network::some(&mut random)
        },
        waves: random.chance(500),
        pauses: trouble(&mut random),
        crashes: trouble(&mut random),
        failovers: random.one_of(&[0, 0, 0, 2]),
        limit_changes: random.one_of(&[0, 0, 0, 5]),
        refunds: random.one_of(&[0, 0, 300]),
        lies: random.one_of(&[0, 0, 0, 100]),
        drift: random.one_of(&[0, 50_000]),
        fault,
    }
}

fn judge(seed: u64, setting: &Setting, outcome: &Outcome) {
    let told = || format!("seed {seed}: {setting:?}: {outcome:?}");
    assert!(outcome.broken.is_none(), "the bound is broken, {}", told());
    assert!(!outcome.overfull, "more than the limit is out, {}", told());
}

/// One alone: `TIDEGATE_SEED=3683 cargo test -p tidegate-redis --lib leases_never`.
#[test]
fn leases_never_break_the_bound() {
    let check = |seed| {
        let setting = some_setting(seed, Fault::None);
        let outcome = run(setting.clone(), seed);
        judge(seed, &setting, &outcome);
    };
    if let Some(seed) = seed_alone() {
        return check(seed);
    }
    KEPT.into_iter().for_each(check);
    let leased = std::sync::atomic::AtomicU64::new(0);
    each(0..10_000, |seed| {
        let setting = some_setting(seed, Fault::None);
        let outcome = run(setting.clone(), seed);
        judge(seed, &setting, &outcome);
        leased.fetch_add(outcome.from_leases, std::sync::atomic::Ordering::Relaxed);
    });
    let leased = leased.into_inner();
    assert!(leased > 200_000, "only {leased} came from leases");
}

/// Whether a run shows that something is broken.
fn is_noticed(fault: Fault) -> bool {
    (0..3_000).any(|seed| {
        let outcome = run(some_setting(seed, fault), seed);
        outcome.broken.is_some() || outcome.overfull
    })
}

/// Mistakes that random runs show. `lease/rules.rs` shows each of the others.
#[test]
fn what_breaks_the_bound_is_noticed() {
    for fault in [
        Fault::ClosesAfterSending,
        Fault::AcceptsLateAnswers,
        Fault::OutLeftOut,
    ] {
        assert!(is_noticed(fault), "{fault:?} is not noticed");
    }
}

/// A fleet of three, so many times the limit offered: what it used of the limit, and the
/// calls of the store per admitted request.
fn used(
    limit: &str,
    nodes: usize,
    times: f64,
    seconds: f64,
    round_trip_us: u64,
    fault: Fault,
) -> (f64, f64, Outcome) {
    let limit = Limit::parse(limit).expect("a limit");
    let spec = limit.spec().expect("a rate");
    let rate = f64::from(spec.rate.requests()) / spec.rate.window().as_secs_f64();
    let offered = rate * times;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count"
    )]
    let (requests, pause_us) = ((offered * seconds) as u64, (2e6 / offered) as u64);
    let setting = Setting {
        network: Network {
            latency_us: round_trip_us / 2,
            ..Network::PERFECT
        },
        fault,
        ..calm(limit, nodes, requests, pause_us)
    };
    let outcome = run(setting, 7);
    assert!(outcome.broken.is_none(), "{outcome:?}");
    #[expect(clippy::cast_precision_loss, reason = "figures")]
    let share = (outcome.admitted as f64) / (rate * outcome.span.as_secs_f64());
    #[expect(clippy::cast_precision_loss, reason = "figures")]
    let calls = outcome.calls as f64 / (outcome.admitted as f64).max(1.0);
    (share, calls, outcome)
}

#[test]
fn the_limit_is_used_under_overload() {
    // B*W/N is 10, 100 and 1000 round trips of a millisecond.
    for burst in [10, 100, 1_000] {
        for nodes in [1, 3, 10] {
            let limit = format!("1000r/s burst={burst}");
            let (share, calls, _) = used(&limit, nodes, 2.0, 10.0, 1_000, Fault::None);
            println!(
                "{limit} {nodes} nodes: {:.1} % used, {calls:.3} calls",
                100.0 * share
            );
            assert!(share >= 0.99, "{limit} on {nodes} nodes: {share}");
        }
    }
}

#[test]
fn nothing_is_refused_below_the_limit() {
    let refused = |fault| {
        let (_, calls, outcome) = used("1000r/s", 3, 0.7, 10.0, 1_000, fault);
        assert!(calls < 0.2, "{calls} calls per request");
        outcome.refused
    };
    assert_eq!(refused(Fault::None), 0);
}
