//! `on_error = "local"`: an outage goes on where the store left off, and a store that comes and
//! goes does not hand out a new burst each time.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Cost, Limit, Mode, OnError, Policy, PolicyBuilder, Source};
use tidegate_redis::{ErrorKind, RedisOptions};
use tidegate_testkit::cluster::run;

use super::rig::{DEADLINE, MS, Rig, until};
use crate::proxy::{Proxy, Replies};
use crate::server::Server;
use crate::support::Named;

fn policy(limit: &str) -> PolicyBuilder {
    let limit = Limit::parse(limit).unwrap();
    let policy = Policy::builder("api").key("{id}").limit(limit);
    policy
        .on_error(OnError::Local)
        .refusal_memory(Duration::ZERO)
}

/// With a deadline so long that only what a test is about fails.
fn rig(url: &str, policy: PolicyBuilder) -> Rig {
    let options = RedisOptions::default().timeout(1_500 * MS);
    Rig::of(url, options, [policy.build().unwrap()])
}

/// Whether it was admitted, and by whom.
async fn check(rig: &Rig) -> (bool, Source) {
    let decision = rig.check("api", 1).await;
    (decision.allowed(), decision.source())
}

/// The store's error about a look, which charges nothing.
async fn look(rig: &Rig) -> Option<ErrorKind> {
    let looked = rig.limiter.of("api").peek(&[("id", "1")], Cost::ONE).await;
    looked.err().map(|error| crate::user::kind(&error))
}

/// Checks that this process admits alone before it refuses.
async fn admitted_alone(rig: &Rig) -> usize {
    // So many at once wait together, and then nobody waits.
    let looks = async || tokio::join!(look(rig), look(rig), look(rig), look(rig), look(rig)).0;
    while looks().await != Some(ErrorKind::BreakerOpen) {}
    let mut admitted = 0;
    loop {
        match check(rig).await {
            (true, Source::Local) => admitted += 1,
            (false, Source::Local) => return admitted,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn an_outage_goes_on_where_the_store_left_off() {
    let mut server = Server::start();
    let mut rig = rig(&server.url(), policy("10/1h"));
    for _ in 0..7 {
        assert_eq!(check(&rig).await, (true, Source::Store));
    }
    server.kill();
    assert_eq!(admitted_alone(&rig).await, 3);
    // Another limiter over the same store has the same counts.
    for (limit, more) in [("10/1h", 0), ("12/1h", 2)] {
        let changed = rig.limiter.changed([policy(limit).build().unwrap()]);
        rig.limiter = Arc::new(changed.unwrap());
        assert_eq!(admitted_alone(&rig).await, more, "{limit}");
    }
}

/// What was spent of leases counts, though no check was charged here.
#[tokio::test]
async fn an_outage_goes_on_where_leases_left_off() {
    let mut server = Server::start();
    let limit = Limit::parse("1000/1h fixed_window").unwrap();
    let policy = Policy::builder("api").key("{id}").limit(limit);
    let rig = rig(&server.url(), policy.mode(Mode::Lease));
    let mut leased = 0;
    for _ in 0..700 {
        let (allowed, source) = check(&rig).await;
        assert!(allowed);
        leased += usize::from(source == Source::Lease);
    }
    assert!(leased > 300, "{leased} from leases");
    server.kill();
    let mut admitted = 700;
    while check(&rig).await.0 {
        admitted += 1;
    }
    assert_eq!(admitted, 1_000);
}

#[tokio::test]
async fn a_node_has_its_share() {
    let mut server = Server::start();
    server.kill();
    for (share, wait) in [(1.0, 360), (0.5, 720), (0.1, 3_600)] {
        // Nobody answers, so nobody need wait for it.
        let options = RedisOptions::default().timeout(DEADLINE);
        let policy = policy("10/1h").local_share(share).build().unwrap();
        let rig = Rig::of(&server.url(), options, [policy]);
        assert_eq!(admitted_alone(&rig).await, 10);
        let retry_after = rig.check("api", 1).await.retry_after().unwrap();
        // The time that this took has passed of it.
        let passed = Duration::from_secs(wait).checked_sub(retry_after);
        assert!(
            passed.is_some_and(|it| it < 30_000 * MS),
            "{share}: {retry_after:?}"
        );
    }
}

#[tokio::test]
async fn a_store_that_comes_and_goes_hands_out_one_burst() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let rig = rig(&proxy.url(), policy("10/1h"));
    let mut alone = 0;
    for _ in 0..4 {
        until("it comes back", async || look(&rig).await.is_none()).await;
        assert_eq!(check(&rig).await, (true, Source::Store));
        proxy.set(Replies::Cut { after: 0 });
        alone += admitted_alone(&rig).await;
        proxy.set(Replies::Pass);
    }
    // The first check of the store has left nine; those after it, nothing.
    assert_eq!(alone, 9);
}

/// What the store refuses costs nothing here either.
#[tokio::test]
async fn refusals_of_the_store_are_not_charged() {
    let mut server = Server::start();
    let [tight, loose] = ["2/1h", "10/1h"].map(|limit| rig(&server.url(), policy(limit)));
    // Of the ten of the loose one, two are used by the other node, which it does not know.
    for rig in [&tight, &tight, &loose] {
        assert_eq!(check(rig).await, (true, Source::Store));
    }
    for _ in 0..20 {
        assert_eq!(check(&tight).await, (false, Source::Store));
    }
    server.kill();
    assert_eq!(admitted_alone(&tight).await, 0);
    assert_eq!(admitted_alone(&loose).await, 9);
}

/// Each level knows what the store has admitted, also where another one is full here.
#[tokio::test]
async fn r3_level_is_charged_though_another_level_is_full_here() {
    let mut server = Server::start();
    let levels = Policy::builder("api")
        .level("each", "{r}:{c}", Limit::parse("3/1h").unwrap())
        .level("all", "{c}", Limit::parse("10/1h").unwrap());
    let rig = rig(&server.url(), levels.on_error(OnError::Local));
    let check = async |r: &str| {
        let attributes = [("r", r), ("c", "1")];
        let decision = rig.limiter.check("api", &attributes, Cost::ONE).await;
        let decision = decision.unwrap();
        (decision.allowed(), decision.source())
    };
    // The server forgets the first three, and this process does not.
    for _ in 0..2 {
        for _ in 0..3 {
            assert_eq!(check("1").await, (true, Source::Store));
        }
        run::<()>(&mut server.connect(), "FLUSHALL");
    }
    server.kill();
    let mut admitted = 0;
    for r in ["2", "3", "4"] {
        for _ in 0..3 {
            admitted += usize::from(check(r).await.0);
        }
    }
    assert_eq!(admitted, 4, "of ten, six are used");
}
