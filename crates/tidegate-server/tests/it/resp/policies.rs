//! Policies over the protocol: checks, resets, refunds, and who may do what.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::Command;

use super::{Raw, Reply, Served, lines};
use crate::certificates::Certificates;
use crate::process::{Folder, Start};

const TWO: &str = "[server]\nadmin_token = \"s3cret\"\n\
    [[policies]]\nname = \"p\"\nlimit = \"3/1h\"\n\
    [[policies]]\nname = \"two\"\n\
    [[policies.levels]]\nname = \"total\"\nkey = \"{a}\"\nlimit = \"5/1h\"\n\
    [[policies.levels]]\nname = \"each\"\nkey = \"{a}:{b}\"\nlimit = \"2/1h\"\n";

const NAMES: [&str; 9] = [
    "allowed",
    "denied_by",
    "limit",
    "remaining",
    "retry_after_ms",
    "reset_after_ms",
    "source",
    "receipt",
    "levels",
];

#[test]
fn check_is_a_map_in_resp3_and_a_flat_list_in_resp2() {
    let served = Served::start(TWO);
    let mut two = served.connect();
    let reply = two.ask("TG.CHECK p KEY a");
    let Reply::Array(elements) = &reply else {
        panic!("{reply:?}");
    };
    let names: Vec<&str> = elements.iter().step_by(2).map(Reply::text).collect();
    assert_eq!(names, NAMES);
    assert_eq!(reply.get("allowed"), &Reply::Number(1));
    assert_eq!(reply.get("denied_by"), &Reply::Null);
    assert_eq!(reply.get("limit"), &Reply::Number(3));
    assert_eq!(reply.get("remaining"), &Reply::Number(2));
    assert_eq!(reply.get("retry_after_ms"), &Reply::Number(0));
    assert_eq!(reply.get("source"), &Reply::bulk("store"));
    let mut three = served.connect();
    let hello = three.ask("HELLO 3");
    assert_eq!(hello.get("proto"), &Reply::Number(3));
    assert_eq!(hello.get("server"), &Reply::bulk("tidegate"));
    let reply = three.ask("tg.check p cost 3 key a");
    let Reply::Map(pairs) = &reply else {
        panic!("{reply:?}");
    };
    let names: Vec<&str> = pairs.iter().map(|(name, _)| name.text()).collect();
    assert_eq!(names, NAMES);
    assert_eq!(reply.get("allowed"), &Reply::Flag(false));
    assert_eq!(reply.get("denied_by"), &Reply::bulk("p"));
    assert_eq!(reply.get("remaining"), &Reply::Number(2));
    assert_eq!(reply.get("receipt"), &Reply::Null);
    // Never: the bucket does not hold so many.
    let reply = three.ask("TG.CHECK p COST 4 KEY a");
    assert_eq!(reply.get("retry_after_ms"), &Reply::Null);
    // A look charges nothing.
    for _ in 0..3 {
        let reply = three.ask("TG.CHECK p PEEK KEY a");
        assert_eq!(reply.get("remaining"), &Reply::Number(2));
        assert_eq!(reply.get("receipt"), &Reply::Null);
    }
    assert_eq!(
        three.ask("TG.POLICIES"),
        Reply::Array(vec![Reply::bulk("p"), Reply::bulk("two")])
    );
}

#[test]
fn reset_and_refund_need_the_admin_token() {
    let served = Served::start(TWO);
    let mut client = served.connect();
    let receipt = client
        .ask("TG.CHECK p COST 3 KEY a")
        .get("receipt")
        .text()
        .to_owned();
    assert!(
        client
            .ask("TG.RESET p KEY a")
            .error()
            .starts_with("NOAUTH ")
    );
    assert!(
        client
            .ask(&format!("TG.REFUND {receipt}"))
            .error()
            .starts_with("NOAUTH ")
    );
    assert!(
        client
            .ask("AUTH admin wrong")
            .error()
            .starts_with("WRONGPASS ")
    );
    assert!(
        client
            .ask("TG.RESET p KEY a")
            .error()
            .starts_with("NOAUTH ")
    );
    assert_eq!(client.ask("AUTH admin s3cret"), Reply::Simple("OK".into()));
    let refund = format!("TG.REFUND {receipt}");
    for _ in 0..2 {
        // Once, however often it is handed in.
        assert_eq!(client.ask(&refund), Reply::Simple("OK".into()));
        assert_eq!(
            client.ask("TG.CHECK p PEEK KEY a").get("remaining"),
            &Reply::Number(3)
        );
    }
    assert!(
        client
            .ask("TG.REFUND nonsense")
            .error()
            .contains("receipt: expected")
    );
    client.ask("TG.CHECK p KEY a");
    assert_eq!(client.ask("TG.RESET p KEY a"), Reply::Simple("OK".into()));
    assert_eq!(
        client.ask("TG.CHECK p KEY a").get("remaining"),
        &Reply::Number(2)
    );
    // Of several levels, it has to be said which.
    client.ask("TG.CHECK two ATTR a 1 b x");
    assert!(
        client
            .ask("TG.RESET two ATTR a 1 b x")
            .error()
            .starts_with("ERR ")
    );
    assert_eq!(
        client.ask("TG.RESET two LEVEL each ATTR a 1 b x"),
        Reply::Simple("OK".into())
    );
    assert_eq!(
        client.ask("TG.RESET two ALL ATTR a 1 b x"),
        Reply::Simple("OK".into())
    );
    let after = client.ask("TG.CHECK two ATTR a 1 b x");
    assert_eq!(after.get("remaining"), &Reply::Number(1));
    // What RESET ends is the session of this connection.
    assert_eq!(client.ask("RESET"), Reply::Simple("RESET".into()));
    assert!(
        client
            .ask("TG.RESET p KEY a")
            .error()
            .starts_with("NOAUTH ")
    );
}

#[test]
fn resp_token_is_needed_before_anything_is_asked() {
    let config = "[server]\nresp_token = \"env:ASK\"\nadmin_token = \"s3cret\"\n\
        [[policies]]\nname = \"p\"\nlimit = \"3/1h\"\n";
    let served = Served::with(Start::new(config).variable("ASK", "open-sesame"));
    let mut client = served.connect();
    for words in [
        "PING",
        "TG.CHECK p KEY a",
        "CL.THROTTLE a 1 1 1",
        "INFO",
        "nope",
        "HELLO 3",
    ] {
        assert!(client.ask(words).error().starts_with("NOAUTH "), "{words}");
    }
    for words in [
        "AUTH wrong",
        "AUTH default wrong",
        "AUTH other open-sesame",
        "HELLO 3 AUTH default x",
    ] {
        assert!(
            client.ask(words).error().starts_with("WRONGPASS "),
            "{words}"
        );
    }
    assert_eq!(client.ask("AUTH open-sesame"), Reply::Simple("OK".into()));
    assert_eq!(
        client.ask("TG.CHECK p KEY a").get("remaining"),
        &Reply::Number(2)
    );
    assert!(
        client
            .ask("TG.RESET p KEY a")
            .error()
            .starts_with("NOAUTH ")
    );
    let mut client = served.connect();
    let hello = client.ask("HELLO 3 AUTH default open-sesame SETNAME me");
    assert_eq!(hello.get("proto"), &Reply::Number(3));
    assert_eq!(client.ask("CLIENT GETNAME"), Reply::bulk("me"));
    // Who may change anything may ask, too.
    let mut client = served.connect();
    assert_eq!(client.ask("AUTH admin s3cret"), Reply::Simple("OK".into()));
    assert_eq!(client.ask("TG.RESET p KEY a"), Reply::Simple("OK".into()));
    assert_eq!(
        client.ask("TG.CHECK p KEY a").get("remaining"),
        &Reply::Number(2)
    );
    // The token is shown to nobody.
    for line in served.server.log() {
        assert!(!line.contains("open-sesame"), "{line}");
    }
}

#[test]
fn unix_socket_and_tls_speak_it_as_well() {
    let folder = Folder::new();
    let path = folder.path("resp.sock");
    let start = Start::new("[[policies]]\nname = \"p\"\nlimit = \"3/1h\"\n");
    let server = start
        .argument("--resp")
        .argument(&format!("unix:{}", path.display()))
        .start();
    server.line("resp.sock");
    let mut cli = Command::new("redis-cli");
    cli.arg("-s")
        .arg(&path)
        .args(["CL.THROTTLE", "a", "4", "1", "3600"]);
    assert_eq!(lines(&mut cli), ["0", "5", "4", "-1", "3600"]);
    let mut stream = UnixStream::connect(&path).expect("a listener");
    stream.write_all(b"PING\r\n").expect("a reader");

    let certificates = Certificates::make();
    let start = Start::new(
        "[server]\ntls_cert = \"server.crt\"\ntls_key = \"server.key\"\n\
         [[policies]]\nname = \"p\"\nlimit = \"3/1h\"\n",
    );
    for file in ["server.crt", "server.key"] {
        start.folder().write(file, certificates.read(file));
    }
    let served = Served::with(start);
    served.server.line("rediss://");
    let authority = certificates.path("authority.crt");
    let secure = ["--tls", "--cacert", &authority];
    let reply = served.cli(&[&secure[..], &["-3", "CL.THROTTLE", "a", "4", "1", "3600"]].concat());
    assert_eq!(reply, ["0", "5", "4", "-1", "3600"]);
    // Without TLS there is no answer, and no harm.
    let mut plain: Raw = served.connect();
    plain.send(b"PING\r\n");
    drop(plain);
    assert_eq!(served.cli(&[&secure[..], &["PING"]].concat()), ["PONG"]);
}
