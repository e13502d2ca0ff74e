//! Ad-hoc limits over Redis. What they do without it is in `requests/adhoc.txt`.

use super::{Served, command};
use crate::observed::metrics;
use crate::redis_server::Server;

fn start(redis: &Server) -> Served {
    let url = redis.url();
    Served::start(&format!(
        "[stores.default]\nurl = \"{url}\"\ntimeout = \"10s\"\n"
    ))
}

#[test]
fn servers_share_ad_hoc_limits_in_redis() {
    let redis = Server::start();
    let (a, b) = (start(&redis), start(&redis));
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
    let served = start(&redis);
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
