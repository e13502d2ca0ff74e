//! Random steps: the same for a seed. A seed that has ever failed stays, by name.

use tidegate::{Algorithm, Charge, Cost, Limit, LimitSpec};

use super::pair::{Host, Pair};
use tidegate_testkit::redis::Server;

/// A small generator of random numbers (splitmix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(super) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("an index")
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn cost(&mut self) -> Cost {
        let below = |random: &mut Self, end| u32::try_from(random.below(end)).expect("a cost");
        Cost::of(match self.below(16) {
            0..8 => 1,
            8..12 => 1 + below(self, 5),
            12..14 => 1 + below(self, 300),
            14 => 1 + below(self, u64::from(u32::MAX)),
            _ => u32::MAX,
        })
    }

    /// Time goes on, by a little or a lot.
    pub(super) fn wait_us(&mut self) -> u64 {
        match self.below(10) {
            0..3 => 0,
            3..6 => self.below(1_000),
            6 => self.below(100_000),
            7 => self.below(3_000_000),
            8 => self.below(30_000_000),
            _ => self.below(86_400_000_000),
        }
    }
}

/// The limits below the heading that begins like this.
pub(super) fn part(heading: &str) -> Vec<Limit> {
    let parts = include_str!("limits.txt").split("\n# ");
    let part = parts.skip(1).find(|part| part.starts_with(heading));
    let lines = part.expect(heading).lines().skip(1);
    let mut limits: Vec<Limit> = lines.filter(|line| !line.is_empty()).map(limit).collect();
    if heading == "any" {
        // Algorithms of the table that the file does not know yet.
        for algorithm in Algorithm::counting() {
            if limits.iter().all(|limit| limit.algorithm() != algorithm) {
                let most = algorithm.profile().max_requests;
                let rates = [
                    "3/1ms",
                    "7/999999us",
                    "5/10s",
                    "10/60s",
                    &format!("{most}/366d"),
                ];
                limits.extend(rates.map(|rate| limit(&format!("{rate} {algorithm}"))));
            }
        }
    }
    limits
}

/// How many times as many seeds as usual: `TIDEGATE_SEEDS=100` for a long search.
pub(crate) fn more() -> u64 {
    let more = std::env::var("TIDEGATE_SEEDS").ok();
    more.and_then(|more| more.parse().ok()).unwrap_or(1)
}

/// What makes one run differ from another.
#[derive(Clone, Copy)]
pub(super) struct Run {
    seed: u64,
    /// A part of `limits.txt`.
    limits: &'static str,
    steps: usize,
    /// Levels, at most.
    levels: u64,
    /// How often, in a hundred steps, the clock steps back.
    steps_back: u64,
}

impl Run {
    /// The same from another seed on.
    pub(super) fn starting_at(self, seed: u64) -> Self {
        Self { seed, ..self }
    }
}

fn limits(random: &mut Random, choice: &[Limit], levels: u64) -> Vec<Limit> {
    let limits = (0..levels).map(|_| choice[random.index(choice.len())]);
    limits.collect()
}

/// A limit from its text, or one that comes with a call.
fn limit(text: &str) -> Limit {
    let (gcra, text) = match text.strip_prefix("gcra ") {
        Some(text) => (true, text),
        None => (false, text),
    };
    let limit = Limit::parse(text).expect("a limit");
    match limit.spec() {
        Some(spec) if gcra => LimitSpec { gcra, ..spec }.build().expect("a limit"),
        _ => limit,
    }
}

fn run(server: &impl Host, run: Run) {
    let mut random = Random(run.seed);
    let choice = part(run.limits);
    let levels = 1 + random.below(run.levels);
    let first = limits(&mut random, &choice, levels);
    let name = format!("{} {} {}", run.seed, run.levels, run.steps_back);
    let mut pair = Pair::new(server, &name, &first);
    let counting = random.chance(25);
    if counting {
        pair.charge = Charge::Always;
    }
    for step in 0..run.steps {
        pair.context = format!("seed {}, step {step}", run.seed);
        pair.set_time(pair.now_us + random.wait_us());
        if random.chance(run.steps_back) {
            pair.set_time(pair.now_us - random.below(20_000_000));
            pair.receipts.clear();
        }
        let cost = random.cost();
        match random.below(20) {
            0 => {
                pair.limits = limits(&mut random, &choice, levels);
                pair.receipts.clear();
            }
            1 => {
                let level = random.index(pair.limits.len());
                pair.reset(level);
                pair.receipts.clear();
            }
            2..5 => drop(pair.look(cost)),
            5..8 if !pair.receipts.is_empty() => {
                let index = random.index(pair.receipts.len());
                let receipt = pair.receipts.swap_remove(index);
                pair.refund(&receipt);
                pair.context = format!("{} after {receipt:?}", pair.context);
                let _ = pair.look(Cost::ONE);
            }
            _ => {
                let asked = match random.below(8) {
                    _ if counting => 1,
                    0 => 2 + random.index(20),
                    1 => 2 + random.index(400),
                    _ => 1,
                };
                pair.checks(asked, cost);
            }
        }
    }
}

/// So many seeds from this one on, each in a run like this one.
pub(super) fn seeds(server: &impl Host, count: u64, first: Run) {
    for seed in first.seed..first.seed + count * more() {
        run(server, Run { seed, ..first });
    }
}

/// Three levels at most, and a clock that seldom steps back.
pub(super) const RUN: Run = Run {
    seed: 0,
    limits: "any",
    steps: 200,
    levels: 3,
    steps_back: 3,
};

/// How many seeds from this one on; the limits, steps, levels, and how often the clock steps
/// back.
type Row = (u64, u64, &'static str, usize, u64, u64);

const RUNS: [Row; 7] = [
    (100, 0, "any", 200, 3, 3),
    (20, 100_000, "any", 200, 2, 40),
    (20, 200_000, "any", 100, 16, 3),
    (40, 500_000, "limits that come", 200, 2, 3),
    (10, 400_000, "logs", 600, 2, 0),
    (10, 400_000, "logs", 600, 2, 4),
    (10, 400_000, "logs", 600, 2, 8),
];

#[test]
fn random_steps_give_the_same_decisions() {
    for (number, server) in Server::start_each().iter().enumerate() {
        for (count, seed, limits, steps, levels, steps_back) in RUNS {
            let count = if number == 0 {
                count
            } else {
                count.div_ceil(5)
            };
            let first = Run {
                seed,
                limits,
                steps,
                levels,
                steps_back,
            };
            seeds(server, count, first);
        }
    }
}
