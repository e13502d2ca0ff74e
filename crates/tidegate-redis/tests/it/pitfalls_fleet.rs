//! The pitfalls of time and fleets: many callers, many connections, many processes, one
//! limit.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use redis::Commands;
use tidegate::Limit;
use tidegate_redis::{Policies, RedisStore};
use tokio::task::JoinSet;

use crate::monitor::Monitor;
use crate::server::Server;
use crate::support::{
    YEAR, assert_used_by, check, every_algorithm, every_policy, limiter, limiter_over, look,
    patient, policy,
};

/// So many callers, each asking so often; how many are admitted.
async fn callers(
    limiter: &Arc<Policies>,
    policy: &'static str,
    callers: usize,
    each: usize,
) -> usize {
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let limiter = Arc::clone(limiter);
        tasks.spawn(async move {
            let mut admitted = 0;
            for _ in 0..each {
                let decision = check(&limiter, policy, &[("key", "all")]).await;
                admitted += usize::from(decision.allowed());
            }
            admitted
        });
    }
    tasks.join_all().await.into_iter().sum()
}

const PROCESSES: usize = 3;
const LIMIT: u32 = 500;

/// One process of the fleet: waits for the others, asks, and leaves its count in Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a process that the test below starts"]
async fn a_member_of_the_fleet() {
    let url = std::env::var("TIDEGATE_FLEET").expect("the url of the fleet's server");
    let mut redis = redis::Client::open(url.as_str())
        .and_then(|client| client.get_connection())
        .unwrap();
    let store = RedisStore::new(&url, patient().connections(4)).unwrap();
    let limiter = Arc::new(limiter_over(store, every_policy(LIMIT, YEAR)));
    let _: usize = redis.incr("ready", 1).unwrap();
    while redis.get::<_, usize>("ready").unwrap() < PROCESSES {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for (name, _) in every_algorithm(LIMIT, YEAR) {
        let admitted = callers(&limiter, name, 64, 20).await;
        let _: () = redis
            .rpush(format!("admitted by {name}"), admitted)
            .unwrap();
    }
}

#[test]
fn l1_three_processes_of_64_callers_and_4_connections_admit_the_limit_and_not_one_more() {
    let server = Server::start();
    let program = std::env::current_exe().unwrap();
    let member = "pitfalls_fleet::a_member_of_the_fleet";
    let start = || {
        Command::new(&program)
            .args([member, "--exact", "--ignored"])
            .env("TIDEGATE_FLEET", server.url())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let members: Vec<_> = (0..PROCESSES).map(|_| start()).collect();
    for mut member in members {
        assert!(member.wait().unwrap().success());
    }
    let mut redis = server.connect();
    for (name, _) in every_algorithm(LIMIT, YEAR) {
        let list = format!("admitted by {name}");
        let admitted: Vec<u32> = redis.lrange(list, 0, -1).unwrap();
        assert_eq!(admitted.len(), PROCESSES, "{name}");
        let all = admitted.iter().sum::<u32>();
        assert_eq!(all, LIMIT, "bound broken: {name}: {admitted:?}");
    }
}

#[tokio::test]
async fn no_clock_but_the_stores_decides() {
    let server = Server::start();
    let limiter = limiter(&server, every_policy(100, YEAR));
    let mut redis = server.connect();
    let mut monitor = Monitor::start(&server);
    let mut time_us = || {
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut redis).unwrap();
        seconds * 1_000_000 + micros
    };
    for (name, _) in every_algorithm(100, YEAR) {
        // The decision's time is the server's.
        let before = time_us();
        let decided = check(&limiter, name, &[("key", "a6")])
            .await
            .decided_at_us();
        assert!((before..=time_us()).contains(&decided), "{name}");
        monitor.commands();
        // And nothing is sent that tells one instant from another: the same question is
        // the same bytes at any time.
        let mut questions = Vec::new();
        for _ in 0..3 {
            let _ = check(&limiter, name, &[("key", "a6")]).await;
            let _ = look(&limiter, name, &[("key", "a6")]).await;
            tokio::time::sleep(Duration::from_millis(3)).await;
            let sent = monitor.commands().into_iter();
            questions.push(sent.filter(|it| !it.by_script).collect::<Vec<_>>());
        }
        assert_eq!(questions[0].len(), 2, "{name}");
        assert!(
            questions.iter().all(|it| *it == questions[0]),
            "{name}: {questions:?}"
        );
    }
}

/// A limit that comes back while somebody asks.
mod timing {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a6_t2_two_nodes_admit_what_one_may() {
        let server = Server::start();
        let nodes = [0; 2].map(|_| limiter(&server, [policy("p", Limit::per_second(100))]));
        assert_used_by(nodes, 2, Duration::from_secs(2), 100).await;
    }
}
