//! P3: who sent it? Headers, the address of the connection and a list of trusted
//! proxies go in, the key that is charged comes out. Nothing a client can write may
//! give it a key of its choice.

use std::net::SocketAddr;

use http::Request;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tidegate_tower::{Key, Proxies};

use crate::support::{
    Body, around_hello, by, count_keys, is_counted, one_policy, request, send, used,
};

const TABLE: &str = include_str!("addresses.txt");

const XFF: &str = "x-forwarded-for";
const FORWARDED: &str = "forwarded";

/// Load balancers, and a CDN before them.
const OURS: [&str; 3] = ["10.0.0.0/8", "198.51.100.0/24", "fd00::/8"];

fn from(peer: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = request("/", headers);
    let peer = SocketAddr::new(peer.parse().expect("an address"), 4_000);
    request.extensions_mut().insert(peer);
    request
}

/// The proxies of a row.
fn proxies(text: &str) -> Option<Proxies> {
    let (header, networks) = text.split_once(' ')?;
    let networks = match networks {
        "ours" => OURS.to_vec(),
        network => vec![network],
    };
    Some(match header {
        "xff" => Proxies::x_forwarded_for(networks),
        "forwarded" => Proxies::forwarded(networks),
        other => panic!("no such header: {other}"),
    })
}

/// The headers of a row.
fn headers(text: &str) -> Vec<(&str, &str)> {
    let lines = text.split(" & ").filter(|line| *line != "-");
    let lines = lines.map(|line| line.split_once(':').expect(line));
    let lines = lines.map(|(name, value)| match name {
        "xff" => (XFF, value),
        name => (name, value),
    });
    lines.collect()
}

#[tokio::test]
async fn p3_the_client_is_the_last_hop_that_can_be_trusted() {
    let rows = TABLE.lines().filter(|line| line.starts_with("P3-"));
    let mut count = 0;
    for row in rows {
        count += 1;
        assert!(row.starts_with(&format!("P3-{count:02} ")), "{row}");
        let columns: Vec<&str> = row.split(" | ").collect();
        let [_, trusted, peer, sent, key] = columns[..] else {
            panic!("five columns: {row}");
        };
        let limiter = one_policy(1);
        let mut layer = by(&limiter, Key::address());
        if let Some(proxies) = proxies(trusted) {
            layer = layer.proxies(proxies);
        }
        let answer = send(&mut around_hello(layer), from(peer, &headers(sent))).await;
        assert_eq!(answer.status, 200, "{row}");
        assert!(is_counted(&limiter, key), "{row}");
        assert_eq!(count_keys(&limiter), 1, "{row}");
    }
    assert!(count >= 30, "{count} rows");
}

/// What clients may invent headers from.
const PIECES: [&str; 12] = [
    "for=", "\"", "\\", ",", ";", "1.1.1.1", "10.0.0.1", "[", "]", ":", " ", "x",
];

#[tokio::test]
async fn whatever_a_client_invents_it_has_one_key() {
    // What the proxy adds, in the line of the client or in one of its own.
    for (name, proxies, added) in [
        (XFF, Proxies::x_forwarded_for(["10.0.0.0/8"]), "203.0.113.7"),
        (
            FORWARDED,
            Proxies::forwarded(["10.0.0.0/8"]),
            "for=203.0.113.7",
        ),
        (
            FORWARDED,
            Proxies::forwarded(["10.0.0.0/8"]),
            "for=\"203.0.113.7:80\"",
        ),
    ] {
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
                assert_eq!(
                    send(&mut service, from("10.0.0.1", headers)).await.status,
                    200
                );
                sent += 1;
                assert_eq!(count_keys(&limiter), 1, "{headers:?}");
            }
        }
        assert_eq!(used(&limiter, "p", &[("k", "203.0.113.7")]), sent);
    }
}
