//! What must hold for fleets that lease, and fleets that are broken on purpose.

use std::time::Duration;

use tidegate::{Align, Limit};

use super::Random;
use super::leases::{Outcome, Pattern, Setting, calm, run};
use super::network::Network;
use super::tests::{each, seed_alone};
use crate::conformance::more;
use crate::lease::message::size;

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
fn some_setting(seed: u64) -> Setting {
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
        plainly: random.chance(500),
        network: Network {
            slow: random.one_of(&[0, 5, 100]),
            ..Network::some(&mut random)
        },
        pattern: random.one_of(&[Pattern::Even, Pattern::Waves]),
        pauses: trouble(&mut random),
        crashes: trouble(&mut random),
        failovers: random.one_of(&[0, 0, 0, 2]),
        limit_changes: random.one_of(&[0, 0, 0, 5]),
        refunds: random.one_of(&[0, 0, 300]),
        lies: random.one_of(&[0, 0, 0, 100]),
        drift: random.one_of(&[0, 50_000]),
    }
}

/// Some run in which leases are spent when they are about to end, at about three times the
/// limit, with one kind of trouble: more of it wastes tokens, and hides what is broken.
fn some_hoard(seed: u64) -> Setting {
    let mut random = Random::new(seed ^ 0x40a2d);
    let ms = Duration::from_millis;
    let requests = random.one_of(&[40, 100, 200]);
    let window = random.one_of(&[1_000, 1_000, 4_000]);
    let limit = Limit::per(u32::try_from(requests).expect("a few"), ms(window));
    let limit = match random.below(4) {
        0 => limit.fixed_window(),
        _ => limit,
    };
    let trouble = random.below(6);
    let crashes = random.one_of(&[3, 15]);
    let only = |kind: u64, much: u64| if trouble == kind { much } else { 0 };
    Setting {
        nodes: usize::try_from(random.within(1, 2)).expect("a few"),
        exact: usize::try_from(random.within(1, 2)).expect("a few"),
        pattern: match trouble == 4 && random.chance(700) {
            true => Pattern::Rushes {
                busy: ms(random.within(100, 200)),
                lull: ms(random.within(850, 1_100)),
            },
            false => Pattern::Hoard {
                busy: ms(random.within(900, 1_400)),
                lull: ms(random.one_of(&[0, 1_200, 3_000])),
                is_quiet: random.chance(500),
                late_us: only(0, 450_000),
                again: only(1, 700),
            },
        },
        plainly: random.chance(500),
        network: Network {
            lost: only(2, 30),
            repeated: only(3, 30),
            ..Network::PERFECT
        },
        crashes: only(4, crashes),
        refunds: only(5, 100),
        lies: only(5, 300),
        drift: random.one_of(&[0, 50_000]),
        // Pauses are half as long on average.
        ..calm(limit, 0, 700, window * 1_000 / requests * 2 / 3)
    }
}

/// Runs of even seeds are of the one kind, those of odd seeds of the other.
fn some_run(seed: u64) -> (Setting, Outcome) {
    let setting = match seed.is_multiple_of(2) {
        true => some_setting(seed),
        false => some_hoard(seed),
    };
    (setting.clone(), run(setting, seed))
}

fn judge(seed: u64, setting: &Setting, outcome: &Outcome) {
    let told = || format!("seed {seed}: {setting:?}: {outcome:?}");
    assert!(outcome.broken.is_none(), "the bound is broken, {}", told());
    assert!(!outcome.overfull, "more than the limit is out, {}", told());
}

/// One alone: `TIDEGATE_SEED=3683 cargo test -p tidegate-redis --lib leases_never`. Ten times
/// as many: `TIDEGATE_SEEDS=10`.
#[test]
fn leases_never_break_the_bound() {
    let leased = std::sync::atomic::AtomicU64::new(0);
    let check = |seed| {
        let (setting, outcome) = some_run(seed);
        judge(seed, &setting, &outcome);
        leased.fetch_add(outcome.from_leases, std::sync::atomic::Ordering::Relaxed);
    };
    if let Some(seed) = seed_alone() {
        return check(seed);
    }
    KEPT.into_iter().for_each(check);
    // Runs of the second kind take longer, so there are fewer of them.
    let most = 3_000 * more();
    each(0..10_000 * more(), |number| {
        check(if number < most { number } else { 2 * number });
    });
    let leased = leased.load(std::sync::atomic::Ordering::Relaxed);
    assert!(leased > 200_000, "only {leased} came from leases");
}

/// A fleet of three under a multiple of the limit: what it used of the limit, and the
/// calls of the store per admitted request.
fn used(
    limit: &str,
    nodes: usize,
    times: f64,
    seconds: f64,
    round_trip_us: u64,
) -> (f64, f64, Outcome) {
    let limit = Limit::parse(limit).expect("a limit");
    let spec = limit.spec().expect("a rate");
    let rate = f64::from(spec.rate.requests()) / spec.rate.window().as_secs_f64();
    // What the bound allows has a burst in it, which is used at the start.
    let burst = if times > 1.0 {
        f64::from(size(&limit))
    } else {
        0.0
    };
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
        ..calm(limit, nodes, requests, pause_us)
    };
    let outcome = run(setting, 7);
    assert!(outcome.broken.is_none(), "{outcome:?}");
    #[expect(clippy::cast_precision_loss, reason = "figures")]
    let share = (outcome.admitted as f64) / (burst + rate * outcome.span.as_secs_f64());
    #[expect(clippy::cast_precision_loss, reason = "figures")]
    let calls = outcome.calls as f64 / (outcome.admitted as f64).max(1.0);
    (share, calls, outcome)
}

#[test]
fn the_limit_is_used_under_overload() {
    // B*W/N is 10, 100 and 1000 round trips of a millisecond.
    for burst in [10, 100, 1_000] {
        for nodes in [1, 3, 10, 50] {
            let limit = format!("1000r/s burst={burst}");
            // At the end up to a horizon's worth is not asked for yet.
            let seconds = if burst == 1_000 { 20.0 } else { 8.0 };
            let (share, calls, _) = used(&limit, nodes, 2.0, seconds, 1_000);
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
    for (nodes, most) in [(1, 0.02), (3, 0.05), (10, 0.15)] {
        let (_, calls, outcome) = used("1000r/s", nodes, 0.9, 10.0, 1_000);
        println!("{nodes} nodes: {calls:.3} calls per request");
        assert!(calls < most, "{calls} calls per request on {nodes} nodes");
        assert_eq!(outcome.refused, 0, "{nodes} nodes");
    }
}
