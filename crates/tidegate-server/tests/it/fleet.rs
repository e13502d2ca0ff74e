//! Real processes: three nodes and one Redis, ten times the limit offered for ten
//! seconds, in each mode.

use serde_json::Value;

use crate::bench::bench;
use crate::process::Tidegate;
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
        let (code, report) = bench(&[&[&*url, "--duration", "10s"][..], &load, flags].concat());
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

    fn use_of_bound(&self) -> f64 {
        self.number("/verdict/levels/0/use_of_bound")
    }
}

#[test]
fn three_processes_at_ten_times_the_limit_keep_to_what_their_mode_promises() {
    let server = Server::start();
    // The deadline is long: what the machine takes is not the subject.
    let exact = ["--mode", "exact", "--timeout", "20s"];
    // A machine that stands still for a second does not use the limit.
    let mut used = (0..3).map(|_| Fleet::run(&server, &exact));
    let remembering = used.find(|it| it.use_of_bound() >= 0.95);
    let remembering = remembering.expect("95 % of the limit, in one of three runs");
    let forgetful = [&exact[..], &["--refusal-memory", "0s"]].concat();
    let forgetful = Fleet::run(&server, &forgetful);
    let background = Fleet::run(&server, &["--mode", "background"]);
    for (name, fleet) in [
        ("exact", &remembering),
        ("exact without memory", &forgetful),
        ("background", &background),
    ] {
        let (admitted, calls) = (fleet.number("/admitted"), fleet.calls());
        let used = fleet.use_of_bound();
        println!("{name}: {admitted} admitted, {used:.3} of the bound, {calls} calls to Redis");
    }
    let used = background.number("/verdict/levels/0/use_of_rate");
    assert!(used >= 0.95, "{:#}", background.report);
    assert!(2.0 * remembering.calls() < forgetful.calls());
    // Every 50 ms, three nodes tell of one key.
    assert!(background.calls() < 1_000.0, "{}", background.calls());
    let decided = background.number("/sources/background/admitted");
    assert!(decided > 0.0);
}

/// A server that is told to stop tells its store what it has admitted.
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
    // The first is told at once, the others would be after a minute.
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
