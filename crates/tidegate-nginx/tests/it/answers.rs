//! What clients and logs get.

use crate::client::{get, send, statuses};
use crate::nginx::Nginx;

const LOGIN: &str = "tidegate_zone login key=$binary_remote_addr rate=2r/h;";

#[test]
fn refusal_has_a_status_headers_and_a_problem() {
    let nginx = Nginx::serve(1, LOGIN, "location / { tidegate login; }");
    let first = get(nginx.port, "/");
    assert_eq!((first.status, &*first.body), (200, "page\n"));
    assert_eq!(
        first.header("RateLimit-Policy"),
        Some("\"login\";q=2;w=3600")
    );
    assert_eq!(first.header("RateLimit"), Some("\"login\";r=1;t=1800"));
    assert_eq!(first.header("Retry-After"), None);
    assert_eq!(get(nginx.port, "/").status, 200);
    let refused = get(nginx.port, "/");
    assert_eq!(refused.status, 429);
    assert_eq!(
        refused.header("Content-Type"),
        Some("application/problem+json")
    );
    assert_eq!(
        refused.header("RateLimit-Policy"),
        Some("\"login\";q=2;w=3600")
    );
    let wait: u32 = refused.header("Retry-After").unwrap().parse().unwrap();
    assert!((1_700..=1_800).contains(&wait), "{wait}");
    assert_eq!(
        refused.header("RateLimit"),
        Some(&*format!("\"login\";r=0;t={wait}"))
    );
    assert_eq!(
        refused.body,
        "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\"title\":\"Request cannot be satisfied as assigned quota has been exceeded\",\"status\":429,\"violated-policies\":[\"login\"]}"
    );
    let head = send(nginx.port, "HEAD", "/", &[]);
    assert_eq!((head.status, &*head.body), (429, ""));
    let log = nginx.read("error.log");
    let said = "limiting requests, by zone \"login\", retry after ";
    let line = log.lines().find(|line| line.contains(said)).unwrap();
    assert!(
        line.contains("[error]") && line.contains("client: 127.0.0.1"),
        "{line}"
    );
}

#[test]
fn dialects_and_statuses_are_those_of_the_location() {
    let zones = "tidegate_zone a key=$uri rate=1r/h; tidegate_log_level notice;";
    let locations = "
        tidegate a; tidegate_status 503;
        location /x { tidegate_headers x-ratelimit; try_files /index.html =404; }
        location /d { tidegate_headers draft-06; tidegate_status 420; try_files /index.html =404; }
        location /o { tidegate_headers off; try_files /index.html =404; }
        location /n { tidegate off; try_files /index.html =404; }";
    let nginx = Nginx::serve(1, zones, locations);
    for (path, status, headers) in [
        (
            "/x",
            503,
            vec![
                "X-RateLimit-Limit",
                "X-RateLimit-Remaining",
                "X-RateLimit-Reset",
            ],
        ),
        (
            "/d",
            420,
            vec![
                "RateLimit-Limit",
                "RateLimit-Remaining",
                "RateLimit-Reset",
                "RateLimit-Policy",
            ],
        ),
        ("/o", 503, vec![]),
    ] {
        let all = [get(nginx.port, path), get(nginx.port, path)];
        assert_eq!(all.each_ref().map(|it| it.status), [200, status], "{path}");
        for response in &all {
            let sent = response
                .head
                .to_ascii_lowercase()
                .matches("ratelimit")
                .count();
            assert_eq!(sent, headers.len(), "{response:?}");
            assert!(
                headers.iter().all(|name| response.header(name).is_some()),
                "{response:?}"
            );
        }
        assert_eq!(all[1].header("Retry-After").is_some(), path != "/o");
    }
    assert_eq!(statuses(nginx.port, "/n", 3), [200; 3]);
    let log = nginx.read("error.log");
    assert!(
        log.lines()
            .any(|line| line.contains("[notice]") && line.contains("limiting requests"))
    );
}

#[test]
fn dry_run_counts_and_lets_pass() {
    let format = "log_format t '$status $tidegate_status $tidegate_zone $tidegate_remaining $tidegate_source';";
    let zones = format!("{LOGIN} {format} access_log FOLDER/t.log t;");
    let locations = "
        location / { tidegate login; tidegate_dry_run on; }
        location /hard { tidegate login; try_files /index.html =404; }";
    let nginx = Nginx::serve(1, &zones, locations);
    assert_eq!(statuses(nginx.port, "/index.html", 3), [200; 3]);
    assert_eq!(get(nginx.port, "/hard").status, 429);
    assert_eq!(
        nginx.read("t.log"),
        "200 PASSED login 1 store\n200 PASSED login 0 store\n200 REJECTED_DRY_RUN login 0 store\n429 REJECTED login 0 store\n"
    );
    assert!(
        nginx
            .read("error.log")
            .contains("limiting requests, dry run, by zone \"login\"")
    );
}

#[test]
fn empty_key_is_not_counted() {
    let zones = "tidegate_zone k key=$http_x_key rate=1r/h; log_format t '$tidegate_status $tidegate_retry_after'; access_log FOLDER/t.log t;";
    let nginx = Nginx::serve(
        1,
        zones,
        "location / { tidegate k; } location /free { try_files /index.html =404; }",
    );
    assert_eq!(statuses(nginx.port, "/", 5), [200; 5]);
    let keyed =
        |key| [(); 2].map(|()| send(nginx.port, "GET", "/index.html", &[("X-Key", key)]).status);
    assert_eq!(keyed("a"), [200, 429]);
    assert_eq!(keyed("b"), [200, 429]);
    get(nginx.port, "/free");
    let log = nginx.read("t.log");
    let bypassed = log.lines().filter(|line| *line == "BYPASSED -").count();
    assert_eq!(bypassed, 5, "{log}");
    assert!(
        log.lines().any(|line| line.starts_with("REJECTED 3")),
        "{log}"
    );
    assert_eq!(log.lines().last(), Some("- -"), "{log}");
}

#[test]
fn cost_is_an_expression_and_a_wrong_one_is_a_bad_request() {
    let zones = "tidegate_zone z key=all rate=10r/h; tidegate_zone fixed key=all rate=10r/h;";
    let locations = "
        location / { tidegate z cost=$arg_cost; }
        location /four { tidegate fixed cost=4; try_files /index.html =404; }";
    let nginx = Nginx::serve(1, zones, locations);
    let ask = |cost: &str| get(nginx.port, &format!("/index.html?cost={cost}")).status;
    assert_eq!(ask("7"), 200);
    assert_eq!(ask("4"), 429);
    assert_eq!(ask(""), 200);
    for wrong in [
        "0",
        "-1",
        "x",
        "1e3",
        "4294967296",
        "99999999999999999999",
        "%31",
        "1+1",
    ] {
        assert_eq!(ask(wrong), 400, "{wrong}");
    }
    let never = get(nginx.port, "/index.html?cost=11");
    assert_eq!((never.status, never.header("Retry-After")), (429, None));
    assert_eq!(ask("2"), 200);
    assert_eq!(ask("1"), 429);
    assert_eq!(statuses(nginx.port, "/four", 3), [200, 200, 429]);
    assert!(
        nginx
            .read("error.log")
            .contains("the cost for zone \"z\" is \"1e3\": expected a number from 1")
    );
}

#[test]
fn several_zones_are_charged_together_or_not_at_all() {
    let zones = "
        tidegate_zone total key=all rate=5r/h;
        tidegate_zone each key=$http_x_key rate=2r/h algorithm=fixed_window;";
    let locations = "
        location / { tidegate total; tidegate each; }
        location /total { tidegate total; try_files /index.html =404; }";
    let nginx = Nginx::serve(1, zones, locations);
    let ask = |key| send(nginx.port, "GET", "/index.html", &[("X-Key", key)]);
    assert_eq!([(); 5].map(|()| ask("a").status), [200, 200, 429, 429, 429]);
    let next = ask("b");
    // Three refusals have cost the total nothing.
    assert_eq!(next.status, 200);
    let limits = next.header("RateLimit").unwrap();
    assert!(
        limits.starts_with("\"total\";r=2;") && limits.contains("\"each\";r=1;"),
        "{limits}"
    );
    assert_eq!(ask("b").status, 200);
    assert_eq!(statuses(nginx.port, "/total", 2), [200, 429]);
    let refused = ask("c");
    assert!(refused.body.contains("[\"total\"]"), "{refused:?}");
}

#[test]
fn keys_of_any_bytes_are_keys_of_their_own() {
    let nginx = Nginx::serve(
        1,
        "tidegate_zone z key=$arg_k rate=1r/h;",
        "location / { tidegate z; }",
    );
    for key in [
        "a",
        "A",
        "a%00",
        "%00",
        "%ff",
        "a:b",
        "{a}",
        "%7B",
        "a".repeat(4_000).as_str(),
    ] {
        let target = format!("/index.html?k={key}");
        assert_eq!(statuses(nginx.port, &target, 2), [200, 429], "{key}");
    }
}
