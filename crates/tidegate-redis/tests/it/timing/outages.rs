//! What an outage or a stall of the server does to the checks of one busy key. The figures
//! are printed.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tidegate::{Cost, Limit, Mode, OnError, Policy, PolicyBuilder, Source};
use tidegate_redis::{RedisOptions, RedisStore, SharedLimiter};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::server::Server;

const MS: Duration = Duration::from_millis(1);

fn limiter(server: &Server, policy: PolicyBuilder) -> Arc<SharedLimiter> {
    let store = RedisStore::new(&server.url(), RedisOptions::default()).expect("a url");
    let policy = policy.build().expect("a policy");
    let limiter = SharedLimiter::new([("default", store)], [policy]);
    Arc::new(limiter.expect("a policy of one store"))
}

/// What came of a check.
struct Checked {
    start: Instant,
    took: Duration,
    allowed: bool,
    source: Source,
}

async fn check(limiter: &SharedLimiter) -> Checked {
    let start = Instant::now();
    let decision = limiter.check("p", &[("key", "a")], Cost::ONE).await;
    let decision = decision.expect("a policy");
    Checked {
        start,
        took: start.elapsed(),
        allowed: decision.allowed(),
        source: decision.source(),
    }
}

/// So many checks per second for a while, none of which waits for another.
async fn load(limiter: &Arc<SharedLimiter>, rate: u32, time: Duration) -> Vec<Checked> {
    let mut ticks = interval(Duration::from_secs(1) / rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut checks = JoinSet::new();
    for _ in 0..time.as_millis() * u128::from(rate) / 1_000 {
        ticks.tick().await;
        let limiter = Arc::clone(limiter);
        checks.spawn(async move { check(&limiter).await });
    }
    checks.join_all().await
}

/// The times at which this process did not run, because the machine was busy.
struct Stalls(Arc<Mutex<Vec<(Instant, Instant)>>>, JoinHandle<()>);

impl Stalls {
    fn watch() -> Self {
        let stalls = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&stalls);
        let watch = async move {
            loop {
                let due = Instant::now() + MS;
                sleep(MS).await;
                if due.elapsed() > 2 * MS {
                    seen.lock().expect("no panic").push((due, Instant::now()));
                }
            }
        };
        Self(stalls, tokio::spawn(watch))
    }

    fn longest(&self) -> Duration {
        let stalls = self.0.lock().expect("no panic");
        let lengths = stalls.iter().map(|(from, to)| *to - *from);
        lengths.max().unwrap_or_default()
    }

    /// How much of the time that a check took was none of these.
    fn without(&self, check: &Checked) -> Duration {
        let end = check.start + check.took;
        let stalls = self.0.lock().expect("no panic");
        let overlaps = stalls.iter().map(|(from, to)| {
            (*to)
                .min(end)
                .saturating_duration_since((*from).max(check.start))
        });
        check.took.saturating_sub(overlaps.sum())
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.1.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn u1_checks_do_not_wait_for_a_store_that_is_known_to_be_down() {
    let stalls = Stalls::watch();
    let outage = async |mode: Mode, is_killed: bool| {
        let mut server = Server::start();
        let policy = Policy::builder("p").limit(Limit::per_second(1_000_000));
        let limiter = limiter(&server, policy.mode(mode));
        load(&limiter, 500, 1_000 * MS).await;
        match is_killed {
            true => server.kill(),
            false => server.signal("STOP"),
        }
        let checks = load(&limiter, 500, 10_000 * MS).await;
        let is_long = |check: &&Checked| stalls.without(check) > 40 * MS;
        (mode, is_killed, checks.iter().filter(is_long).count())
    };
    let modes = [Mode::Exact, Mode::Lease, Mode::Background];
    let outages = modes.map(|mode| [outage(mode, false), outage(mode, true)]);
    for (mode, is_killed, long) in join_all(outages.into_iter().flatten()).await {
        let how = if is_killed { "killed" } else { "stopped" };
        println!("{mode:?}, {how}: {long} of 5000 checks took more than 40 ms");
        assert!(long <= 20, "{mode:?}, {how}: {long}");
    }
}

/// What passed while callers asked for more than the limit and the server stalled for 60 ms:
/// how much that is above the limit, and how long anybody has waited for the server or for
/// this process.
async fn stall(policy: PolicyBuilder) -> (Vec<Checked>, f64, Duration) {
    let server = Server::start_with(&["--enable-debug-command", "local"]);
    let limiter = limiter(&server, policy.limit(Limit::per_second(100)));
    let (stalls, start) = (Stalls::watch(), Instant::now());
    let callers = (0..32).map(|_| {
        let limiter = Arc::clone(&limiter);
        tokio::spawn(async move {
            let mut ticks = interval(16 * MS);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let mut passed = Vec::new();
            while start.elapsed() < 2_000 * MS {
                ticks.tick().await;
                let checked = check(&limiter).await;
                passed.extend(Some(checked).filter(|it| it.allowed));
            }
            passed
        })
    });
    let callers: Vec<_> = callers.collect();
    let mut connections = [server.connect(), server.connect()];
    let pings = tokio::task::spawn_blocking(move || {
        let mut longest = Duration::ZERO;
        let mut is_slept = false;
        while start.elapsed() < 2_000 * MS {
            let [ping, sleep] = &mut connections;
            if !is_slept && start.elapsed() > 1_000 * MS {
                is_slept = true;
                let command = redis::cmd("DEBUG")
                    .arg(&["SLEEP", "0.06"][..])
                    .get_packed_command();
                sleep.send_packed_command(&command).expect("a command");
            }
            let asked = Instant::now();
            redis::cmd("PING").query::<()>(ping).expect("an answer");
            longest = longest.max(asked.elapsed());
            std::thread::sleep(MS);
        }
        longest
    });
    let mut passed = Vec::new();
    for caller in callers {
        passed.extend(caller.await.expect("no panic"));
    }
    let bound = 100.0 + 100.0 * start.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
    let above = passed.len() as f64 - bound;
    let silent = pings.await.expect("no panic").max(stalls.longest());
    (passed, above, silent)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn u7_stall_of_60_ms_lets_little_more_than_the_limit_pass() {
    let (passed, above, silent) = stall(Policy::builder("p")).await;
    println!(
        "on_error local, a stall of {silent:?}: {} passed, {above:.1} above the limit",
        passed.len()
    );
    // On a machine that is busy, the server is silent for longer.
    let longer = silent.saturating_sub(60 * MS).as_secs_f64();
    assert!(above <= 10.0 + 100.0 * longer, "{above} above the limit");

    let (passed, above, silent) = stall(Policy::builder("p").on_error(OnError::Allow)).await;
    let unasked = passed.iter().filter(|it| it.source == Source::ErrorPolicy);
    let waited: Vec<Duration> = unasked.map(|it| it.took).collect();
    println!(
        "on_error allow, a stall of {silent:?}: {} passed, {above:.1} above the limit, {} of them after {:?}",
        passed.len(),
        waited.len(),
        waited.iter().min()
    );
    // A server that is silent for longer is taken for one that is down.
    if silent < 66 * MS {
        let is_whole = |it: &Duration| *it >= 50 * MS;
        assert!(
            waited.iter().all(is_whole),
            "passed without waiting: {waited:?}"
        );
    }
}
