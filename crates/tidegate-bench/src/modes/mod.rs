//! The modes beside each other: `tidegate bench` against a Redis of its own, in turns.

mod chart;
mod hot;
mod run;
mod scale;

use std::path::Path;

pub(crate) use hot::check as check_hot_key;
pub(crate) use scale::write as draw_scale;

use crate::report::{DETAILS, table, thousands, time};
use crate::rounds::Series;
use run::{Figures, Load, run};
use tidegate_testkit::redis::Server;

/// How often each is measured, in turns.
const ROUNDS: usize = 3;

/// What is offered, as a multiple of the limit.
const OFFERED: [u32; 6] = [1, 2, 4, 6, 8, 10];

/// The rate of the picture's limits.
const RATE: u32 = 100;

/// What is compared: a name, and the flags that make it.
type Asked = (&'static str, &'static [&'static str]);

const EXACT: Asked = ("exact", &["--mode", "exact", "--timeout", "5s"]);
const FORGETFUL: Asked = (
    "exact, `refusal_memory = \"0s\"`",
    &[
        "--mode",
        "exact",
        "--refusal-memory",
        "0s",
        "--timeout",
        "5s",
    ],
);
const LEASE: Asked = ("lease", &["--mode", "lease", "--timeout", "5s"]);
const BACKGROUND: Asked = ("background", &["--mode", "background"]);

/// As fast as it goes: throughput, latency, and what Redis is asked for it.
const LOADS: [(&str, &[&str], &[Asked]); 4] = [
    (
        "a hot key, all admitted",
        &["--limit", "100000000r/s"],
        &[EXACT, LEASE, BACKGROUND],
    ),
    (
        "100 hot keys, all admitted",
        &["--limit", "100000000r/s", "--keys", "100"],
        &[EXACT, LEASE, BACKGROUND],
    ),
    (
        "100,000 keys, all admitted",
        &["--limit", "100000000r/s", "--keys", "100000"],
        &[EXACT, LEASE, BACKGROUND],
    ),
    (
        "a hot key, nearly all refused",
        &["--limit", "100r/s"],
        &[FORGETFUL, EXACT, LEASE, BACKGROUND],
    ),
];

/// Prints the table, and draws the picture.
pub(crate) fn measure(picture: &Path) -> std::io::Result<()> {
    let server = Server::start();
    let mut rows = Vec::new();
    for (name, load, askers) in LOADS {
        let mut figures: Vec<Vec<Figures>> = vec![Vec::new(); askers.len()];
        for round in 1..=ROUNDS {
            for ((asker, flags), figures) in askers.iter().zip(&mut figures) {
                eprintln!("{name}: {asker}, round {round} of {ROUNDS}");
                let load = Load::closed(&[load, flags].concat());
                figures.push(run(&server, &load));
            }
        }
        for ((asker, _), own) in askers.iter().zip(&figures) {
            rows.push(row(name, asker, own));
        }
    }
    let header = [
        "load",
        "mode",
        "checks per second",
        "p99",
        "calls to Redis per check",
    ];
    println!("{}", table(header, rows.into_iter()));
    println!("{DETAILS}");
    println!("{}", calls(&server));
    std::fs::write(picture, chart::draw(&lines(&server)))
}

/// What fleets in the mode `lease` ask Redis per admitted check, below the limit of 1000
/// per second and above it.
fn calls(server: &Server) -> String {
    let header = ["offered", "processes", "calls per admitted check"];
    let mut rows = Vec::new();
    for offered in [900, 2_000] {
        for processes in ["1", "3", "10"] {
            eprintln!("lease: {offered} per second on {processes}");
            let (_, lease) = LEASE;
            let flags = [lease, &["--limit", "1000r/s", "--processes", processes]].concat();
            let figures = run(server, &Load::long(&flags, offered));
            rows.push([
                format!("{offered} per second"),
                processes.to_owned(),
                format!("{:.3}", figures.calls / figures.admitted),
            ]);
        }
    }
    table(header, rows.into_iter())
}

fn row(load: &str, asker: &str, own: &[Figures]) -> [String; 5] {
    let median = |figure: fn(&Figures) -> f64| {
        let figures = own.iter().map(figure).collect();
        Series::of(figures).median()
    };
    [
        load.into(),
        asker.into(),
        thousands(median(|it| it.a_second)),
        short(median(|it| it.p99_us)),
        format!("{:.4}", median(|it| it.calls / it.checks)),
    ]
}

/// A time that may be shorter than a microsecond.
fn short(us: f64) -> String {
    match us < 10.0 {
        true => format!("{us:.2} us"),
        false => time(us),
    }
}

/// What three nodes admit of what they are offered.
fn lines(server: &Server) -> Vec<chart::Line> {
    let bucket = format!("{RATE}r/s burst=10");
    let window = format!("{RATE}r/s fixed_window");
    let lines = [
        ("exact, token bucket", "exact", &bucket),
        ("lease, token bucket", "lease", &bucket),
        ("background, token bucket", "background", &bucket),
        ("background, fixed window", "background", &window),
    ];
    let lines = lines.into_iter().map(|(name, mode, limit)| {
        let points = OFFERED.iter().map(|times| {
            eprintln!("{name}: {times} times the limit");
            let flags = ["--mode", mode, "--limit", limit, "--processes", "3"];
            let load = Load::open(&flags, RATE * times);
            let figures = run(server, &load);
            (f64::from(*times), figures.use_of_rate)
        });
        chart::Line {
            name,
            points: points.collect(),
        }
    });
    lines.collect()
}
