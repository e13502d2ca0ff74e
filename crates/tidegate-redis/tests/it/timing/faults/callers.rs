//! Callers that are too many, that give up, and whose runtime ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use tidegate::Source;
use tidegate_redis::{ErrorKind, RedisOptions};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Rig, until};
use crate::proxy::{Proxy, Replies};
use crate::server::Server;
use crate::support::patient;

const MS: Duration = Duration::from_millis(1);

/// On one thread, so that nothing leaves the queue while it is being filled.
#[tokio::test]
async fn a_queue_that_is_full_says_so_at_once() {
    let server = Server::start();
    let options = patient().connections(1);
    let rig = Rig::with(&server.url(), options);
    rig.until_answered().await;
    let mut checks = JoinSet::new();
    for number in 0..10_000 {
        let rig = rig.clone();
        checks.spawn(async move {
            let start = Instant::now();
            (rig.error(&number.to_string()).await, start.elapsed())
        });
    }
    let checks = checks.join_all().await;
    let full = checks
        .iter()
        .filter(|it| it.0 == Some(ErrorKind::QueueFull));
    let mut full: Vec<Duration> = full.map(|(_, took)| *took).collect();
    full.sort_unstable();
    println!("queue full: {} of 10000", full.len());
    assert!(!full.is_empty() && full.len() <= 10_000 - 8_192);
    assert!(full[full.len() / 2] < 5 * MS, "{:?}", full[full.len() / 2]);
    // The others had their answer, and it is no fault of the store.
    assert_eq!(rig.errors(), full.len() as u64);
    assert!(!rig.store.stats().breaker_open);
}

/// The server answers, but the checks are so many that some of them wait here, behind the
/// others, for longer than their deadline.
#[tokio::test]
async fn v6_time_in_the_queue_of_this_process_does_not_open_the_breaker() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    // Longer than the machine stalls.
    let options = RedisOptions::default().connections(1).timeout(2_000 * MS);
    let rig = Rig::with(&proxy.url(), options);
    rig.until_answered().await;
    // Three batches of 512 per half second: there are more than go out within a deadline.
    proxy.set(Replies::Delay(500 * MS));
    let mut checks = JoinSet::new();
    for number in 0..8_000 {
        let rig = rig.clone();
        checks.spawn(async move { rig.error(&number.to_string()).await });
    }
    let errors: Vec<ErrorKind> = checks.join_all().await.into_iter().flatten().collect();
    let count = |kind| errors.iter().filter(|it| **it == kind).count();
    let (full, late) = (count(ErrorKind::QueueFull), count(ErrorKind::Timeout));
    println!("of 8000 checks, {full} were not sent in time, and {late} not answered");
    assert!(full > 500, "{full}");
    assert_eq!(errors.len(), full + late, "the breaker was open");
    assert!(!rig.store.stats().breaker_open);
}

#[tokio::test]
async fn callers_that_give_up_are_not_charged_later_and_leave_nothing_behind() {
    let server = Server::start();
    let rig = Rig::with(&server.url(), RedisOptions::default().connections(1));
    rig.until_answered().await;
    let tasks = Handle::current().metrics().num_alive_tasks();

    server.signal("STOP");
    // As many batches as may be on their way, and then many who wait behind them.
    for number in 0..2_000 {
        // On a busy machine, its own deadline may come first.
        let left = timeout(MS / 10, rig.error("gone")).await;
        assert_ne!(left, Ok(None));
        if number == 1_000 {
            assert!(Handle::current().metrics().num_alive_tasks() <= tasks + 4);
        }
    }
    server.signal("CONT");
    rig.until_answered().await;
    let used = rig.used("gone").await;
    println!("given up: {used} of 2000 had left already");
    assert!(used <= 3, "bound broken: {used} charged");
    until("nothing is left", || {
        Handle::current().metrics().num_alive_tasks() <= tasks
    })
    .await;
}

/// Memory is bounded: whatever waits is in the queue, and a few batches.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_piles_nothing_up() {
    let server = Server::start();
    let rig = Rig::new(&server.url());
    rig.until_answered().await;
    let tasks = Handle::current().metrics().num_alive_tasks();
    for _ in 0..2 {
        server.signal("STOP");
        rig.until_open().await;
        let start = Instant::now();
        let mut asked = 0;
        while start.elapsed() < 1_500 * MS || asked <= 2_000 {
            for number in 0..100 {
                let _ = rig.check("deny", &number.to_string()).await;
                asked += 1;
            }
            let alive = Handle::current().metrics().num_alive_tasks();
            // Two lanes, each with a few batches, a connection, one in the making.
            assert!(alive <= tasks + 10, "{alive} {tasks}");
            tokio::task::yield_now().await;
        }
        let questions = rig.store.stats().questions;
        println!("outage: {asked} asked, {questions} questions so far");
        assert!(questions < 200, "{questions}");
        server.signal("CONT");
        rig.until_answered().await;
    }
    until("nothing is left", || {
        Handle::current().metrics().num_alive_tasks() <= tasks
    })
    .await;
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn a_runtime_that_ends_does_not_take_the_store_with_it() {
    let server = Server::start();
    // The clock of one runtime may be late when another one has just started.
    let rig = Rig::with(&server.url(), patient());
    for _ in 0..3 {
        let runtime = runtime();
        for id in 0..16 {
            let decision = runtime.block_on(async {
                let decision = rig.check("deny", &id.to_string()).await;
                decision.source()
            });
            assert_eq!(decision, Source::Store);
        }
        drop(runtime);
    }
    assert_eq!(rig.errors(), 0);
}

#[test]
fn a_caller_without_a_runtime_breaks_nothing_for_others() {
    let server = Server::start();
    let rig = Rig::new(&server.url());
    let alone = catch_unwind(AssertUnwindSafe(|| {
        let check = pin!(rig.check("deny", "1"));
        let mut context = Context::from_waker(Waker::noop());
        check.poll(&mut context).is_ready()
    }));
    // It is a mistake, and is told so by the runtime it does not have.
    assert!(alone.is_err());
    let runtime = runtime();
    runtime.block_on(rig.until_answered());
}
