//! Domains that name a policy.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use tidegate_server::envoy::wire::{Code, LimitOverride, Unit};
use tonic::Code as Grpc;

use super::{Served, codes, descriptor, numbers, request};
use crate::process::{PATIENCE, until};
use crate::redis_server::Server;

const LOGIN: &str = r#"
    [[policies]]
    name = "login"
    key = "{user}"
    limit = "3/1h"
    algorithm = "fixed_window"
"#;

#[test]
fn domain_names_the_policy_and_entries_are_attributes() {
    let served = Served::start(LOGIN);
    for left in [2, 1, 0] {
        let answer = served.ask(request("login", &[&[("user", "ann")]]));
        let answer = answer.expect("an answer");
        assert_eq!(codes(&answer), [Code::Ok, Code::Ok]);
        let (limit, remaining, reset) = numbers(&answer.statuses[0]);
        assert_eq!(limit, Some((3, "login".into())));
        assert_eq!(remaining, left);
        assert!(reset.is_some_and(|reset| (3_500..=3_600).contains(&reset)));
    }
    let answer = served
        .ask(request("login", &[&[("user", "ann")]]))
        .expect("an answer");
    assert_eq!(codes(&answer), [Code::OverLimit, Code::OverLimit]);
    let limit = answer.statuses[0].current_limit.as_ref().expect("a limit");
    assert_eq!(limit.unit, i32::from(Unit::Hour));
    let headers = &answer.response_headers_to_add;
    let header = |name: &str| {
        headers
            .iter()
            .find(|it| it.key == name)
            .map(|it| &*it.value)
    };
    assert_eq!(header("RateLimit-Policy"), Some("\"login\";q=3;w=3600"));
    assert!(header("RateLimit").is_some_and(|it| it.starts_with("\"login\";r=0;t=")));
    assert!(header("Retry-After").is_some());
    assert_eq!(served.codes("login", &[&[("user", "bob")]]), [Code::Ok; 2]);
    let metrics = served.server.get("/metrics");
    let metrics = metrics.text();
    let line = "tidegate_decisions_total{policy=\"login\",result=\"denied\"} 1";
    assert!(metrics.contains(line), "{metrics}");
}

#[test]
fn several_descriptors_are_charged_all_or_none() {
    let served = Served::start(LOGIN);
    let both: &[&[(&str, &str)]] = &[&[("user", "ann")], &[("user", "bob")]];
    for _ in 0..2 {
        assert_eq!(served.codes("login", both), [Code::Ok; 3]);
    }
    assert_eq!(served.codes("login", &[&[("user", "bob")]]), [Code::Ok; 2]);
    for _ in 0..3 {
        let answer = served.ask(request("login", both)).expect("an answer");
        let expected = [Code::OverLimit, Code::Ok, Code::OverLimit];
        assert_eq!(codes(&answer), expected);
        // What was taken from the first was given back.
        assert_eq!(answer.statuses[0].limit_remaining, 1);
    }
    assert_eq!(served.codes("login", &[&[("user", "ann")]]), [Code::Ok; 2]);
}

#[test]
fn hits_are_the_cost_and_the_descriptors_own_win() {
    let served = Served::start(LOGIN);
    let mut asked = request("login", &[&[("user", "ann")]]);
    asked.hits_addend = 2;
    let left = |asked: &_| {
        let answer = served.ask(Clone::clone(asked)).expect("an answer");
        (codes(&answer)[0], answer.statuses[0].limit_remaining)
    };
    assert_eq!(left(&asked), (Code::Ok, 1));
    asked.descriptors[0].hits_addend = Some(0);
    assert_eq!(left(&asked), (Code::Ok, 1));
    assert_eq!(left(&asked), (Code::Ok, 1));
    asked.descriptors[0].hits_addend = Some(1);
    assert_eq!(left(&asked), (Code::Ok, 0));
    asked.descriptors[0].hits_addend = Some(1 << 32);
    assert_eq!(left(&asked), (Code::OverLimit, 0));
}

#[test]
fn wrong_requests_are_told_what_is_wrong() {
    let served = Served::start(LOGIN);
    let mut with_limit = request("login", &[&[("user", "ann")]]);
    with_limit.descriptors[0].limit = Some(LimitOverride {
        requests_per_unit: 1,
        unit: Unit::Second.into(),
    });
    let mut negative = request("login", &[&[("user", "ann")]]);
    negative.descriptors[0].is_negative_hits = true;
    for (asked, code, message) in [
        (
            request("", &[&[("user", "ann")]]),
            Grpc::InvalidArgument,
            "rate limit domain must not be empty",
        ),
        (
            request("login", &[]),
            Grpc::InvalidArgument,
            "rate limit descriptor list must not be empty",
        ),
        (
            request("nope", &[&[("user", "ann")]]),
            Grpc::NotFound,
            "\"nope\"",
        ),
        (
            request("login", &[&[("ip", "ann")]]),
            Grpc::InvalidArgument,
            "user",
        ),
        (with_limit, Grpc::InvalidArgument, "descriptor.limit"),
        (negative, Grpc::InvalidArgument, "is_negative_hits"),
    ] {
        let status = served.ask(asked).expect_err(message);
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(message), "{status}");
    }
    served.server.line("a request cannot be answered");
    // Nothing of it was charged.
    let mut look = descriptor(&[("user", "ann")]);
    look.hits_addend = Some(0);
    let mut asked = request("login", &[]);
    asked.descriptors.push(look);
    let answer = served.ask(asked).expect("an answer");
    assert_eq!(answer.statuses[0].limit_remaining, 3);
}

#[test]
fn store_that_is_down_is_an_error_or_what_on_error_says() {
    let store = "[stores.default]\nurl = \"redis://127.0.0.1:1\"\n";
    let asked = || request("login", &[&[("user", "ann")], &[("user", "bob")]]);
    let served = Served::start(&format!("{store}{LOGIN}"));
    let status = served.ask(asked()).expect_err("no store");
    assert_eq!(status.code(), Grpc::Unavailable, "{status}");
    for (on_error, code) in [("allow", Code::Ok), ("deny", Code::OverLimit)] {
        let section = format!("[envoy]\non_error = \"{on_error}\"\n");
        let served = Served::start(&format!("{section}{store}{LOGIN}"));
        let answer = served.ask(asked()).expect("an answer");
        assert_eq!(codes(&answer), [code; 3], "{on_error}");
        assert_eq!(answer.statuses[0].current_limit, None);
    }
}

#[test]
fn counts_in_redis_are_shared_by_servers() {
    let redis = Server::start();
    let config = format!(
        "[stores.default]\nurl = \"{}\"\ntimeout = \"10s\"\n{LOGIN}",
        redis.url()
    );
    let (one, two) = (Served::start(&config), Served::start(&config));
    let both: &[&[(&str, &str)]] = &[&[("user", "ann")], &[("user", "bob")]];
    assert_eq!(one.codes("login", both), [Code::Ok; 3]);
    assert_eq!(two.codes("login", both), [Code::Ok; 3]);
    assert_eq!(one.codes("login", &[&[("user", "bob")]]), [Code::Ok; 2]);
    let expected = [Code::OverLimit, Code::Ok, Code::OverLimit];
    assert_eq!(two.codes("login", both), expected);
    assert_eq!(one.codes("login", &[&[("user", "ann")]]), [Code::Ok; 2]);
    let ann: &[&[(&str, &str)]] = &[&[("user", "ann")]];
    assert_eq!(two.codes("login", ann), [Code::OverLimit; 2]);
}

/// Stands between a server and its Redis, and holds back one call of a script.
struct Between {
    port: u16,
    /// How many more calls pass before the one that is held back.
    pass: Arc<AtomicUsize>,
    /// Hears when that one is held back.
    held: Receiver<()>,
    /// Lets it go on.
    release: Sender<()>,
}

impl Between {
    fn new(redis: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let pass = Arc::new(AtomicUsize::new(usize::MAX));
        let (holds, held) = channel();
        let (release, released) = channel();
        let released = Arc::new(std::sync::Mutex::new(released));
        let (redis, passing) = (redis.port(), Arc::clone(&pass));
        thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.expect("a connection");
                let server = TcpStream::connect(("127.0.0.1", redis)).expect("a Redis");
                let mut replies = server.try_clone().expect("a socket");
                let mut to_client = client.try_clone().expect("a socket");
                thread::spawn(move || {
                    let _ = std::io::copy(&mut replies, &mut to_client);
                    let _ = to_client.shutdown(Shutdown::Both);
                });
                let (passing, holds) = (Arc::clone(&passing), holds.clone());
                let released = Arc::clone(&released);
                thread::spawn(move || {
                    let (mut client, mut server) = (client, server);
                    let mut bytes = [0; 16 << 10];
                    while let Ok(length @ 1..) = client.read(&mut bytes) {
                        let sent = &bytes[..length];
                        if sent.windows(7).any(|it| it == b"EVALSHA")
                            && passing.fetch_sub(1, SeqCst) == 0
                        {
                            holds.send(()).expect("a test");
                            let released = released.lock().expect("one call is held back");
                            released.recv().expect("a test");
                        }
                        if server.write_all(sent).is_err() {
                            break;
                        }
                    }
                    let _ = server.shutdown(Shutdown::Both);
                });
            }
        });
        Self {
            port,
            pass,
            held,
            release,
        }
    }
}

#[test]
fn s12_call_that_envoy_gives_up_between_two_charges_is_decided_to_its_end() {
    let redis = Server::start();
    let between = Between::new(&redis);
    let port = between.port;
    let store =
        format!("[stores.default]\nurl = \"redis://127.0.0.1:{port}\"\ntimeout = \"20s\"\n");
    let served = Served::start(&format!("{store}{LOGIN}"));
    for _ in 0..3 {
        assert_eq!(served.codes("login", &[&[("user", "bob")]]), [Code::Ok; 2]);
    }
    let remaining = || {
        let key = served.server.get("/v1/keys/login?user=ann").json();
        key["levels"][0]["remaining"].as_u64()
    };
    assert_eq!(remaining(), Some(3));
    // Charges ann, and is refused because of bob: ann gets it back.
    between.pass.store(1, SeqCst);
    let asked = request("login", &[&[("user", "ann")], &[("user", "bob")]]);
    let call = served.client.start(asked);
    between
        .held
        .recv_timeout(PATIENCE)
        .expect("a second charge");
    call.abort();
    // On the same connection: the server knows then that nobody waits for the first call.
    let unknown = served.ask(request("nobody", &[&[("user", "ann")]]));
    assert_eq!(unknown.expect_err("no policy").code(), Grpc::NotFound);
    between.release.send(()).expect("a call that is held back");
    until("the charge is given back", || {
        (remaining() == Some(3)).then_some(())
    });
}
