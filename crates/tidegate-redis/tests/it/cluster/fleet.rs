//! Load from three processes: this program, started again. Each asks all the time, until
//! it was told to stop and has had an answer about every key since, and tells in the end
//! of every request that was admitted, and of every error.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tidegate::{Cost, Limit, Mode, Policy};
use tidegate_redis::{RedisOptions, RedisStore, SharedLimiter, TryCheckError};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::cluster::report::{Member, Report};
use crate::support::{limiter_over, policy};

const PROCESSES: usize = 3;

/// Checks per second and process.
const RATE: u32 = 300;

/// Keys of each policy, and those that share an upper level.
pub(crate) const KEYS: usize = 12;
pub(crate) const TENANTS: usize = 4;

/// Of a key, and of an upper level: in a second, and at once.
pub(crate) const ONE: u32 = 10;
pub(crate) const ALL: u32 = 20;

/// Of a key that is leased, and how many there are.
pub(crate) const LEASED: u32 = 100;
pub(crate) const LEASED_KEYS: usize = 3;

pub(crate) const DEADLINE: Duration = Duration::from_millis(100);

/// A policy of one level, one of two, one that admits everything and counts it, and one
/// that leases.
pub(crate) fn policies() -> [Policy; 4] {
    let two = Policy::builder("two")
        .level("tenant", "{tenant}", Limit::per_second(ALL))
        .level("key", "{tenant}/{key}", Limit::per_second(ONE));
    let count = Limit::parse("4000000000/1d fixed_window");
    let leased = Policy::builder("leased").limit(Limit::per_second(LEASED));
    [
        policy("one", Limit::per_second(ONE)),
        two.build().expect("a policy"),
        policy("count", count.expect("a limit")),
        leased.mode(Mode::Lease).build().expect("a policy"),
    ]
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
    pub(crate) fn start(url: &str, prefix: &str) -> Self {
        let program = std::env::current_exe().expect("this program");
        let start = || {
            let mut child = Command::new(&program)
                .args(["cluster::fleet::a_member_of_the_fleet", "--exact"])
                .args(["--ignored", "--nocapture"])
                .env("TIDEGATE_FLEET", url)
                .env("TIDEGATE_PREFIX", prefix)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("this program again");
            let output = child.stdout.take().expect("a pipe");
            (child, BufReader::new(output))
        };
        let mut members: Vec<_> = (0..PROCESSES).map(|_| start()).collect();
        for (_, output) in &mut members {
            let mut lines = output.lines().map(|line| line.expect("a line"));
            assert!(lines.any(|line| line.ends_with("@ ready")), "never ready");
        }
        Self(members)
    }

    /// Ends them. What they have met.
    pub(crate) fn stop(mut self) -> Report {
        for (member, _) in &mut self.0 {
            // That is what they wait for.
            drop(member.stdin.take());
        }
        let told = self.0.into_iter().map(|(mut member, mut output)| {
            let mut text = String::new();
            output.read_to_string(&mut text).expect("text");
            let status = member.wait().expect("a process of ours");
            assert!(status.success(), "a member has failed:\n{text}");
            Member::read(&text)
        });
        Report(told.collect())
    }
}

/// What has come of a check.
struct Asked {
    policy: &'static str,
    key: usize,
    took: Duration,
    /// When it was admitted, if it was; or the kind of the error.
    result: Result<Option<u64>, &'static str>,
}

async fn ask(limiter: Arc<SharedLimiter>, policy: &'static str, key: usize) -> Asked {
    let start = Instant::now();
    let attributes = attributes(key);
    let check = limiter.try_check(policy, &attributes, Cost::ONE);
    let checked = timeout(Duration::from_secs(30), check).await;
    let result = match checked.expect("no caller is stuck") {
        Ok(decision) => Ok(decision.allowed().then(|| decision.decided_at_us())),
        Err(TryCheckError::Store(error)) => Err(error.kind().as_str()),
        Err(error) => panic!("{error}"),
    };
    Asked {
        policy,
        key,
        took: start.elapsed(),
        result,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a process that other tests start"]
async fn a_member_of_the_fleet() {
    let variable = |name| std::env::var(name).expect("set by the test that starts it");
    let options = RedisOptions::default().timeout(DEADLINE);
    let options = options.prefix(variable("TIDEGATE_PREFIX"));
    let store = RedisStore::new(&variable("TIDEGATE_FLEET"), options).unwrap();
    let limiter = Arc::new(limiter_over(store, policies()));
    while ask(Arc::clone(&limiter), "two", 0).await.result.is_err() {}
    println!("@ ready");

    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    std::thread::spawn(move || {
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        stopped.store(true, Relaxed);
    });
    let answered: Arc<[AtomicBool; KEYS]> = Arc::default();
    let ready = || answered.iter().all(|key| key.load(Relaxed));
    let mut checks = JoinSet::new();
    let mut ticks = interval(Duration::from_secs(1) / RATE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut number = 0;
    let mut last = Instant::now();
    while !(stop.load(Relaxed) && ready()) && last.elapsed() < Duration::from_secs(30) {
        ticks.tick().await;
        let (policy, key) = (["one", "two", "count"][number % 3], number / 3 % KEYS);
        let (limiter, answered) = (Arc::clone(&limiter), Arc::clone(&answered));
        let is_late = stop.load(Relaxed);
        if !is_late {
            last = Instant::now();
        }
        // Three times what the fleet may have of it.
        let hot = ask(Arc::clone(&limiter), "leased", number % LEASED_KEYS);
        checks.spawn(hot);
        checks.spawn(async move {
            let asked = ask(limiter, policy, key).await;
            if is_late && policy == "count" && asked.result.is_ok() {
                answered[key].store(true, Relaxed);
            }
            asked
        });
        number += 1;
    }
    let mut errors: BTreeMap<_, u64> = BTreeMap::new();
    let mut latencies = Vec::new();
    for asked in checks.join_all().await {
        let Asked { policy, key, .. } = asked;
        latencies.push(asked.took.as_micros());
        match asked.result {
            Ok(Some(at_us)) => println!("@ admitted {policy} {key} {at_us}"),
            Ok(None) => {}
            Err(kind) => *errors.entry((policy, key, kind)).or_default() += 1,
        }
    }
    for ((policy, key, kind), count) in errors {
        println!("@ error {policy} {key} {kind} {count}");
    }
    latencies.sort_unstable();
    let rare = latencies[(latencies.len() * 999).div_ceil(1_000) - 1];
    let longest = latencies[latencies.len() - 1];
    println!("@ latency {rare} {longest} {}", latencies.len());
}
