//! `on_error = "local"`: an outage goes on where the store left off, and a store that
//! comes and goes does not hand out a new burst each time.

use std::time::Duration;

use tidegate::{Cost, Limit, Mode, OnError, Policy, Source};
use tidegate_redis::{ErrorKind, RedisOptions, RedisStore, SharedLimiter, TryCheckError};
use tokio::time::{sleep, timeout};

use crate::proxy::{Proxy, Replies};
use crate::server::Server;

fn policy(limit: &str, share: f64) -> Policy {
    let policy = Policy::builder("api")
        .key("{id}")
        .limit(Limit::parse(limit).unwrap());
    policy
        .on_error(OnError::Local)
        .local_share(share)
        .refusal_memory(Duration::ZERO)
        .build()
        .unwrap()
}

fn limiter(url: &str, limit: &str, share: f64) -> SharedLimiter {
    // Long enough that only what this is about fails.
    limiter_with(Duration::from_secs(2), url, limit, share)
}

fn limiter_with(deadline: Duration, url: &str, limit: &str, share: f64) -> SharedLimiter {
    let store = RedisStore::new(url, RedisOptions::default().timeout(deadline)).unwrap();
    SharedLimiter::new([("default", store)], [policy(limit, share)]).unwrap()
}

/// Whether it was admitted, and by whom.
async fn check(limiter: &SharedLimiter) -> (bool, Source) {
    let decision = limiter
        .check("api", &[("id", "1")], Cost::ONE)
        .await
        .unwrap();
    (decision.allowed(), decision.source())
}

/// Checks that this process admits alone before it refuses.
async fn admitted_alone(limiter: &SharedLimiter) -> usize {
    // Looks charge nothing. So many at once wait together, and then nobody waits.
    let is_open = async || {
        let look = limiter.peek("api", &[("id", "1")], Cost::ONE).await;
        matches!(look, Err(TryCheckError::Store(it)) if it.kind() == ErrorKind::BreakerOpen)
    };
    let all_at_once =
        async || tokio::join!(is_open(), is_open(), is_open(), is_open(), is_open()).0;
    while !all_at_once().await {}
    let mut admitted = 0;
    loop {
        match check(limiter).await {
            (true, Source::Local) => admitted += 1,
            (false, Source::Local) => return admitted,
            other => panic!("{other:?}"),
        }
    }
}

async fn until_answered(limiter: &SharedLimiter) {
    let back = async {
        // A look charges nothing.
        while limiter
            .peek("api", &[("id", "1")], Cost::ONE)
            .await
            .is_err()
        {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(60), back)
        .await
        .expect("it comes back");
}

#[tokio::test]
async fn an_outage_goes_on_where_the_store_left_off() {
    let mut server = Server::start();
    let limiter = limiter(&server.url(), "10/1h", 1.0);
    for _ in 0..7 {
        assert_eq!(check(&limiter).await, (true, Source::Store));
    }
    server.kill();
    assert_eq!(admitted_alone(&limiter).await, 3);
    // Another limiter over the same store has the same counts.
    let changed = limiter.changed([policy("10/1h", 1.0)]).unwrap();
    assert_eq!(admitted_alone(&changed).await, 0);
    let changed = changed.changed([policy("12/1h", 1.0)]).unwrap();
    assert_eq!(admitted_alone(&changed).await, 2);
}

/// What was spent of leases counts, though no check was charged here.
#[tokio::test]
async fn an_outage_goes_on_where_leases_left_off() {
    let mut server = Server::start();
    let options = RedisOptions::default().timeout(Duration::from_secs(2));
    let store = RedisStore::new(&server.url(), options).unwrap();
    let limit = Limit::parse("1000/1h fixed_window").unwrap();
    let policy = Policy::builder("api")
        .key("{id}")
        .limit(limit)
        .mode(Mode::Lease);
    let limiter = SharedLimiter::new([("default", store)], [policy.build().unwrap()]).unwrap();
    let mut leased = 0;
    for _ in 0..700 {
        let (allowed, source) = check(&limiter).await;
        assert!(allowed);
        leased += usize::from(source == Source::Lease);
    }
    assert!(leased > 300, "{leased} from leases");
    server.kill();
    let mut admitted = 700;
    while check(&limiter).await.0 {
        admitted += 1;
    }
    assert_eq!(admitted, 1_000);
}

#[tokio::test]
async fn a_node_has_its_share() {
    for (share, wait) in [(1.0, 360), (0.5, 720), (0.1, 3_600)] {
        let mut server = Server::start();
        server.kill();
        // Nobody answers, so nobody need wait for it.
        let deadline = Duration::from_millis(50);
        let limiter = limiter_with(deadline, &server.url(), "10/1h", share);
        assert_eq!(admitted_alone(&limiter).await, 10);
        let decision = limiter
            .check("api", &[("id", "1")], Cost::ONE)
            .await
            .unwrap();
        let wait = Duration::from_secs(wait);
        let retry_after = decision.retry_after().unwrap();
        // The time that this took has passed of it.
        assert!(retry_after <= wait && retry_after > wait - Duration::from_secs(30));
    }
}

#[tokio::test]
async fn a_store_that_comes_and_goes_hands_out_one_burst() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let limiter = limiter(&proxy.url(), "10/1h", 1.0);
    let mut alone = 0;
    for _ in 0..4 {
        until_answered(&limiter).await;
        assert_eq!(check(&limiter).await, (true, Source::Store));
        proxy.set(Replies::Cut { after: 0 });
        alone += admitted_alone(&limiter).await;
        proxy.set(Replies::Pass);
    }
    // The first check of the store has left nine; those after it, nothing.
    assert_eq!(alone, 9);
}

/// What the store refuses costs nothing here either.
#[tokio::test]
async fn refusals_of_the_store_are_not_charged() {
    let mut server = Server::start();
    let tight = limiter(&server.url(), "2/1h", 1.0);
    let loose = limiter(&server.url(), "10/1h", 1.0);
    for _ in 0..2 {
        assert_eq!(check(&tight).await, (true, Source::Store));
    }
    // Of ten, two are used by the other node, and this one does not know.
    assert_eq!(check(&loose).await, (true, Source::Store));
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
    let policy = Policy::builder("api")
        .level("each", "{r}:{c}", Limit::parse("3/1h").unwrap())
        .level("all", "{c}", Limit::parse("10/1h").unwrap())
        .on_error(OnError::Local);
    let options = RedisOptions::default().timeout(Duration::from_secs(2));
    let store = RedisStore::new(&server.url(), options).unwrap();
    let limiter = SharedLimiter::new([("default", store)], [policy.build().unwrap()]).unwrap();
    let check = async |r: &str| {
        let attributes = [("r", r), ("c", "1")];
        let decision = limiter.check("api", &attributes, Cost::ONE).await.unwrap();
        (decision.allowed(), decision.source())
    };
    // The server forgets the first three, and this process does not.
    for _ in 0..2 {
        for _ in 0..3 {
            assert_eq!(check("1").await, (true, Source::Store));
        }
        redis::cmd("FLUSHALL")
            .query::<()>(&mut server.connect())
            .unwrap();
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
