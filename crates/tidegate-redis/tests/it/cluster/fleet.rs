//! Load from three processes: this program, started again. Each asks all the time, until it was
//! told to stop and has had an answer about every key since, and prints in the end every request
//! that was admitted, and every error.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tidegate::{Cost, Limit, Mode, Policy, Source};
use tidegate_redis::{Policies, RedisOptions, RedisStore, TryCheckError};
use tidegate_testkit::process::{command, signal, spawn};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::cluster::report::{Check, Report};
use crate::support::{Named, YEAR, every_algorithm, limiter_over, patient, policy};

const PROCESSES: usize = 3;

/// Keys of each policy, and those that share an upper level.
pub(crate) const KEYS: usize = 12;
pub(crate) const TENANTS: usize = 4;

/// Of a key, and of an upper level: in a second, and at once.
pub(crate) const ONE: u32 = 10;
pub(crate) const ALL: u32 = 20;

/// Of a key that is leased, how many there are, and of the only one of the load `One`.
pub(crate) const LEASED: u32 = 100;
const LEASED_KEYS: usize = 3;
/// Of the key of each algorithm.
pub(crate) const AT_ONCE: u32 = 500;
pub(crate) const ALONE: u32 = 300;

pub(crate) const DEADLINE: Duration = Duration::from_millis(100);

/// What each process asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// All policies but the last, 300 times per second, and leases of each key as often as the
    /// whole fleet may have.
    Mixed,
    /// One key of one of [`ONE_KEY`], 1,000 times per second: more than three times what the
    /// fleet may have.
    One(&'static str),
    /// Under each algorithm one key, of which there is as much as nobody gets back: 64 callers
    /// ask 20 times.
    Once,
}

/// Policies: one leases, one remembers refusals, and one asks the store each time.
const ONE_KEY: [&str; 3] = ["alone", "remembering", "asking"];

/// A policy of one level, one of two, one that admits everything and counts it, two that lease,
/// two that do not, and one of each algorithm.
pub(crate) fn policies() -> Vec<Policy> {
    let two = Policy::builder("two")
        .level("tenant", "{tenant}", Limit::per_second(ALL))
        .level("key", "{tenant}/{key}", Limit::per_second(ONE));
    let count = Limit::parse("4000000000/1d fixed_window");
    let leased = |name, rate| {
        let policy = Policy::builder(name).key("{key}").mode(Mode::Lease);
        let policy = policy.limit(Limit::per_second(rate)).build();
        policy.expect("a policy")
    };
    let remembering = Policy::builder("remembering").key("{key}");
    let remembering = remembering.limit(Limit::per_second(ALONE));
    let rated = [
        policy("one", Limit::per_second(ONE)),
        two.build().expect("a policy"),
        policy("count", count.expect("a limit")),
        leased("leased", LEASED),
        leased("alone", ALONE),
        remembering.build().expect("a policy"),
        policy("asking", Limit::per_second(ALONE)),
    ];
    let once = every_algorithm(AT_ONCE, YEAR).map(|(name, limit)| policy(name, limit));
    rated.into_iter().chain(once).collect()
}

/// What a check of a key is asked with.
pub(crate) fn attributes(key: usize) -> [(&'static str, String); 2] {
    let tenant = format!("t{}", key % TENANTS);
    [("key", format!("k{key}")), ("tenant", tenant)]
}

/// What a key of a policy's last level is called in Redis.
pub(crate) fn stored(prefix: &str, policy: &str, key: usize) -> String {
    let policies = policies();
    let policy = policies.iter().find(|it| it.name() == policy);
    let attributes = attributes(key);
    let keys = policy.expect("one of them").keys(&attributes);
    let keys = keys.expect("all attributes");
    let last = keys.iter().last().expect("a level");
    last.stored(prefix)
}

/// Processes that ask until they are stopped.
pub(crate) struct Fleet(Vec<(Child, BufReader<ChildStdout>)>);

impl Fleet {
    /// Starts them, and waits until each has had an answer.
    pub(crate) fn start(url: &str, prefix: &str, load: Load) -> Self {
        let load = match load {
            Load::One(policy) => policy.to_owned(),
            Load::Mixed | Load::Once => format!("{load:?}"),
        };
        let start = || {
            let program = std::env::current_exe().expect("this program");
            let mut member = command(program, "KILL");
            member
                .args(["cluster::fleet::a_member_of_the_fleet", "--exact"])
                .args(["--ignored", "--nocapture"])
                .env("TIDEGATE_FLEET", url)
                .env("TIDEGATE_PREFIX", prefix)
                .env("TIDEGATE_LOAD", &load)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped());
            let mut member = spawn(member);
            let output = member.stdout.take().expect("a pipe");
            (member, BufReader::new(output))
        };
        let mut members: Vec<_> = (0..PROCESSES).map(|_| start()).collect();
        for (_, output) in &mut members {
            let mut lines = output.lines().map(|line| line.expect("a line"));
            assert!(lines.any(|line| line.ends_with("@ ready")), "never ready");
        }
        Self(members)
    }

    /// Sends a signal to one of them.
    pub(crate) fn signal(&self, member: usize, name: &str) {
        signal(self.0[member].0.id(), name);
    }

    /// Ends them. What they have met.
    pub(crate) fn stop(mut self) -> Report {
        for (member, _) in &mut self.0 {
            // That is what they wait for.
            drop(member.stdin.take());
        }
        let members = self.0.into_iter().map(|(mut member, mut output)| {
            let mut text = String::new();
            output.read_to_string(&mut text).expect("text");
            let status = member.wait().expect("a process of ours");
            assert!(status.success(), "a member has failed:\n{text}");
            let lines = text.lines().filter(|line| line.starts_with("@ "));
            lines.map(Check::read).collect()
        });
        Report(members.collect())
    }
}

async fn check(limiter: Arc<Policies>, policy: &'static str, key: usize) -> Check {
    let start = Instant::now();
    let attributes = attributes(key);
    let check = limiter.of(policy).try_check(&attributes, Cost::ONE);
    let checked = timeout(Duration::from_secs(30), check).await;
    let result = match checked.expect("no caller is stuck") {
        Ok(decision) => {
            let is_leased = decision.source() == Source::Lease;
            let admitted = (decision.decided_at_us(), is_leased);
            Ok(decision.allowed().then_some(admitted))
        }
        Err(TryCheckError::Store(error)) => Err(error.kind().to_string()),
        Err(error) => panic!("{error}"),
    };
    Check {
        policy: policy.to_owned(),
        key,
        took_us: u64::try_from(start.elapsed().as_micros()).expect("short"),
        result,
    }
}

async fn ask_once(limiter: &Arc<Policies>) {
    println!("@ ready");
    for (policy, _) in every_algorithm(AT_ONCE, YEAR) {
        let mut callers = JoinSet::new();
        for _ in 0..64 {
            let limiter = Arc::clone(limiter);
            callers.spawn(async move {
                for _ in 0..20 {
                    println!("{}", check(Arc::clone(&limiter), policy, 0).await);
                }
            });
        }
        callers.join_all().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a process that other tests start"]
async fn a_member_of_the_fleet() {
    let variable = |name| std::env::var(name).expect("set by the test that starts it");
    let load = variable("TIDEGATE_LOAD");
    let is_mixed = load == "Mixed";
    let (options, rate) = match is_mixed {
        true => (RedisOptions::default().timeout(DEADLINE), 300),
        false => (patient().connections(4), 1_000),
    };
    let options = options.prefix(variable("TIDEGATE_PREFIX"));
    let store = RedisStore::new(&variable("TIDEGATE_FLEET"), options).unwrap();
    let limiter = Arc::new(limiter_over(store, policies()));
    if load == "Once" {
        return ask_once(&limiter).await;
    }
    let first = ONE_KEY.into_iter().find(|policy| *policy == load);
    let first = first.unwrap_or("two");
    let is_ready = |check: &Check| match check.result {
        Ok(Some((_, true))) => true,
        _ => first != "alone" && check.result.is_ok(),
    };
    while !is_ready(&check(Arc::clone(&limiter), first, 0).await) {}
    println!("@ ready");

    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    std::thread::spawn(move || {
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        stopped.store(true, Relaxed);
    });
    let answered: Arc<[AtomicBool; KEYS]> = Arc::default();
    let is_answered = || !is_mixed || answered.iter().all(|key| key.load(Relaxed));
    let mut checks = JoinSet::new();
    let mut ticks = interval(Duration::from_secs(1) / rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut number = 0;
    let mut last = Instant::now();
    while !(stop.load(Relaxed) && is_answered()) && last.elapsed() < Duration::from_secs(30) {
        ticks.tick().await;
        let is_late = stop.load(Relaxed);
        if !is_late {
            last = Instant::now();
        }
        if is_mixed {
            let (policy, key) = (["one", "two", "count"][number % 3], number / 3 % KEYS);
            let (limiter, answered) = (Arc::clone(&limiter), Arc::clone(&answered));
            checks.spawn(async move {
                let check = check(limiter, policy, key).await;
                if is_late && policy == "count" && check.result.is_ok() {
                    answered[key].store(true, Relaxed);
                }
                check
            });
        }
        let (leased, keys) = match is_mixed {
            true => ("leased", LEASED_KEYS),
            false => (first, 1),
        };
        checks.spawn(check(Arc::clone(&limiter), leased, number % keys));
        number += 1;
    }
    for check in checks.join_all().await {
        println!("{check}");
    }
    assert!(is_mixed || limiter.flush(Duration::from_secs(20)).await);
}
