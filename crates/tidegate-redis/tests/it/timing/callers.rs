//! Callers that are too many, that give up, and whose runtime ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use tidegate_redis::{ErrorKind, RedisOptions};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::rig::{MS, Rig, until};
use crate::proxy::Replies;
use crate::server::Server;
use crate::support::patient;

/// So many checks at once, each of a key of its own: their errors, and how long they took.
async fn at_once(rig: &Rig, checks: usize) -> Vec<(ErrorKind, Duration)> {
    let mut set = JoinSet::new();
    for number in 0..checks {
        let rig = rig.clone();
        set.spawn(async move {
            let start = Instant::now();
            let error = rig.error(number).await;
            error.map(|kind| (kind, start.elapsed()))
        });
    }
    set.join_all().await.into_iter().flatten().collect()
}

fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

/// On one thread, so that nothing leaves the queue while it is being filled.
#[tokio::test]
async fn a_queue_that_is_full_says_so_at_once() {
    let server = Server::start();
    let rig = Rig::with(&server.url(), patient().connections(1));
    rig.until_answered().await;
    let mut errors = at_once(&rig, 10_000).await;
    errors.sort_unstable_by_key(|(_, took)| *took);
    println!("queue full: {} of 10000", errors.len());
    assert!(!errors.is_empty() && errors.len() <= 10_000 - 8_192);
    assert!(errors.iter().all(|it| it.0 == ErrorKind::QueueFull));
    let median = errors[errors.len() / 2].1;
    assert!(median < 5 * MS, "{median:?}");
    // The others had their answer, and it is no fault of the store.
    assert_eq!(rig.errors(), errors.len() as u64);
    assert!(!rig.is_open());
}

/// The server answers, but the checks are so many that some of them wait here, behind the
/// others, for longer than their deadline.
#[tokio::test]
async fn v6_time_in_the_queue_of_this_process_does_not_open_the_breaker() {
    // Longer than the machine stalls.
    let options = RedisOptions::default().connections(1).timeout(2_000 * MS);
    let (_server, proxy, rig) = Rig::behind_a_proxy(options).await;
    // Three batches of 512 per half second: there are more than go out within a deadline.
    proxy.set(Replies::Delay(500 * MS));
    let errors = at_once(&rig, 8_000).await;
    let count = |kind| errors.iter().filter(|it| it.0 == kind).count();
    let (full, late) = (count(ErrorKind::QueueFull), count(ErrorKind::Timeout));
    println!("of 8000 checks, {full} were not sent in time, and {late} not answered");
    assert!(full > 500, "{full}");
    assert_eq!(errors.len(), full + late, "the breaker was open");
    assert!(!rig.is_open());
}

#[tokio::test]
async fn callers_that_give_up_are_not_charged_later_and_leave_nothing_behind() {
    let server = Server::start();
    let rig = Rig::with(&server.url(), RedisOptions::default().connections(1));
    rig.until_answered().await;
    let before = tasks();
    server.signal("STOP");
    // As many batches as may be on their way, and then many who wait behind them.
    for number in 0..2_000 {
        // On a busy machine, its own deadline may come first.
        let left = timeout(MS / 10, rig.error("gone")).await;
        assert_ne!(left, Ok(None));
        assert!(number != 1_000 || tasks() <= before + 4);
    }
    server.signal("CONT");
    rig.until_answered().await;
    let used = rig.used("allow", "gone").await;
    assert!(used <= 3, "bound broken: {used} of 2000 charged");
    until("nothing is left", async || tasks() <= before).await;
}

/// Memory is bounded: whatever waits is in the queue, and a few batches.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_piles_nothing_up() {
    let server = Server::start();
    let rig = Rig::new(&server.url());
    rig.until_answered().await;
    let before = tasks();
    for _ in 0..2 {
        server.signal("STOP");
        rig.until_open().await;
        let (start, mut checks) = (Instant::now(), 0);
        while start.elapsed() < 800 * MS || checks <= 2_000 {
            let _ = rig.check("deny", checks % 100).await;
            checks += 1;
            if checks % 100 == 0 {
                // Two lanes, each with a few batches, a connection, one in the making.
                let alive = tasks();
                assert!(alive <= before + 10, "{alive} {before}");
                tokio::task::yield_now().await;
            }
        }
        let questions = rig.store.stats().questions;
        assert!(questions < 200, "{questions} questions for {checks} checks");
        server.signal("CONT");
        rig.until_answered().await;
    }
    until("nothing is left", async || tasks() <= before).await;
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
        assert!(runtime().block_on(rig.is_answered()));
    }
    assert_eq!(rig.errors(), 0);
}

#[test]
fn a_caller_without_a_runtime_breaks_nothing_for_others() {
    let server = Server::start();
    let rig = Rig::new(&server.url());
    let alone = catch_unwind(AssertUnwindSafe(|| {
        let check = pin!(rig.check("deny", 1));
        let mut context = Context::from_waker(Waker::noop());
        check.poll(&mut context).is_ready()
    }));
    // It is a mistake, and is told so by the runtime it does not have.
    assert!(alone.is_err());
    runtime().block_on(rig.until_answered());
}
