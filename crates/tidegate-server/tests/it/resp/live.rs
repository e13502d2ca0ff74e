//! Connections end with the server, and when nobody uses them.

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
