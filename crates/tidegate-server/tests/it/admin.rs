//! The admin address: what operators ask is there, and nowhere else.

use crate::client::Connection;
use crate::process::{Start, Tidegate};

const CONFIG: &str = "[server]\nadmin_token = \"t\"\n\
                      [[policies]]\nname = \"default\"\nlimit = \"10/1h\"\n";

/// The status of a request to the public and to the admin address.
fn statuses(server: &Tidegate, method: &str, path: &str, body: &str) -> (u16, u16) {
    let line = server.line("(admin)");
    let address = line.split("http://").nth(1).expect("an address");
    let address = address.split(' ').next().expect("its end");
    let token = [("Authorization", "Bearer t")];
    let ask = |mut connection: Connection| {
        let answer = connection.ask(method, path, &token, body.as_bytes());
        if answer.status == 404 {
            assert!(
                answer.detail().contains("not served on this address"),
                "{answer:?}"
            );
        }
        answer.status
    };
    (ask(server.connect()), ask(Connection::tcp(address)))
}

#[test]
fn operators_are_served_on_their_own_address_alone() {
    let start = Start::new(CONFIG)
        .argument("--admin")
        .argument("127.0.0.1:0");
    let server = start.start();
    crate::process::until("it is ready", || {
        (statuses(&server, "GET", "/readyz", "").1 == 200).then_some(())
    });
    for (method, path, body, expected) in [
        ("GET", "/metrics", "", (404, 200)),
        ("GET", "/healthz", "", (404, 200)),
        ("GET", "/readyz", "", (404, 200)),
        ("GET", "/v1/keys/default?key=k", "", (404, 200)),
        ("DELETE", "/v1/keys/default?key=k", "", (404, 200)),
        ("GET", "/v1/top/default", "", (404, 200)),
        ("GET", "/v1/live", "", (404, 200)),
        ("GET", "/", "", (404, 200)),
        ("GET", "/dashboard.css", "", (404, 200)),
        ("GET", "/dashboard.js", "", (404, 200)),
        ("GET", "/v1/policies", "", (200, 200)),
        ("GET", "/openapi.json", "", (200, 200)),
        ("GET", "/v1/gate/default?key=k", "", (200, 404)),
        (
            "POST",
            "/v1/check",
            "{\"policy\":\"default\",\"key\":\"k\"}",
            (200, 404),
        ),
        ("POST", "/v1/refund", "{\"receipt\":\"\"}", (400, 404)),
    ] {
        let got = statuses(&server, method, path, body);
        assert_eq!(got, expected, "{method} {path}");
    }
}

#[test]
fn config_names_the_admin_address_and_a_flag_takes_its_place() {
    let config = "[server]\nadmin = [\"unix:a.sock\", \"unix:b.sock\"]\n";
    let server = Start::new(config).start();
    server.line("listening on unix:a.sock (admin)");
    server.line("listening on unix:b.sock (admin)");
    assert_eq!(server.get("/metrics").status, 404);
    let start = Start::new(config).argument("--admin");
    let server = start.argument("unix:c.sock").start();
    server.line("listening on unix:c.sock (admin)");
    assert!(!server.folder().path("a.sock").exists());
}

#[test]
fn admin_address_may_be_a_unix_socket_named_by_a_variable() {
    let start = Start::new(CONFIG).variable("TIDEGATE_ADMIN", "unix:admin.sock");
    let path = start.folder().path("admin.sock");
    let server = start.start();
    server.line("listening on unix:admin.sock (admin)");
    let mut admin = Connection::unix(path.to_str().expect("text"));
    assert_eq!(admin.ask("GET", "/metrics", &[], b"").status, 200);
    assert_eq!(server.get("/metrics").status, 404);
}
