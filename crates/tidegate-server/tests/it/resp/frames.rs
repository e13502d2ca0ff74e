//! How commands may arrive, and how long they may be. Malformed ones are in
//! `requests/frames.txt`.

use super::{Reply, Served, command};

const CONFIG: &str = "[[policies]]\nname = \"p\"\nlimit = \"10r/s\"\n";

#[test]
fn longest_command_fits_and_one_byte_more_does_not() {
    let served = Served::start(CONFIG);
    let overhead = command(&[b"ECHO", &[b'x'; 10_000]]).len() - 10_000;
    let longest = vec![b'x'; (64 << 10) - overhead];
    let mut client = served.connect();
    client.send(&command(&[b"ECHO", &longest]));
    assert_eq!(client.reply(), Reply::Bulk(longest.clone()));
    let long = [b"*2\r\n$40000\r\n", &[b'x'; 40_000][..], b"\r\n$40000\r\n"];
    for (bytes, expected) in [
        (
            command(&[b"ECHO", &[&longest[..], b"x"].concat()]),
            "the command is too long",
        ),
        (long.concat(), "the command is too long"),
        (vec![b'x'; 70_000], "the command is too long"),
        ([b"a ".repeat(1_025), b"\n".to_vec()].concat(), "1024 words"),
    ] {
        let mut client = served.connect();
        client.send(&bytes);
        let error = client.reply();
        assert!(error.error().contains(expected), "{error:?}");
        assert!(error.error().len() < 300, "{error:?}");
        assert_eq!(client.next(), None);
    }
}

#[test]
fn errors_repeat_no_long_name() {
    let served = Served::start(CONFIG);
    let (mut client, name) = (served.connect(), [b'x'; 5_000]);
    for words in [
        command(&[&name]),
        command(&[b"TG.CHECK", &name, b"KEY", b"a"]),
        command(&[b"TG.CHECK", b"p", &name]),
        command(&[b"CL.THROTTLE", b"a", &name, b"1", b"1"]),
        command(&[b"SELECT", &name]),
    ] {
        client.send(&words);
        let error = client.reply();
        assert!(error.error().len() < 400, "{error:?}");
    }
}

#[test]
fn command_may_arrive_byte_by_byte() {
    let served = Served::start(CONFIG);
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
