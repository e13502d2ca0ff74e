//! Messages of nodes that lease, parcels of nodes that decide on their own, and checks of nodes
//! in the mode `exact`, on one key: the scripts and [`Store`] come to the same, number for
//! number.

use redis::FromRedisValue;
use smallvec::SmallVec;
use tidegate::algorithm::{Numbers, State};
use tidegate::{Cost, Limit};
use tidegate_testkit::redis::Server;
use tidegate_testkit::simulation::Random;

use super::pair::{Host, Pair, START_US, counter};
use super::random::{more, part, wait_us};
use crate::call::argument;
use crate::mode::background::{Parcel, Unsent, heard};
use crate::mode::lease::kept::Store;
use crate::mode::lease::message::{Grant, Message, Run, Settle, size};
use crate::mode::lease::out::Out;
use crate::script::Task;

struct Steps {
    pair: Pair,
    store: Store,
    nonces: Vec<u64>,
}

impl Steps {
    fn new(server: &impl Host, name: &str, limit: Limit) -> Self {
        Self {
            pair: Pair::new(server, name, &[limit]),
            store: Store::default(),
            nonces: Vec::new(),
        }
    }

    fn limit(&self) -> Limit {
        self.pair.limits[0]
    }

    fn message(&mut self, message: &Message) {
        let got = self.pair.message(message);
        let wanted = self.store.message(message, self.pair.now_us);
        assert_eq!(got, wanted, "{}: {message:?}", self.pair.context);
    }

    /// A check as a node in the mode `exact` sends it, whose refusal may count.
    fn check(&mut self, cost: Cost, asked: u32, counts: bool) {
        let limits = [self.limit()];
        let task = match counts {
            true => Task::CheckCounting,
            false => Task::Check,
        };
        let reply = self.pair.run(task, vec![argument(&limits, cost, asked)]);
        let reply = reply.unwrap_or_else(|error| panic!("{}: {error}", self.pair.context));
        let reply = Vec::<u8>::from_redis_value(reply).expect("a reply");
        let script = self.pair.scripts.get(task, &limits);
        let (numbers, rest) = script.numbers_and_rest(&reply).expect("numbers");
        let mut numbers = Numbers::new(&numbers);
        let now_us = numbers.next().expect("the time");
        let admitted = numbers.next_u32().expect("admitted");
        let used = limits[0].read_state(now_us, &mut numbers);
        let (used, _) = used.expect("a count");
        let out = Out::after(rest, 1).expect("what is out");
        let out = out.first().copied().unwrap_or_default();
        let wanted = self.store.check(limits[0], cost, asked, now_us);
        if counts && asked > 0 && wanted.2 == 0 {
            self.store.saturate(limits[0], now_us);
        }
        let context = &self.pair.context;
        assert_eq!(
            (used, out, admitted),
            wanted,
            "{context}: {asked} of {cost:?}"
        );
    }

    fn parcel(&mut self, parcel: &Parcel) {
        let reply = self.pair.run(Task::Flush, vec![parcel.argument()]);
        let reply = Vec::<Vec<u8>>::from_redis_value(reply.expect("a reply"));
        let reply = self
            .pair
            .numbers(Task::Flush, &reply.expect("one reply")[0]);
        let (then_us, mut got) = heard(&parcel.limit, &reply).expect("a count");
        let now_us = self.pair.now_us;
        let mut wanted = self.store.parcel(parcel, now_us);
        // When there is room in a log again is not known from its total.
        for count in [&mut got, &mut wanted] {
            if let State::SlidingLog(log) = count {
                log.retry_after_us = 0;
            }
        }
        let context = &self.pair.context;
        assert_eq!((then_us, got), (now_us, wanted), "{context}: {parcel:?}");
    }

    fn assert_expiry(&mut self) {
        let key = counter(&self.pair.keys[0], self.limit().algorithm());
        let expires = redis::cmd("PEXPIRETIME")
            .arg(key)
            .query::<i64>(&mut self.pair.redis);
        let expires = u64::try_from(expires.expect("a time")).unwrap_or(0);
        let kept = self.store.kept.as_ref().map_or(0, |kept| kept.expires_ms);
        assert_eq!(expires, kept, "{}: the expiry", self.pair.context);
    }

    /// One of a node's leases, or another one.
    fn some_nonce(&self, random: &mut Random, known: u64) -> u64 {
        match !self.nonces.is_empty() && random.chance(known) {
            true => random.one_of(&self.nonces),
            false => random.number(),
        }
    }

    fn some_message(&mut self, random: &mut Random) -> Message {
        let limit = self.limit();
        let mut settles: SmallVec<[Settle; 2]> = SmallVec::new();
        for _ in 0..random.below(3) {
            let nonce = self.some_nonce(random, 800);
            let spent = random.few(0, size(&limit).max(2));
            settles.push(Settle { nonce, spent });
        }
        let mut asks: SmallVec<[Run; 2]> = SmallVec::new();
        for _ in 0..random.below(4) {
            let cost = match random.below(8) {
                0 => u32::MAX,
                1 => random.few(1, 301),
                _ => random.few(1, 4),
            };
            let (cost, count) = (Cost::of(cost), random.few(1, 13));
            asks.push(Run { cost, count });
        }
        let nonce = self.some_nonce(random, 150);
        let want = match random.below(4) {
            0 => u32::MAX,
            1 => 1,
            _ => random.few(1, size(&limit).max(5)),
        };
        let grant = random.chance(700).then_some(Grant { nonce, want });
        self.nonces.extend(grant.map(|grant| grant.nonce));
        Message {
            limit,
            settles,
            asks,
            grant,
        }
    }

    fn some_parcel(&self, random: &mut Random) -> Parcel {
        let (limit, now_us) = (self.limit(), self.pair.now_us);
        // How long before now the first of its charges was.
        let then_us = now_us - wait_us(random).min(START_US / 2);
        let mut unsent = Unsent::none(&limit.new_state(then_us));
        for _ in 0..random.below(4) {
            let to = limit.new_state(random.within(then_us, now_us));
            let to = limit.charge(to, Cost::ONE);
            unsent.charge(&limit, Cost::of(random.few(1, 20)), &to);
        }
        unsent.own = limit.at(unsent.own, now_us);
        Parcel {
            limit,
            unsent,
            idle_us: wait_us(random),
            on_time: random.chance(800),
            is_opened_here: random.chance(500),
        }
    }
}

/// Mostly within the life of a lease.
fn lease_wait_us(random: &mut Random) -> u64 {
    match random.below(8) {
        0 => 0,
        1..4 => random.below(20_000),
        4..6 => random.below(700_000),
        6 => random.below(3_000_000),
        _ => wait_us(random),
    }
}

fn run_leases(server: &impl Host, seed: u64, tells_expiry: bool) {
    let mut random = Random::new(seed);
    let choice = part(random.one_of(&["buckets", "windows"]));
    let limit = random.one_of(&choice);
    let mut run = Steps::new(server, &format!("leases {seed}"), limit);
    for step in 0..60 {
        let mut now_us = run.pair.now_us + lease_wait_us(&mut random);
        if random.chance(40) {
            now_us -= lease_wait_us(&mut random).min(START_US / 4);
        }
        run.pair.set_time(now_us);
        if random.chance(40) {
            run.pair.limits = vec![random.one_of(&choice)];
        }
        run.pair.context = format!("seed {seed}, step {step}: {}", run.limit());
        if random.chance(300) {
            let (cost, asked) = (random.few(1, 3), random.few(0, 3));
            run.check(Cost::of(cost), asked, random.chance(200));
        } else {
            let message = run.some_message(&mut random);
            run.message(&message);
            // A message that arrives twice.
            if random.chance(100) && message.asks.is_empty() {
                run.message(&message);
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
            run_leases(server, seed, number == 0);
        }
    }
}

#[test]
fn parcels_come_to_the_same_in_rust_and_lua() {
    let server = Server::start();
    let mut limits = part("any");
    limits.retain(|limit| *limit != Limit::block());
    for seed in 0..300 * more() {
        let mut random = Random::new(seed);
        let limit = random.one_of(&limits);
        let mut run = Steps::new(&server, &format!("parcels {seed}"), limit);
        for step in 0..30 {
            let mut now_us = run.pair.now_us + wait_us(&mut random);
            if random.chance(50) {
                now_us -= wait_us(&mut random).min(START_US / 4);
            }
            run.pair.set_time(now_us);
            run.pair.context = format!("seed {seed}, step {step}: {limit}");
            let parcel = run.some_parcel(&mut random);
            run.parcel(&parcel);
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
    assert_eq!((out.tokens, out.leases), (768, 256));
}
