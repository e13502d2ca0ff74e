//! Building a layer reports settings that contradict each other.

use tidegate::{Limit, Policy};
use tidegate_tower::{Key, LayerError, Proxies, RateLimitBuilder, RateLimitLayer};

use crate::support::limiter;

fn builder() -> RateLimitBuilder {
    let limit = Limit::per_second(1);
    RateLimitLayer::builder(limiter([
        Policy::builder("a").key("{ip}").limit(limit),
        Policy::builder("b")
            .key("{ip}:{user}")
            .limit(limit)
            .count_denied(true),
    ]))
}

#[test]
fn every_mistake_has_its_message() {
    let ip = Key::address;
    let sleep = |_| std::future::ready(());
    let minute = std::time::Duration::from_secs(60);
    for (layer, message) in [
        (
            builder().key("ip", ip()),
            "no policy: expected the name of at least one",
        ),
        (
            builder().policy("c"),
            "the limiter has no policy named \"c\"",
        ),
        (
            builder().policy("a").policy("a").key("ip", ip()),
            "policy \"a\" appears twice: expected it once",
        ),
        (
            builder().policy("b").key("ip", ip()),
            "policy \"b\" counts by {user}: expected a key with that name",
        ),
        (
            builder().policy("a").key("ip", ip()).key("ip", ip()),
            "two keys are named \"ip\": expected different names",
        ),
        (
            builder().policy("a").key("ip", ip()).key("user", ip()),
            "no policy counts by the key \"user\": expected it in a template, as {user}",
        ),
        (
            builder()
                .policy("a")
                .key("ip", ip())
                .proxies(Proxies::forwarded(["10/8"])),
            "\"10/8\" is not a network: expected one such as \"10.0.0.0/8\", or an address",
        ),
        (
            builder()
                .policy("a")
                .key("ip", ip())
                .exempt_addresses(["here"]),
            "\"here\" is not a network: expected one such as \"10.0.0.0/8\", or an address",
        ),
        (
            builder().policy("a").key("ip", ip()).ipv6_prefix(0),
            "a prefix of 0 bits: expected 1 to 128",
        ),
        (
            builder().policy("a").key("ip", ip()).ipv6_prefix(129),
            "a prefix of 129 bits: expected 1 to 128",
        ),
        (
            builder()
                .policy("a")
                .key("ip", Key::path_parameter("/{x}", "ip")),
            "the path \"/{x}\": expected a parameter {ip}",
        ),
        (
            builder()
                .policy("b")
                .key("ip", ip())
                .key("user", ip())
                .wait(minute, 1, sleep),
            "policy \"b\" counts refused requests: expected it without `wait`",
        ),
    ] {
        let error: LayerError = layer.build().expect_err(message);
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn what_is_right_is_built_and_can_be_printed() {
    let layer = builder().policy("a").key("ip", Key::address());
    assert!(format!("{layer:?}").contains("Address"));
    let layer = layer.build().expect("a layer");
    assert!(
        format!("{layer:?}").contains("policies: [\"a\"]"),
        "{layer:?}"
    );
}
