//! Requests that nginx sends around, and unusual ones.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::client::{get, send, statuses, try_exchange};
use crate::nginx::{Nginx, serving};
use crate::process::wait_for;
use crate::redis::{Redis, store};
use crate::upstream;

/// Zones in memory and in Redis, whose directives follow each other.
fn each_kind(zone: &str, check: impl Fn(&str)) {
    let redis = Redis::start();
    for mode in ["mode=local", "mode=exact", "mode=lease", "mode=background"] {
        redis.command(&["FLUSHALL"]);
        check(&format!("{} tidegate_zone {zone} {mode};", redis.store()));
    }
}

#[test]
fn internal_redirects_are_counted_once() {
    each_kind("z key=all rate=4r/d", |zones| {
        let locations = "
            tidegate z;
            location / { index index.html; }
            location /try { try_files /none /index.html =404; }
            location /gone { error_page 404 /index.html; }
            location /named { error_page 404 = @named; }
            location @named { try_files /index.html =404; }";
        let nginx = Nginx::serve(1, zones, locations);
        let left = |path| {
            let response = get(nginx.port, path);
            let limit = response.header("RateLimit").map(String::from);
            (response.status, limit.map(|it| it[..7].to_owned()))
        };
        assert_eq!(left("/"), (200, Some("\"z\";r=3".into())), "{zones}");
        assert_eq!(left("/try"), (200, Some("\"z\";r=2".into())), "{zones}");
        assert_eq!(left("/gone"), (404, Some("\"z\";r=1".into())), "{zones}");
        assert_eq!(left("/named"), (200, Some("\"z\";r=0".into())), "{zones}");
        assert_eq!(get(nginx.port, "/").status, 429, "{zones}");
    });
}

#[test]
fn redirect_to_another_zone_is_counted_there() {
    let zones = "tidegate_zone a key=all rate=2r/d; tidegate_zone b key=all rate=1r/d;";
    let locations = "
        location /a { tidegate a; try_files /none /index.html; }
        location / { tidegate b; tidegate a; }";
    let nginx = Nginx::serve(1, zones, locations);
    let both = get(nginx.port, "/a");
    assert_eq!(both.status, 200);
    assert_eq!(both.headers("RateLimit").len(), 2, "{both:?}");
    assert_eq!(get(nginx.port, "/a").status, 429);
}

#[test]
fn error_page_of_the_config_replaces_the_problem_and_is_not_limited() {
    each_kind("z key=all rate=1r/d", |zones| {
        let locations = "
            tidegate z;
            error_page 429 = @limited;
            location / { }
            location @limited { default_type text/plain; try_files /index.html =500; }";
        let nginx = Nginx::serve(1, zones, locations);
        assert_eq!(get(nginx.port, "/").status, 200);
        let page = get(nginx.port, "/");
        assert_eq!((page.status, &*page.body), (200, "page\n"), "{zones}");
        assert!(page.header("Retry-After").is_some(), "{page:?}");
    });
}

#[test]
fn satisfy_any_grants_nothing_for_being_within_a_limit() {
    each_kind("z key=all rate=3r/d", |zones| {
        let locations = "location / { satisfy any; deny all; auth_basic x; auth_basic_user_file FOLDER/users; tidegate z; }";
        let nginx = Nginx::serve(1, zones, locations);
        std::fs::write(nginx.folder.path().join("users"), "me:{PLAIN}secret\n").unwrap();
        let me = [("Authorization", "Basic bWU6c2VjcmV0")];
        assert_eq!(get(nginx.port, "/").status, 401, "{zones}");
        assert_eq!(send(nginx.port, "GET", "/", &me).status, 200, "{zones}");
        assert_eq!(get(nginx.port, "/").status, 401, "{zones}");
        assert_eq!(send(nginx.port, "GET", "/", &me).status, 429, "{zones}");
    });
}

#[test]
fn subrequests_belong_to_their_request() {
    each_kind("z key=all rate=4r/d", |zones| {
        let locations = "
            location / { tidegate z; auth_request /auth; }
            location = /auth { tidegate z; try_files /index.html =404; }
            location /ssi { ssi on; ssi_types *; try_files /ssi.html =404; }
            location /part { tidegate z; try_files /index.html =404; }";
        let nginx = Nginx::serve(1, zones, locations);
        let page =
            "<!--# include virtual=\"/part/1\" --><!--# include virtual=\"/part/2\" -->end\n";
        std::fs::write(nginx.folder.path().join("html/ssi.html"), page).unwrap();
        assert_eq!(statuses(nginx.port, "/", 2), [200; 2], "{zones}");
        // Two parts of one request count once.
        let page = get(nginx.port, "/ssi");
        assert_eq!(
            (page.status, page.body.matches("page").count()),
            (200, 2),
            "{zones} {page:?}"
        );
        assert_eq!(get(nginx.port, "/").status, 200, "{zones}");
        assert_eq!(get(nginx.port, "/").status, 429, "{zones}");
        let page = get(nginx.port, "/ssi");
        assert!(
            page.status == 200 && page.body.contains("end\n"),
            "{zones} {page:?}"
        );
        assert!(page.body.matches("page").count() < 2, "{zones} {page:?}");
        let alerts = nginx.read("error.log").contains("[alert]");
        assert!(!alerts, "{}", nginx.read("error.log"));
    });
}

#[test]
fn s14_refused_mirror_leaves_later_locations_limited() {
    let zones = "tidegate_zone copies key=all rate=1r/d; tidegate_zone z key=all rate=2r/d;
        server { listen unix:FOLDER/upstream; add_header X-Accel-Redirect /limited; location / { return 200; } }";
    let locations = "
        location / { mirror /copy; proxy_pass http://unix:FOLDER/upstream; }
        location /copy { tidegate copies; try_files /index.html =404; }
        location /limited { tidegate z; try_files /index.html =404; }";
    let nginx = Nginx::serve(1, zones, locations);
    assert_eq!(statuses(nginx.port, "/", 4), [200, 200, 429, 429]);
    let log = nginx.read("error.log");
    assert_eq!(log.matches("by zone \"copies\"").count(), 3, "{log}");
}

/// The response is sent, and asks for the variable, while the handler has the request's state.
#[test]
fn s15_variables_are_read_while_a_refusal_is_sent() {
    each_kind("z key=all rate=1r/d", |zones| {
        let headers = "add_header X-Status $tidegate_status always; add_header X-Wait $tidegate_retry_after always;";
        let nginx = Nginx::serve(1, zones, &format!("location / {{ tidegate z; {headers} }}"));
        assert_eq!(get(nginx.port, "/").header("X-Status"), Some("PASSED"));
        let refused = get(nginx.port, "/");
        assert_eq!(refused.status, 429, "{zones}");
        assert_eq!(refused.header("X-Status"), Some("REJECTED"), "{zones}");
        assert_eq!(
            refused.header("X-Wait"),
            refused.header("Retry-After"),
            "{zones}"
        );
    });
}

#[test]
fn bodies_of_a_megabyte_arrive() {
    let upstream = upstream::start();
    each_kind("z key=all rate=2r/d", |zones| {
        let location = format!(
            "client_max_body_size 2m; location / {{ tidegate z; proxy_pass http://127.0.0.1:{upstream}; }}"
        );
        let nginx = Nginx::serve(1, zones, &location);
        let body: Vec<u8> = (0..1_000_000_u32).map(|at| at.to_le_bytes()[0]).collect();
        let sum: u64 = body.iter().copied().map(u64::from).sum();
        let head =
            "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1000000\r\n\r\n";
        let post = [head.as_bytes(), &body].concat();
        for _ in 0..2 {
            let response = try_exchange(nginx.port, &post).unwrap();
            assert_eq!(
                (response.status, response.body),
                (200, format!("1000000 {sum}")),
                "{zones}"
            );
        }
        // A refusal does not read it, but the client can send it all.
        let mut stream = TcpStream::connect(("127.0.0.1", nginx.port)).unwrap();
        stream.write_all(&post).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 429", "{zones}");
    });
}

#[test]
fn streams_of_http2_are_requests_of_their_own() {
    each_kind("z key=all rate=5r/d", |zones| {
        let zones =
            format!("{zones} log_format t '$server_protocol $status'; access_log FOLDER/t.log t;");
        let config = serving(&zones, "location / { tidegate z; }").replace("PORT", "PORT http2");
        let nginx = Nginx::start(&config);
        let url = format!("http://127.0.0.1:{}/", nginx.port);
        let done = Command::new("h2load")
            .args(["-n", "8", "-c", "1", "-m", "8"])
            .arg(url)
            .output();
        let said = String::from_utf8(done.unwrap().stdout).unwrap();
        let expected = "status codes: 5 2xx, 0 3xx, 3 4xx, 0 5xx";
        assert!(said.contains(expected), "{zones} {said}");
        assert!(
            nginx
                .read("t.log")
                .lines()
                .all(|line| line.starts_with("HTTP/2.0 "))
        );
        assert_eq!(nginx.errors(), Vec::<String>::new());
    });
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    each_kind("z key=all rate=3r/d", |zones| {
        let nginx = Nginx::serve(1, zones, "location / { tidegate z; }");
        let mut stream = TcpStream::connect(("127.0.0.1", nginx.port)).unwrap();
        let request = "HEAD / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(4);
        stream.write_all(request.as_bytes()).unwrap();
        stream
            .write_all(b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        let statuses: Vec<&str> = said
            .lines()
            .filter_map(|line| line.strip_prefix("HTTP/1.1 "))
            .map(|line| &line[..3])
            .collect();
        assert_eq!(statuses, ["200", "200", "200", "429", "429"], "{zones}");
    });
}

/// Clients that go away while Redis does not answer take nothing with them.
mod timing {
    use super::*;

    #[test]
    fn client_that_goes_away_while_it_waits_is_forgotten() {
        let redis = Redis::start();
        let zones = format!(
            "{} tidegate_zone z key=$arg_k rate=5r/d mode=exact; log_format t $status; access_log FOLDER/t.log t;",
            store(redis.port, "30s")
        );
        let nginx = Nginx::serve(1, &zones, "location / { tidegate z; }");
        assert_eq!(get(nginx.port, "/?k=a").status, 200);
        let sockets = || {
            let id = nginx.worker_ids()[0];
            let entries = std::fs::read_dir(format!("/proc/{id}/fd")).unwrap();
            entries.count()
        };
        let before = sockets();
        redis.process.signal("STOP");
        let start = Instant::now();
        for _ in 0..50 {
            let mut stream = TcpStream::connect(("127.0.0.1", nginx.port)).unwrap();
            stream
                .write_all(&crate::client::request("GET", "/?k=b", &[]))
                .unwrap();
            stream.shutdown(Shutdown::Both).unwrap();
        }
        // Logged as closed by the client, long before Redis answers.
        wait_for(|| (nginx.read("t.log").matches("499").count() == 50).then_some(()));
        assert!(
            start.elapsed() < Duration::from_secs(25),
            "only after the deadline"
        );
        redis.process.signal("CONT");
        assert_eq!(get(nginx.port, "/?k=c").status, 200);
        wait_for(|| (sockets() <= before).then_some(()));
        assert_eq!(nginx.errors(), Vec::<String>::new());
    }
}
