//! Checks of one hot key, to be counted by callgrind: in memory, and from a lease.

use tidegate::{
    Cost, Limit, Limiter, Mode, Policy, PolicyBuilder, PolicyLimiter, Question, Source,
};
use tidegate_redis::{RedisOptions, RedisStore};
use tokio::runtime::Builder;

use tidegate_testkit::redis::Server;

/// What is asked with.
const KEY: [(&str, &str); 1] = [("user", "203.0.113.7")];

/// Checks between two yields, so that the task that asks for leases gets its turn.
const TURN: usize = 64;

/// Makes so many checks, all of them admitted. `None` for a name that is none of these.
pub(crate) fn check(checks: usize, how: &str) -> Option<()> {
    match how {
        "hot-limiter" => in_memory(checks),
        "hot-policy" => through_policy(checks),
        "hot-lease" => from_lease(checks, Ask::Await),
        "hot-lease-at-once" => from_lease(checks, Ask::AtOnce),
        _ => return None,
    }
    Some(())
}

/// How to ask a limiter in the mode `lease`.
#[derive(Clone, Copy, PartialEq)]
enum Ask {
    /// As any other.
    Await,
    /// Only where it has a lease, without a future.
    AtOnce,
}

fn limit() -> Limit {
    Limit::per_second(100_000_000)
}

fn policy() -> PolicyBuilder {
    Policy::builder("api").key("{user}").limit(limit())
}

fn in_memory(checks: usize) {
    let limiter = Limiter::in_memory(limit());
    for _ in 0..checks {
        assert!(limiter.check(KEY[0].1).allowed());
    }
}

fn through_policy(checks: usize) {
    let policy = policy().build().expect("a policy that is right");
    let limiter = PolicyLimiter::in_memory(policy).expect("one limit");
    for _ in 0..checks {
        let decision = limiter.check(&KEY, Cost::ONE);
        assert!(decision.expect("the attribute is there").allowed());
    }
}

fn from_lease(checks: usize, ask: Ask) {
    let server = Server::start();
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let options = RedisOptions::default().timeout(std::time::Duration::from_secs(5));
        let store = RedisStore::new(&server.url(), options).expect("a valid URL");
        let policy = policy().mode(Mode::Lease).build();
        let policy = policy.expect("a policy that is right");
        let limiter = tidegate_redis::PolicyLimiter::over(store, policy).expect("one policy");
        let mut leased = 0;
        for number in 0..checks {
            let at_once = match ask {
                Ask::Await => None,
                Ask::AtOnce => limiter.now(&Question::new(&KEY, Cost::ONE)),
            };
            let decision = match at_once {
                Some(decision) => decision,
                None => {
                    let decision = limiter.check(&KEY, Cost::ONE).await;
                    decision.expect("the attribute is there")
                }
            };
            assert!(decision.allowed());
            leased += usize::from(decision.source() == Source::Lease);
            if number.is_multiple_of(TURN) {
                tokio::task::yield_now().await;
            }
        }
        assert!(
            leased * 100 >= checks * 99,
            "{leased} of {checks} are from leases"
        );
    });
}
