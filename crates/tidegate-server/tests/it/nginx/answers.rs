//! What clients of nginx get: refusals with their headers, and everybody else's answers
//! as they are.

use super::proxy::Nginx;
use super::tidegate::Tidegate;
use tidegate_testkit::http::{exchange, get, send, statuses};

#[test]
fn ten_requests_at_limit_five_give_five_200_and_five_429() {
    let tidegate = Tidegate::example();
    let nginx = Nginx::start(&tidegate);
    for remaining in (0..5).rev() {
        let response = get(nginx.port(), "/");
        assert_eq!(response.status, 200);
        assert_eq!(response.text(), "hello\n");
        let limit = response.header("RateLimit").unwrap();
        let expected = format!("\"default\";r={remaining};t=");
        assert!(limit.starts_with(&expected), "{limit}");
        let policy = response.header("RateLimit-Policy");
        assert_eq!(policy, Some("\"default\";q=5;w=60"));
        assert_eq!(response.header("Retry-After"), None);
    }
    for _ in 0..5 {
        let response = get(nginx.port(), "/");
        assert_eq!(response.status, 429);
        let retry_after = response.header("Retry-After").unwrap();
        let seconds: u32 = retry_after.parse().unwrap();
        assert!((1..=12).contains(&seconds), "{seconds}");
        let limit = format!("\"default\";r=0;t={seconds}");
        assert_eq!(response.header("RateLimit"), Some(&*limit));
        let policy = response.header("RateLimit-Policy");
        assert_eq!(policy, Some("\"default\";q=5;w=60"));
        let kind = response.header("Content-Type");
        assert_eq!(kind, Some("application/problem+json"));
        let body = response.json();
        let problem = "https://iana.org/assignments/http-problem-types#quota-exceeded";
        assert_eq!(body["type"], problem);
        assert_eq!(body["status"], 429);
        assert_eq!(body["violated-policies"], serde_json::json!(["default"]));
    }
    assert_eq!(nginx.errors(), "", "a refusal is no error");
}

#[test]
fn the_problem_is_the_one_that_tidegate_writes() {
    let tidegate = Tidegate::example();
    let nginx = Nginx::start(&tidegate);
    statuses(nginx.port(), "/", 5);
    let ours = get(nginx.port(), "/").json();
    let gate = get(tidegate.port(), "/v1/gate/default?ip=127.0.0.1");
    assert_eq!(gate.status, 429);
    assert_eq!(ours, gate.json());
}

#[test]
fn the_application_keeps_its_own_403_and_429() {
    let tidegate = Tidegate::example();
    let nginx = Nginx::start(&tidegate);
    let forbidden = get(nginx.port(), "/login/forbidden");
    assert_eq!(forbidden.status, 403);
    assert_eq!(forbidden.text(), "the application says no\n");
    assert_eq!(forbidden.header("Retry-After"), None);
    assert!(forbidden.header("RateLimit").is_some(), "{forbidden:?}");
    let busy = get(nginx.port(), "/login/busy");
    assert_eq!(busy.status, 429);
    assert_eq!(busy.text(), "the application is busy\n");
    assert_eq!(busy.header("Retry-After"), Some("7"));
}

#[test]
fn a_403_of_nginx_itself_stays_one() {
    let tidegate = Tidegate::example();
    let nginx = Nginx::start_location(
        &tidegate,
        "location /nobody {
             deny all;
             include tidegate/limit.conf;
         }
         location /taken-over {
             include tidegate/limit.conf;
             proxy_intercept_errors on;
             proxy_pass http://127.0.0.1:8001/login/forbidden;
         }",
    );
    for path in ["/nobody", "/taken-over"] {
        let response = get(nginx.port(), path);
        assert_eq!(response.status, 403, "{path}");
        assert_eq!(response.header("Retry-After"), None, "{path}");
        assert!(response.text().contains("403 Forbidden"), "{path}");
    }
}

#[test]
fn a_location_without_a_limit_has_none() {
    let tidegate = Tidegate::example();
    let nginx = Nginx::start(&tidegate);
    assert_eq!(statuses(nginx.port(), "/health", 12), [200; 12]);
    assert_eq!(get(nginx.port(), "/health").header("RateLimit"), None);
    assert_eq!(tidegate.metric("tidegate_decisions_total", ""), 0.0);
}

#[test]
fn a_request_that_nginx_sends_around_is_counted_once() {
    let tidegate = Tidegate::example();
    let nginx = Nginx::start_location(
        &tidegate,
        "location /pages/ {
             include tidegate/limit.conf;
             error_page 404 /pages/missing.html;
         }
         location /tried/ {
             include tidegate/limit.conf;
             try_files $uri /pages/index.html;
         }
         root pages;",
    );
    let pages = nginx.folder().join("pages/pages");
    std::fs::create_dir_all(&pages).unwrap();
    std::fs::write(pages.join("index.html"), "index\n").unwrap();
    std::fs::write(pages.join("missing.html"), "missing\n").unwrap();
    let expected = [
        ("/pages/", 200, "index\n"),
        ("/pages/nothing", 404, "missing\n"),
        ("/tried/something", 200, "index\n"),
        ("/pages/index.html", 200, "index\n"),
    ];
    for (number, (path, status, body)) in (0..).zip(expected) {
        let response = get(nginx.port(), path);
        assert_eq!((response.status, response.text()), (status, body), "{path}");
        let limit = response.header("RateLimit").unwrap();
        let remaining = format!("\"default\";r={};", 4 - number);
        assert!(limit.starts_with(&remaining), "{path}: {limit}");
    }
    let counted = tidegate.metric("tidegate_decisions_total", "allowed");
    assert_eq!(counted, 4.0);
}

#[test]
fn a_refused_upload_is_answered_like_any_other() {
    let tidegate = Tidegate::example();
    let nginx = Nginx::start(&tidegate);
    let body = "x".repeat(100_000);
    let request = format!(
        "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let statuses: Vec<u16> = (0..7)
        .map(|_| exchange(nginx.port(), request.as_bytes()).status)
        .collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429]);
    let head = send(nginx.port(), "HEAD", "/", &[]);
    assert_eq!((head.status, head.text()), (429, ""));
    assert!(head.header("Retry-After").is_some());
}
