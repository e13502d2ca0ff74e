//! What a limiter can be asked with: keys of any usual type, a time, a batch, a wait.

use std::net::IpAddr;
use std::time::Duration;

use tidegate::{Cost, Limit, Limiter, ManualClock, Wait, WaitError};

use crate::support::{KEY, SECOND, START, Timed, every_algorithm};

#[test]
fn values_and_tuples_never_meet() {
    let limiter = Limiter::in_memory(Limit::per_hour(1));
    let address: IpAddr = "203.0.113.7".parse().unwrap();
    assert!(limiter.check("a:b").allowed());
    assert!(limiter.check(("a", "b")).allowed());
    assert!(limiter.check(("a:b", "")).allowed());
    assert!(limiter.check(("a", "b", "")).allowed());
    assert!(limiter.check(("b", "a")).allowed());
    assert!(limiter.check((address, 7_u32)).allowed());
    assert!(limiter.check((7_u32, address)).allowed());
    assert!(!limiter.check(("a", String::from("b"))).allowed());
    // The same text is the same key, whatever its type.
    assert!(limiter.check(42_u64).allowed());
    assert!(!limiter.check("42").allowed());
    assert!(limiter.check(address).allowed());
    assert!(!limiter.check("203.0.113.7").allowed());
    assert!(!limiter.check(b"203.0.113.7".to_vec()).allowed());
}

#[test]
fn clones_see_a_changed_limit() {
    let limiter = Limiter::in_memory(Limit::per_hour(1));
    let clone = limiter.clone();
    assert!(clone.check(KEY).allowed());
    clone.set_limit(Limit::per_hour(3)).unwrap();
    assert_eq!(limiter.limit(), Limit::per_hour(3));
    assert_eq!(limiter.check(KEY).remaining(), 1);
    let later = limiter.clone();
    assert_eq!(later.check(KEY).remaining(), 0);
    limiter.set_limit(Limit::per_hour(1)).unwrap();
    assert!(!later.check(KEY).allowed());
    assert_eq!(later.check("other").limit(), 1);
}

#[test]
fn a_single_limiter_has_the_words_of_the_other() {
    let clock = ManualClock::at_us(START);
    let single = Limiter::builder(Limit::per_second(2))
        .clock(clock.clone())
        .build_single();
    assert_eq!(single.check().remaining(), 1);
    assert!(!single.check_cost(Cost::of(2)).allowed());
    assert_eq!(single.peek(Cost::ONE).remaining(), 1);
    let receipt = single.check().receipt().expect("it was charged");
    assert!(!single.check().allowed());
    assert!(single.refund(&receipt) && !single.refund(&receipt));
    assert!(single.check().allowed());
    assert!(single.reset() && !single.reset());
    assert_eq!(single.check_at(Cost::ONE, START).remaining(), 1);
    single.set_limit(Limit::per_second(5)).unwrap();
    assert_eq!(
        (single.limit(), single.now_us()),
        (Limit::per_second(5), START)
    );
    let wait = Wait::within(Duration::from_secs(1)).cost(Cost::of(5));
    assert_eq!(single.until_ready(wait).expect("in time").remaining(), 0);
    assert!(single.now_us() > START);
}

#[test]
fn a_batch_decides_as_one_by_one_does() {
    for limit in every_algorithm(3, SECOND) {
        let (one, many) = (Timed::new(limit), Timed::new(limit));
        let keys: Vec<String> = (0..500).map(|key| format!("key {}", key % 50)).collect();
        let singly: Vec<bool> = keys
            .iter()
            .map(|key| one.limiter.check(key).allowed())
            .collect();
        let together = many.limiter.check_many(&keys);
        let together: Vec<bool> = together.iter().map(|it| it.allowed()).collect();
        assert_eq!(together, singly, "{limit}");
        assert!(many.limiter.check_many(&[""; 0]).is_empty());
    }
}

#[test]
fn a_caller_may_bring_the_time() {
    for limit in every_algorithm(1, SECOND) {
        let limiter = Limiter::in_memory(limit);
        let now_us = limiter.now_us() / SECOND * SECOND;
        let at = |seconds: u64| limiter.check_at(KEY, Cost::ONE, now_us + seconds * SECOND);
        assert!(at(10).allowed(), "{limit}");
        assert_eq!(at(10).decided_at_us(), now_us + 10 * SECOND);
        // A time that is earlier than the last one is read as that one.
        let early = at(0);
        assert!(!early.allowed(), "{limit}");
        assert_eq!(early.decided_at_us(), now_us + 10 * SECOND, "{limit}");
        assert!(at(12).allowed(), "{limit}");
    }
}

#[test]
fn a_wait_has_a_cost_and_jitter() {
    let timed = Timed::new(Limit::per_second(10));
    let deadline = Duration::from_secs(2);
    let wait = Wait::within(deadline).cost(Cost::of(10));
    let _ = timed.limiter.until_ready(KEY, wait).expect("at once");
    let _ = timed
        .limiter
        .until_ready(KEY, wait)
        .expect("a second later");
    assert_eq!(timed.limiter.now_us(), START + SECOND);

    let wait = wait.jitter(Duration::from_millis(100));
    let before_us = timed.limiter.now_us();
    let _ = timed
        .limiter
        .until_ready(KEY, wait)
        .expect("a second later, or a little more");
    let waited_us = timed.limiter.now_us() - before_us;
    assert!(
        (SECOND..=SECOND + 100_000).contains(&waited_us),
        "{waited_us}"
    );

    // Jitter never makes a wait miss its deadline.
    let wait = Wait::within(Duration::from_secs(1))
        .cost(Cost::of(10))
        .jitter(Duration::from_secs(60));
    timed.limiter.reset(KEY);
    let _ = timed.limiter.until_ready(KEY, wait).expect("at once");
    let _ = timed
        .limiter
        .until_ready(KEY, wait)
        .expect("within the deadline");

    let never = timed.limiter.until_ready(KEY, wait.cost(Cost::of(11)));
    assert!(matches!(never, Err(WaitError::Never(_))));
}
