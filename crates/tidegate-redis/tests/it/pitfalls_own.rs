//! What our own first version got wrong (G1 to G4 of the list of pitfalls).

use tidegate::{Cost, Limit, Mode, OnError, Override, Policy, Source};
use tidegate_redis::{RedisOptions, RedisStore, SharedLimiter};

use crate::server::free_port;

/// A limiter over a store that is down.
fn over_a_dead_store(policies: impl IntoIterator<Item = Policy>) -> SharedLimiter {
    let url = format!("redis://127.0.0.1:{}/", free_port());
    let store = RedisStore::new(&url, RedisOptions::default()).expect("a valid URL");
    SharedLimiter::new([("default", store)], policies).expect("valid policies")
}

#[tokio::test]
async fn g3_a_store_that_is_down_never_opens_a_block() {
    let mut policies = Vec::new();
    for (error, on_error) in [
        ("allow", OnError::Allow),
        ("deny", OnError::Deny),
        ("local", OnError::Local),
    ] {
        for (mode_name, mode) in [("exact", Mode::Exact), ("background", Mode::Background)] {
            let blocked = Policy::builder(format!("{error}-{mode_name}-policy"))
                .key("{ip}")
                .block(true);
            let overridden = Policy::builder(format!("{error}-{mode_name}-override"))
                .key("{ip}")
                .limit(Limit::per_second(5))
                .overrides(Override::of("ip", "203.0.113.7").block());
            let one_of_two = Policy::builder(format!("{error}-{mode_name}-level"))
                .level("total", "", Limit::per_second(5))
                .level("address", "{ip}", Limit::per_second(5))
                .overrides(Override::of("ip", "203.0.113.7").level("address").block());
            for policy in [blocked, overridden, one_of_two] {
                let policy = policy.mode(mode).on_error(on_error);
                policies.push(policy.build().expect("a policy"));
            }
        }
    }
    let names: Vec<String> = policies.iter().map(|it| it.name().to_owned()).collect();
    let limiter = over_a_dead_store(policies);
    for name in names {
        let attributes = [("ip", "203.0.113.7")];
        let decision = limiter.check(&name, &attributes, Cost::ONE).await;
        let decision = decision.expect("a policy of this name");
        let refused_by = if name.ends_with("level") {
            "address"
        } else {
            &*name
        };
        assert!(!decision.allowed(), "{name} let a blocked key pass");
        assert_eq!(decision.denied_by(), Some(refused_by), "{name}");
        assert_eq!(decision.retry_after(), None, "{name}");
        assert_eq!(decision.source(), Source::Store, "{name}");
        let decision = limiter.try_check(&name, &attributes, Cost::ONE).await;
        assert!(!decision.expect("no store is asked").allowed(), "{name}");
    }
}
