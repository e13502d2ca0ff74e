//! Rust and Lua agree: random steps on the store in memory and inside a real Redis, at
//! the same instants, give the same decisions, number for number.

use tidegate::{Charge, Check, Cost, Decision, Level, Limit, ManualClock, MemoryStore, Receipt};

use crate::call::{decisions, pack, refund_arguments};
use crate::script::{Scripts, Task, Time};
use crate::server::Server;

/// A small generator of random numbers (splitmix64): the same steps for a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let index = usize::try_from(self.below(from.len() as u64)).expect("an index");
        &from[index]
    }
}

/// Limits from the ordinary to the edges of what can be counted.
const LIMITS: &[&str] = &[
    "10r/s",
    "10r/s burst=3",
    "3/1001us",
    "7/1500us burst=2",
    "15/60s burst=3 strict",
    "1/366d burst=99",
    "4294967295/1ms",
    "4294967295/366d",
    "4294967291/365d burst=4000000000",
    "999983r/s burst=5",
    "5/10s",
    "2r/m burst=1000",
    "3/60s fixed_window",
    "5/10s fixed_window",
    "5/1500us fixed_window align=epoch",
    "4294967295/366d fixed_window",
    "3r/s fixed_window align=epoch",
    "10/60s sliding_window",
    "10/10s sliding_window",
    "268435456/366d sliding_window",
    "268435399/365d sliding_window",
    "3/1ms sliding_window",
    "7/999999us sliding_window",
    "5/10s sliding_log",
    "3/10s sliding_log",
    "64/1s sliding_log",
    "65/1s sliding_log",
    "200/2s sliding_log",
    "1000000/366d sliding_log",
    "block",
];

/// Both stores, the same levels, the same clock.
struct Pair {
    memory: MemoryStore,
    clock: ManualClock,
    redis: redis::Connection,
    scripts: Scripts,
    now_us: u64,
    keys: Vec<String>,
    limits: Vec<Limit>,
}

impl Pair {
    fn levels(&self) -> Vec<Level> {
        let named = self.keys.iter().zip(&self.limits);
        named
            .map(|(key, limit)| self.memory.level(key, *limit).expect("few limits"))
            .collect()
    }

    fn in_memory(&self, cost: Cost, charge: Charge) -> Decision {
        let levels = self.levels();
        let checks: Vec<Check<'_>> = levels
            .iter()
            .map(|level| level.check("").cost(cost))
            .collect();
        self.memory.decide(&checks, charge)
    }

    fn in_redis(&mut self, cost: Cost, charge: Charge, asked: usize) -> Vec<Decision> {
        let task = match charge {
            Charge::Always => Task::CheckCounting,
            _ => Task::Check,
        };
        let asked_for = if charge == Charge::Nothing { 0 } else { asked };
        let numbers = [asked_for.to_string(), cost.get().to_string()];
        let mut arguments: Vec<Vec<u8>> = numbers.map(String::into_bytes).into();
        arguments.extend(self.limits.iter().filter_map(|limit| pack(limit, cost)));
        let reply = self.run(task, arguments);
        let reply: Vec<i64> = redis::FromRedisValue::from_redis_value(reply).expect("integers");
        decisions(&self.limits, cost, charge, asked_for, &reply)
            .unwrap_or_else(|_| panic!("{reply:?} is no reply to {:?}", self.limits))
    }

    fn refund(&mut self, receipt: &[Receipt; 2]) {
        let levels = self.levels();
        let checks: Vec<Check<'_>> = levels.iter().map(|level| level.check("")).collect();
        self.memory.refund(&checks, &receipt[0]);
        let arguments = refund_arguments(&receipt[1], &self.limits).expect("the same levels");
        self.run(Task::Refund, arguments);
    }

    fn run(&mut self, task: Task, arguments: Vec<Vec<u8>>) -> redis::Value {
        let script = self.scripts.get(task, &self.limits);
        let keyed = self.keys.iter().zip(&self.limits);
        let keys: Vec<&String> = keyed
            .filter(|(_, limit)| **limit != Limit::block())
            .map(|(key, _)| key)
            .collect();
        redis::cmd("EVAL")
            .arg(script.text())
            .arg(keys.len())
            .arg(&keys)
            .arg(&arguments)
            .arg(self.now_us)
            .query(&mut self.redis)
            .unwrap_or_else(|error| panic!("{error} in {:?}\n{}", self.limits, script.text()))
    }

    fn reset(&mut self, level: usize) {
        let levels = self.levels();
        self.memory.reset(&levels[level], "");
        let deleted: redis::RedisResult<()> = redis::cmd("DEL")
            .arg(&self.keys[level])
            .query(&mut self.redis);
        deleted.expect("a key can be deleted");
    }

    fn set_time(&mut self, now_us: u64) {
        self.now_us = now_us;
        self.clock.set_us(now_us);
    }
}

/// Some years ahead of any real clock, so that Redis expires nothing on its own: what
/// has expired must be seen by the scripts.
const START_US: u64 = 3_000_000_000_000_000;

fn run(server: &Server, seed: u64, steps: usize) {
    let mut random = Random(seed);
    let clock = ManualClock::at_us(START_US);
    let levels = 1 + random.below(3);
    let pick_limits = |random: &mut Random| -> Vec<Limit> {
        let texts = (0..levels).map(|_| *random.pick(LIMITS));
        texts
            .map(|text| Limit::parse(text).expect("a limit"))
            .collect()
    };
    let mut pair = Pair {
        memory: MemoryStore::builder().clock(clock.clone()).build(),
        clock,
        redis: server.connect(),
        scripts: Scripts::new(Time::Argument),
        now_us: START_US,
        keys: (0..levels).map(|level| format!("{seed}:{level}")).collect(),
        limits: pick_limits(&mut random),
    };
    let counting = random.chance(25);
    let charge = if counting {
        Charge::Always
    } else {
        Charge::Admitted
    };
    let mut receipts: Vec<[Receipt; 2]> = Vec::new();
    for step in 0..steps {
        let told = |what: &str, pair: &Pair| {
            format!(
                "seed {seed}, step {step}: {what} at {} under {:?}",
                pair.now_us, pair.limits
            )
        };
        // Time goes on, by a little or a lot, or steps back.
        let wait = match random.below(10) {
            0..3 => 0,
            3..6 => random.below(1_000),
            6 => random.below(100_000),
            7 => random.below(3_000_000),
            8 => random.below(30_000_000),
            _ => random.below(86_400_000_000),
        };
        pair.set_time(pair.now_us + wait);
        if random.chance(3) {
            pair.set_time(pair.now_us - random.below(20_000_000));
            receipts.clear();
        }
        let cost = Cost::of(match random.below(8) {
            0..4 => 1,
            4 | 5 => 1 + u32::try_from(random.below(5)).expect("small"),
            6 => 1 + u32::try_from(random.below(300)).expect("small"),
            _ => 1 + u32::try_from(random.below(u64::from(u32::MAX))).expect("a cost"),
        });
        match random.below(20) {
            0 => {
                pair.limits = pick_limits(&mut random);
                receipts.clear();
            }
            1 => {
                let level = usize::try_from(random.below(levels)).expect("an index");
                pair.reset(level);
                receipts.clear();
            }
            2..5 => {
                let expected = pair.in_memory(cost, Charge::Nothing);
                let got = pair.in_redis(cost, Charge::Nothing, 1);
                assert_eq!(
                    got,
                    [expected],
                    "{}",
                    told(&format!("a look at {cost:?}"), &pair)
                );
            }
            5..8 if !receipts.is_empty() => {
                let index = usize::try_from(random.below(receipts.len() as u64)).expect("an index");
                let receipt = receipts.swap_remove(index);
                pair.refund(&receipt);
                let expected = pair.in_memory(Cost::ONE, Charge::Nothing);
                let got = pair.in_redis(Cost::ONE, Charge::Nothing, 1);
                assert_eq!(
                    got,
                    [expected],
                    "{}",
                    told(&format!("after {receipt:?}"), &pair)
                );
            }
            _ => {
                let asked = match random.below(4) {
                    _ if counting => 1,
                    0 => 2 + usize::try_from(random.below(20)).expect("small"),
                    _ => 1,
                };
                let expected: Vec<Decision> =
                    (0..asked).map(|_| pair.in_memory(cost, charge)).collect();
                let got = pair.in_redis(cost, charge, asked);
                assert_eq!(
                    got,
                    expected,
                    "{}",
                    told(&format!("{asked} of {cost:?}"), &pair)
                );
                let both = expected.iter().zip(&got);
                receipts.extend(both.filter_map(|(a, b)| Some([a.receipt()?, b.receipt()?])));
            }
        }
    }
}

#[test]
fn thousands_of_random_steps_give_the_same_decisions() {
    let server = Server::start();
    for seed in 0..60 {
        run(&server, seed, 200);
    }
}
