//! The other ways to a listener. What policies answer is in `requests/commands.txt`.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::Command;

use super::{Raw, Served, lines};
use crate::certificates::Certificates;
use crate::process::{Folder, Start};

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

#[test]
fn policy_adhoc_must_be_one_that_calls_can_use() {
    for (field, expected) in [
        ("shadow = true", "has shadow = true"),
        ("count_denied = true", "count_denied"),
        ("key = \"{ip}\"", "a key other than {key}"),
        ("algorithm = \"fixed_window\"", "an algorithm"),
        ("enabled = false", "not enabled"),
    ] {
        let config = format!("[[policies]]\nname = \"adhoc\"\nlimit = \"10r/s\"\n{field}\n");
        let start = Start::new(&config).argument("--resp");
        let (code, _, error) = start.argument("127.0.0.1:0").fail();
        assert_eq!(code, 2, "{error}");
        assert!(error.contains("policy \"adhoc\""), "{error}");
        assert!(error.contains(expected), "{error}");
    }
    // Without the protocol, it is a policy like any other.
    drop(Start::new("[[policies]]\nname = \"adhoc\"\nblock = true\n").start());
}
