//! What a request costs, and which requests are not counted.

use std::net::SocketAddr;

use tidegate::Cost;
use tidegate_tower::{Key, Proxies};

use crate::support::{around_hello, by, count_keys, one_policy, request, send, used};

#[tokio::test]
async fn a_function_says_what_a_request_costs() {
    let limiter = one_policy(10);
    let layer = by(&limiter, Key::method()).cost(|head| match head.uri.path() {
        "/search" => Cost::of(4),
        _ => Cost::ONE,
    });
    let mut service = around_hello(layer);
    let mut remaining = Vec::new();
    for path in ["/", "/search", "/search", "/search"] {
        let answer = send(&mut service, request(path, &[])).await;
        remaining.push((
            answer.status.as_u16(),
            10 - used(&limiter, "p", &[("k", "GET")]),
        ));
    }
    assert_eq!(remaining, [(200, 9), (200, 5), (200, 1), (429, 1)]);
}

#[tokio::test]
async fn rules_skip_requests() {
    let limiter = one_policy(1);
    let layer = by(&limiter, Key::method())
        .skip(|head| head.uri.path() == "/health")
        .skip(|head| head.method == http::Method::OPTIONS);
    let mut service = around_hello(layer);
    for _ in 0..3 {
        let answer = send(&mut service, request("/health", &[])).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("ratelimit"), None);
        let mut options = request("/", &[]);
        *options.method_mut() = http::Method::OPTIONS;
        assert_eq!(send(&mut service, options).await.status, 200);
    }
    assert_eq!(count_keys(&limiter), 0);
    assert_eq!(send(&mut service, request("/", &[])).await.status, 200);
    assert_eq!(send(&mut service, request("/", &[])).await.status, 429);
}

#[tokio::test]
async fn clients_are_exempt_by_address_or_token() {
    let limiter = one_policy(1);
    let layer = by(&limiter, Key::method())
        .proxies(Proxies::x_forwarded_for(["10.0.0.0/8"]))
        .exempt_addresses(["192.0.2.0/24"])
        .exempt_addresses(["2001:db8::/32"])
        .exempt_tokens(["monitoring", "backup"]);
    let mut service = around_hello(layer);
    for (peer, headers, counted) in [
        ("192.0.2.9", &[][..], false),
        ("::ffff:192.0.2.9", &[], false),
        ("2001:db8::9", &[], false),
        ("192.0.3.9", &[], true),
        // The client behind the proxy, not the proxy.
        ("10.0.0.1", &[("x-forwarded-for", "192.0.2.9")], false),
        (
            "10.0.0.1",
            &[("x-forwarded-for", "192.0.2.9, 203.0.113.7")],
            true,
        ),
        ("203.0.113.7", &[("x-forwarded-for", "192.0.2.9")], true),
        (
            "203.0.113.7",
            &[("authorization", "Bearer monitoring")],
            false,
        ),
        ("203.0.113.7", &[("authorization", "bearer backup")], false),
        (
            "203.0.113.7",
            &[("authorization", "Bearer monitorin")],
            true,
        ),
        (
            "203.0.113.7",
            &[("authorization", "Basic monitoring")],
            true,
        ),
    ] {
        limiter
            .reset("p", &[("k", "GET")], tidegate::Which::All)
            .unwrap();
        let mut request = request("/", headers);
        let peer = SocketAddr::new(peer.parse().unwrap(), 4_000);
        request.extensions_mut().insert(peer);
        assert_eq!(send(&mut service, request).await.status, 200);
        let used = used(&limiter, "p", &[("k", "GET")]);
        assert_eq!(used, u32::from(counted), "{peer} {headers:?}");
    }
}
