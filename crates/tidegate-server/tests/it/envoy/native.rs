//! Domains that name a policy.

use std::time::Duration;

use tidegate_server::envoy::wire::{Code, Unit};
use tidegate_testkit::cases::rows;
use tidegate_testkit::proxy::{Proxy, Replies};

use super::{Served, codes, numbers, read, request};
use crate::process::until;
use crate::redis_server::Server;

pub(super) const ROWS: &str = include_str!("rls.txt");

const LOGIN: &str = r#"
    [[policies]]
    name = "login"
    key = "{user}"
    limit = "3/1h"
    algorithm = "fixed_window"
"#;

/// Counts in a Redis at this URL, whose answers may take long.
fn in_redis(url: &str) -> String {
    format!("[stores.default]\nurl = {url:?}\ntimeout = \"20s\"\n{LOGIN}")
}

#[test]
fn questions_are_answered_in_memory_and_by_servers_that_share_a_redis() {
    let heading = "a domain names a policy";
    let served = Served::start(LOGIN);
    rows(ROWS, heading, |question| served.say(question));
    served.server.line("a request cannot be answered");
    let redis = Server::start();
    let servers = [(); 2].map(|()| Served::start(&in_redis(&redis.url())));
    let mut turns = servers.iter().cycle();
    rows(ROWS, heading, |question| {
        turns.next().expect("a server").say(question)
    });
}

#[test]
fn refusal_has_the_limit_the_reset_and_headers() {
    let served = Served::start(LOGIN);
    assert_eq!(served.say("login: user=ann *3"), "OK: OK 0/3");
    let answer = served.client.ask(read("login: user=ann"));
    let answer = answer.expect("an answer");
    assert_eq!(codes(&answer), [Code::OverLimit; 2]);
    let (limit, _, reset) = numbers(&answer.statuses[0]);
    assert_eq!(limit, Some((3, "login".into())));
    assert!(reset.is_some_and(|reset| (3_500..=3_600).contains(&reset)));
    let limit = answer.statuses[0].current_limit.as_ref().expect("a limit");
    assert_eq!(limit.unit, i32::from(Unit::Hour));
    let headers = answer.response_headers_to_add.iter();
    let headers: Vec<_> = headers.map(|it| (&*it.key, &*it.value)).collect();
    assert!(headers.contains(&("RateLimit-Policy", "\"login\";q=3;w=3600")));
    let has = |name, start| {
        headers
            .iter()
            .any(|it| it.0 == name && it.1.starts_with(start))
    };
    assert!(has("RateLimit", "\"login\";r=0;t="), "{headers:?}");
    assert!(has("Retry-After", ""), "{headers:?}");
}

#[test]
fn store_that_is_down_is_an_error_or_what_on_error_says() {
    rows(
        ROWS,
        "a domain names a policy, and its store is down",
        |text| {
            let (on_error, question) = text.split_once(' ').expect(text);
            let section = format!("[envoy]\non_error = \"{on_error}\"\n");
            let store = "[stores.default]\nurl = \"redis://127.0.0.1:1\"\n";
            Served::start(&format!("{section}{store}{LOGIN}")).say(question)
        },
    );
}

#[test]
fn s12_call_that_envoy_gives_up_between_two_charges_is_decided_to_its_end() {
    let (redis, runtime) = (Server::start(), tokio::runtime::Runtime::new());
    let runtime = runtime.expect("a runtime");
    let proxy = runtime.block_on(Proxy::start(redis.port()));
    let served = Served::start(&in_redis(&proxy.url()));
    assert_eq!(served.say("login: user=bob *3"), "OK: OK 0/3");
    let remaining = || {
        let key = served.server.get("/v1/keys/login?user=ann").json();
        key["levels"][0]["remaining"].as_u64()
    };
    assert_eq!(remaining(), Some(3));
    let mut connection = redis.connect();
    let mut scripts = || -> u64 {
        let mut info = redis::cmd("INFO");
        let info: String = info
            .arg("commandstats")
            .query(&mut connection)
            .expect("text");
        let calls = info.split("cmdstat_evalsha:calls=").nth(1).expect("calls");
        calls
            .split(',')
            .next()
            .expect("a number")
            .parse()
            .expect("a number")
    };
    let before = scripts();
    // Charges ann, and is refused because of bob: ann gets it back.
    proxy.set(Replies::Delay(Duration::from_secs(3)));
    let users: &[&[(&str, &str)]] = &[&[("user", "ann")], &[("user", "bob")]];
    let call = served.client.start(request("login", users));
    until("ann is charged", || (scripts() > before).then_some(()));
    // On the same connection: the server knows then that nobody waits for the first call.
    call.abort();
    assert!(served.say("nobody: user=ann").starts_with("NotFound: "));
    assert_eq!(scripts(), before + 1, "bob is still to be charged");
    proxy.set(Replies::Pass);
    until("the charge is given back", || {
        (remaining() == Some(3)).then_some(())
    });
}
