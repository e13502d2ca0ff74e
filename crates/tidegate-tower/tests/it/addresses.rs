//! Nothing a client can write may give it a key of its choice. Examples are rows of `keys.txt`.

use std::net::SocketAddr;

use http::Request;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tidegate_tower::{Key, Proxies};

use crate::support::{Body, around_hello, by, count_keys, one_policy, request, send, used};

const XFF: &str = "x-forwarded-for";
const FORWARDED: &str = "forwarded";

fn from(peer: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = request("/", headers);
    let peer = SocketAddr::new(peer.parse().expect("an address"), 4_000);
    request.extensions_mut().insert(peer);
    request
}

/// What clients may invent headers from.
const PIECES: [&str; 12] = [
    "for=", "\"", "\\", ",", ";", "1.1.1.1", "10.0.0.1", "[", "]", ":", " ", "x",
];

#[tokio::test]
async fn whatever_a_client_invents_it_has_one_key() {
    // What the proxy adds, in the line of the client or in one of its own.
    for (name, added) in [
        (XFF, "203.0.113.7"),
        (FORWARDED, "for=203.0.113.7"),
        (FORWARDED, "for=\"203.0.113.7:80\""),
    ] {
        let proxies = match name {
            XFF => Proxies::x_forwarded_for(["10.0.0.0/8"]),
            _ => Proxies::forwarded(["10.0.0.0/8"]),
        };
        let limiter = one_policy(10_000);
        let layer = by(&limiter, Key::address()).proxies(proxies);
        let mut service = around_hello(layer);
        let mut runner = TestRunner::deterministic();
        let mut sent = 0;
        let invented = proptest::collection::vec(proptest::sample::select(&PIECES[..]), 0..12);
        for _ in 0..500 {
            let invented = invented.new_tree(&mut runner).unwrap().current().concat();
            let joined = format!("{invented}, {added}");
            for headers in [
                &[(name, &*joined)][..],
                &[(name, &*invented), (name, added)],
            ] {
                let answer = send(&mut service, from("10.0.0.1", headers)).await;
                assert_eq!(answer.status, 200);
                sent += 1;
                assert_eq!(count_keys(&limiter), 1, "{headers:?}");
            }
        }
        assert_eq!(used(&limiter, "203.0.113.7"), sent);
    }
}
