//! The tables of the server's part.

use crate::cpu::Cpu;
use crate::report::{Goal, table, thousands, time};
use crate::rounds;
use crate::waits::Measured;

/// The ceiling, throttlecrab, the JSON check, the gate, the gate that refuses; with so
/// many connections.
type Compared = (usize, [Fared; 5]);

type Fared = rounds::Fared<(Measured, Cpu)>;

/// A figure of a round.
type Figure = fn(&(Measured, Cpu)) -> f64;

const A_SECOND: Figure = |(it, _)| it.a_second;
const P99: Figure = |(it, _)| it.p99_us;
const SERVER: Figure = |(_, cpu)| cpu.server_us;

/// What each came to.
pub(super) fn compared(compared: &[Compared], when: &str) -> String {
    let header = [
        &format!("connections, request{when}"),
        "per second",
        "p99",
        "server's time",
        "of the ceiling",
        "times throttlecrab",
    ];
    let rows = compared.iter().flat_map(|(connections, lanes)| {
        lanes.iter().map(move |lane| {
            let ratio = |other| format!("{:.2}", lane.ratio(other, A_SECOND));
            [
                format!("{connections}, {}", lane.label),
                thousands(lane.median(A_SECOND)),
                time(lane.median(P99)),
                format!("{:.1} us", lane.median(SERVER)),
                ratio(&lanes[0]),
                ratio(&lanes[1]),
            ]
        })
    });
    table(header, rows)
}

/// What the JSON check should come to.
pub(super) fn goals(compared: &[Compared], when: &str) -> Vec<(String, f64, Goal)> {
    let rows = compared.iter().flat_map(|(connections, lanes)| {
        let [ceiling, throttlecrab, check, ..] = lanes;
        let row = move |what, other, figure, goal: Goal| {
            let what = format!("{connections} connections, JSON check{when}, {what}");
            (what, check.ratio(other, figure), goal)
        };
        [
            row(
                "throughput, of the ceiling",
                ceiling,
                A_SECOND,
                Goal::AtLeast(0.8),
            ),
            row(
                "throughput, times throttlecrab's",
                throttlecrab,
                A_SECOND,
                Goal::AtLeast(1.5),
            ),
            row(
                "p99, times throttlecrab's",
                throttlecrab,
                P99,
                Goal::AtMost(1.0),
            ),
            row(
                "server's time, times throttlecrab's",
                throttlecrab,
                SERVER,
                Goal::AtMost(0.55),
            ),
        ]
    });
    rows.collect()
}

/// What each costs beside the first.
pub(super) fn beside_first(what: &str, lanes: &[Fared]) -> String {
    let header = [what, "per second", "server's time", "times the first"];
    let rows = lanes.iter().map(|lane| {
        [
            lane.label.into(),
            thousands(lane.median(A_SECOND)),
            format!("{:.1} us", lane.median(SERVER)),
            format!("{:.2}", lane.ratio(&lanes[0], SERVER)),
        ]
    });
    table(header, rows)
}

/// Each should cost about as much as the first.
pub(super) fn flat(what: &str, lanes: &[Fared], goal: Goal) -> Vec<(String, f64, Goal)> {
    let rows = lanes.iter().skip(1).map(|lane| {
        let what = format!("{what}: {}, server's time, times the first", lane.label);
        (what, lane.ratio(&lanes[0], SERVER), goal)
    });
    rows.collect()
}
