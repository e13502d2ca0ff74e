//! The tables of the Redis part.

use super::ceiling::Travel;
use super::cost::Cost;
use crate::cpu::Cpu;
use crate::report::{Goal, table, thousands, time};
use crate::rounds::Series;
use crate::waits::Measured;

/// One row: the figures of one client.
pub(super) struct Row {
    pub(super) label: String,
    pub(super) rounds: Vec<(Measured, Cpu)>,
    /// Times the ceiling, round by round.
    pub(super) ratio: f64,
    /// The least of the ceiling that it should reach.
    pub(super) goal: Option<f64>,
}

pub(super) fn throughput(rows: &[Row]) -> String {
    let header = [
        "callers, keys",
        "per second",
        "p99",
        "server's time",
        "of the ceiling",
    ];
    let rows = rows.iter().map(|row| {
        let median = |figure: fn(&Measured, &Cpu) -> f64| {
            let figures = row.rounds.iter().map(|(it, cpu)| figure(it, cpu));
            Series::of(figures.collect()).median()
        };
        [
            row.label.clone(),
            thousands(median(|it, _| it.a_second)),
            time(median(|it, _| it.p99_us)),
            format!("{:.1} us", median(|_, cpu| cpu.server_us)),
            format!("{:.2}", row.ratio),
        ]
    });
    table(header, rows)
}

/// What a check costs, held against one call per check (the ceiling) and against one hop
/// of the client library (the tutorial's token bucket).
pub(super) fn goals(rows: &[Row]) -> Vec<(String, f64, Goal)> {
    let row = |label: &str| rows.iter().find(|row| row.label.starts_with(label));
    let compared = |own: &str, other: &str, figure: fn(&Measured, &Cpu) -> f64| {
        let (own, other) = (row(own)?, row(other)?);
        let pairs = own.rounds.iter().zip(&other.rounds);
        let ratios = pairs.map(|((it, cpu), (other, its))| figure(it, cpu) / figure(other, its));
        Some(Series::of(ratios.collect()).median())
    };
    let server: fn(&Measured, &Cpu) -> f64 = |_, cpu| cpu.server_us;
    let client: fn(&Measured, &Cpu) -> f64 = |_, cpu| cpu.own_us;
    let p50: fn(&Measured, &Cpu) -> f64 = |it, _| it.p50_us;
    let goals = [
        (
            "server's time per check of one call per check, 50 callers",
            compared("50, uniform", "50, the ceiling", server),
            0.65,
        ),
        (
            "the same, 500 callers",
            compared("500, uniform", "500, the ceiling", server),
            0.65,
        ),
        (
            "p50 of one caller of one hop of the client library",
            compared("1, uniform", "1, tutorial's token bucket", p50),
            1.1,
        ),
        (
            // 6.2 us where one hop took 5.3 us, before checks shared calls.
            "client's time per check of one hop of the client library, 50 callers",
            compared("50, uniform", "50, tutorial's token bucket", client),
            0.82,
        ),
    ];
    let goals = goals
        .into_iter()
        .filter_map(|(what, ratio, most)| Some((what.into(), ratio?, Goal::AtMost(most))));
    let ratios = rows.iter().filter_map(|row| {
        let what = format!("{}, throughput of the ceiling", row.label);
        Some((what, row.ratio, Goal::AtLeast(row.goal?)))
    });
    ratios.chain(goals).collect()
}

/// How high the ceiling is, compared with the tool that others measure with.
pub(super) fn crosscheck(checked: &[(Travel, f64)]) -> String {
    let checked = checked.iter().map(|(travel, ratio)| {
        let Travel {
            connections,
            pipelined,
        } = travel;
        format!("{ratio:.2} with `-c {connections} -P {pipelined}`")
    });
    let checked: Vec<String> = checked.collect();
    format!(
        "What measures the ceiling, as a share of `redis-benchmark` with the tutorial's token bucket: {}.",
        checked.join(", ")
    )
}

pub(super) fn cost(rows: &[Cost]) -> String {
    let header = ["script", "per call in the server", "times the tutorial's"];
    let rows = rows.iter().filter_map(|row| {
        let ratio = format!("{:.2}", row.ratio?);
        let each = format!("{:.1} us", row.microseconds);
        Some([row.label.into(), each, ratio])
    });
    table(header, rows)
}

/// What the token bucket's script may cost of the tutorial's.
pub(super) fn cost_goal(rows: &[Cost]) -> Option<(String, f64, Goal)> {
    let bucket = rows.first()?;
    let what = format!("{}, times the tutorial's", bucket.label);
    Some((what, bucket.ratio?, Goal::AtMost(0.9)))
}
