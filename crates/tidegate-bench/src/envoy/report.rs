//! The tables of this part.

use crate::cpu::Cpu;
use crate::report::{Goal, table, thousands};
use crate::rounds;
use crate::waits::Measured;

/// The ceiling, in memory with many keys and with few, and leases with few; under a load of
/// so many connections, and calls at once on each.
type Compared = ((usize, usize), [Fared; 4]);

type Fared = rounds::Fared<(Measured, Cpu)>;

/// A figure of a round.
type Figure = fn(&(Measured, Cpu)) -> f64;

const A_SECOND: Figure = |(it, _)| it.a_second;
const SERVER: Figure = |(_, cpu)| cpu.server_us;

/// What each came to.
pub(super) fn compared(compared: &[Compared]) -> String {
    let header = [
        "connections x calls, server",
        "calls per second",
        "server's time",
        "of the ceiling",
    ];
    let rows = compared.iter().flat_map(|((connections, calls), lanes)| {
        lanes.iter().map(move |lane| {
            let median = |figure| lane.median(figure);
            [
                format!("{connections} x {calls}, {}", lane.label),
                thousands(median(A_SECOND)),
                format!("{:.1} us", median(SERVER)),
                format!("{:.2}", lane.ratio(&lanes[0], A_SECOND)),
            ]
        })
    });
    table(header, rows)
}

/// What they should come to.
pub(super) fn goals(compared: &[Compared]) -> impl Iterator<Item = (String, f64, Goal)> {
    compared.iter().flat_map(|((connections, calls), lanes)| {
        let [ceiling, many, few, lease] = lanes;
        let row = move |what, ratio: f64, goal: Goal| {
            let what = format!("{connections} x {calls}, calls per second {what}");
            (what, ratio, goal)
        };
        [
            row(
                "in memory, of the ceiling",
                many.ratio(ceiling, A_SECOND),
                Goal::AtLeast(0.75),
            ),
            row(
                "leases, of those in memory",
                lease.ratio(few, A_SECOND),
                Goal::AtLeast(0.9),
            ),
        ]
    })
}
