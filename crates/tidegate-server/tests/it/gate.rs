//! `/v1/gate/{policy}`: what a proxy asks, and what it hears.

use serde_json::json;

use crate::process::{Start, Tidegate};

const CONFIG: &str = r#"
[server]
gate_headers = ["ip", "user_id"]

[[policies]]
name = "login"
key = "{ip}"
limit = "2/1h"

[[policies]]
name = "user"
key = "{user_id}"
limit = "2/1h"

[[policies]]
name = "by-method"
key = "{method}"
limit = "1/1h"

[[policies]]
name = "shop"
[[policies.levels]]
name = "all"
key = ""
limit = "100/1h"
[[policies.levels]]
name = "one"
key = "{ip}"
limit = "1/1h"
"#;

#[test]
fn allowed_is_an_empty_200_and_refused_a_429_that_says_why() {
    let server = Tidegate::start(CONFIG);
    for status in [200, 200, 429] {
        let answer = server.get("/v1/gate/login?ip=1");
        assert_eq!(answer.status, status);
        assert!(answer.header("ratelimit").is_some());
        assert!(answer.header("ratelimit-policy").is_some());
        assert_eq!(answer.header("retry-after").is_some(), status == 429);
        if status == 200 {
            assert_eq!(answer.body, b"");
            assert_eq!(answer.header("content-type"), None);
            continue;
        }
        let kind = answer.header("content-type");
        assert_eq!(kind, Some("application/problem+json"));
        assert_eq!(
            answer.json(),
            json!({
                "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "title": "Request cannot be satisfied as assigned quota has been exceeded",
                "status": 429,
                "violated-policies": ["login"],
            })
        );
    }
    server.get("/v1/gate/shop?ip=1");
    let refused = server.get("/v1/gate/shop?ip=1").json();
    assert_eq!(refused["violated-policies"], json!(["shop.one"]));
}

#[test]
fn a_refusal_has_the_status_and_the_body_that_were_asked_for() {
    let server = Tidegate::start(CONFIG);
    for _ in 0..2 {
        assert_eq!(server.get("/v1/gate/login?ip=1&deny=503").status, 200);
    }
    for (query, status, with_body) in [
        ("", 429, true),
        ("&deny=403", 403, true),
        ("&deny=400", 400, true),
        ("&deny=599", 599, true),
        ("&body=none", 429, false),
        ("&deny=503&body=none", 503, false),
    ] {
        let answer = server.get(&format!("/v1/gate/login?ip=1{query}"));
        assert_eq!(answer.status, status, "{query}");
        assert!(answer.header("retry-after").is_some(), "{query}");
        assert!(answer.header("ratelimit").is_some(), "{query}");
        match with_body {
            true => assert_eq!(answer.json()["status"], status),
            false => assert_eq!(
                (
                    answer.body,
                    answer
                        .headers
                        .iter()
                        .find(|(name, _)| name == "content-type")
                ),
                (vec![], None)
            ),
        }
    }
}

#[test]
fn attributes_come_from_the_query_and_from_headers_that_are_allowed() {
    let server = Tidegate::start(CONFIG);
    let ask = |path: &str, headers: &[(&str, &str)]| {
        let answer = server.ask_with("GET", path, headers, "");
        (answer.status, answer.body)
    };
    // Two a key: the third of the same key is refused.
    for (path, headers, status) in [
        ("/v1/gate/login?ip=1", &[][..], 200),
        ("/v1/gate/login", &[("X-Tidegate-Ip", "1")], 200),
        ("/v1/gate/login", &[("x-tidegate-ip", "1")], 429),
        ("/v1/gate/login?ip=2", &[("X-Tidegate-Ip", "2")], 200),
        // Of two values, one may be injected.
        ("/v1/gate/login?ip=2", &[("X-Tidegate-Ip", "3")], 400),
        ("/v1/gate/user", &[("X-Tidegate-User-Id", "a b")], 200),
        ("/v1/gate/user?user_id=a+b", &[], 200),
        ("/v1/gate/user?user_id=a%20b", &[], 429),
        // What is not named in gate_headers is not read.
        ("/v1/gate/by-method", &[("X-Tidegate-Method", "GET")], 400),
        ("/v1/gate/login", &[("Ip", "9")], 400),
        (
            "/v1/gate/login",
            &[("X-Tidegate-Ip", "8"), ("X-Tidegate-Ip", "9")],
            400,
        ),
    ] {
        let answer = ask(path, headers);
        assert_eq!(answer.0, status, "{path} {headers:?} {answer:?}");
    }
}

#[test]
fn forwarded_headers_are_read_from_trusted_proxies_alone() {
    let policy =
        "[[policies]]\nname = \"all\"\nkey = \"{ip} {method} {host} {path}\"\nlimit = \"9/1h\"\n";
    let headers = "[server]\ngate_headers = [\"ip\", \"method\", \"host\", \"path\"]\n";
    let start = |proxies: &str| {
        let config = format!("{headers}trusted_proxies = [{proxies}]\n{policy}");
        Start::configured(&config)
    };
    let tcp = |proxies| {
        let start = start(proxies).argument("--http");
        start.argument("127.0.0.1:0").start()
    };
    let unix = |proxies| {
        let start = start(proxies).argument("--http");
        let socket = format!("unix:{}", start.folder().path("socket").display());
        start.argument(&socket).start()
    };
    const FORWARDED: [(&str, &str); 4] = [
        ("X-Forwarded-For", "6.6.6.6, 203.0.113.7, 127.0.0.9"),
        ("X-Forwarded-Method", "PUT"),
        ("X-Forwarded-Host", "shop.example:8443"),
        ("X-Forwarded-Uri", "/a%20b?ip=6.6.6.6&cost=0?"),
    ];
    let missing = "the attribute \"ip\" is missing: policy \"all\" expects ip, method, host, path";
    let server = tcp("\"10.0.0.0/8\", \"127.0.0.0/8\"");
    for (server, query, headers, expected) in [
        (&server, "", &FORWARDED[..], Ok(8)),
        (
            &server,
            "ip=203.0.113.7&path=/a%2520b",
            &FORWARDED[1..],
            Ok(7),
        ),
        (
            &server,
            "method=PUT",
            &[FORWARDED[0], FORWARDED[2], FORWARDED[3]],
            Ok(6),
        ),
        (
            &server,
            "ip=6.6.6.6",
            &FORWARDED,
            Err(
                "\"ip\": the header x-forwarded-for differs from the query or another header: expected one value",
            ),
        ),
        (
            &server,
            "",
            &[FORWARDED[0], ("X-Tidegate-Ip", "6.6.6.6")],
            Err(
                "\"ip\": the header x-forwarded-for differs from the query or another header: expected one value",
            ),
        ),
        (
            &server,
            "path=/",
            &FORWARDED,
            Err(
                "\"path\": the header x-forwarded-uri differs from the query or another header: expected one value",
            ),
        ),
        (
            &server,
            "",
            &[FORWARDED[1], FORWARDED[1]],
            Err("the header x-forwarded-method twice: expected it once"),
        ),
        (
            &tcp("\"10.0.0.0/8\", \"unix:\""),
            "",
            &FORWARDED,
            Err(missing),
        ),
        (
            &unix("\"0.0.0.0/0\", \"::/0\""),
            "",
            &FORWARDED,
            Err(missing),
        ),
        (&unix("\"127.0.0.9\", \"unix:\""), "", &FORWARDED, Ok(8)),
    ] {
        let answer = server.ask_with("GET", &format!("/v1/gate/all?{query}"), headers, "");
        match expected {
            Ok(remaining) => {
                let key = "ip=203.0.113.7&method=PUT&host=shop.example:8443&path=/a%2520b";
                let key = server.get(&format!("/v1/keys/all?{key}")).json();
                assert_eq!(
                    (answer.status, &key["levels"][0]["remaining"]),
                    (200, &json!(remaining))
                );
            }
            Err(detail) => assert_eq!((answer.status, answer.detail()), (400, detail.into())),
        }
    }
}

#[test]
fn any_method_asks_and_its_body_does_not_matter() {
    let server = Tidegate::start(CONFIG);
    let mut connection = server.connect();
    for method in [
        "GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH", "TRACE", "PURGE",
    ] {
        let path = format!("/v1/gate/by-method?method={method}");
        let body: &[u8] = if method == "PUT" { b"something" } else { b"" };
        for status in [200, 429] {
            let answer = connection.ask(method, &path, &[], body);
            assert_eq!(answer.status, status, "{method}");
        }
    }
}

#[test]
fn cost_and_odd_keys() {
    let server = Tidegate::start(CONFIG);
    for (query, status) in [
        ("ip=a&cost=2", 200),
        ("ip=a", 429),
        ("ip=b&cost=3", 429),
        ("ip=b&cost=2", 200),
        ("ip=%ff%00&cost=2", 200),
        ("ip=%FF%00", 429),
        ("ip=%ff", 200),
        ("ip=&cost=2", 200),
        ("ip=", 429),
        ("&&ip=c&", 200),
        ("i%70=c&other=1", 200),
        ("ip=c=d", 200),
    ] {
        let answer = server.get(&format!("/v1/gate/login?{query}"));
        assert_eq!(answer.status, status, "{query} {answer:?}");
    }
    // A name may be written with escapes, as some clients do.
    assert_eq!(server.get("/v1/gate/by%2Dmethod?method=x").status, 200);
    assert_eq!(server.get("/v1/gate/by-method?method=x").status, 429);
}
