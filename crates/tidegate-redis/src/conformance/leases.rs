//! Messages of nodes that lease, and checks of nodes that do not, on the same keys: the
//! scripts and the arithmetic of the tests come to the same, number for number.

use redis::FromRedisValue;
use smallvec::SmallVec;
use tidegate::algorithm::Numbers;
use tidegate::{Cost, Limit};

use super::pair::{Host, Pair, START_US, counter};
use super::random::{Random, more, part};
use crate::call::argument;
use crate::mode::lease::kept::Store;
use crate::mode::lease::message::{Grant, Message, Run, Settle, size};
use crate::mode::lease::out::Out;
use crate::script::Task;
use tidegate_testkit::redis::Server;

struct Steps {
    pair: Pair,
    store: Store,
    nonces: Vec<u64>,
}

impl Steps {
    fn limit(&self) -> Limit {
        self.pair.limits[0]
    }

    fn expire(&self) -> u64 {
        self.store.kept.as_ref().map_or(0, |kept| kept.expires_ms)
    }

    fn message(&mut self, message: &Message) {
        let got = self.pair.message(message);
        let wanted = self.store.message(message, self.pair.now_us);
        assert_eq!(got, wanted, "{}: {message:?}", self.pair.context);
    }

    /// A check as a node in the mode `exact` sends it.
    fn check(&mut self, cost: Cost, asked: u32) {
        let limits = [self.limit()];
        let reply = self
            .pair
            .run(Task::Check, vec![argument(&limits, cost, asked)]);
        let reply = reply.unwrap_or_else(|error| panic!("{}: {error}", self.pair.context));
        let reply = Vec::<u8>::from_redis_value(reply).expect("a reply");
        let script = self.pair.scripts.get(Task::Check, &limits);
        let (numbers, rest) = script.numbers_and_rest(&reply).expect("numbers");
        let mut numbers = Numbers::new(&numbers);
        let now_us = numbers.next().expect("the time");
        let admitted = numbers.next_u32().expect("admitted");
        let (used, _) = self
            .limit()
            .read_state(now_us, &mut numbers)
            .expect("a count");
        let out = crate::mode::lease::out::Out::after(rest, 1).expect("what is out");
        let out = out.first().copied().unwrap_or_default();
        let got = (used, out, admitted);
        let wanted = self.store.check(self.limit(), cost, asked, now_us);
        assert_eq!(got, wanted, "{}: {asked} of {cost:?}", self.pair.context);
    }

    fn assert_expiry(&mut self) {
        let key = counter(&self.pair.keys[0], self.limit().algorithm());
        let expires: i64 = redis::cmd("PEXPIRETIME")
            .arg(key)
            .query(&mut self.pair.redis)
            .expect("a time");
        let expires = u64::try_from(expires).unwrap_or(0);
        assert_eq!(expires, self.expire(), "{}: the expiry", self.pair.context);
    }
}

fn some_message(random: &mut Random, run: &Steps) -> Message {
    let some = |random: &mut Random, most: u32| {
        u32::try_from(random.below(u64::from(most) + 1)).expect("a small one")
    };
    let limit = run.limit();
    let mut settles: SmallVec<[Settle; 2]> = SmallVec::new();
    for _ in 0..random.below(3) {
        let known = !run.nonces.is_empty() && random.chance(80);
        let nonce = match known {
            true => run.nonces[random.index(run.nonces.len())],
            false => random.next(),
        };
        let most = size(&limit).max(2);
        let spent = some(random, most);
        settles.push(Settle { nonce, spent });
    }
    let mut asks: SmallVec<[Run; 2]> = SmallVec::new();
    for _ in 0..random.below(4) {
        let cost = match random.below(8) {
            0 => u32::MAX,
            1 => 1 + some(random, 300),
            _ => 1 + some(random, 3),
        };
        let count = 1 + some(random, 12);
        let cost = Cost::of(cost);
        asks.push(Run { cost, count });
    }
    let again = !run.nonces.is_empty() && random.chance(15);
    let nonce = match again {
        true => run.nonces[random.index(run.nonces.len())],
        false => random.next(),
    };
    let want = match random.below(4) {
        0 => u32::MAX,
        1 => 1,
        _ => 1 + some(random, size(&limit).max(4)),
    };
    let grant = random.chance(70).then_some(Grant { nonce, want });
    Message {
        limit,
        settles,
        asks,
        grant,
    }
}

/// Mostly within the life of a lease.
fn wait_us(random: &mut Random) -> u64 {
    match random.below(8) {
        0 => 0,
        1..4 => random.below(20_000),
        4..6 => random.below(700_000),
        6 => random.below(3_000_000),
        _ => random.wait_us(),
    }
}

impl Steps {
    fn new(server: &impl Host, name: &str, limit: Limit) -> Self {
        Self {
            pair: Pair::new(server, name, &[limit]),
            store: Store::default(),
            nonces: Vec::new(),
        }
    }
}

fn run(server: &impl Host, seed: u64, tells_expiry: bool) {
    let mut random = Random(seed);
    let choice = part(if random.chance(50) {
        "buckets"
    } else {
        "windows"
    });
    let some = |random: &mut Random| choice[random.index(choice.len())];
    let limit = some(&mut random);
    let mut run = Steps::new(server, &format!("leases {seed}"), limit);
    for step in 0..60 {
        let mut now_us = run.pair.now_us + wait_us(&mut random);
        if random.chance(4) {
            now_us -= wait_us(&mut random).min(START_US / 4);
        }
        run.pair.set_time(now_us);
        if random.chance(4) {
            run.pair.limits = vec![some(&mut random)];
        }
        run.pair.context = format!("seed {seed}, step {step}: {}", run.limit());
        match random.below(10) {
            0..3 => {
                let asked = u32::try_from(random.below(4)).expect("a few");
                let cost = u32::try_from(1 + random.below(3)).expect("a few");
                run.check(Cost::of(cost), asked);
            }
            _ => {
                let message = some_message(&mut random, &run);
                run.nonces.extend(message.grant.map(|grant| grant.nonce));
                run.message(&message);
                // A message that arrives twice.
                if random.chance(10) && message.asks.is_empty() {
                    run.message(&message);
                }
            }
        }
        if tells_expiry {
            run.assert_expiry();
        }
    }
}

#[test]
fn leases_come_to_the_same_in_rust_and_lua() {
    for (number, server) in Server::start_each().iter().enumerate() {
        // Other servers may not tell when a key expires.
        let (first, count) = if number == 0 { (0, 250) } else { (10_000, 60) };
        for seed in first..first + count * more() {
            run(server, seed, number == 0);
        }
    }
}

#[test]
fn two_hundred_and_fifty_six_leases_are_the_most() {
    let server = Server::start();
    let limit = Limit::parse("1000000r/s").expect("a limit");
    let mut run = Steps::new(&server, "most leases", limit);
    for nonce in 0..260 {
        run.message(&Message {
            limit,
            settles: SmallVec::new(),
            asks: SmallVec::new(),
            grant: Some(Grant { nonce, want: 3 }),
        });
        run.pair.set_time(run.pair.now_us + 100);
    }
    let (_, out, _) = run.store.check(limit, Cost::ONE, 0, run.pair.now_us);
    assert_eq!(
        out,
        Out {
            tokens: 768,
            leases: 256,
            last_us: 1_000_000 - 100 * 4 - 100,
        }
    );
}
