//! The tables of this part.

use super::Round;
use crate::report::{Goal, table, thousands, time};
use crate::rounds;

/// tidegate, throttlecrab and Redis, with so many commands on their way per connection.
type Compared = (usize, [Fared; 3]);

type Fared = rounds::Fared<Round>;

/// A figure of a round.
type Figure = fn(&Round) -> f64;

const A_SECOND: Figure = |it| it.a_second;
const P99: Figure = |it| it.p99_us;
const SERVER: Figure = |it| it.server_us;

/// What each came to.
pub(super) fn compared(compared: &[Compared]) -> String {
    let header = [
        "pipeline, server",
        "commands per second",
        "p99",
        "server's time",
        "times throttlecrab",
        "times `INCR`",
    ];
    let rows = compared.iter().flat_map(|(pipeline, lanes)| {
        lanes.iter().map(move |lane| {
            let ratio = |other| format!("{:.2}", lane.ratio(other, A_SECOND));
            [
                format!("{pipeline}, {}", lane.label),
                thousands(lane.median(A_SECOND)),
                time(lane.median(P99)),
                format!("{:.2} us", lane.median(SERVER)),
                ratio(&lanes[1]),
                ratio(&lanes[2]),
            ]
        })
    });
    table(header, rows)
}

/// What tidegate should come to.
pub(super) fn goals(compared: &[Compared]) -> impl Iterator<Item = (String, f64, Goal)> {
    compared.iter().flat_map(|(pipeline, lanes)| {
        let [tidegate, throttlecrab, incr] = lanes;
        let row = move |what: &str, figure: f64, goal: Goal| {
            (format!("pipeline {pipeline}, {what}"), figure, goal)
        };
        let mut rows = Vec::new();
        let (of_throttlecrab, of_incr) = match pipeline {
            1 => (Some(1.2), Some(0.9)),
            32 => (Some(10.0), Some(1.0)),
            _ => (None, None),
        };
        if let Some(goal) = of_throttlecrab {
            let ratio = tidegate.ratio(throttlecrab, A_SECOND);
            rows.push(row(
                "throughput, times throttlecrab's",
                ratio,
                Goal::AtLeast(goal),
            ));
        }
        if let Some(goal) = of_incr {
            let ratio = tidegate.ratio(incr, A_SECOND);
            rows.push(row(
                "throughput, times `INCR`'s",
                ratio,
                Goal::AtLeast(goal),
            ));
        }
        if *pipeline == 32 {
            let median = tidegate.series(SERVER).median();
            rows.push(row("server's time, us", median, Goal::AtMost(1.0)));
        }
        let ratio = tidegate.ratio(incr, P99);
        rows.push(row("p99, times `INCR`'s", ratio, Goal::AtMost(1.0)));
        rows
    })
}

/// How the cost grows with the number of keys.
pub(super) fn growth(sizes: &[Fared]) -> String {
    let header = [
        "keys in use, tidegate, pipeline 32",
        "commands per second",
        "server's time",
        "times the first",
    ];
    let rows = sizes.iter().map(|lane| {
        [
            lane.label.into(),
            thousands(lane.median(A_SECOND)),
            format!("{:.2} us", lane.median(SERVER)),
            format!("{:.2}", lane.ratio(&sizes[0], SERVER)),
        ]
    });
    table(header, rows)
}
