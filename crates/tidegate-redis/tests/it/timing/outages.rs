//! What an outage or a stall of the server does to the checks of one busy key.

use std::time::Duration;

use futures_util::future::join_all;
use redis::Connection;
use tidegate::{Limit, Mode, OnError, Policy, PolicyBuilder, Source};
use tidegate_redis::RedisOptions;
use tidegate_testkit::cluster::run;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::load::{self, Load};
use super::rig::{DEADLINE, MS, Rig};
use crate::server::Server;

fn rig(server: &Server, policy: PolicyBuilder, rate: u32) -> Rig {
    let policy = policy.key("{id}").limit(Limit::per_second(rate));
    let policy = policy.build().expect("a policy");
    Rig::of(&server.url(), RedisOptions::default(), [policy])
}

/// Once the store is known to be down, at most one check per second waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn u1_checks_do_not_wait_for_a_store_that_is_known_to_be_down() {
    let outage = async |mode: Mode, is_killed: bool| {
        let mut server = Server::start();
        let rig = rig(&server, Policy::builder("p").mode(mode), 1_000_000);
        let load = load::start(&rig, 500, 1);
        sleep(1_000 * MS).await;
        match is_killed {
            true => server.kill(),
            false => server.signal("STOP"),
        }
        // The breaker opens when the server has been silent for 70 ms.
        let known = Instant::now().into_std() + 200 * MS;
        let Load(checks) = load.stop_after(5_000 * MS).await;
        let is_long = |it: &&load::Check| it.start > known && it.took_here() > 40 * MS;
        (mode, is_killed, checks.iter().filter(is_long).count())
    };
    let modes = [Mode::Exact, Mode::Lease, Mode::Background];
    let outages = modes.map(|mode| [outage(mode, false), outage(mode, true)]);
    for (mode, is_killed, long) in join_all(outages.into_iter().flatten()).await {
        let how = if is_killed { "killed" } else { "stopped" };
        assert!(long <= 5, "{mode:?}, {how}: {long} checks waited");
    }
}

/// Lets the server stall for 60 ms after a second, and returns the longest time for which it was
/// silent within two: on a machine that is busy, that is longer.
fn stall(mut redis: Connection) -> Duration {
    let (start, mut longest, mut has_slept) = (Instant::now(), Duration::ZERO, false);
    while start.elapsed() < 2_000 * MS {
        let sent = Instant::now();
        let is_time = !has_slept && start.elapsed() > 1_000 * MS;
        match is_time {
            true => run::<()>(&mut redis, "DEBUG SLEEP 0.06"),
            false => run::<()>(&mut redis, "PING"),
        }
        has_slept |= is_time;
        longest = longest.max(sent.elapsed());
        std::thread::sleep(MS);
    }
    longest
}

/// What passed while callers asked for twenty times the limit and the server stalled: the
/// checks, how many they are above the limit, and how long the server or this process was
/// silent.
async fn passed(policy: PolicyBuilder) -> (Vec<load::Check>, f64, Duration) {
    let server = Server::start_with(&["--enable-debug-command", "local"]);
    let (rig, start) = (rig(&server, policy, 100), Instant::now());
    let load = load::start(&rig, 2_000, 1);
    let redis = server.connect();
    let silent = spawn_blocking(|| stall(redis)).await.expect("no panic");
    let Load(mut checks) = load.stop_after(Duration::ZERO).await;
    let late = checks.iter().map(|it| it.late).max();
    checks.retain(|it| it.is_allowed);
    let bound = 100.0 + 100.0 * start.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
    let above = checks.len() as f64 - bound;
    (checks, above, silent.max(late.unwrap_or_default()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn u7_stall_of_60_ms_lets_little_more_than_the_limit_pass() {
    let (checks, above, silent) = passed(Policy::builder("p")).await;
    let count = checks.len();
    println!("on_error local, silent for {silent:?}: {count} passed, {above:.1} above the limit");
    let longer = silent.saturating_sub(60 * MS).as_secs_f64();
    assert!(above <= 10.0 + 100.0 * longer, "{above} above the limit");

    let (checks, _, silent) = passed(Policy::builder("p").on_error(OnError::Allow)).await;
    let mut unasked = checks.iter().filter(|it| it.source == Source::ErrorPolicy);
    // A server that is silent for longer is taken for one that is down.
    let is_whole = silent >= 66 * MS || unasked.all(|it| it.took >= DEADLINE);
    assert!(is_whole, "passed without waiting, silent for {silent:?}");
}
