//! Whose count it is: nothing that a client sends can make it somebody else's.

use super::proxy::{Nginx, add_location};
use super::tidegate::Tidegate;
use tidegate_testkit::http::{Answer, get, send, statuses};

/// The number after `r=` in RateLimit.
fn left(response: &Answer) -> u32 {
    assert_eq!(response.status, 200, "{response:?}");
    let limit = response.header("RateLimit").expect("a RateLimit");
    let (_, rest) = limit.split_once(";r=").expect("a number that remains");
    let number = rest.split(';').next().unwrap_or_default();
    number.parse().expect("a number")
}

fn remaining(port: u16, target: &str) -> u32 {
    left(&get(port, target))
}

#[test]
fn a_client_cannot_choose_its_address_by_a_header() {
    let tidegate = Tidegate::example();
    let nginx = Nginx::start(&tidegate);
    assert_eq!(statuses(nginx.port(), "/", 5), [200; 5]);
    for name in [
        "X-Tidegate-Ip",
        "x-tidegate-ip",
        "X_Tidegate_Ip",
        "X-Tidegate-Key",
        "X-Tidegate-Method",
        "X-Forwarded-For",
        "X-Real-Ip",
        "Forwarded",
    ] {
        let spoofed = send(nginx.port(), "GET", "/", &[(name, "203.0.113.9")]);
        assert_eq!(spoofed.status, 429, "{name}");
    }
}

#[test]
fn an_ipv6_client_has_one_count_for_all_its_addresses() {
    let tidegate = Tidegate::example();
    let nginx = Nginx::start_location(
        &tidegate,
        "set_real_ip_from 127.0.0.1;
         real_ip_header X-Real-Ip;",
    );
    for (first, second, are_one) in [
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::1", true),
        ("2001:db8:2:1::7", "2001:db8:2:2::7", false),
        ("2001:db8::1", "2001:db8::ffff:2", true),
        ("2001:db9::1", "2001:dba::1", false),
        ("::1", "::2", true),
        ("203.0.113.1", "::ffff:203.0.113.1", true),
        ("203.0.113.2", "203.0.113.3", false),
    ] {
        let ask = |address| send(nginx.port(), "GET", "/", &[("X-Real-Ip", address)]);
        assert_eq!(left(&ask(first)), 4, "{first}");
        let expected = if are_one { 3 } else { 4 };
        assert_eq!(left(&ask(second)), expected, "{second} after {first}");
    }
}

#[test]
fn headers_that_nginx_does_not_send_do_not_come_from_the_client_either() {
    let policies = "
        [server]
        gate_headers = [\"ip\", \"user\"]
        [[policies]]
        name = \"default\"
        key = \"{user}\"
        limit = \"5r/m\"
    ";
    let tidegate = Tidegate::start(policies);
    let nginx = Nginx::start(&tidegate);
    let spoofed = send(nginx.port(), "GET", "/", &[("X-Tidegate-User", "me")]);
    assert_eq!(spoofed.status, 500, "nobody has said who the user is");
}

#[test]
fn a_client_cannot_choose_anything_by_the_query() {
    let tidegate = Tidegate::example();
    let nginx = Nginx::start(&tidegate);
    assert_eq!(statuses(nginx.port(), "/", 5), [200; 5]);
    for target in [
        "/?ip=203.0.113.9",
        "/?deny=200",
        "/?cost=0",
        "/&ip=203.0.113.9",
        "/%3Fip=203.0.113.9",
        "/%0d%0aX-Tidegate-Ip:%20203.0.113.9",
    ] {
        assert_eq!(get(nginx.port(), target).status, 429, "{target}");
    }
}

#[test]
fn inner_locations_are_unreachable_from_outside() {
    let tidegate = Tidegate::example();
    let nginx = Nginx::start(&tidegate);
    for target in ["/_tidegate", "/_tidegate?ip=1", "/%5ftidegate"] {
        assert_eq!(get(nginx.port(), target).status, 404, "{target}");
    }
    assert_eq!(tidegate.metric("tidegate_decisions_total", ""), 0.0);
}

#[test]
fn values_are_kept_apart_whatever_is_in_them() {
    let tidegate = Tidegate::example();
    let nginx = Nginx::start(&tidegate);
    for token in [
        "a",
        "a%26ip=1",
        "a+b",
        "a%20b",
        "a%2Bb",
        "a%25",
        "a%",
        "a%zz",
        "a;b",
        "a=b",
        "%00",
        "%0d%0aX-Tidegate-Key:%20a",
        "\u{e9}",
        "%C3%A9",
        "\"a\"",
        "{ip}",
        "",
    ] {
        let target = format!("/search?token={token}&token=x&deny=500&key=a");
        assert_eq!(remaining(nginx.port(), &target), 9, "{token:?}: its first");
        assert_eq!(remaining(nginx.port(), &target), 8, "{token:?}: its second");
    }
    // No token and an empty one are the same.
    assert_eq!(remaining(nginx.port(), "/search"), 7);
}

#[test]
fn a_path_is_one_key_however_it_is_written() {
    let tidegate = Tidegate::example();
    let nginx = Nginx::start(&tidegate);
    let spellings = [
        "/files/a%20b&c+d%25",
        "/files/%61%20b%26c%2Bd%25",
        "/files//a%20b&c+d%25",
        "/files/x/../a%20b&c+d%25?e=f",
    ];
    for (spelling, expected) in spellings.iter().zip((0..10).rev()) {
        assert_eq!(remaining(nginx.port(), spelling), expected, "{spelling}");
    }
    assert_eq!(remaining(nginx.port(), "/files/a"), 9, "another path");
}

#[test]
fn a_path_cannot_smuggle_headers_or_requests() {
    let tidegate = Tidegate::example();
    let nginx = Nginx::start(&tidegate);
    let paths = [
        "/files/a%0d%0aX-Tidegate-Ip:%20203.0.113.9",
        "/files/a%0d%0a%0d%0aGET%20/v1/gate/default?ip=203.0.113.9%20HTTP/1.1%0d%0a%0d%0a",
        "/files/a%0aX-Tidegate-Method:%20PUT",
        "/files/a%7f",
        "/files/a%00",
    ];
    let allowed = paths
        .iter()
        .filter(|path| get(nginx.port(), path).status == 200);
    // nginx itself does not take %00.
    assert_eq!(allowed.count(), 4);
    let target = "/files/a%0d%0aX-Tidegate-Key:%20b";
    assert_eq!(
        remaining(nginx.port(), target),
        5,
        "all of them share a key"
    );
    assert_eq!(tidegate.metric("tidegate_decisions_total", ""), 5.0);
}

#[test]
fn the_bare_uri_would_be_open_to_that() {
    // Why http.conf has $tidegate_path: this is what it spares.
    let tidegate = Tidegate::example();
    let location = add_location(
        "location /bare/ {
             set $tidegate_policy token;
             set $tidegate_key $uri;
             include tidegate/limit.conf;
             proxy_pass http://127.0.0.1:8001;
         }",
    );
    let nginx = Nginx::start_with(&[&tidegate.address()], &[location.as_change()]);
    let smuggled = "%20HTTP/1.1%0d%0aHost:%20x%0d%0aX-Tidegate-Ip:%20203.0.113.9%0d%0a%0d%0a";
    let target = format!("/bare/a%0d%0a%0d%0aGET%20/v1/gate/default{smuggled}");
    get(nginx.port(), &target);
    // nginx does not wait for the answer to it.
    let asked = (0..100)
        .map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            tidegate.metric("tidegate_decisions_total", "default")
        })
        .find(|asked| *asked > 0.0);
    assert_eq!(asked, Some(1.0), "a request of the client's own making");
}
