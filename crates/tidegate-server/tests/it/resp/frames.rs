//! Bytes that are no commands: each gets an error that says what was expected, and the
//! connection ends, because nobody knows where the next command begins.

use super::{Reply, Served, command};

fn closed() -> Vec<(Vec<u8>, &'static str)> {
    let mut table: Vec<(Vec<u8>, &'static str)> = [
        (
            "*a\r\n",
            "invalid multibulk length: \"a\": expected a number up to 1024",
        ),
        ("*\r\n", "invalid multibulk length"),
        ("* 1\r\n", "invalid multibulk length"),
        ("*+1\r\n", "invalid multibulk length"),
        ("*--1\r\n", "invalid multibulk length"),
        ("*-a\r\n", "invalid multibulk length"),
        ("*-\r\n", "invalid multibulk length"),
        ("*1.0\r\n", "invalid multibulk length"),
        ("*0x1\r\n", "invalid multibulk length"),
        ("*1025\r\n", "invalid multibulk length: \"1025\""),
        ("*2147483648\r\n", "invalid multibulk length"),
        ("*99999999999\r\n", "invalid multibulk length"),
        ("*1\n$4\r\nPING\r\n", "invalid multibulk length"),
        ("*1\rx", "expected \\r\\n"),
        ("*123456789012345678", "expected \\r\\n"),
        ("*1\r\n+PING\r\n", "expected '$', got \"+\""),
        ("*1\r\n:1\r\n", "expected '$', got \":\""),
        ("*1\r\n-x\r\n", "expected '$', got \"-\""),
        ("*1\r\n*1\r\n", "expected '$', got \"*\""),
        ("*1\r\nPING\r\n", "expected '$', got \"P\""),
        ("*1\r\n\r\n", "expected '$', got \"\\r\""),
        ("*1\r\n\0", "expected '$', got \"\\x00\""),
        ("*1\r\n$-1\r\n", "invalid bulk length: \"-1\""),
        ("*1\r\n$-0\r\n", "invalid bulk length"),
        (
            "*1\r\n$a\r\n",
            "invalid bulk length: \"a\": expected a number up to 65536",
        ),
        ("*1\r\n$\r\n", "invalid bulk length"),
        ("*1\r\n$ 4\r\n", "invalid bulk length"),
        ("*1\r\n$4x\r\n", "invalid bulk length"),
        ("*1\r\n$1e1\r\n", "invalid bulk length"),
        ("*1\r\n$65537\r\n", "invalid bulk length"),
        ("*1\r\n$65536\r\n", "the command is too long"),
        ("*1\r\n$536870912\r\n", "invalid bulk length"),
        ("*1\r\n$99999999999999\r\n", "invalid bulk length"),
        ("*1\r\n$18446744073709551616\r\n", "expected \\r\\n"),
        ("*1\r\n$4\nPING", "expected \\r\\n"),
        ("*1\r\n$4\r\r\n", "expected \\r\\n"),
        ("*1\r\n$4\r\nPINGxx", "expected \\r\\n"),
        ("*1\r\n$4\r\nPIN\r\n\r\n", "expected \\r\\n"),
        ("\"unbalanced\r\n", "unbalanced quotes"),
        ("'unbalanced\r\n", "unbalanced quotes"),
        ("\"a\"b\r\n", "unbalanced quotes"),
        ("GET / HTTP/1.1\r\n", "an HTTP request"),
        ("POST /v1/check HTTP/1.1\r\n", "an HTTP request"),
        ("\u{16}\u{3}\u{1}", "a TLS handshake"),
    ]
    .into_iter()
    .map(|(bytes, expected)| (bytes.as_bytes().to_vec(), expected))
    .collect();
    let half = vec![b'x'; 40_000];
    let two = [command(&[&half]), command(&[&half])].concat();
    let long = [
        b"*2\r\n".to_vec(),
        two[4..two.len() / 2].to_vec(),
        b"$40000\r\n".to_vec(),
    ];
    table.push((long.concat(), "the command is too long"));
    table.push((vec![b'x'; 70_000], "the command is too long"));
    table.push(([b"a ".repeat(1_025), b"\n".to_vec()].concat(), "1024 words"));
    table
}

#[test]
fn malformed_frame_gets_an_error_and_ends_the_connection() {
    let served = Served::start("[[policies]]\nname = \"p\"\nlimit = \"10r/s\"\n");
    let table = closed();
    assert!(table.len() >= 40);
    for (bytes, expected) in table {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        for before in [0, 2] {
            let mut client = served.connect();
            // What came before it is answered first.
            client.send(&[b"PING\r\n".repeat(before), bytes.clone()].concat());
            for _ in 0..before {
                assert_eq!(client.reply(), Reply::Simple("PONG".into()), "{shown:?}");
            }
            let error = client.reply();
            let error = error.error();
            let start = error.strip_prefix("ERR Protocol error: ");
            assert!(
                start.is_some_and(|it| it.contains(expected)),
                "{shown:?}: {error}"
            );
            assert!(error.len() < 300, "{error}");
            assert_eq!(client.next(), None, "{shown:?}");
        }
    }
    assert_eq!(served.ask("PING"), Reply::Simple("PONG".into()));
}

#[test]
fn empty_commands_are_not_answered() {
    let served = Served::start("[[policies]]\nname = \"p\"\nlimit = \"10r/s\"\n");
    let mut client = served.connect();
    client.send(b"\r\n\n  \r\n*0\r\n*-1\r\n*1\r\n$4\r\nPING\r\n");
    assert_eq!(client.reply(), Reply::Simple("PONG".into()));
}

#[test]
fn command_may_arrive_byte_by_byte() {
    let served = Served::start("[[policies]]\nname = \"p\"\nlimit = \"10r/s\"\n");
    let mut client = served.connect();
    let key = [0, b'\r', b'\n', 0xff, b'*'];
    let frame = command(&[b"CL.THROTTLE", &key, b"4", b"1", b"3600"]);
    for byte in &frame {
        client.send(&[*byte]);
    }
    assert_eq!(client.reply().numbers(), [0, 5, 4, -1, 3600]);
    // Two and a half commands, then the other half.
    let (first, second) = frame.split_at(frame.len() / 2);
    client.send(&[&frame[..], &frame, first].concat());
    assert_eq!(client.reply().numbers()[2], 3);
    assert_eq!(client.reply().numbers()[2], 2);
    client.send(second);
    assert_eq!(client.reply().numbers()[2], 1);
}

#[test]
fn longest_command_fits_and_one_byte_more_does_not() {
    let served = Served::start("[[policies]]\nname = \"p\"\nlimit = \"10r/s\"\n");
    let overhead = command(&[b"ECHO", &[b'x'; 10_000]]).len() - 10_000;
    let longest = vec![b'x'; (64 << 10) - overhead];
    let mut client = served.connect();
    client.send(&command(&[b"ECHO", &longest]));
    assert_eq!(client.reply(), Reply::Bulk(longest.clone()));
    client.send(&command(&[b"ECHO", &[&longest[..], b"x"].concat()]));
    assert!(client.reply().error().contains("the command is too long"));
    assert_eq!(client.next(), None);
}

#[test]
fn lines_are_commands_too() {
    let served = Served::start("[[policies]]\nname = \"p\"\nlimit = \"10r/s\"\n");
    let mut client = served.connect();
    client.send(b"ping\nCL.THROTTLE \"a b\" 4 1 3600\r\necho 'x y'\n");
    assert_eq!(client.reply(), Reply::Simple("PONG".into()));
    assert_eq!(client.reply().numbers(), [0, 5, 4, -1, 3600]);
    assert_eq!(client.reply(), Reply::bulk("x y"));
    client.send(b"quit\r\nping\r\n");
    assert_eq!(client.reply(), Reply::Simple("OK".into()));
    assert_eq!(client.next(), None);
}
