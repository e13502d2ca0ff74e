//! Memory has a bound, whatever keys come.

use std::fmt::Write;

use crate::observed::metrics;
use crate::process::Tidegate;

/// So many batches: a million keys. A program that is not optimized would take minutes for
/// them, so it gets fewer, and a bound that is lower by as much.
const BATCHES: u32 = if cfg!(debug_assertions) { 50 } else { 1_000 };

/// Keys that are held at once.
const HELD: u32 = 20 * BATCHES;

/// Batches of a thousand keys that nobody has seen before.
fn ask(server: &Tidegate, batches: std::ops::Range<u32>) {
    std::thread::scope(|scope| {
        for client in 0..4 {
            let batches = batches.clone();
            scope.spawn(move || {
                let mut connection = server.connect();
                for batch in batches.filter(|batch| batch % 4 == client) {
                    let mut body = String::from("[");
                    for key in 0..1_000 {
                        write!(
                            body,
                            "{{\"policy\":\"default\",\"key\":\"{batch}-{key}\"}},"
                        )
                        .expect("a string");
                    }
                    body.pop();
                    body.push(']');
                    let answer = connection.ask("POST", "/v1/check", &[], body.as_bytes());
                    assert_eq!(answer.status, 200);
                }
            });
        }
    });
}

#[test]
fn a_million_keys_take_no_more_than_their_bound() {
    let config = format!(
        "[stores.default]\nmax_keys = {HELD}\n[[policies]]\nname = \"default\"\nlimit = \"10/1h\"\n"
    );
    let server = Tidegate::start(&config);
    ask(&server, 0..BATCHES / 10);
    let before = server.resident_kb();
    ask(&server, BATCHES / 10..BATCHES);
    let after = server.resident_kb();
    let metrics = metrics(&server);
    assert_eq!(
        metrics["tidegate_decisions_total{policy=\"default\",result=\"allowed\"}"],
        f64::from(1_000 * BATCHES)
    );
    assert!(metrics["tidegate_keys"] <= f64::from(HELD));
    assert!(metrics["tidegate_evicted_total"] >= f64::from(900 * BATCHES));
    assert!(after < before + 8 * 1024, "{before} kB, then {after} kB");
}
