//! What must hold of every fleet.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tidegate::{Align, Limit, Mode};
use tidegate_testkit::simulation::{Network, Random, Troubles};

use super::background::is_aligned;
use super::fleet::{EVEN, HOARD, Outcome, Pattern, QUIET, RUSH, Setting, WAVES, run};
use super::judge::size;
use crate::conformance::more;

const MS: Duration = Duration::from_millis(1);

/// Some limit of every algorithm.
fn some_limit(random: &mut Random) -> Limit {
    let window = random.one_of(&[20, 100, 1_000, 60_000]) * MS;
    let limit = Limit::per(random.few(1, 40), window);
    match random.below(6) {
        0 => limit,
        1 => limit.burst(random.few(1, 10)),
        2 => limit.fixed_window(),
        3 => limit.fixed_window().align(Align::Epoch),
        4 => limit.sliding_window(),
        _ => limit.sliding_log(),
    }
}

/// Some limit that can lease, and the same with half of everything.
fn some_limits(random: &mut Random) -> [Limit; 2] {
    let requests: u32 = random.one_of(&[2, 3, 10, 40, 200, 1_000]);
    let window = random.one_of(&[100, 300, 1_000, 1_000, 5_000]) * MS;
    let burst: u32 = random.one_of(&[1, 2, 5, 50, 400]);
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
        sync_interval: 50 * MS,
        pause_us,
        requests,
        pattern: EVEN,
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

/// Some fleet; in the mode `lease`, with nodes in the mode `exact` beside it. In a calm one
/// nothing happens that would make a remembered refusal wrong, and in the mode `background` the
/// network works.
fn some_fleet(mode: Mode, seed: u64, is_calm: bool) -> Setting {
    let mut random = Random::new(seed ^ (0xfeed_1ea5_e000 + mode as u64));
    let trouble = |random: &mut Random, some: &[u64]| match is_calm {
        true => 0,
        false => random.one_of(some),
    };
    let (is_lease, is_background) = (mode == Mode::Lease, mode == Mode::Background);
    let limits: Vec<_> = match is_lease {
        true => (0..random.one_of(&[1, 1, 1, 2]))
            .map(|_| some_limits(&mut random))
            .collect(),
        false => vec![[some_limit(&mut random); 2]],
    };
    let is_aligned = limits.iter().flatten().any(is_aligned);
    let network = match is_calm && is_background {
        true => Network::PERFECT,
        false => Network {
            slow: random.one_of(&[0, 5, 100]),
            ..Network::some(&mut random)
        },
    };
    let faults: [u64; 3] = [(); 3].map(|()| random.one_of(&[0, 0, 2, 20]));
    let faults = if is_calm && is_background {
        [0; 3]
    } else {
        faults
    };
    let clock_steps = trouble(&mut random, &[0, 0, 2, 20]);
    // What a failover allows hides what leases break.
    let failovers = if is_lease {
        [0, 0, 0, 2]
    } else {
        [0, 0, 2, 20]
    };
    let (nodes, requests) = match mode {
        Mode::Lease => (random.few(1, 4), 400),
        Mode::Background => (random.few(1, 5), 300),
        _ => (random.few(1, 5), 120),
    };
    let pause_us = random.one_of(&[100, 500, 1_000, 1_000, 5_000, 20_000]);
    Setting {
        exact: if is_lease {
            random.one_of(&[0, 0, 1, 2])
        } else {
            0
        },
        keys: if is_lease { 1 } else { random.within(1, 3) },
        costs: random.one_of(&[1, 1, 2, 3]),
        refusal_memory: random.one_of(&[0, 50, 1_000, 1_000]) * MS,
        sync_interval: random.one_of(&[5, 50, 200]) * MS,
        plainly: random.chance(500),
        network,
        pattern: random.one_of(&[EVEN, WAVES]),
        troubles: Troubles {
            pauses: faults[0],
            crashes: faults[1],
            cuts: faults[2],
            clock_steps: if is_aligned { 0 } else { clock_steps },
            failovers: trouble(&mut random, &failovers),
        },
        limit_changes: random.one_of(&[0, 0, 0, 5]),
        refunds: trouble(&mut random, &[0, 0, 20, 300]),
        lies: random.one_of(&[0, 0, 0, 100]),
        // There is no grid that a record could have while clocks differ.
        skew_us: if is_calm || is_aligned { 0 } else { 2_000_000 },
        drift: match is_lease {
            true => random.one_of(&[0, 50_000]),
            false => trouble(&mut random, &[500]),
        },
        limits: limits.clone(),
        ..calm(mode, limits[0][0], nodes as usize, requests, pause_us)
    }
}

/// Some fleet in which leases are spent when they are about to end, at about three times the
/// limit, with one kind of trouble: more of it wastes tokens, and hides what is broken.
fn some_hoard(seed: u64) -> Setting {
    let mut random = Random::new(seed ^ 0x40a2d);
    let requests = random.one_of(&[40, 100, 200]);
    let window = random.one_of(&[1_000, 1_000, 4_000]);
    let limit = Limit::per(requests, window * MS);
    let limit = match random.below(4) {
        0 => limit.fixed_window(),
        _ => limit,
    };
    let trouble = random.below(6);
    let crashes = random.one_of(&[3, 15]);
    let only = |kind: u64, much: u64| if trouble == kind { much } else { 0 };
    let nodes = 1 + random.index(2);
    // Pauses are half as long on average.
    let pause_us = u64::from(window * 1_000 / requests * 2 / 3);
    let pattern = match trouble == 4 && random.chance(700) {
        true => Pattern {
            phases: RUSH,
            busy: random.few(100, 200) * MS,
            lull: random.few(850, 1_100) * MS,
            ..EVEN
        },
        false => Pattern {
            phases: random.one_of(&[HOARD, QUIET]),
            busy: random.few(900, 1_400) * MS,
            lull: random.one_of(&[0, 1_200, 3_000]) * MS,
            late_us: only(0, 450_000),
            again: only(1, 700),
        },
    };
    Setting {
        exact: 1 + random.index(2),
        pattern,
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

/// Some fleet in the mode `background`; one in two with ten keys and more, each busy enough
/// that it has something to tell in most intervals. In a few, nodes are busy for seconds on a
/// network that loses much.
fn some_background(seed: u64) -> Setting {
    let setting = some_fleet(Mode::Background, seed, seed.is_multiple_of(8));
    match seed {
        0..10 => {
            let limit = match seed % 2 {
                0 => Limit::per_second(100).burst(10),
                _ => Limit::per(20, 5_000 * MS).sliding_log(),
            };
            Setting {
                sync_interval: 20 * MS,
                network: Network {
                    lost: 300,
                    ..Network::PERFECT
                },
                ..calm(Mode::Background, limit, 2, 15_000, 2_000)
            }
        }
        _ if seed.is_multiple_of(2) => setting,
        _ => Setting {
            keys: 10 + seed % 11,
            pause_us: 50 + 450 * (seed % 3 / 2),
            requests: 400,
            ..setting
        },
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
fn exact_never_breaks_its_bound_and_a_remembered_refusal_is_what_the_store_would_say() {
    each(0..11_000, |seed| {
        let is_calm = seed % 11 < 4;
        let setting = some_fleet(Mode::Exact, seed, is_calm);
        let outcome = held(seed, setting.clone());
        let context = || format!("seed {seed}: {setting:?}: {outcome:?}");
        assert!(!is_calm || outcome.wrongly == 0, "{}", context());
        let answered = outcome.admitted + outcome.refused + outcome.unanswered;
        let are_all = answered == setting.requests || setting.costs > 1;
        assert!(are_all, "{}", context());
    });
}

#[test]
fn leases_never_break_the_bound() {
    let leased = AtomicU64::new(0);
    // Hoards take longer, so there are fewer of them.
    each(0..10_000, |number| {
        let outcome = match number % 20 {
            0..3 => held(number, some_hoard(number)),
            _ => held(number, some_fleet(Mode::Lease, number, false)),
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
    each(0..20_000, |seed| {
        held(seed, some_background(seed));
    });
}

/// Calm fleets that use their limits: the share of what a fleet may admit in its time, with the
/// burst that it begins with if it is used, and how often the store is asked.
#[expect(clippy::cast_precision_loss, reason = "figures")]
fn used(setting: Setting, has_burst: bool) -> (f64, Outcome) {
    let limit = setting.limits[0][0];
    let outcome = held(7, setting);
    let rate = limit.spec().expect("a rate").rate;
    let per_second = f64::from(rate.requests()) / rate.window().as_secs_f64();
    let burst = if has_burst { size(&limit) } else { 0 };
    let allowed = f64::from(burst) + per_second * outcome.span.as_secs_f64();
    let share = outcome.admitted as f64 / allowed;
    println!("{limit}: {share:.3} used, {} calls", outcome.calls);
    (share, outcome)
}

/// Three nodes, ten times the limit offered: it is used, and far fewer are asked for.
#[test]
fn exact_uses_the_limit_under_overload_and_spares_the_store() {
    let calls = [0, 1_000].map(|memory_ms| {
        let limit = Limit::per_second(100).burst(20);
        let setting = Setting {
            refusal_memory: memory_ms * MS,
            ..calm(Mode::Exact, limit, 3, 10_000, 2_000)
        };
        let (share, outcome) = used(setting, true);
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
        let setting = calm(Mode::Background, limit, 3, 10_000, 2_000);
        let (share, _) = used(setting, false);
        assert!(expected.contains(&share), "{limit}: {share} of the rate");
    }
}

/// A fleet that leases `1000r/s` and is asked for this many per second, for so long. A round
/// trip takes a millisecond.
fn leasing(burst: u32, nodes: usize, offered: u64, seconds: u64) -> (f64, Outcome) {
    let limit = Limit::per_second(1_000).burst(burst);
    let setting = Setting {
        network: Network {
            latency_us: 500,
            ..Network::PERFECT
        },
        ..calm(
            Mode::Lease,
            limit,
            nodes,
            offered * seconds,
            2_000_000 / offered,
        )
    };
    // The burst is used at the start.
    used(setting, offered > 1_000)
}

#[test]
fn leases_use_the_limit_under_overload_and_refuse_nothing_below_it() {
    // B*W/N is 10, 100 and 1000 round trips. At the end up to a horizon's worth is not asked
    // for yet.
    for (burst, seconds) in [(10, 8), (100, 8), (1_000, 20)] {
        for nodes in [1, 3, 10, 50] {
            let (share, _) = leasing(burst, nodes, 2_000, seconds);
            assert!(share >= 0.99, "{burst} on {nodes} nodes: {share}");
        }
    }
    // Of the checks, this part in a hundred asks the store.
    for (nodes, most) in [(1, 2), (3, 5), (10, 15)] {
        let (_, outcome) = leasing(1_000, nodes, 900, 10);
        let calls = outcome.calls * 100 / outcome.admitted;
        assert!(calls < most, "{calls} % on {nodes} nodes");
        assert_eq!(outcome.refused, 0, "{nodes} nodes");
    }
}
