//! The pitfalls of counting against a server and its own clock: each test is named
//! after its id. Those that need an hour to pass are in `src/conformance/pitfalls.rs`.

use std::time::{Duration, Instant};

use redis::Commands;
use tidegate::{Cost, Limit, ManualClock, MemoryStore, Policy, PolicyLimiter};
use tokio::task::JoinSet;

use crate::server::Server;
use crate::support::{
    MINUTE, YEAR, admitted_of, check, check_cost, every_algorithm, every_policy, limiter, look,
    policy,
};

#[tokio::test]
async fn a1_fifty_at_once_at_limit_ten_admits_ten() {
    for server in Server::start_each() {
        let limiter = limiter(&server, every_policy(10, YEAR));
        for (name, _) in every_algorithm(10, YEAR) {
            let admitted = admitted_of(&limiter, name, "one by one", 50).await;
            assert_eq!(admitted, 10, "bound broken: {name}");
            let at_once = (0..50).map(|_| check(&limiter, name, &[("key", "at once")]));
            let mut admitted = 0;
            for asked in at_once {
                admitted += usize::from(asked.await.allowed());
            }
            assert_eq!(admitted, 10, "bound broken: {name}");
        }
    }
}

#[tokio::test]
async fn a2_refused_requests_cost_nothing_unless_asked() {
    let server = Server::start();
    let refused_ones = |count_denied: bool| {
        let limits = every_algorithm(10, Duration::from_secs(1));
        limits.map(|(name, limit)| {
            let policy = Policy::builder(name).key("{key}").limit(limit);
            let policy = policy.refusal_memory(Duration::ZERO);
            policy.count_denied(count_denied).build().unwrap()
        })
    };
    // Hammered for longer than a window: what comes back is used. Each decision is the one
    // that a limiter in memory takes at the same instant, however seldom this can ask.
    for (name, count_denied) in [
        ("bucket", false),
        ("log", false),
        ("bucket", true),
        ("log", true),
    ] {
        let limiter = limiter(&server, refused_ones(count_denied));
        let clock = ManualClock::at_us(0);
        let memory = MemoryStore::builder().clock(clock.clone()).build();
        let memory = PolicyLimiter::with_stores([("default", memory)], refused_ones(count_denied));
        let memory = memory.unwrap();
        let key = [("key", format!("counted: {count_denied}"))];
        let (mut first_us, mut last_us, mut admitted, mut refused) = (0, 0, 0, 0);
        while last_us < first_us + 2_300_000 || !count_denied && admitted < 20 {
            let decision = check(&limiter, name, &key).await;
            let now_us = decision.decided_at_us();
            clock.advance(Duration::from_micros(now_us - last_us));
            let expected = memory.check(name, &key, Cost::ONE).unwrap();
            let said = (decision.allowed(), decision.remaining());
            let what = format!("bound broken: {name} {count_denied}: {admitted} admitted");
            assert_eq!(said, (expected.allowed(), expected.remaining()), "{what}");
            if first_us == 0 {
                first_us = now_us;
            }
            last_us = now_us;
            admitted += u32::from(decision.allowed());
            refused += u32::from(!decision.allowed());
            assert!(
                last_us < first_us + 60_000_000,
                "nothing comes back: {what}"
            );
        }
        assert!(refused > 0, "{name} {count_denied}");
    }
}

#[tokio::test]
async fn b3_one_per_second_offered_more_admits_one() {
    let server = Server::start();
    let tenth = Duration::from_millis(100);
    let limiter = limiter(&server, every_policy(1, tenth));
    for (name, _) in every_algorithm(1, tenth) {
        let key = [("key", "b3")];
        let mut windows: Vec<u64> = Vec::new();
        let start = Instant::now();
        while windows.len() < 8 {
            let decision = check(&limiter, name, &key).await;
            if decision.allowed() {
                windows.push(decision.decided_at_us());
            }
            assert!(start.elapsed() < MINUTE, "{name}: {windows:?}");
        }
        // One each 100 ms of the store's clock. Those that are aligned may be closer, but
        // not on average.
        let what = format!("bound broken: {name}: {windows:?}");
        let apart = |count: usize| {
            let pairs = windows.windows(count + 1).map(|some| some[count] - some[0]);
            pairs.min().unwrap()
        };
        let is_aligned = ["epoch", "sliding"].contains(&name);
        for count in 1..windows.len() {
            let least = 100_000 * (count - usize::from(is_aligned)) as u64;
            assert!(apart(count) >= least, "{what}");
        }
    }
}

#[tokio::test]
async fn c1_no_request_below_the_rate_is_refused() {
    let server = Server::start();
    let limiter = limiter(&server, [policy("c1", Limit::per_second(1_000).burst(1))]);
    let mut last = None;
    let (mut admitted, mut wrong) = (0, 0);
    for _ in 0..2_000 {
        let decision = check(&limiter, "c1", &[("key", "c1")]).await;
        let now = decision.decided_at_us();
        // Exact: a millisecond after the last one admitted, and not a microsecond less.
        let due = last.is_none_or(|last| now >= last + 1_000);
        wrong += usize::from(due != decision.allowed());
        if decision.allowed() {
            (last, admitted) = (Some(now), admitted + 1);
        }
    }
    assert_eq!(wrong, 0, "bound broken");
    assert!(admitted > 10);
}

#[tokio::test]
async fn c4_d2_lowering_five_to_three_with_five_used_refuses() {
    let server = Server::start();
    let five = limiter(&server, every_policy(5, YEAR));
    let three = five.changed(every_policy(3, YEAR)).unwrap();
    for (name, _) in every_algorithm(5, YEAR) {
        assert_eq!(admitted_of(&five, name, "c4", 5).await, 5);
        assert_eq!(admitted_of(&three, name, "c4", 20).await, 0, "{name}");
        let seen = look(&three, name, &[("key", "c4")]).await;
        assert_eq!((seen.remaining(), seen.limit()), (0, 3), "{name}");
    }
}

#[tokio::test]
async fn c5_e2_e3_a_block_refuses_everything_and_keeps_nothing() {
    for text in ["0r/s", "0.5r/s", "-1r/s", "5/0s", "5/-1s", "0/0s"] {
        assert!(Limit::parse(text).is_err(), "{text}");
    }
    let server = Server::start();
    let limiter = limiter(&server, [policy("blocked", Limit::block())]);
    assert_eq!(admitted_of(&limiter, "blocked", "c5", 20).await, 0);
    let refused = check(&limiter, "blocked", &[("key", "c5")]).await;
    assert_eq!(
        (refused.retry_after(), refused.denied_by()),
        (None, Some("blocked"))
    );
    let keys: usize = redis::cmd("DBSIZE").query(&mut server.connect()).unwrap();
    assert_eq!(keys, 0);
}

/// How many of so many concurrent requests are admitted.
async fn admitted_at_once(server: &Server, limit: Limit, offered: usize) -> usize {
    let limiter = std::sync::Arc::new(limiter(server, [policy("many", limit)]));
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let limiter = std::sync::Arc::clone(&limiter);
        tasks.spawn(async move { admitted_of(&limiter, "many", "key", offered / 100).await });
    }
    tasks.join_all().await.into_iter().sum()
}

#[tokio::test]
async fn d1_c9_fifty_thousand_a_day_admits_fifty_thousand() {
    let server = Server::start();
    // Longer than a minute: on a slow machine the first would come back.
    let log = Limit::per_day(50_000).sliding_log();
    let admitted = admitted_at_once(&server, log, 51_000).await;
    assert_eq!(admitted, 50_000, "bound broken");
}

#[tokio::test]
async fn d3_five_in_a_tenth_of_a_second_is_five_in_any_tenth() {
    let server = Server::start();
    let tenth = Duration::from_millis(100);
    let limits = [
        ("log", Limit::per(5, tenth).sliding_log()),
        ("strict", Limit::per(5, tenth).burst(2).strict()),
    ];
    let limiter = limiter(&server, limits.map(|(name, limit)| policy(name, limit)));
    for (name, _) in limits {
        let mut admitted: Vec<u64> = Vec::new();
        while admitted.len() < 30 {
            let decision = check(&limiter, name, &[("key", "d3")]).await;
            if decision.allowed() {
                admitted.push(decision.decided_at_us());
            }
        }
        // The sixth comes no sooner than a window after the first.
        let sixths = admitted.windows(6).map(|six| six[5] - six[0]);
        let apart = sixths.min() >= Some(100_000);
        assert!(apart, "bound broken: {name}: {admitted:?}");
    }
}

#[tokio::test]
async fn e1_a_bucket_never_gives_more_than_its_burst_at_once() {
    let server = Server::start();
    let limit = Limit::per(20, Duration::from_millis(400)).burst(2);
    let limiter = limiter(&server, [policy("e1", limit)]);
    assert_eq!(
        check_cost(&limiter, "e1", &[("key", "e1")], 2)
            .await
            .remaining(),
        0
    );
    // The key is gone before this is over; a new one holds no more than the burst.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let seen = look(&limiter, "e1", &[("key", "e1")]).await;
    assert_eq!((seen.remaining(), seen.limit()), (2, 2));
    let refused = check_cost(&limiter, "e1", &[("key", "e1")], 3).await;
    assert_eq!((refused.allowed(), refused.retry_after()), (false, None));
}

#[tokio::test]
async fn e4_e5_e7_e9_waiting_as_told_admits_and_a_microsecond_less_does_not() {
    let server = Server::start();
    let window = Duration::from_millis(50);
    let limiter = limiter(&server, every_policy(5, window));
    for (name, _) in every_algorithm(5, window) {
        let key = [("key", "e4")];
        admitted_of(&limiter, name, "e4", 5).await;
        // Whatever the clock reads at each check, the instant it tells stays the same.
        let mut due = None;
        loop {
            let decision = check(&limiter, name, &key).await;
            let now = decision.decided_at_us();
            if decision.allowed() {
                assert!(
                    due.is_none_or(|due| now >= due),
                    "{name}: {now} before {due:?}"
                );
                break;
            }
            assert_eq!(decision.remaining(), 0, "{name}");
            let wait = decision.retry_after().expect("some day");
            let told = now + u64::try_from(wait.as_micros()).unwrap();
            assert!(
                wait > Duration::ZERO && decision.reset_after() >= wait.min(window),
                "{name}"
            );
            assert!(
                due.is_none_or(|due| due == told),
                "{name}: {told} after {due:?}"
            );
            due = Some(told);
        }
    }
}

#[tokio::test]
async fn e8_remaining_stays_within_a_lowered_limit() {
    let server = Server::start();
    let ten = limiter(&server, every_policy(10, YEAR));
    let three = ten.changed(every_policy(3, YEAR)).unwrap();
    for (name, _) in every_algorithm(10, YEAR) {
        for used in 0..=4 {
            let key = format!("used {used}");
            admitted_of(&ten, name, &key, used).await;
            let seen = look(&three, name, &[("key", key.as_str())]).await;
            let left = 3_usize.saturating_sub(used);
            assert_eq!(
                (seen.remaining() as usize, seen.limit()),
                (left, 3),
                "{name} {used}"
            );
        }
    }
}

#[tokio::test]
async fn e10_a_burst_above_the_limit_has_right_numbers() {
    let server = Server::start();
    let limit = Limit::per(10, YEAR).burst(20);
    let limiter = limiter(&server, [policy("e10", limit)]);
    assert_eq!(admitted_of(&limiter, "e10", "e10", 30).await, 20);
    let refused = check(&limiter, "e10", &[("key", "e10")]).await;
    let (wait, reset) = (refused.retry_after().unwrap(), refused.reset_after());
    assert!(wait <= YEAR / 10 && wait > YEAR / 10 - MINUTE, "{wait:?}");
    assert!(reset <= 2 * YEAR && reset > 2 * YEAR - MINUTE, "{reset:?}");
    assert!(Limit::parse("10r/s burst=20 strict").is_err());
}

#[tokio::test]
async fn t1_a_bucket_that_fills_slowly_is_kept_until_it_is_full() {
    let server = Server::start();
    let limiter = limiter(&server, [policy("t1", Limit::per_second(100).burst(1_000))]);
    let mut redis = server.connect();
    let mut admitted = 0;
    let start = Instant::now();
    for _ in 0..4 {
        admitted += admitted_of(&limiter, "t1", "t1", 1_200).await;
        let left_ms: i64 = redis.pttl("tg:{t1}:t1:t1").unwrap();
        // What was admitted, less what has come back since the first of them.
        let passed_ms = i64::try_from(start.elapsed().as_millis()).unwrap();
        let least_ms = i64::try_from(admitted).unwrap() * 10 - passed_ms - 2;
        assert!((least_ms..=10_001).contains(&left_ms), "{left_ms}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let refilled = usize::try_from(start.elapsed().as_millis() / 10).unwrap();
    assert!(
        (1_000..=1_001 + refilled).contains(&admitted),
        "bound broken: {admitted}, {refilled}"
    );
}
