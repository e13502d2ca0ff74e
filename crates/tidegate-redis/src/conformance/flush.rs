//! What nodes tell that have decided on their own: the script and the arithmetic here
//! come to the same.

use redis::FromRedisValue;
use tidegate::algorithm::{SlidingLogState, State};
use tidegate::{Cost, Kind, Limit};

use super::pair::{Pair, START_US};
use super::random::{Random, more, part};
use crate::mode::background::{Parcel, Unsent, heard};

use crate::script::Task;
use tidegate_testkit::redis::Server;

/// What the store must have of a key by now.
struct Expected {
    count: Option<State>,
    /// Of a log, each event: when, and what it cost.
    events: Vec<(u64, u32)>,
}

impl Expected {
    fn flush(&mut self, parcel: &Parcel, now_us: u64) -> State {
        let mut events = self.events.clone();
        let before = match parcel.limit.kind() {
            Kind::SlidingLog(log) => {
                let window_us = log.rate().window_us();
                // A clock that steps back takes the events along.
                let last_us = self.count.map_or(0, |count| count.last_us());
                let back = last_us.saturating_sub(now_us);
                events.iter_mut().for_each(|(at, _)| *at -= back);
                events.retain(|(at, _)| at + window_us > now_us);
                Some(total(&events, now_us, window_us))
            }
            _ => self.count,
        };
        let count = parcel.arrive(before, now_us);
        // A look writes nothing, unless the clock has stepped back; nor does what is over.
        let is_back = self.count.is_some_and(|it| it.last_us() > now_us);
        let limit = &parcel.limit;
        let as_before = before.map_or_else(|| limit.new_state(now_us), |it| limit.at(it, now_us));
        if count != as_before
            || is_back
            || matches!(count, State::TokenBucket(_)) && parcel.unsent.cost > 0
        {
            if let (Some(State::SlidingLog(before)), State::SlidingLog(after)) = (before, count)
                && after.used > before.used
            {
                events.push((now_us, after.used - before.used));
            }
            self.count = Some(count);
            self.events = events;
        }
        count
    }
}

/// What a log of these events comes to.
fn total(events: &[(u64, u32)], now_us: u64, window_us: u64) -> State {
    let newest = events.last().map_or(now_us, |(at, _)| at + window_us);
    State::SlidingLog(SlidingLogState {
        used: events.iter().map(|(_, cost)| cost).sum(),
        reset_after_us: newest - now_us,
        retry_after_us: 0,
        last_us: now_us,
    })
}

/// Some charges of a node, and how long before now the first of them was.
fn some_charges(random: &mut Random, limit: &Limit, now_us: u64) -> Unsent {
    let then_us = now_us - random.wait_us().min(START_US / 2);
    let mut unsent = Unsent::none(&limit.new_state(then_us));
    for _ in 0..random.below(4) {
        let cost = u32::try_from(1 + random.below(20)).expect("a small one");
        let at_us = then_us + random.below(now_us - then_us + 1);
        let to = limit.charge(limit.new_state(at_us), Cost::ONE);
        unsent.charge(limit, Cost::of(cost), &to);
    }
    unsent.own = limit.at(unsent.own, now_us);
    unsent
}

fn run(server: &Server, seed: u64) {
    let mut random = Random(seed);
    let mut limits = part("any");
    limits.retain(|limit| *limit != Limit::block());
    let limit = limits[random.index(limits.len())];
    let mut pair = Pair::one(server, &format!("flush {seed}"), limit);
    let mut expected = Expected {
        count: None,
        events: Vec::new(),
    };
    for step in 0..30 {
        let mut now_us = pair.now_us + random.wait_us();
        if random.chance(5) {
            now_us = now_us.saturating_sub(random.wait_us().min(START_US / 4));
        }
        pair.set_time(now_us);
        let parcel = Parcel {
            limit,
            unsent: some_charges(&mut random, &limit, now_us),
            idle_us: random.wait_us(),
            on_time: random.chance(80),
            is_opened_here: random.chance(50),
        };
        let reply = pair.run(Task::Flush, vec![parcel.argument()]);
        let reply = Vec::<Vec<u8>>::from_redis_value(reply.expect("a reply"));
        let reply = pair.numbers(Task::Flush, &reply.expect("one reply")[0]);
        let (then_us, mut got) = heard(&limit, &reply).expect("a count");
        let mut wanted = expected.flush(&parcel, now_us);
        // When there is room in a log again is not known from its total.
        for count in [&mut got, &mut wanted] {
            if let State::SlidingLog(log) = count {
                log.retry_after_us = 0;
            }
        }
        let context = format!("seed {seed}, step {step}: {limit}: {parcel:?}");
        assert_eq!((then_us, got), (now_us, wanted), "{context}");
    }
}

#[test]
fn the_script_and_the_node_come_to_the_same() {
    let server = Server::start();
    for seed in 0..300 * more() {
        run(&server, seed);
    }
}
