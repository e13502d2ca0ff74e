//! Both stores, the same levels, the same clock: every step is taken on both, and must
//! come out the same.

use std::collections::HashSet;
use std::sync::Arc;

use redis::{FromRedisValue, RedisResult, Value};
use tidegate::{
    Algorithm, Charge, Check, Cost, Decision, Level, Limit, ManualClock, MemoryStore, Receipt,
};
use tokio::runtime::Runtime;

use crate::call::{argument, decision, marker, refund_at};
use crate::mode::lease::message::{Message, Reply};
use crate::script::{Scripts, Task, Time};
use crate::store::RedisStore;
use tidegate_testkit::conformance::Subject;
use tidegate_testkit::redis::Server;

pub(super) const MINUTE: u64 = 60_000_000;

/// Some decades ahead of any real clock, so that the server expires nothing on its own:
/// what has expired must be seen by the scripts. Minutes and hours begin here.
pub(super) const START_US: u64 = 3_000_002_400_000_000;

/// Where a pair's server is.
pub(super) trait Host {
    /// A connection to the server that has a key.
    fn connect(&self, key: &str) -> redis::Connection;

    /// The store to ask by, where scripts take the way that checks take.
    fn store(&self) -> Option<Arc<Client>> {
        None
    }
}

impl Host for Server {
    fn connect(&self, _key: &str) -> redis::Connection {
        Self::connect(self)
    }
}

/// A store, and the runtime that it is asked on.
pub(super) struct Client {
    pub(super) store: RedisStore,
    pub(super) runtime: Runtime,
}

pub(super) struct Pair {
    memory: MemoryStore,
    clock: ManualClock,
    pub(super) redis: redis::Connection,
    store: Option<Arc<Client>>,
    pub(super) scripts: Scripts,
    loaded: HashSet<String>,
    /// Whether the server can tell when a key expires (since Redis 7).
    tells_expiry: bool,
    pub(super) now_us: u64,
    pub(super) keys: Vec<String>,
    pub(super) limits: Vec<Limit>,
    pub(super) charge: Charge,
    /// Of every charge so far, from both stores.
    pub(super) receipts: Vec<[Receipt; 2]>,
    /// The message when the stores differ.
    pub(super) context: String,
    /// Every second call is one of the script for many checks.
    calls: usize,
}

/// The most checks of a call of that script.
const BATCH: usize = 64;

impl Pair {
    /// Levels under these limits, whose keys begin with a name of their own.
    pub(super) fn new(server: &impl Host, name: &str, limits: &[Limit]) -> Self {
        let clock = ManualClock::at_us(START_US);
        // In a cluster, all of them are in one place.
        let tag = format!("{{{name}}}");
        let mut redis = server.connect(&tag);
        let known: RedisResult<i64> = redis::cmd("PEXPIRETIME").arg("").query(&mut redis);
        Self {
            memory: MemoryStore::builder()
                .max_keys(1_000)
                .clock(clock.clone())
                .build(),
            clock,
            redis,
            store: server.store(),
            scripts: Scripts::new(Time::Argument),
            loaded: HashSet::new(),
            tells_expiry: known.is_ok(),
            now_us: START_US,
            keys: (0..limits.len())
                .map(|level| format!("{tag}:{level}"))
                .collect(),
            limits: limits.to_vec(),
            charge: Charge::Admitted,
            receipts: Vec::new(),
            context: name.to_owned(),
            calls: 0,
        }
    }

    pub(super) fn one(server: &impl Host, name: &str, limit: Limit) -> Self {
        Self::new(server, &format!("{name} {limit}"), &[limit])
    }

    pub(super) fn set_time(&mut self, now_us: u64) {
        self.now_us = now_us;
        self.clock.set_us(now_us);
    }

    /// Has the store in memory decide the same checks, and keeps the receipts of both.
    pub(super) fn keep(&mut self, cost: Cost, got: &[Decision]) -> Vec<Decision> {
        let expected: Vec<Decision> = got
            .iter()
            .map(|_| self.in_memory(cost, self.charge))
            .collect();
        for (expected, got) in expected.iter().zip(got) {
            let both = [expected.denied_by(), got.denied_by()];
            assert_eq!(both[0], both[1], "{}", self.what("who refuses"));
            let receipts = expected.receipt().zip(got.receipt());
            self.receipts.extend(receipts.map(|(a, b)| [a, b]));
        }
        expected
    }

    pub(super) fn refund_in_redis(&mut self, receipt: &Receipt) {
        let charges: Vec<(Cost, u64)> = receipt.charges().collect();
        let arguments = refund_at(receipt.decided_at_us(), &charges, &self.limits);
        let arguments = arguments.expect("the same levels");
        let marker = marker("p", &self.keys[0], receipt);
        self.run_on(Task::Refund, arguments, 1, Some(marker))
            .expect("a refund");
    }

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

    /// The decisions of the server alone.
    pub(super) fn in_redis(&mut self, cost: Cost, charge: Charge, asked: usize) -> Vec<Decision> {
        let asked = if charge == Charge::Nothing { 0 } else { asked };
        self.calls += 1;
        let is_stateful = self.limits.iter().any(|limit| *limit != Limit::block());
        if self.calls.is_multiple_of(2) && is_stateful && asked <= BATCH {
            return self.in_one_batch(cost, charge, asked);
        }
        let reply = self.reply(cost, charge, asked);
        let reply = reply.unwrap_or_else(|error| panic!("{}", self.what(&error.to_string())));
        self.decisions(cost, charge, asked, &reply)
    }

    /// What a reply comes to for each of so many identical checks.
    fn decisions(&self, cost: Cost, charge: Charge, asked: usize, reply: &[i64]) -> Vec<Decision> {
        let of = u32::try_from(asked.max(1)).expect("a few");
        let decided = (0..of)
            .map(|place| decision(&self.limits, cost, charge, (place, of), reply, &[]))
            .collect::<Option<_>>();
        decided.unwrap_or_else(|| panic!("{reply:?} is no reply to {:?}", self.limits))
    }

    /// The same checks, each by itself, in one call of the script for many.
    fn in_one_batch(&mut self, cost: Cost, charge: Charge, asked: usize) -> Vec<Decision> {
        let task = match charge {
            Charge::Always => Task::ChecksCounting,
            _ => Task::Checks,
        };
        let each = asked.min(1);
        let one = argument(&self.limits, cost, u32::from(asked > 0));
        let reply = self.run_on(task, vec![one], asked.max(1), None);
        let reply = reply.unwrap_or_else(|error| panic!("{}", self.what(&error.to_string())));
        let replies = Vec::<Vec<u8>>::from_redis_value(reply).expect("a reply per check");
        let decided = replies.iter().map(|reply| {
            let numbers = self.numbers(task, reply);
            self.decisions(cost, charge, each, &numbers)
        });
        decided.flatten().collect()
    }

    /// What the server says to one check.
    pub(super) fn reply(
        &mut self,
        cost: Cost,
        charge: Charge,
        asked: usize,
    ) -> RedisResult<Vec<i64>> {
        let task = match charge {
            Charge::Always => Task::CheckCounting,
            _ => Task::Check,
        };
        let asked = u32::try_from(asked).expect("a few");
        let arguments = vec![argument(&self.limits, cost, asked)];
        let reply = self.run(task, arguments)?;
        let reply = Vec::<u8>::from_redis_value(reply)?;
        Ok(self.numbers(task, &reply))
    }

    /// The numbers of a script's reply.
    pub(super) fn numbers(&self, task: Task, reply: &[u8]) -> Vec<i64> {
        let numbers = self.scripts.get(task, &self.limits).numbers(reply);
        numbers.expect("a reply of the script").into_vec()
    }

    pub(super) fn run(&mut self, task: Task, arguments: Vec<Vec<u8>>) -> RedisResult<Value> {
        self.run_on(task, arguments, 1, None)
    }

    /// The same with the keys repeated, and one more.
    fn run_on(
        &mut self,
        task: Task,
        arguments: Vec<Vec<u8>>,
        times: usize,
        another: Option<String>,
    ) -> RedisResult<Value> {
        let keyed = self.keys.iter().zip(&self.limits);
        let keys: Vec<String> = keyed
            .filter(|(_, limit)| **limit != Limit::block())
            .map(|(key, limit)| counter(key, limit.algorithm()))
            .collect();
        let keys = std::iter::repeat_n(keys, times).flatten();
        let keys = keys.chain(another).collect();
        self.call(task, &self.limits.clone(), keys, arguments)
    }

    /// Runs the script for these limits at this instant.
    pub(super) fn call(
        &mut self,
        task: Task,
        limits: &[Limit],
        keys: Vec<String>,
        mut arguments: Vec<Vec<u8>>,
    ) -> RedisResult<Value> {
        let script = self.scripts.get(task, limits);
        arguments.push(self.now_us.to_string().into_bytes());
        if let Some(client) = &self.store {
            let answer = client.store.script(script, keys, arguments);
            let answer = client.runtime.block_on(answer);
            return answer.map_err(|error| {
                (redis::ErrorKind::Client, "the store", error.to_string()).into()
            });
        }
        if self.loaded.insert(script.sha().to_owned()) {
            let load = redis::cmd("SCRIPT")
                .arg("LOAD")
                .arg(script.text())
                .query(&mut self.redis);
            let sha: String = load.unwrap_or_else(|error| panic!("{error} in\n{}", script.text()));
            assert_eq!(sha, script.sha());
        }
        redis::cmd("EVALSHA")
            .arg(script.sha())
            .arg(keys.len())
            .arg(&keys)
            .arg(&arguments)
            .query(&mut self.redis)
    }

    /// A message about the leases of the one key.
    pub(super) fn message(&mut self, message: &Message) -> Reply {
        let reply = self.run(Task::Lease, vec![message.argument()]);
        let reply = reply.unwrap_or_else(|error| panic!("{}: {error}", self.context));
        let reply = Vec::<Vec<u8>>::from_redis_value(reply).expect("a list of replies");
        let script = self.scripts.get(Task::Lease, [&message.limit]);
        let reply = Reply::read(&message.limit, &script, &reply[0], message.asks.len());
        reply.expect("a reply of the script")
    }

    /// After a check: every key with something in it expires in the millisecond in
    /// which its quota is full.
    fn assert_expiry(&mut self, decision: &Decision) {
        if !self.tells_expiry {
            return;
        }
        let mut pipeline = redis::pipe();
        for (key, limit) in self.keys.iter().zip(&self.limits) {
            pipeline
                .cmd("PEXPIRETIME")
                .arg(counter(key, limit.algorithm()));
        }
        let expiries: Vec<i64> = pipeline.query(&mut self.redis).expect("times");
        let now_us = self.now_us;
        for ((level, expiry_ms), limit) in decision.levels().iter().zip(expiries).zip(&self.limits)
        {
            let reset_us = u64::try_from(level.reset_after().as_micros()).expect("a time");
            if reset_us > 0 && *limit != Limit::block() {
                let fresh_ms = i64::try_from((now_us + reset_us).div_ceil(1_000)).expect("a time");
                let what = format!("the expiry of {limit}");
                assert_eq!(expiry_ms, fresh_ms, "{}", self.what(&what));
            }
        }
    }

    /// What a failure is about.
    fn what(&self, what: &str) -> String {
        let (context, now_us, limits) = (&self.context, self.now_us, &self.limits);
        format!("{context}: {what}, at {now_us} under {limits:?}")
    }
}

impl Subject for Pair {
    fn at(&mut self, since_start_us: u64) {
        self.set_time(START_US + since_start_us);
    }

    /// The checks travel as one call.
    fn checks(&mut self, times: usize, cost: Cost) -> Vec<Decision> {
        let got = self.in_redis(cost, self.charge, times);
        let expected = self.keep(cost, &got);
        let mut both = got.iter().zip(&expected).enumerate();
        let differ = both.find(|(_, (got, expected))| got != expected);
        let what = self.what(&format!("{times} of {cost:?}"));
        assert_eq!((differ, got.len()), (None, times), "{what}");
        if let Some(last) = got.last() {
            self.assert_expiry(last);
        }
        got
    }

    fn look(&mut self, cost: Cost) -> Decision {
        let expected = self.in_memory(cost, Charge::Nothing);
        let got = self.in_redis(cost, Charge::Nothing, 1).remove(0);
        assert_eq!(
            got,
            expected,
            "{}",
            self.what(&format!("a look at {cost:?}"))
        );
        got
    }

    fn refund(&mut self, charge: usize) {
        let [near, far] = self.receipts[charge].clone();
        let levels = self.levels();
        let checks: Vec<Check<'_>> = levels.iter().map(|level| level.check("")).collect();
        self.memory.refund(&checks, &near);
        self.refund_in_redis(&far);
    }

    fn reset(&mut self, level: usize) {
        let levels = self.levels();
        self.memory.reset(&levels[level], "");
        let mut delete = redis::cmd("DEL");
        for algorithm in Algorithm::counting() {
            delete.arg(counter(&self.keys[level], algorithm));
        }
        let deleted: RedisResult<()> = delete.query(&mut self.redis);
        deleted.expect("a key can be deleted");
    }

    fn set_limits(&mut self, limits: Vec<Limit>) {
        self.limits = limits;
    }
}

/// The key of a counter: each algorithm has its own.
pub(super) fn counter(key: &str, algorithm: Algorithm) -> String {
    format!("{key}~{algorithm:?}")
}
