//! Real processes: three nodes and one Redis, ten times the limit offered for seconds, in
//! each mode.

use serde_json::Value;

use crate::bench::bench;
use crate::process::{Start, Tidegate};
use crate::redis_server::Server;

/// What one fleet came to.
struct Fleet {
    report: Value,
}

impl Fleet {
    /// Three processes, 100 a second allowed and 1,000 offered. The limit must hold.
    fn run(server: &Server, flags: &[&str]) -> Self {
        let url = server.url();
        let load = ["--processes", "3", "--limit", "100r/s", "--rate", "1000"];
        let (code, report) = bench(
            &[&[&*url, "--duration", "6s"][..], &load, flags]
                .concat()
                .join(" "),
        );
        assert_eq!(code, 0, "bound broken: {report:#}");
        Self { report }
    }

    fn number(&self, pointer: &str) -> f64 {
        let number = self.report.pointer(pointer).and_then(Value::as_f64);
        number.unwrap_or_else(|| panic!("{pointer} in {:#}", self.report))
    }

    /// Commands that Redis was sent.
    fn calls(&self) -> f64 {
        self.number("/store_commands")
    }

    /// Asserts that nearly all of the limit was used: of a share of it that the report has.
    fn assert_used(&self, share: &str) {
        let used = self.number(&format!("/verdict/levels/0/{share}"));
        // While a machine stalls, nobody asks. What comes back in a second is kept, the
        // rest is lost: by each of the processes, when they stall one after the other.
        let stalled = self.number("/latency_us/max") / 1_000_000.0;
        let seconds = self.number("/admitted") / used / 100.0;
        let lost = 3.0 * (stalled - 1.0).max(0.0) / seconds;
        assert!(used >= 0.95 - lost, "{share}: {:#}", self.report);
    }
}

/// On SIGTERM, a server reports to its store what it has admitted.
#[test]
fn a_server_that_stops_tells_what_it_has_admitted_in_the_background() {
    let server = Server::start();
    let config = format!(
        "[stores.default]\nurl = \"{}\"\ntimeout = \"20s\"\n[[policies]]\nname = \"p\"\n\
         limit = \"100/1d\"\nalgorithm = \"fixed_window\"\nmode = \"background\"\n\
         sync_interval = \"60s\"\n",
        server.url()
    );
    let mut tidegate = Tidegate::start(&config);
    // The first is reported at once, the others would be after a minute.
    for _ in 0..10 {
        let answer = tidegate.check(r#"{"policy":"p","key":"a"}"#);
        assert_eq!(answer.json()["source"], "background");
    }
    tidegate.signal("INT");
    let (status, _) = tidegate.end();
    assert!(status.success());
    let again = Tidegate::start(&config);
    let look = again.check(r#"{"policy":"p","key":"a","peek":true}"#);
    assert_eq!(look.json()["rate"], 10.0);
}

/// How much of a limit is used.
mod timing {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::observed::metrics;

    /// Checks for 10 s, 500 per second from four clients, while Redis is killed or stopped. How
    /// many the server took more than 10 ms for.
    fn slow_checks(mode: &str, fault: &str) -> f64 {
        let mut redis = Server::start();
        let server = Tidegate::start(&format!(
            "[stores.default]\nurl = \"{}\"\n[[policies]]\nname = \"p\"\n\
             limit = \"1000000r/s\"\nmode = \"{mode}\"\n",
            redis.url()
        ));
        for _ in 0..50 {
            server.get("/v1/gate/p?key=k");
        }
        let slow = || {
            let metrics = metrics(&server);
            let duration = "tidegate_decision_duration_seconds";
            let all = metrics[&format!("{duration}_count{{policy=\"p\"}}")];
            all - metrics[&format!("{duration}_bucket{{policy=\"p\",le=\"0.01\"}}")]
        };
        let before = slow();
        match fault {
            "killed" => redis.kill(),
            _ => redis.signal("STOP"),
        }
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut connection = server.connect();
                    for number in 0..1_250 {
                        let due = start + number * Duration::from_millis(8);
                        std::thread::sleep(due.saturating_duration_since(Instant::now()));
                        let answer = connection.ask("GET", "/v1/gate/p?key=k", &[], b"");
                        assert_eq!(answer.status, 200);
                    }
                });
            }
        });
        slow() - before
    }

    #[test]
    fn u1_few_checks_of_a_server_wait_for_a_store_that_is_down() {
        let cases = ["exact", "lease"].map(|mode| ["stopped", "killed"].map(|it| (mode, it)));
        std::thread::scope(|scope| {
            let cases = cases.into_iter().flatten();
            let runs = cases.map(|(mode, fault)| {
                let run = scope.spawn(move || slow_checks(mode, fault));
                (mode, fault, run)
            });
            for (mode, fault, run) in runs.collect::<Vec<_>>() {
                let slow = run.join().expect("no panic");
                println!("{mode}, {fault}: {slow} of 5000 checks took more than 10 ms");
                assert!(slow <= 20.0, "{mode}, {fault}: {slow}");
            }
        });
    }

    /// A server that is told to stop returns its leases, and what it has spent of them is
    /// counted.
    #[test]
    fn stopped_server_returns_its_leases() {
        let server = Server::start();
        let config = format!(
            "[stores.default]\nurl = \"{}\"\ntimeout = \"20s\"\n[[policies]]\nname = \"p\"\n\
             limit = \"1000/1d\"\nalgorithm = \"fixed_window\"\nmode = \"lease\"\n",
            server.url()
        );
        let other = Tidegate::start(&config);
        for number in 0..20 {
            let start = Start::new(&config).argument("--drain").argument("0");
            let mut tidegate = start.start();
            let key = format!(r#"{{"policy":"p","key":"{number}"}}"#);
            let level = || {
                let path = format!("/v1/keys/p?key={number}");
                other.get(&path).json()["levels"][0].clone()
            };
            // A client that is busy.
            let many = format!("[{}]", [&*key; 8].join(","));
            let mut admitted = 0.0;
            let (mut asked, mut before) = (Instant::now(), level());
            while admitted < 400.0 && before["leased_tokens"] == 0 {
                asked = Instant::now();
                let answers = tidegate.check(&many).json();
                let answers = answers.as_array().expect("a list").clone();
                assert!(answers.iter().all(|it| it["allowed"] == true));
                admitted += answers.len() as f64;
                before = level();
            }
            assert!(before["leases"].as_u64() > Some(0), "{before}");
            let look = key.replace('}', r#","peek":true}"#);
            let look = other.check(&look).json();
            let looked = look["levels"][0].clone();
            tidegate.signal("TERM");
            let (status, _) = tidegate.end();
            // A lease ends after a second, even if the machine stalls.
            if asked.elapsed() > Duration::from_millis(900) {
                continue;
            }
            assert!(status.success());
            assert!(looked["leased_tokens"].as_u64() > Some(0), "{look}");
            let after = level();
            assert_eq!(after["leased_tokens"], 0, "{after}");
            assert_eq!(after["leases"], 0, "{after}");
            assert_eq!(after["rate"], admitted, "{after}");
            return;
        }
        panic!("the machine stalls all the time");
    }

    #[test]
    fn three_processes_at_ten_times_the_limit_keep_to_what_their_mode_promises() {
        let server = Server::start();
        // The deadline is long: what the machine takes is not the subject.
        let exact = ["--mode", "exact", "--timeout", "20s"];
        let remembering = Fleet::run(&server, &exact);
        remembering.assert_used("use_of_bound");
        let forgetful = [&exact[..], &["--refusal-memory", "0s"]].concat();
        let forgetful = Fleet::run(&server, &forgetful);
        let background = Fleet::run(&server, &["--mode", "background"]);
        for (name, fleet) in [
            ("exact", &remembering),
            ("exact without memory", &forgetful),
            ("background", &background),
        ] {
            let (admitted, calls) = (fleet.number("/admitted"), fleet.calls());
            let used = fleet.number("/verdict/levels/0/use_of_bound");
            println!("{name}: {admitted} admitted, {used:.3} of the bound, {calls} calls to Redis");
        }
        background.assert_used("use_of_rate");
        // How many commands that saves depends on how many checks a busy machine sends at once.
        let remembered = |fleet: &Fleet| {
            let refused = fleet.report.pointer("/sources/refusal_memory/refused");
            refused.and_then(Value::as_f64).unwrap_or(0.0)
        };
        assert!(4.0 * remembered(&remembering) > remembering.number("/checks"));
        assert_eq!(remembered(&forgetful), 0.0);
        // Every 50 ms, three nodes tell of one key.
        assert!(background.calls() < 1_000.0, "{}", background.calls());
        let decided = background.number("/sources/background/admitted");
        assert!(decided > 0.0);
    }
}
