//! What is measured.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use tidegate::MemoryStore;

use crate::allocator;
use crate::keys;
use crate::limiters::{
    Aerorate, Governor, GovernorAt, Keyed, Load, OneLevel, Overridden, StoreLevels, ThreeLevels,
    Tidegate, TidegateAt, TwoLevels,
};
use crate::report::{Beside, Comparison, Growth, Through, Unit};
use crate::rounds::{Series, interleave};

/// Checks a thread makes in one round.
const CHECKS: usize = 500_000;
/// The numbers of keys at which limiters are compared.
const SIZES: [usize; 2] = [1_000, MILLION];
/// The numbers of keys for tidegate alone.
const GROWTH: [usize; 5] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000];
/// Keys that are checked together.
const BATCH: usize = 32;
/// Keys of the measurements of memory and of new keys.
const MILLION: usize = 1_000_000;

/// A limiter that knows the first `keys` keys.
pub(crate) fn filled<L: Keyed>(load: Load, keys: usize) -> L {
    let limiter = L::new(load, keys);
    for index in 0..keys {
        assert!(limiter.check(&keys::key(index)), "a new key is refused");
    }
    limiter
}

/// Known keys in random order.
pub(crate) fn random_keys() -> Vec<Comparison> {
    let mut comparisons = Vec::new();
    for keys in SIZES {
        let goal = Some(if keys == MILLION { 0.5 } else { 0.7 });
        let orders = [order(keys, 1), order(keys, 2)];
        for load in [Load::Admitted, Load::Refused] {
            let limiters = Limiters::filled(load, keys);
            for threads in [1, 2] {
                let label = format!(
                    "{} keys, {}, {}",
                    count(keys),
                    count_threads(threads),
                    load.name()
                );
                comparisons.push(limiters.compare(label, &orders[..threads], goal));
            }
        }
    }
    comparisons
}

/// Two threads that want the same key.
pub(crate) fn hot_key() -> Vec<Comparison> {
    let orders = [order(1, 1), order(1, 2)];
    [Load::Admitted, Load::Refused]
        .map(|load| {
            let label = format!("1 hot key, 2 threads, {}", load.name());
            Limiters::filled(load, 1).compare(label, &orders, Some(0.6))
        })
        .into()
}

/// A million keys that were never seen, from an empty limiter on, so that all
/// growing is in it.
pub(crate) fn new_keys() -> Comparison {
    fn lane<'k, L: Keyed>(keys: &'k [String]) -> Box<dyn FnMut() -> f64 + 'k> {
        Box::new(|| {
            let limiter = L::new(Load::Admitted, MILLION);
            one_thread(&limiter, Load::Admitted, keys, 1)
        })
    }
    progress("a new key");
    let keys: Vec<String> = (0..MILLION).map(keys::key).collect();
    Comparison {
        label: "a new key, up to 1 million".into(),
        unit: Unit::Nanoseconds,
        series: interleave([
            lane::<Tidegate>(&keys),
            lane::<Governor>(&keys),
            lane::<Aerorate>(&keys),
        ]),
        goal: None,
    }
}

/// Bytes per key at a million keys.
pub(crate) fn memory() -> Comparison {
    fn bytes_a_key<L: Keyed>() -> Series {
        let (limiter, bytes) = allocator::live_bytes(|| filled::<L>(Load::Admitted, MILLION));
        drop(limiter);
        Series::constant(bytes as f64 / MILLION as f64)
    }
    progress("bytes per key");
    Comparison {
        label: "memory per key at 1 million".into(),
        unit: Unit::Bytes,
        series: [
            bytes_a_key::<Tidegate>(),
            bytes_a_key::<Governor>(),
            bytes_a_key::<Aerorate>(),
        ],
        goal: Some(0.4),
    }
}

/// tidegate alone, from a thousand to ten million keys.
pub(crate) fn growth() -> Vec<Growth> {
    progress("1 thousand to 10 million keys");
    let limiters = GROWTH.map(|keys| filled::<Tidegate>(Load::Admitted, keys));
    let orders = GROWTH.map(|keys| order(keys, 3));
    let lanes = std::array::from_fn(|size| {
        let (limiter, order) = (&limiters[size], &orders[size]);
        Box::new(|| one_thread(limiter, Load::Admitted, order, CHECKS / order.len()))
            as Box<dyn FnMut() -> f64 + '_>
    });
    let series: [Series; GROWTH.len()] = interleave(lanes);
    let times = |index: usize| series[index].ratio_to(&series[0]);
    (0..GROWTH.len())
        .map(|index| Growth {
            keys: count(GROWTH[index]),
            nanoseconds: series[index].best(),
            times_the_first: times(index),
        })
        .collect()
}

/// What a policy adds to the bare limiter's check, on one thread.
pub(crate) fn through_policies() -> Vec<Through> {
    let mut rows = Vec::new();
    for (keys, load) in [
        (1_000, Load::Admitted),
        (1_000, Load::Refused),
        (MILLION, Load::Admitted),
    ] {
        let label = format!("{} keys, {}", count(keys), load.name());
        progress(&format!("through policies, {label}"));
        let order = order(keys, 4);
        let bare = filled::<Tidegate>(load, keys);
        let one = filled::<OneLevel>(load, keys);
        let overridden = filled::<Overridden>(load, keys);
        let two = filled::<TwoLevels>(load, keys);
        let passes = CHECKS / order.len();
        let [bare, one, overridden, two] = interleave([
            Box::new(|| one_thread(&bare, load, &order, passes)) as Box<dyn FnMut() -> f64 + '_>,
            Box::new(|| one_thread(&one, load, &order, passes)),
            Box::new(|| one_thread(&overridden, load, &order, passes)),
            Box::new(|| one_thread(&two, load, &order, passes)),
        ]);
        rows.push(Through {
            label,
            bare: bare.best(),
            one: one.ratio_to(&bare),
            overridden: overridden.ratio_to(&bare),
            two: two.ratio_to(&bare),
        });
    }
    rows
}

/// Both limiters handed the time, so that tables are compared apart from clocks.
pub(crate) fn handed_the_time() -> Vec<Beside> {
    let keys = SIZES[0];
    let order = order(keys, 5);
    let passes = CHECKS / order.len();
    let row = |load: Load| {
        let label = format!("{} keys, handed the time, {}", count(keys), load.name());
        progress(&label);
        let own = filled::<TidegateAt>(load, keys);
        let other = filled::<GovernorAt>(load, keys);
        let [own, other] = interleave([
            Box::new(|| one_thread(&own, load, &order, passes)) as Box<dyn FnMut() -> f64 + '_>,
            Box::new(|| one_thread(&other, load, &order, passes)),
        ]);
        Beside::new(label, &own, "governor 0.10", &other, Some(0.7))
    };
    [Load::Admitted, Load::Refused].map(row).into()
}

/// Keys in batches, beside the same keys one by one.
pub(crate) fn batches() -> Beside {
    let keys = MILLION;
    let label = format!("{} keys, `check_many` of {BATCH}", count(keys));
    progress(&label);
    let order = order(keys, 6);
    let limiter = filled::<Tidegate>(Load::Admitted, keys);
    let batches = || {
        let start = Instant::now();
        let together = |batch| limiter.check_many(black_box(batch));
        let admitted: usize = order.chunks(BATCH).map(together).sum();
        let elapsed = start.elapsed();
        assert_eq!(admitted, order.len(), "checks admitted");
        elapsed.as_secs_f64() * 1e9 / order.len() as f64
    };
    let [together, single] = interleave([
        Box::new(batches) as Box<dyn FnMut() -> f64 + '_>,
        Box::new(|| one_thread(&limiter, Load::Admitted, &order, 1)),
    ]);
    Beside::new(label, &together, "one by one", &single, Some(0.5))
}

/// Several levels in one decision, beside one: of a store, and through a policy.
pub(crate) fn levels() -> Vec<Beside> {
    let (keys, load) = (SIZES[0], Load::Admitted);
    progress("one to three levels");
    let order = order(keys, 7);
    let passes = CHECKS / order.len();
    let store = (
        filled::<StoreLevels<1>>(load, keys),
        filled::<StoreLevels<2>>(load, keys),
        filled::<StoreLevels<3>>(load, keys),
    );
    let policy = (
        filled::<OneLevel>(load, keys),
        filled::<TwoLevels>(load, keys),
        filled::<ThreeLevels>(load, keys),
    );
    let [one, two, three, policy_one, policy_two, policy_three] = interleave([
        Box::new(|| one_thread(&store.0, load, &order, passes)) as Box<dyn FnMut() -> f64 + '_>,
        Box::new(|| one_thread(&store.1, load, &order, passes)),
        Box::new(|| one_thread(&store.2, load, &order, passes)),
        Box::new(|| one_thread(&policy.0, load, &order, passes)),
        Box::new(|| one_thread(&policy.1, load, &order, passes)),
        Box::new(|| one_thread(&policy.2, load, &order, passes)),
    ]);
    let row = |what: &str, series: &Series, one: &Series, goal| {
        Beside::new(what.into(), series, "1 level", one, goal)
    };
    vec![
        row("2 levels of a store", &two, &one, Some(2.5)),
        row("3 levels of a store", &three, &one, None),
        row("policy of 2 levels", &policy_two, &policy_one, Some(2.5)),
        row("policy of 3 levels", &policy_three, &policy_one, None),
    ]
}

/// One of each, with the same keys.
struct Limiters {
    load: Load,
    tidegate: Tidegate,
    governor: Governor,
    aerorate: Aerorate,
}

impl Limiters {
    fn filled(load: Load, keys: usize) -> Self {
        Self {
            load,
            tidegate: filled(load, keys),
            governor: filled(load, keys),
            aerorate: filled(load, keys),
        }
    }

    /// All of them on as many threads as there are orders.
    fn compare(&self, label: String, orders: &[Vec<String>], goal: Option<f64>) -> Comparison {
        progress(&label);
        Comparison {
            label,
            unit: Unit::Nanoseconds,
            series: interleave([
                self.lane(&self.tidegate, orders),
                self.lane(&self.governor, orders),
                self.lane(&self.aerorate, orders),
            ]),
            goal,
        }
    }

    fn lane<'l>(
        &self,
        limiter: &'l impl Keyed,
        orders: &'l [Vec<String>],
    ) -> Box<dyn FnMut() -> f64 + 'l> {
        let load = self.load;
        match orders {
            [order] => Box::new(move || one_thread(limiter, load, order, CHECKS / order.len())),
            orders => Box::new(move || many_threads(limiter, load, orders)),
        }
    }
}

/// Nanoseconds a check of each key of an order, `passes` times over.
fn one_thread(limiter: &impl Keyed, load: Load, order: &[String], passes: usize) -> f64 {
    let start = Instant::now();
    run(limiter, load, order, passes);
    start.elapsed().as_secs_f64() * 1e9 / (passes * order.len()) as f64
}

/// Nanoseconds a check as each of the threads sees it, one thread an order.
fn many_threads(limiter: &impl Keyed, load: Load, orders: &[Vec<String>]) -> f64 {
    let barrier = Barrier::new(orders.len());
    let times: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let threads: Vec<_> = orders
            .iter()
            .map(|order| {
                scope.spawn(|| {
                    barrier.wait();
                    let start = Instant::now();
                    run(limiter, load, order, CHECKS / order.len());
                    (start, Instant::now())
                })
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().expect("a measuring thread panicked")
        };
        threads.into_iter().map(join).collect()
    });
    let first = times.iter().map(|(start, _)| *start).min();
    let last = times.iter().map(|(_, end)| *end).max();
    let elapsed = first.zip(last).map(|(first, last)| last - first);
    elapsed.unwrap_or_default().as_secs_f64() * 1e9 / CHECKS as f64
}

/// The loop that is timed. The limiter's answers are counted, because a limiter
/// that forgets its keys, or refuses when it should not, is fast for nothing.
fn run(limiter: &impl Keyed, load: Load, order: &[String], passes: usize) {
    let mut admitted = 0;
    for _ in 0..passes {
        for key in order {
            admitted += usize::from(limiter.check(black_box(key)));
        }
    }
    let expected = match load {
        Load::Admitted => passes * order.len(),
        Load::Refused => 0,
    };
    assert_eq!(
        admitted, expected,
        "checks admitted, and how many had to be"
    );
}

/// The keys in random order: at least a few thousand, so that no branch
/// predictor learns the order, and at most as many as a round checks.
fn order(keys: usize, seed: u64) -> Vec<String> {
    keys::shuffled(keys, keys.clamp(4_000, CHECKS), seed)
}

fn count(number: usize) -> String {
    match number {
        1_000_000.. => format!("{} million", number / 1_000_000),
        1_000.. => format!("{} thousand", number / 1_000),
        _ => number.to_string(),
    }
}

fn count_threads(threads: usize) -> String {
    let plural = if threads == 1 { "" } else { "s" };
    format!("{threads} thread{plural}")
}

fn progress(label: &str) {
    eprintln!("measuring: {label}");
}

/// What reading the time takes of each check, in nanoseconds: tidegate's clock, and
/// governor's own.
pub(crate) fn clocks() -> [f64; 2] {
    use governor::clock::Clock;

    let store = MemoryStore::new();
    let governors = governor::clock::DefaultClock::default();
    [best(|| store.now_us()), best(|| governors.now())]
}

/// The least time a call has taken on average, in seven runs.
fn best<T>(call: impl Fn() -> T) -> f64 {
    const CALLS: u32 = 1_000_000;
    let run = |_| {
        let start = Instant::now();
        for _ in 0..CALLS {
            black_box(call());
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
    };
    (0..7).map(run).fold(f64::INFINITY, f64::min)
}
