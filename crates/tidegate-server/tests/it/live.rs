//! What happens now: `/v1/live`.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::client::request;
use crate::process::{PATIENCE, Start, Tidegate, until};
use crate::redis_server::Server;

/// A viewer.
struct Viewer(BufReader<TcpStream>);

impl Viewer {
    fn new(server: &Tidegate) -> Self {
        Self::at(server, 1)
    }

    /// One whose address is 127.0.0 and this number.
    fn at(server: &Tidegate, number: u8) -> Self {
        let mut stream = connect_from(server, number);
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let asked = stream.write_all(&request("GET", "/v1/live", &[], b""));
        asked.expect("a server that reads");
        Self(BufReader::new(stream))
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.0.read_line(&mut line).expect("a line in time");
        (read > 0).then_some(line)
    }

    /// The status of the response.
    fn status(&mut self) -> u16 {
        let line = self.line().expect("a head");
        let status = line
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        status.expect("a status")
    }

    /// The next message; nothing when the stream has ended.
    fn next(&mut self) -> Option<Value> {
        loop {
            let line = self.line()?;
            if let Some(json) = line.strip_prefix("data: ") {
                return Some(serde_json::from_str(json).expect("JSON"));
            }
        }
    }
}

/// Connects from the address 127.0.0 and this number.
fn connect_from(server: &Tidegate, number: u8) -> TcpStream {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().expect("a runtime");
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        let own = format!("127.0.0.{number}:0").parse().expect("an address");
        socket.bind(own).expect("a loopback address");
        let address = server.address().parse().expect("an address");
        socket
            .connect(address)
            .await
            .expect("a server that listens")
    });
    let stream = stream.into_std().expect("a socket");
    stream.set_nonblocking(false).expect("a socket");
    stream
}

const CONFIG: &str = r#"
[server]
admin_token = "sesame"

[[policies]]
name = "login"
key = "{ip}"
limit = "3/1h"

[[policies]]
name = "login-next"
trial_of = "login"
key = "{ip}"
limit = "1/1h"
"#;

#[test]
fn message_has_policies_stores_and_connections_and_no_keys() {
    let server = Tidegate::start(CONFIG);
    let mut viewer = Viewer::new(&server);
    let head = viewer.line().expect("a head");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let first = viewer.next().expect("a message at once");
    // There is nothing to compare with, unless the test stalls for a second.
    let rates = &first["policies"][0]["per_s"];
    let nothing = json!({"allowed": 0.0, "denied": 0.0, "would_deny": 0.0});
    assert!(rates.is_null() || *rates == nothing, "{rates}");
    for _ in 0..8 {
        server.get("/v1/gate/login?ip=203.0.113.7");
    }
    let total = json!({"allowed": 3, "denied": 5, "would_deny": 0});
    let message = until("all is counted", || {
        viewer
            .next()
            .filter(|it| it["policies"][0]["totals"] == total)
    });
    let policy = &message["policies"][0];
    assert_eq!(policy["name"], "login");
    assert_eq!(policy["attributes"], json!(["ip"]));
    let level = json!([{"name": "login", "key": "{ip}", "limit": "3r/h"}]);
    assert_eq!(policy["levels"], level);
    assert!(policy["per_s"]["allowed"].is_number(), "{policy}");
    let trial = &message["policies"][1];
    assert_eq!(trial["trial_of"], "login");
    assert_eq!(trial["levels"][0]["limit"], "1r/h");
    let tried = json!({"allowed": 1, "denied": 0, "would_deny": 7});
    assert_eq!(trial["totals"], tried);
    let store = &message["stores"][0];
    assert_eq!(store["name"], "default");
    assert_eq!(store["kind"], "memory");
    assert_eq!((&store["up"], &store["keys"]), (&json!(true), &json!(2)));
    assert!(message["connections"].as_u64() >= Some(1));
    assert!(!message.to_string().contains("203.0.113.7"));
}

#[test]
fn viewers_see_the_same_messages_and_cannot_be_too_many() {
    let server = Tidegate::start(CONFIG);
    let mut viewers = [Viewer::new(&server), Viewer::new(&server)];
    let times = viewers.each_mut().map(|viewer| {
        let times = (0..4).map(|_| viewer.next().expect("a message")["at_ms"].clone());
        times.collect::<Vec<_>>()
    });
    let shared = times[0].iter().filter(|time| times[1].contains(time));
    assert!(shared.count() >= 2, "{times:?}");
    // One that takes nothing is in nobody's way. Each address has 16 seats.
    let mut others: Vec<Viewer> = (2..64)
        .map(|number| Viewer::at(&server, 1 + number / 16))
        .collect();
    for other in &mut others {
        other.next().expect("a message");
    }
    let refused = server.get("/v1/live");
    assert_eq!(refused.status, 503);
    assert_eq!(refused.detail(), "too many viewers at once");
    drop(others.pop());
    until("there is room again", || {
        (Viewer::at(&server, 4).status() == 200).then_some(())
    });
}

#[test]
fn s5_viewers_of_one_address_leave_seats_to_others() {
    let server = Tidegate::start(CONFIG);
    let mut viewers: Vec<Viewer> = (0..64).map(|_| Viewer::new(&server)).collect();
    let statuses: Vec<u16> = viewers.iter_mut().map(Viewer::status).collect();
    let taken = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!(taken, 16, "{statuses:?}");
    let refused = server.get("/v1/live");
    assert_eq!(refused.detail(), "too many viewers at once");
    assert_eq!(Viewer::at(&server, 2).status(), 200);
}

#[test]
fn stream_ends_when_the_server_does() {
    let mut server = Start::new(CONFIG)
        .argument("--drain")
        .argument("1s")
        .start();
    let mut viewer = Viewer::new(&server);
    viewer.next().expect("a message");
    server.signal("TERM");
    while viewer.next().is_some() {}
    let (status, _) = server.end();
    assert!(status.success());
    server.line("stopped");
    assert!(!server.log().iter().any(|line| line.contains("still open")));
}

#[test]
fn outage_of_a_store_is_shown() {
    let mut redis = Server::start();
    let server = Tidegate::start(&format!(
        "[stores.default]\nurl = {:?}\ntimeout = \"2s\"\n[[policies]]\nname = \"p\"\nlimit = \"9/1h\"\n",
        redis.url()
    ));
    let mut viewer = Viewer::new(&server);
    let mut store = |what: &str, is: &dyn Fn(&Value) -> bool| {
        until(what, || {
            server.get("/v1/gate/p?key=k");
            let message = viewer.next().expect("a message");
            let store = message["stores"][0].clone();
            is(&store).then_some(store)
        })
    };
    let up = store("it is up", &|it| {
        it["up"] == true && it["p50_us"].is_number()
    });
    assert_eq!(up["kind"], "redis");
    assert_eq!((&up["outages"], &up["down_s"]), (&json!(0), &json!(null)));
    redis.kill();
    let down = store("it is down", &|it| it["breaker_open"] == true);
    assert_eq!((&down["up"], &down["outages"]), (&json!(false), &json!(1)));
    assert!(down["errors"].as_u64() > Some(0));
    redis.restart();
    let back = store("it is back", &|it| {
        it["up"] == true && it["breaker_open"] == false
    });
    assert_eq!(
        (&back["outages"], &back["down_s"]),
        (&json!(1), &json!(null))
    );
}
