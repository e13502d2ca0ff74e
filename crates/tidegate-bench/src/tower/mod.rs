//! What a layer adds to a request: the handler of an axum application bare, with
//! tidegate-tower, and with tower_governor.
//!
//! [`lanes`] are what is compared. They are called through `tower::Service`
//! ([`direct`]), where nothing else is in the figures, and through a socket
//! ([`socket`]), where a service spends most of its time.

mod direct;
mod lanes;
mod socket;

use lanes::Lane;

use crate::limiters::Load;
use crate::report::{Goal, machine, print_goals, table};
use crate::rounds::{Series, interleave};

/// What is compared in a row: the same work, as far as both can do it.
const ROWS: [(&str, Load, Lane, Lane); 4] = [
    (
        "admitted, no headers",
        Load::Admitted,
        Lane::Quiet,
        Lane::Governor,
    ),
    (
        "admitted, `x-ratelimit` headers",
        Load::Admitted,
        Lane::Numbers,
        Lane::GovernorHeaders,
    ),
    (
        "admitted, `ietf` headers",
        Load::Admitted,
        Lane::Usual,
        Lane::GovernorHeaders,
    ),
    (
        "refused",
        Load::Refused,
        Lane::Numbers,
        Lane::GovernorHeaders,
    ),
];

/// What was compared, and the figures: bare, tidegate-tower, tower_governor.
type Row = (&'static str, [Series; 3]);

/// Prints the tables of the tower part of `docs/benchmarks.md`.
pub(crate) fn run() {
    println!("{}\n", machine());
    let directly = rows("called directly", direct::lane);
    println!("{}", added(&directly));
    let whole_requests = rows("through a socket", socket::lane);
    print_goals(directly.iter().map(|(label, lanes)| {
        let what = format!("what tidegate-tower adds, times tower_governor: {label}");
        (what, ratio(lanes), Goal::AtMost(1.0))
    }));
    println!("{}", whole(&whole_requests));
}

/// Makes requests through a lane of this name, called directly.
pub(crate) fn requests(requests: &str, lane: &str) -> Option<()> {
    let lane = Lane::ALL.into_iter().find(|it| it.name() == lane)?;
    direct::requests(lane, requests.parse().ok()?);
    Some(())
}

fn rows(how: &str, lane: fn(Lane, Load) -> Box<dyn FnMut() -> f64>) -> Vec<Row> {
    let rows = ROWS.map(|(label, load, own, other)| {
        eprintln!("measuring: {how}, {label}");
        let lanes = [Lane::Bare, own, other].map(|it| lane(it, load));
        (label, interleave(lanes))
    });
    rows.into()
}

/// What the layers add to a request that is nothing else.
fn added(rows: &[Row]) -> String {
    let header = [
        "called directly",
        "bare",
        "tidegate-tower adds",
        "tower_governor 0.8 adds",
        "ratio",
    ];
    let rows = rows.iter().map(|(label, lanes)| {
        let [bare, own, other] = lanes;
        [
            (*label).into(),
            format!("{:.0} ns", bare.best()),
            format!("{:.0} ns", own.less(bare).median()),
            format!("{:.0} ns", other.less(bare).median()),
            format!("{:.2}", ratio(lanes)),
        ]
    });
    table(header, rows)
}

/// What tidegate's layer adds, times what the other adds.
fn ratio([bare, own, other]: &[Series; 3]) -> f64 {
    own.less(bare).ratio_to(&other.less(bare))
}

/// Whole requests: what a layer adds to one through a socket is less than the
/// difference between two rounds.
fn whole(rows: &[Row]) -> String {
    let header = [
        "through a socket",
        "bare",
        "tidegate-tower / bare",
        "tower_governor 0.8 / bare",
        "tidegate-tower / tower_governor",
    ];
    let rows = rows.iter().map(|(label, [bare, own, other])| {
        [
            (*label).into(),
            format!("{:.1} us", bare.best() / 1_000.0),
            format!("{:.2}", own.ratio_to(bare)),
            format!("{:.2}", other.ratio_to(bare)),
            format!("{:.2}", own.ratio_to(other)),
        ]
    });
    table(header, rows)
}
