//! The tables of the server's part.

use super::Fared;
use crate::cpu::Cpu;
use crate::report::{Goal, table, thousands, time};
use crate::rounds::Series;
use crate::waits::Measured;

/// The ceiling, throttlecrab, the JSON check, the gate, the gate that refuses; with so
/// many connections.
type Compared = (usize, [Fared; 5]);

/// A figure of a round.
type Figure = fn(&(Measured, Cpu)) -> f64;

const A_SECOND: Figure = |(it, _)| it.a_second;
const P50: Figure = |(it, _)| it.p50_us;
const P99: Figure = |(it, _)| it.p99_us;
const SERVER: Figure = |(_, cpu)| cpu.server_us;
const OWN: Figure = |(_, cpu)| cpu.own_us;

impl Fared {
    fn series(&self, figure: Figure) -> Series {
        Series::of(self.rounds.iter().map(figure).collect())
    }

    fn ratio(&self, other: &Self, figure: Figure) -> f64 {
        self.series(figure).ratio_to(&other.series(figure))
    }

    /// Rate, percentiles, and processor time of the server.
    fn figures(&self) -> [String; 4] {
        let median = |figure| self.series(figure).median();
        [
            thousands(median(A_SECOND)),
            time(median(P50)),
            time(median(P99)),
            format!("{:.1} us", median(SERVER)),
        ]
    }
}

/// What each came to.
pub(super) fn compared(compared: &[Compared], when: &str) -> String {
    let header = [
        &format!("connections, request{when}"),
        "per second",
        "p50",
        "p99",
        "server's time",
        "client's time",
        "of the ceiling",
        "times throttlecrab",
    ];
    let rows = compared.iter().flat_map(|(connections, lanes)| {
        lanes.iter().map(move |lane| {
            let [a_second, p50, p99, server] = lane.figures();
            let ratio = |other| format!("{:.2}", lane.ratio(other, A_SECOND));
            [
                format!("{connections}, {}", lane.label),
                a_second,
                p50,
                p99,
                server,
                format!("{:.1} us", lane.series(OWN).median()),
                ratio(&lanes[0]),
                ratio(&lanes[1]),
            ]
        })
    });
    table(header, rows)
}

/// What the JSON check should come to.
pub(super) fn goals(compared: &[Compared], when: &str) -> String {
    let header = [
        &format!("connections, JSON check{when}"),
        "ratio",
        "goal",
        "",
    ];
    let rows = compared.iter().flat_map(|(connections, lanes)| {
        let [ceiling, throttlecrab, check, ..] = lanes;
        let row = move |what, other, figure, goal: Goal| {
            let ratio = check.ratio(other, figure);
            [
                format!("{connections}, {what}"),
                format!("{ratio:.2}"),
                goal.to_string(),
                goal.verdict(ratio).into(),
            ]
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
    table(header, rows)
}

/// What each costs beside the first, which should be about the same.
pub(super) fn beside_first(what: &str, lanes: &[Fared], goal: Goal) -> String {
    let header = [
        what,
        "per second",
        "p50",
        "p99",
        "server's time",
        "per second, times the first",
        "server's time, times the first",
        "goal",
        "",
    ];
    let rows = lanes.iter().enumerate().map(|(index, lane)| {
        let [a_second, p50, p99, server] = lane.figures();
        let cost = lane.ratio(&lanes[0], SERVER);
        let goal = (index > 0).then_some(goal);
        let verdict = goal.map(|goal| goal.verdict(cost));
        [
            lane.label.into(),
            a_second,
            p50,
            p99,
            server,
            format!("{:.2}", lane.ratio(&lanes[0], A_SECOND)),
            format!("{cost:.2}"),
            goal.map(|goal| goal.to_string()).unwrap_or_default(),
            verdict.unwrap_or_default().into(),
        ]
    });
    table(header, rows)
}
