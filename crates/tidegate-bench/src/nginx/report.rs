//! The tables of this part.

use super::{LANES, Round};
use crate::report::{Goal, table, thousands};
use crate::rounds;

type Fared = rounds::Fared<Round>;

/// A figure of a round.
type Figure = fn(&Round) -> f64;

const A_SECOND: Figure = |it| it.a_second;
const NGINX: Figure = |it| it.nginx_us;
const OTHERS: Figure = |it| it.others_us;

/// What each came to.
pub(super) fn compared(lanes: &[Fared; LANES]) -> String {
    let header = [
        "nginx with",
        "requests per second",
        "times bare",
        "nginx's time per request",
        "times `limit_req`",
        "time of Redis or tidegate",
    ];
    let [bare, limit_req, ..] = lanes;
    let rows = lanes.iter().map(|lane| {
        let median = |figure| lane.median(figure);
        [
            lane.label.into(),
            thousands(median(A_SECOND)),
            format!("{:.2}", lane.ratio(bare, A_SECOND)),
            format!("{:.2} us", median(NGINX)),
            format!("{:.2}", lane.ratio(limit_req, NGINX)),
            format!("{:.2} us", median(OTHERS)),
        ]
    });
    table(header, rows)
}

/// What the module should come to.
pub(super) fn goals(lanes: &[Fared; LANES]) -> impl Iterator<Item = (String, f64, Goal)> {
    let [_, limit_req, local, _, lease, background, exact, _, lua] = lanes;
    let cost = [local, lease, background].map(|lane| {
        let what = format!("{}: nginx's time, times `limit_req`", lane.label);
        (what, lane.ratio(limit_req, NGINX), Goal::AtMost(1.05))
    });
    let what = format!("{}: throughput, times Lua and Redis", exact.label);
    let throughput = (what, exact.ratio(lua, A_SECOND), Goal::AtLeast(1.3));
    cost.into_iter().chain([throughput])
}
