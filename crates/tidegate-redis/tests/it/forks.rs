//! A process that forks while it has leases: its child has a copy of them, and must neither
//! spend nor return it.
//!
//! A forked child has only the thread that forked, so the process that does it is this
//! program again, with one thread that asks.

use std::pin::pin;
use std::process::Command;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::{Cost, Limit, Mode, Policy, Source};
use tidegate_redis::{Policies, RedisStore};

use crate::server::Server;
use crate::support::{Named, YEAR, limiter, limiter_over, look, patient, policy};

const KEY: [(&str, &str); 1] = [("key", "a")];

/// What is allowed in all.
const ALLOWED: u32 = 1_000;

/// Tokens that the parent has when it forks, at least.
const HERE: u64 = 3;

#[tokio::test]
async fn forked_child_does_not_spend_or_return_the_leases_of_its_parent() {
    let server = Server::start();
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program)
        .args(["forks::a_process_that_forks", "--exact"])
        .args(["--ignored", "--nocapture"])
        .env("TIDEGATE_FORKS", server.url())
        .output()
        .expect("this program again");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let admitted = text.lines().find_map(|line| line.split_once("admitted "));
    let admitted: u32 = admitted.expect("a count").1.parse().expect("a count");
    // The parent has spent on and returned the rest: nobody has returned it before.
    let exact = limiter(&server, [policy("p", Limit::per(ALLOWED, YEAR))]);
    let left = look(&exact, "p", &KEY).await.remaining();
    // Where the machine stalls, a check that nobody waits for may have been charged.
    assert!(left <= ALLOWED - admitted, "{left} left, {text}");
}

/// Checks without waiting for the store: who has decided, if anybody has.
fn decided_at_once(limiter: &Policies) -> Option<Source> {
    let check = pin!(limiter.check("p", &KEY, Cost::ONE));
    match check.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(decision) => Some(decision.expect("a policy").source()),
        Poll::Pending => None,
    }
}

/// Whether a child has something of its parent's.
fn has_leases(limiter: &Policies) -> bool {
    let spends = (0..HERE).any(|_| decided_at_once(limiter) == Some(Source::Lease));
    let stats = limiter.of("p").lease_stats().expect("the mode lease");
    spends || stats.leased_tokens > 0
}

#[tokio::test]
#[ignore = "a process that another test starts"]
#[expect(unsafe_code, reason = "it forks, as a program in another language may")]
async fn a_process_that_forks() {
    let url = std::env::var("TIDEGATE_FORKS").expect("set by the test that starts it");
    let policy = Policy::builder("p").limit(Limit::per(ALLOWED, YEAR));
    let policy = policy.mode(Mode::Lease).build().expect("a policy");
    let limiter = limiter_over(RedisStore::new(&url, patient()).expect("a url"), [policy]);
    let tokens = || {
        limiter
            .of("p")
            .lease_stats()
            .expect("the mode lease")
            .leased_tokens
    };
    let mut admitted = 0;
    while tokens() < HERE + 2 || decided_at_once(&limiter) != Some(Source::Lease) {
        assert!(admitted < ALLOWED / 2, "it never leases");
        let decision = limiter.check("p", &KEY, Cost::ONE).await;
        admitted += u32::from(decision.expect("a policy").allowed());
    }
    admitted += 1;
    // SAFETY: the child only checks, on the one thread that uses the limiter, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = i32::from(has_leases(&limiter));
        // SAFETY: it ends here, without what its parent has set up for its own end.
        unsafe { libc::_exit(code) }
    }
    assert!(child > 0, "it cannot fork");
    let mut status = 0;
    // SAFETY: a child of ours, and a place for what became of it.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0), "the child has leases");
    for _ in 0..HERE {
        admitted += u32::from(decided_at_once(&limiter) == Some(Source::Lease));
    }
    assert!(limiter.flush(Duration::from_secs(20)).await);
    println!("admitted {admitted}");
}
