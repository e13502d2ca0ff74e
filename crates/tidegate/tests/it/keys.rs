//! What a limiter can be asked with: keys of any usual type, a time, a batch.

use std::net::IpAddr;
use std::time::Duration;

use tidegate::{Cost, Limit, Limiter, Wait};

use crate::support::{KEY, SECOND, START, Timed, every_algorithm, small_store};

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
    assert!(limiter.check(b"42".to_vec()).allowed());
    assert!(!limiter.check(42_u64).allowed() && !limiter.check(String::from("42")).allowed());
    assert!(limiter.check(i64::MIN).allowed() && limiter.check(u128::MAX).allowed());
    assert!(!limiter.check("-9223372036854775808").allowed());
    assert!(!limiter.check(u128::MAX.to_string()).allowed());
    for text in [
        "0.0.0.0",
        "203.0.113.7",
        "255.255.255.255",
        "::",
        "2001:db8::7",
        "::ffff:203.0.113.7",
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
    ] {
        let address: IpAddr = text.parse().unwrap();
        assert!(
            limiter.check(address).allowed() && !limiter.check(text).allowed(),
            "{text}"
        );
    }
}

#[test]
fn no_key_is_a_key_and_clones_see_a_changed_limit() {
    let (_, store) = small_store(|builder| builder);
    let single = Limiter::over(&store, Limit::per_second(2)).unwrap();
    assert_eq!(single.check(()).remaining(), 1);
    assert_eq!(single.check("").remaining(), 1, "the empty text is another");
    assert!(!single.check_cost((), Cost::of(2)).allowed());
    assert_eq!(single.peek((), Cost::ONE).remaining(), 1);
    let receipt = single.check(()).receipt().expect("it was charged");
    assert!(!single.check(()).allowed());
    assert!(single.refund((), &receipt) && !single.refund((), &receipt));
    assert!(single.check(()).allowed());
    assert!(single.reset(()) && !single.reset(()));
    assert_eq!(single.check_at((), Cost::ONE, START).remaining(), 1);
    let clone = single.clone();
    clone.set_limit(Limit::per_second(5)).unwrap();
    assert_eq!((single.limit(), single.now_us()), (clone.limit(), START));
    let wait = Wait::within(Duration::from_secs(1)).cost(Cost::of(5));
    assert_eq!(
        single.until_ready((), wait).expect("in time").remaining(),
        0
    );
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
