//! What must hold of every fleet.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tidegate::{Align, Limit, Mode};
use tidegate_testkit::simulation::{Network, Random, Troubles};

use super::background::is_aligned;
use super::fleet::{Outcome, Pattern, Setting, run};
use super::judge::size;
use crate::conformance::more;

/// Some limit of every algorithm.
fn some_limit(random: &mut Random) -> Limit {
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

/// Some limit that can lease, and the same with half of everything.
fn some_limits(random: &mut Random) -> [Limit; 2] {
    let requests = u32::try_from(random.one_of(&[2, 3, 10, 40, 200, 1_000])).expect("a few");
    let window = Duration::from_millis(random.one_of(&[100, 300, 1_000, 1_000, 5_000]));
    let burst = u32::try_from(random.one_of(&[1, 2, 5, 50, 400])).expect("a few");
    let kind = random.below(5);
    [1, 2].map(|part| {
        let limit = Limit::per((requests / part).max(1), window);
        match kind {
            0 | 1 => limit,
            2 => limit.burst((burst / part).max(1)),
            3 => limit.fixed_window(),
            _ => limit.fixed_window().align(Align::Epoch),
        }
    })
}

/// No trouble at all.
fn calm(mode: Mode, limit: Limit, nodes: usize, requests: u64, pause_us: u64) -> Setting {
    Setting {
        limits: vec![[limit; 2]],
        mode,
        nodes,
        exact: 0,
        keys: 1,
        refusal_memory: Duration::ZERO,
        sync_interval: Duration::from_millis(50),
        pause_us,
        requests,
        pattern: Pattern::Even,
        costs: 1,
        plainly: false,
        network: Network::PERFECT,
        troubles: Troubles::default(),
        limit_changes: 0,
        refunds: 0,
        lies: 0,
        skew_us: 0,
        drift: 0,
    }
}

/// Some fleet in the mode `exact`. In a calm one nothing happens that would make a
/// remembered refusal wrong.
fn some_exact(seed: u64, is_calm: bool) -> Setting {
    let mut random = Random::new(seed ^ 0xfeed);
    let trouble = |random: &mut Random| match is_calm {
        true => 0,
        false => random.one_of(&[0, 0, 2, 20]),
    };
    let limit = some_limit(&mut random);
    let clock_steps = trouble(&mut random);
    let faults = random.one_of(&[0, 2, 20]);
    let nodes = 1 + random.index(5);
    let pause_us = random.one_of(&[100, 1_000, 10_000]);
    Setting {
        refusal_memory: Duration::from_millis(random.one_of(&[0, 50, 1_000, 1_000])),
        keys: random.within(1, 3),
        costs: random.within(1, 3),
        network: Network::some(&mut random),
        troubles: Troubles {
            pauses: faults,
            crashes: faults,
            cuts: 0,
            clock_steps: if is_aligned(&limit) { 0 } else { clock_steps },
            failovers: trouble(&mut random),
        },
        refunds: trouble(&mut random),
        drift: if is_calm { 0 } else { 500 },
        ..calm(Mode::Exact, limit, nodes, 120, pause_us)
    }
}

/// Some fleet in the mode `lease`, with nodes in the mode `exact` beside it.
fn some_lease(seed: u64) -> Setting {
    let mut random = Random::new(seed ^ 0x1ea5e);
    let trouble = |random: &mut Random| random.one_of(&[0, 0, 0, 5, 20]);
    let levels = random.one_of(&[1, 1, 1, 2]);
    let limits: Vec<_> = (0..levels).map(|_| some_limits(&mut random)).collect();
    let is_aligned = limits.iter().flatten().any(is_aligned);
    let clock_steps = trouble(&mut random);
    let pause_us = random.one_of(&[200, 1_000, 1_000, 5_000, 20_000]);
    let nodes = 1 + random.index(4);
    Setting {
        exact: random.one_of(&[0, 0, 1, 2]),
        costs: random.one_of(&[1, 1, 3]),
        plainly: random.chance(500),
        network: Network {
            slow: random.one_of(&[0, 5, 100]),
            ..Network::some(&mut random)
        },
        pattern: random.one_of(&[Pattern::Even, Pattern::Waves]),
        troubles: Troubles {
            pauses: trouble(&mut random),
            crashes: trouble(&mut random),
            cuts: 0,
            clock_steps: if is_aligned { 0 } else { clock_steps },
            failovers: random.one_of(&[0, 0, 0, 2]),
        },
        limit_changes: random.one_of(&[0, 0, 0, 5]),
        refunds: random.one_of(&[0, 0, 300]),
        lies: random.one_of(&[0, 0, 0, 100]),
        drift: random.one_of(&[0, 50_000]),
        limits: limits.clone(),
        ..calm(Mode::Lease, limits[0][0], nodes, 400, pause_us)
    }
}

/// Some fleet in which leases are spent when they are about to end, at about three times the
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
    let nodes = 1 + random.index(2);
    // Pauses are half as long on average.
    let pause_us = window * 1_000 / requests * 2 / 3;
    Setting {
        exact: 1 + random.index(2),
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
        troubles: Troubles {
            crashes: only(4, crashes),
            ..Troubles::default()
        },
        refunds: only(5, 100),
        lies: only(5, 300),
        drift: random.one_of(&[0, 50_000]),
        ..calm(Mode::Lease, limit, nodes, 700, pause_us)
    }
}

/// Some fleet in the mode `background`. In a calm one, all there is are the nodes and a
/// network that works.
fn some_background(seed: u64) -> Setting {
    let is_calm = seed.is_multiple_of(4);
    let mut random = Random::new(seed ^ 0xf1ee7);
    let trouble = |random: &mut Random| match is_calm {
        true => 0,
        false => random.one_of(&[0, 0, 2, 20]),
    };
    let limit = some_limit(&mut random);
    let clock_steps = trouble(&mut random);
    let faults = trouble(&mut random);
    let nodes = 1 + random.index(5);
    let pause_us = random.one_of(&[100, 1_000, 10_000]);
    Setting {
        sync_interval: Duration::from_millis(random.one_of(&[5, 50, 200])),
        keys: random.within(1, 3),
        costs: random.within(1, 3),
        network: match is_calm {
            true => Network::PERFECT,
            false => Network::some(&mut random),
        },
        troubles: Troubles {
            pauses: faults,
            crashes: faults,
            cuts: faults,
            clock_steps: if is_aligned(&limit) { 0 } else { clock_steps },
            failovers: trouble(&mut random),
        },
        // Nor is there a grid that a record could have while clocks differ.
        skew_us: match is_calm || is_aligned(&limit) {
            true => 0,
            false => 2_000_000,
        },
        drift: if is_calm { 0 } else { 500 },
        ..calm(Mode::Background, limit, nodes, 300, pause_us)
    }
}

/// Ten keys and more, each busy enough that it has something to tell in most intervals.
fn many_keys(seed: u64) -> Setting {
    let mut random = Random::new(seed ^ 0x6e44);
    Setting {
        keys: random.within(10, 20),
        pause_us: random.one_of(&[50, 500]),
        requests: 400,
        ..some_background(seed)
    }
}

/// Nodes that are busy for seconds, on a network that loses much.
fn lossy(seed: u64) -> Setting {
    let limit = match seed.is_multiple_of(2) {
        true => Limit::per_second(100).burst(10),
        false => Limit::per(20, Duration::from_secs(5)).sliding_log(),
    };
    Setting {
        sync_interval: Duration::from_millis(20),
        network: Network {
            lost: 300,
            ..Network::PERFECT
        },
        ..calm(Mode::Background, limit, 2, 15_000, 2_000)
    }
}

/// Runs a fleet, which must keep its bound.
fn held(seed: u64, setting: Setting) -> Outcome {
    let outcome = run(setting.clone(), seed);
    let is_held = outcome.broken.is_none() && !outcome.overfull;
    assert!(is_held, "seed {seed}: {setting:?}: {outcome:?}");
    outcome
}

/// Runs seeds on two threads. One alone: `TIDEGATE_SEED=3683 cargo test -p tidegate-redis --lib
/// simulator`. Ten times as many: `TIDEGATE_SEEDS=10`.
fn each(seeds: Range<u64>, check: impl Fn(u64) + Sync) {
    if let Ok(seed) = std::env::var("TIDEGATE_SEED") {
        return check(seed.parse().expect("a number"));
    }
    let next = AtomicU64::new(seeds.start);
    let end = seeds.start + (seeds.end - seeds.start) * more();
    let work = || {
        while let seed = next.fetch_add(1, Relaxed)
            && seed < end
        {
            check(seed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(work);
        }
    });
}

#[test]
fn exact_never_breaks_its_bound() {
    each(0..7_000, |seed| {
        let setting = some_exact(seed, false);
        let outcome = held(seed, setting.clone());
        if setting.costs == 1 {
            let answered = outcome.admitted + outcome.refused + outcome.unanswered;
            assert_eq!(answered, setting.requests, "seed {seed}: {setting:?}");
        }
    });
}

#[test]
fn a_remembered_refusal_is_what_the_store_would_say() {
    each(0..4_000, |seed| {
        let setting = some_exact(seed, true);
        let outcome = held(seed, setting.clone());
        assert_eq!(outcome.wrongly, 0, "seed {seed}: {setting:?}: {outcome:?}");
    });
}

#[test]
fn leases_never_break_the_bound() {
    let leased = AtomicU64::new(0);
    // Hoards take longer, so there are fewer of them.
    each(0..10_000, |number| {
        let outcome = match number % 20 {
            0..3 => held(number, some_hoard(number)),
            _ => held(number, some_lease(number)),
        };
        leased.fetch_add(outcome.from_leases, Relaxed);
    });
    let leased = leased.load(Relaxed);
    let is_alone = std::env::var_os("TIDEGATE_SEED").is_some();
    assert!(
        is_alone || leased > 200_000,
        "only {leased} came from leases"
    );
}

#[test]
fn background_never_breaks_its_formula() {
    each(0..10_000, |seed| {
        held(seed, some_background(seed));
    });
}

#[test]
fn with_ten_keys_and_more_background_never_breaks_its_formula() {
    each(0..10_000, |seed| {
        held(seed, many_keys(seed));
    });
}

#[test]
fn background_keeps_its_formula_while_messages_are_lost() {
    each(0..10, |seed| {
        held(seed, lossy(seed));
    });
}

/// The share of the limit that a fleet uses: of what it may admit in its time, with the burst
/// that it begins with, if it is used.
#[expect(clippy::cast_precision_loss, reason = "figures")]
fn share(limit: &Limit, outcome: &Outcome, has_burst: bool) -> f64 {
    let rate = limit.spec().expect("a rate").rate;
    let per_second = f64::from(rate.requests()) / rate.window().as_secs_f64();
    let burst = if has_burst {
        f64::from(size(limit))
    } else {
        0.0
    };
    outcome.admitted as f64 / (burst + per_second * outcome.span.as_secs_f64())
}

/// Three nodes, ten times the limit offered: it is used, and far fewer are asked for.
#[test]
fn exact_uses_the_limit_under_overload_and_spares_the_store() {
    let calls = [0, 1_000].map(|memory_ms| {
        let limit = Limit::per_second(100).burst(20);
        let setting = Setting {
            refusal_memory: Duration::from_millis(memory_ms),
            ..calm(Mode::Exact, limit, 3, 10_000, 2_000)
        };
        let outcome = held(7, setting);
        let share = share(&limit, &outcome, true);
        assert!(share >= 0.95, "{share}");
        outcome.calls
    });
    assert!(calls[1] * 2 < calls[0], "{calls:?}");
}

/// Three nodes, ten times the limit offered: it is used, and not much more.
#[test]
fn background_uses_the_limit_under_overload() {
    // What a bucket has given too much is waited off; a window starts over.
    for (limit, expected) in [
        (Limit::per_second(100).burst(20), 0.95..1.05),
        (Limit::per_second(100).burst(1), 0.9..1.05),
        (Limit::per_second(100).fixed_window(), 0.95..1.6),
        (Limit::per_second(100).sliding_window(), 0.8..1.3),
        (Limit::per_second(100).sliding_log(), 0.8..1.6),
    ] {
        let outcome = held(7, calm(Mode::Background, limit, 3, 10_000, 2_000));
        let share = share(&limit, &outcome, false);
        println!("{limit}: {share:.3} of the rate, {} parcels", outcome.calls);
        assert!(expected.contains(&share), "{limit}: {share} of the rate");
    }
}

/// A fleet that leases under a multiple of the limit: its share of the limit, and the calls
/// of the store per admitted request. A round trip takes a millisecond.
fn leasing(limit: &str, nodes: usize, times: f64, seconds: f64) -> (f64, f64, Outcome) {
    let limit = Limit::parse(limit).expect("a limit");
    let offered = 1_000.0 * times;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count"
    )]
    let (requests, pause_us) = ((offered * seconds) as u64, (2e6 / offered) as u64);
    let setting = Setting {
        network: Network {
            latency_us: 500,
            ..Network::PERFECT
        },
        ..calm(Mode::Lease, limit, nodes, requests, pause_us)
    };
    let outcome = held(7, setting);
    // The burst is used at the start.
    let share = share(&limit, &outcome, times > 1.0);
    #[expect(clippy::cast_precision_loss, reason = "figures")]
    let calls = outcome.calls as f64 / (outcome.admitted as f64).max(1.0);
    (share, calls, outcome)
}

#[test]
fn leases_use_the_limit_under_overload() {
    // B*W/N is 10, 100 and 1000 round trips.
    for burst in [10, 100, 1_000] {
        for nodes in [1, 3, 10, 50] {
            let limit = format!("1000r/s burst={burst}");
            // At the end up to a horizon's worth is not asked for yet.
            let seconds = if burst == 1_000 { 20.0 } else { 8.0 };
            let (share, calls, _) = leasing(&limit, nodes, 2.0, seconds);
            let percent = 100.0 * share;
            println!("{limit} {nodes} nodes: {percent:.1} % used, {calls:.3} calls");
            assert!(share >= 0.99, "{limit} on {nodes} nodes: {share}");
        }
    }
}

#[test]
fn leases_refuse_nothing_below_the_limit() {
    for (nodes, most) in [(1, 0.02), (3, 0.05), (10, 0.15)] {
        let (_, calls, outcome) = leasing("1000r/s", nodes, 0.9, 10.0);
        println!("{nodes} nodes: {calls:.3} calls per request");
        assert!(calls < most, "{calls} calls per request on {nodes} nodes");
        assert_eq!(outcome.refused, 0, "{nodes} nodes");
    }
}
