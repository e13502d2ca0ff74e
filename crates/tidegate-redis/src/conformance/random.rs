//! Random steps: the same for a seed. A seed that has ever failed stays, by name.

use tidegate::{Algorithm, Charge, Cost, Limit, LimitSpec};
use tidegate_testkit::conformance::Subject;
use tidegate_testkit::redis::Server;
use tidegate_testkit::simulation::Random;

use super::pair::{Host, Pair};

fn some_cost(random: &mut Random) -> Cost {
    let most = random.one_of(&[1, 1, 1, 1, 5, 5, 300, u32::MAX]);
    Cost::of(random.few(1, most))
}

/// How long it takes until the next step: a little or a lot.
pub(super) fn wait_us(random: &mut Random) -> u64 {
    const DAY_US: u64 = 86_400_000_000;
    let (second, some) = (1_000_000, 1_000);
    let most = [
        1,
        1,
        1,
        some,
        some,
        some,
        100 * some,
        3 * second,
        30 * second,
        DAY_US,
    ];
    let most = random.one_of(&most);
    random.below(most)
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

/// A limit from its text, or one that comes with a call.
fn limit(text: &str) -> Limit {
    let Some(text) = text.strip_prefix("gcra ") else {
        return Limit::parse(text).expect(text);
    };
    let spec = Limit::parse(text).expect(text).spec();
    let spec = spec.expect("a limit that counts");
    LimitSpec { gcra: true, ..spec }.build().expect(text)
}

/// How many times as many seeds as usual: `TIDEGATE_SEEDS=100` for a long search.
pub(crate) fn more() -> u64 {
    let more = std::env::var("TIDEGATE_SEEDS").ok();
    more.and_then(|more| more.parse().ok()).unwrap_or(1)
}

/// Seeds from the first on, and what their runs are like.
#[derive(Clone, Copy)]
pub(super) struct Runs {
    pub(super) first: u64,
    pub(super) count: u64,
    /// A part of `limits.txt`.
    pub(super) limits: &'static str,
    pub(super) steps: usize,
    /// Levels, at most.
    pub(super) levels: u64,
    /// How often, in a hundred steps, the clock steps back.
    pub(super) steps_back: u64,
}

const fn runs(
    (first, count): (u64, u64),
    limits: &'static str,
    steps: usize,
    levels: u64,
    steps_back: u64,
) -> Runs {
    Runs {
        first,
        count,
        limits,
        steps,
        levels,
        steps_back,
    }
}

impl Runs {
    pub(super) fn all(self, server: &impl Host) {
        for seed in self.first..self.first + self.count * more() {
            self.one(server, seed);
        }
    }

    fn one(self, server: &impl Host, seed: u64) {
        let mut random = Random::new(seed);
        let choice = part(self.limits);
        let levels = random.within(1, self.levels);
        let some = |random: &mut Random| -> Vec<Limit> {
            (0..levels).map(|_| random.one_of(&choice)).collect()
        };
        let first = some(&mut random);
        let name = format!("{seed} {} {}", self.levels, self.steps_back);
        let mut pair = Pair::new(server, &name, &first);
        let counting = random.chance(250);
        if counting {
            pair.charge = Charge::Always;
        }
        for step in 0..self.steps {
            pair.context = format!("seed {seed}, step {step}");
            pair.set_time(pair.now_us + wait_us(&mut random));
            if random.chance(10 * self.steps_back) {
                pair.set_time(pair.now_us - random.below(20_000_000));
                pair.receipts.clear();
            }
            let cost = some_cost(&mut random);
            match random.below(20) {
                0 => {
                    let next = some(&mut random);
                    let levels = next.iter().zip(&pair.limits).enumerate();
                    let others = levels.filter(|(_, (a, b))| a.algorithm() != b.algorithm());
                    let others: Vec<usize> = others.map(|(level, _)| level).collect();
                    // What expires under another algorithm is gone from memory, also when the
                    // clock steps back; the server's own clock is decades behind.
                    others.iter().for_each(|level| pair.reset(*level));
                    pair.limits = next;
                    pair.receipts.clear();
                }
                1 => {
                    pair.reset(random.index(pair.limits.len()));
                    pair.receipts.clear();
                }
                2..5 => drop(pair.look(cost)),
                5..8 if !pair.receipts.is_empty() => {
                    let charge = random.index(pair.receipts.len());
                    pair.refund(charge);
                    let receipt = pair.receipts.swap_remove(charge);
                    pair.context = format!("{} after {receipt:?}", pair.context);
                    drop(pair.look(Cost::ONE));
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
}

/// On servers that know where keys are, and on those that do not.
pub(super) const ANYWHERE: Runs = runs((500_000, 10), "any", 200, 3, 3);

const RUNS: [Runs; 7] = [
    runs((0, 100), "any", 200, 3, 3),
    runs((100_000, 20), "any", 200, 2, 40),
    runs((200_000, 20), "any", 100, 16, 3),
    runs((500_000, 40), "limits that come", 200, 2, 3),
    runs((400_000, 10), "logs", 600, 2, 0),
    runs((400_000, 10), "logs", 600, 2, 4),
    runs((400_000, 10), "logs", 600, 2, 8),
];

#[test]
fn random_steps_give_the_same_decisions() {
    for (number, server) in Server::start_each().iter().enumerate() {
        for runs in RUNS {
            let part = if number == 0 { 1 } else { 5 };
            let count = runs.count.div_ceil(part);
            Runs { count, ..runs }.all(server);
        }
    }
}
