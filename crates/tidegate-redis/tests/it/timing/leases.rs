//! Real processes in the mode `lease`: this program, started again, asks ten times what
//! its limit allows, is stopped, continued and killed.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tidegate::audit::{Audit, Record};
use tidegate::{Cost, Limit, Mode, Policy, Source};
use tidegate_redis::{RedisStore, SharedLimiter};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::server::Server;
use crate::support::{limiter, limiter_over, look, patient, policy};

const KEY: [(&str, &str); 1] = [("key", "a")];

/// Requests per second that are allowed, and that each of three processes asks for.
const ALLOWED: u32 = 300;
const ASKED: u32 = 1_000;

fn leasing(store: RedisStore) -> SharedLimiter {
    let policy = Policy::builder("p").limit(Limit::per_second(ALLOWED));
    let policy = policy.mode(Mode::Lease).build();
    limiter_over(store, [policy.expect("a policy")])
}

/// A process that asks until it is told to stop.
struct Member(Child, BufReader<ChildStdout>);

impl Member {
    /// Starts it, and waits until it has spent a token of a lease.
    fn start(server: &Server) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .args(["timing::leases::a_member", "--exact"])
            .args(["--ignored", "--nocapture"])
            .env("TIDEGATE_FLEET", server.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program again");
        let output = child.stdout.take().expect("a pipe");
        Self(child, BufReader::new(output))
    }

    fn signal(&self, signal: &str) {
        let kill = Command::new("kill")
            .args([&format!("-{signal}"), &self.0.id().to_string()])
            .status();
        assert!(kill.expect("kill").success());
    }

    /// Ends it. When its requests were admitted, and how many of them from a lease.
    fn stop(mut self) -> (Vec<u64>, usize) {
        drop(self.0.stdin.take());
        let mut text = String::new();
        self.1.read_to_string(&mut text).expect("text");
        assert!(
            self.0.wait().expect("a process of ours").success(),
            "{text}"
        );
        let lines = || {
            text.lines()
                .filter_map(|line| Some(line.split_once("@ ")?.1))
        };
        let leased = lines().filter(|line| line.ends_with("lease")).count();
        let at = lines().filter_map(|line| line.split(' ').next()?.parse().ok());
        (at.collect(), leased)
    }
}

/// Holds what a fleet has admitted to the bound, and to most of it.
fn judge(members: Vec<Member>) {
    let told: Vec<(Vec<u64>, usize)> = members.into_iter().map(Member::stop).collect();
    let leased: usize = told.iter().map(|(_, leased)| leased).sum();
    let all: Vec<u64> = told.into_iter().flat_map(|(at, _)| at).collect();
    let mut audit = Audit::new(Limit::per_second(ALLOWED));
    for at_us in &all {
        audit.push(&Record::admitted("a", *at_us, Cost::ONE));
    }
    let verdict = audit.verdict();
    assert!(verdict.held(), "bound broken: {:?}", verdict.broken);
    let span = all.iter().max().zip(all.iter().min());
    let span_us = span.map_or(0, |(last, first)| last - first);
    let allowed = u64::from(ALLOWED) * span_us / 1_000_000;
    let admitted = all.len() as u64;
    assert!(admitted * 100 >= allowed * 99, "{admitted} of {allowed}");
    assert!(leased * 2 > all.len(), "{leased} of {admitted} from leases");
}

#[tokio::test]
async fn three_processes_at_ten_times_the_limit_use_it_and_keep_to_it() {
    let server = Server::start();
    let members: Vec<Member> = (0..3).map(|_| Member::start(&server)).collect();
    sleep(Duration::from_secs(10)).await;
    judge(members);
}

#[tokio::test]
async fn process_that_is_stopped_for_five_seconds_does_not_pass_the_limit() {
    let server = Server::start();
    let members: Vec<Member> = (0..3).map(|_| Member::start(&server)).collect();
    sleep(Duration::from_secs(2)).await;
    members[0].signal("STOP");
    sleep(Duration::from_secs(5)).await;
    members[0].signal("CONT");
    sleep(Duration::from_secs(2)).await;
    judge(members);
}

#[tokio::test]
async fn tokens_of_a_process_that_is_killed_come_back() {
    let server = Server::start();
    let mut member = Member::start(&server);
    let mut lines = (&mut member.1).lines().map(|line| line.expect("a line"));
    assert!(lines.any(|line| line.ends_with("lease")), "it never leases");
    member.0.kill().expect("a process of ours");
    member.0.wait().expect("a process of ours");
    let exact = limiter(&server, [policy("p", Limit::per_second(ALLOWED))]);
    // Within a second its leases end, and in another one everything has drained.
    let full_in = look(&exact, "p", &KEY).await.reset_after();
    assert!(full_in <= Duration::from_secs(2), "{full_in:?}");
    sleep(full_in + Duration::from_millis(20)).await;
    assert_eq!(look(&exact, "p", &KEY).await.remaining(), ALLOWED);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a process that other tests start"]
async fn a_member() {
    let url = std::env::var("TIDEGATE_FLEET").expect("set by the test that starts it");
    let limiter = leasing(RedisStore::new(&url, patient()).expect("a url"));
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    std::thread::spawn(move || {
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        stopped.store(true, Relaxed);
    });
    let mut ticks = interval(Duration::from_secs(1) / ASKED);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    while !stop.load(Relaxed) {
        ticks.tick().await;
        let decision = limiter.check("p", &KEY, Cost::ONE).await.expect("a policy");
        let is_bound = !matches!(decision.source(), Source::ErrorPolicy | Source::Local);
        if decision.allowed() && is_bound {
            println!(
                "@ {} {}",
                decision.decided_at_us(),
                decision.source().as_str()
            );
        }
    }
    assert!(limiter.flush(Duration::from_secs(20)).await);
}
