//! The listener beside the others: drain, reload, records.

use super::{Reply, Served};
use crate::process::Start;

const CONFIG: &str = "[[policies]]\nname = \"p\"\nlimit = \"3/1h\"\n";

#[test]
fn connections_end_when_the_server_does() {
    let mut served = Served::start(CONFIG);
    let mut client = served.connect();
    assert_eq!(client.ask("PING"), Reply::Simple("PONG".into()));
    served.server.signal("INT");
    assert_eq!(client.next(), None, "closed, not cut");
    let (status, _) = served.server.end();
    assert!(status.success());
    let log = served.server.log().join("\n");
    assert!(
        log.contains("stopped") && !log.contains("still open"),
        "{log}"
    );
}

#[test]
fn idle_connections_are_closed() {
    let served = Served::with(Start::new(CONFIG).argument("--idle").argument("1"));
    let mut client = served.connect();
    assert_eq!(client.ask("PING"), Reply::Simple("PONG".into()));
    assert_eq!(client.next(), None);
}

#[test]
fn reload_changes_policies_and_tokens() {
    let served = Served::start(CONFIG);
    let mut client = served.connect();
    assert_eq!(client.ask("CL.THROTTLE a 3 1 3600").numbers()[2], 3);
    let config = "[server]\nresp_token = \"new\"\n[[policies]]\nname = \"q\"\nlimit = \"7/1h\"\n";
    served.server.folder().write("tidegate.toml", config);
    served.server.line("the config is in force");
    assert!(client.ask("PING").error().starts_with("NOAUTH "));
    assert_eq!(client.ask("AUTH new"), Reply::Simple("OK".into()));
    assert_eq!(
        client.ask("TG.POLICIES"),
        Reply::Array(vec![Reply::bulk("q")])
    );
    assert!(
        client
            .ask("TG.CHECK p KEY a")
            .error()
            .starts_with("NOPOLICY ")
    );
    // Keys keep what they have used.
    assert_eq!(client.ask("CL.THROTTLE a 3 1 3600").numbers()[2], 2);
}

#[test]
fn ad_hoc_decisions_are_recorded_with_their_limit() {
    let start = Start::new(CONFIG)
        .argument("--record")
        .argument("record.jsonl");
    let mut served = Served::with(start.argument("--drain").argument("0"));
    let mut client = served.connect();
    for _ in 0..3 {
        client.ask("CL.THROTTLE a 1 1 3600");
    }
    served.server.signal("TERM");
    served.server.end();
    let record = std::fs::read_to_string(served.server.folder().path("record.jsonl"));
    let record = record.expect("a record");
    let lines: Vec<&str> = record
        .lines()
        .filter(|line| line.contains("adhoc"))
        .collect();
    assert_eq!(lines.len(), 3, "{record}");
    assert!(
        lines.iter().all(|line| line.contains("1r/h burst=2")),
        "{record}"
    );
    assert_eq!(
        lines
            .iter()
            .filter(|line| line.contains("\"allowed\":true"))
            .count(),
        2
    );
}
