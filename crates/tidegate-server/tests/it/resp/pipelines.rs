//! Many commands before the first reply is read, and clients that read none.

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use super::{Reply, Served, command};
use crate::observed::metrics;
use crate::process::PATIENCE;

const COMMANDS: usize = 100_000;

#[test]
fn pipeline_of_a_hundred_thousand_commands_is_answered_in_order() {
    let served = Served::start("[[policies]]\nname = \"p\"\nlimit = \"10r/s\"\n");
    let mut client = served.connect();
    let before = served.server.resident_kb();
    // All of it is sent before the first reply is read, as most clients do.
    let one = command(&[b"CL.THROTTLE", b"k", b"99999", b"1", b"3600"]);
    client.send(&one.repeat(COMMANDS));
    client.send(&command(&[b"PING"]));
    let mut replies = std::io::BufReader::new(&client.0);
    let mut bytes = Vec::new();
    let mut buffer = [0; 64 << 10];
    while !bytes.ends_with(b"+PONG\r\n") {
        let length = replies.read(&mut buffer).expect("replies");
        assert!(length > 0, "closed after {} bytes", bytes.len());
        bytes.extend(&buffer[..length]);
    }
    let text = String::from_utf8(bytes).expect("text");
    let remaining = text.split("*5\r\n").skip(1).map(|reply| {
        let line = reply.lines().nth(2).expect("the third number");
        line[1..].parse::<usize>().expect("a number")
    });
    assert!(remaining.eq((0..COMMANDS).rev()));
    let counted = metrics(&served.server);
    let allowed = counted["tidegate_decisions_total{policy=\"adhoc\",result=\"allowed\"}"];
    assert_eq!(allowed, 100_000.0);
    let took = counted["tidegate_decision_duration_seconds_count{policy=\"adhoc\"}"];
    assert_eq!(took, 100_000.0);
    let after = served.server.resident_kb();
    assert!(after < before + (32 << 10), "{before} kB, then {after} kB");
}

#[test]
fn client_that_reads_nothing_is_not_read_for_ever() {
    let served = Served::start("[[policies]]\nname = \"p\"\nlimit = \"10r/s\"\n");
    let before = served.server.resident_kb();
    let mut greedy = served.connect();
    greedy.0.set_nonblocking(true).expect("a socket");
    // Replies are many times as long as these commands.
    let commands = b"INFO\r\n".repeat(10_000);
    let (mut sent, mut last) = (0_usize, Instant::now());
    let begun = Instant::now();
    while last.elapsed() < Duration::from_secs(2) {
        assert!(
            begun.elapsed() < PATIENCE,
            "it reads for ever: {sent} bytes"
        );
        match greedy.0.write(&commands[sent % commands.len()..]) {
            Ok(length) => {
                sent += length;
                last = Instant::now();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("{error}"),
        }
    }
    let held = served.server.resident_kb();
    assert!(held < before + (64 << 10), "{before} kB, then {held} kB");
    // Others are answered in the meantime, and the client is when it reads.
    assert_eq!(served.ask("PING"), Reply::Simple("PONG".into()));
    greedy.0.set_nonblocking(false).expect("a socket");
    assert!(greedy.reply().text().contains("redis_version"));
}

#[test]
fn half_commands_hold_what_was_sent_and_no_more() {
    let served = Served::start("[[policies]]\nname = \"p\"\nlimit = \"10r/s\"\n");
    assert_eq!(served.ask("PING"), Reply::Simple("PONG".into()));
    let before = served.server.resident_kb();
    let clients: Vec<_> = (0..500)
        .map(|_| {
            let mut client = served.connect();
            client.send(b"*2\r\n$4\r\nECHO\r\n$60000\r\nabc");
            client
        })
        .collect();
    assert_eq!(served.ask("PING"), Reply::Simple("PONG".into()));
    let after = served.server.resident_kb();
    assert!(after < before + (16 << 10), "{before} kB, then {after} kB");
    drop(clients);
}

#[test]
fn forty_thousand_different_limits_exhaust_nothing() {
    // More than a store can number, all of them in use at the end.
    const LIMITS: usize = 40_000;
    let served = Served::start("[[policies]]\nname = \"p\"\nlimit = \"10r/s\"\n");
    let mut client = served.connect();
    let mut sent = Vec::new();
    for limit in 1..=LIMITS {
        let (key, burst) = (format!("k{limit}"), limit.to_string());
        let count = (limit % 1_000 + 1).to_string();
        sent.extend(command(&[
            b"CL.THROTTLE",
            key.as_bytes(),
            burst.as_bytes(),
            count.as_bytes(),
            b"31622400",
        ]));
    }
    let mut writer = client.0.try_clone().expect("a socket");
    let writing = std::thread::spawn(move || writer.write_all(&sent).expect("a reader"));
    for limit in 1..=LIMITS {
        let reply = client.reply();
        // Rates that would take a century to refill are refused, all others admitted.
        if let Reply::Error(error) = &reply {
            assert!(error.contains("100 years"), "{error}");
            continue;
        }
        let limit = i64::try_from(limit).expect("small");
        assert_eq!(reply.numbers()[..3], [0, limit + 1, limit]);
    }
    writing.join().expect("all was sent");
    // The first one is still what it was, and a policy has room for its limit.
    assert_eq!(client.ask("CL.THROTTLE k1 1 2 31622400").numbers()[2], 0);
    assert_eq!(
        client.ask("TG.CHECK p KEY a").get("remaining"),
        &Reply::Number(9)
    );
}
