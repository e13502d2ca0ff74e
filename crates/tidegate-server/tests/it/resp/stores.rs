//! Ad-hoc limits over Redis, and what they do without it.

use super::{Reply, Served, command};
use crate::observed::metrics;
use crate::process::until;
use crate::redis_server::Server;

fn config(redis: &Server, adhoc: &str) -> String {
    let url = redis.url();
    format!(
        "[stores.default]\nurl = \"{url}\"\ntimeout = \"10s\"\n\
         [[policies]]\nname = \"p\"\nlimit = \"3/1h\"\n{adhoc}"
    )
}

#[test]
fn servers_share_ad_hoc_limits_in_redis() {
    let redis = Server::start();
    let (a, b) = (
        Served::start(&config(&redis, "")),
        Served::start(&config(&redis, "")),
    );
    let throttle = "CL.THROTTLE user 3 1 3600";
    let remaining: Vec<i64> = [&a, &b, &a, &b]
        .map(|it| it.ask(throttle).numbers()[2])
        .into();
    assert_eq!(remaining, [3, 2, 1, 0]);
    let refused = b.ask(throttle).numbers();
    assert_eq!((refused[0], refused[2]), (1, 0));
    assert!((3_590..=3_600).contains(&refused[3]), "{refused:?}");
    // Other numbers continue with the time that these have left, as in redis-cell.
    assert_eq!(a.ask("CL.THROTTLE user 7 1 3600").numbers()[..3], [0, 8, 3]);
    assert_eq!(
        a.ask("CL.THROTTLE user 7 1 3600 0").numbers()[..3],
        [0, 8, 3]
    );
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("*")
        .query(&mut redis.connect())
        .expect("keys");
    assert_eq!(keys, ["tg:{user}:adhoc:adhoc"]);
    let counted = metrics(&a.server);
    assert_eq!(
        counted["tidegate_decisions_total{policy=\"adhoc\",result=\"allowed\"}"],
        3.0
    );
}

#[test]
fn commands_of_a_read_travel_to_redis_together() {
    let redis = Server::start();
    let served = Served::start(&config(&redis, ""));
    let mut client = served.connect();
    // The first call loads the script.
    client.ask("CL.THROTTLE warm 3 1 3600");
    let calls = || -> u64 {
        let stats: String = redis::cmd("INFO")
            .arg("commandstats")
            .query(&mut redis.connect())
            .expect("statistics");
        let line = stats
            .lines()
            .find(|line| line.starts_with("cmdstat_evalsha:"));
        let calls = line.and_then(|line| line.split(['=', ',']).nth(1));
        calls
            .and_then(|calls| calls.parse().ok())
            .expect("a number of calls")
    };
    let before = calls();
    let mut sent = Vec::new();
    for key in 0..320 {
        let key = format!("k{}", key / 2);
        sent.extend(command(&[
            b"CL.THROTTLE",
            key.as_bytes(),
            b"3",
            b"1",
            b"3600",
        ]));
    }
    client.send(&sent);
    for key in 0..160 {
        // Two checks of a key that travel together may be decided in either order.
        let mut remaining = [0, 0].map(|_: u8| client.reply().numbers()[2]);
        remaining.sort_unstable();
        assert_eq!(remaining, [2, 3], "{key}");
    }
    let sent = calls() - before;
    assert!(sent <= 160, "{sent} calls for 320 checks");
}

#[test]
fn policy_adhoc_says_what_happens_without_redis() {
    for (on_error, expected) in [("allow", 0), ("deny", 1), ("local", 0)] {
        let mut redis = Server::start();
        let adhoc = format!(
            "[[policies]]\nname = \"adhoc\"\nlimit = \"1r/s\"\non_error = \"{on_error}\"\n"
        );
        let served = Served::start(&config(&redis, &adhoc).replace("10s", "200ms"));
        let mut client = served.connect();
        assert_eq!(
            client.ask("CL.THROTTLE a 3 1 3600").numbers()[2],
            3,
            "{on_error}"
        );
        redis.kill();
        let reply = until("the store is known to be down", || {
            let reply = client.ask("CL.THROTTLE b 3 1 3600").numbers();
            let text = served.server.get("/metrics");
            let is_down = text
                .text()
                .contains("tidegate_store_up{store=\"default\"} 0");
            is_down.then_some(reply)
        });
        assert_eq!(reply[..2], [expected, 4], "{on_error}");
        if on_error == "local" {
            // It goes on from where the store was.
            assert_eq!(
                client.ask("CL.THROTTLE a 3 1 3600").numbers()[..3],
                [0, 4, 2]
            );
            assert_eq!(
                client.ask("CL.THROTTLE a 3 1 3600 3").numbers()[..3],
                [1, 4, 2]
            );
        }
        // A look has nobody to ask.
        let error = client.ask("TG.CHECK p PEEK KEY a");
        assert!(error.error().starts_with("STORE "), "{error:?}");
        assert_eq!(client.ask("PING"), Reply::Simple("PONG".into()));
    }
}

#[test]
fn policy_adhoc_chooses_store_and_mode() {
    let redis = Server::start();
    let adhoc = "[[policies]]\nname = \"adhoc\"\nlimit = \"1r/s\"\nmode = \"background\"\n";
    let served = Served::start(&config(&redis, adhoc));
    for remaining in [3, 2, 1, 0] {
        assert_eq!(
            served.ask("CL.THROTTLE user 3 1 3600").numbers()[2],
            remaining
        );
    }
    assert_eq!(served.ask("CL.THROTTLE user 3 1 3600").numbers()[0], 1);
    let counted = metrics(&served.server);
    assert_eq!(
        counted["tidegate_source_total{policy=\"adhoc\",source=\"background\"}"],
        5.0
    );
    let adhoc = "[stores.own]\nurl = \"memory:\"\n\
        [[policies]]\nname = \"adhoc\"\nlimit = \"1r/s\"\nstore = \"own\"\n";
    let served = Served::start(&config(&redis, adhoc));
    // A batch of both: each in its store, answers in order.
    let mut client = served.connect();
    let throttle = command(&[b"CL.THROTTLE", b"mine", b"3", b"1", b"3600"]);
    let check = command(&[b"TG.CHECK", b"p", b"KEY", b"a"]);
    client.send(&[throttle.clone(), check.clone(), throttle, check].concat());
    for remaining in [3, 2] {
        assert_eq!(client.reply().numbers()[2], remaining);
        assert_eq!(
            client.reply().get("remaining"),
            &Reply::Number(remaining - 1)
        );
    }
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("*mine*")
        .query(&mut redis.connect())
        .expect("keys");
    assert!(keys.is_empty(), "{keys:?}");
}
