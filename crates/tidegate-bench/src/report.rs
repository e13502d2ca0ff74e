//! The tables: aligned for the eye, and valid Markdown.

use std::fmt::{self, Write};
use std::process::Command;

use crate::rounds::Series;

/// What a figure counts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Unit {
    /// Time a check.
    Nanoseconds,
    /// Memory per key.
    Bytes,
}

/// One row: a measurement of all three limiters.
pub(crate) struct Comparison {
    pub(crate) label: String,
    pub(crate) unit: Unit,
    /// tidegate, governor, aerorate.
    pub(crate) series: [Series; 3],
    /// The most of governor's figure that tidegate may need.
    pub(crate) goal: Option<f64>,
}

/// One row: tidegate alone at some number of keys.
pub(crate) struct Growth {
    pub(crate) keys: String,
    pub(crate) nanoseconds: f64,
    pub(crate) times_the_first: f64,
}

/// One row: a figure of tidegate beside another one of the same rounds.
pub(crate) struct Beside {
    label: String,
    nanoseconds: f64,
    other: &'static str,
    other_nanoseconds: f64,
    ratio: f64,
    goal: Option<f64>,
}

impl Beside {
    pub(crate) fn new(
        label: String,
        own: &Series,
        other: &'static str,
        others: &Series,
        goal: Option<f64>,
    ) -> Self {
        Self {
            label,
            nanoseconds: own.best(),
            other,
            other_nanoseconds: others.best(),
            ratio: own.ratio_to(others),
            goal,
        }
    }
}

/// One row: the longest of many calls.
pub(crate) struct Longest {
    pub(crate) label: String,
    pub(crate) nanoseconds: u64,
}

impl Longest {
    fn us(&self) -> f64 {
        self.nanoseconds as f64 / 1e3
    }
}

/// The longest that a call may keep a lock.
const LONGEST_US: f64 = 20.0;

/// One row: what policies add to a check of the bare limiter, as ratios.
pub(crate) struct Through {
    pub(crate) label: String,
    pub(crate) bare: f64,
    pub(crate) one: f64,
    pub(crate) overridden: f64,
    pub(crate) two: f64,
}

/// The most a policy of one level may take of the bare limiter's time.
const ONE_LEVEL: f64 = 1.5;

/// The table that compares.
pub(crate) fn comparison(comparisons: &[Comparison]) -> String {
    let header = [
        "measurement",
        "tidegate",
        "governor 0.10",
        "aerorate 0.1",
        "tidegate / governor",
    ];
    let rows = comparisons.iter().map(|row| {
        let unit = match row.unit {
            Unit::Nanoseconds => "ns",
            Unit::Bytes => "bytes",
        };
        let figure = |series: &Series| format!("{:.0} {unit}", series.best());
        let [tidegate, governor, aerorate] = &row.series;
        [
            row.label.clone(),
            figure(tidegate),
            figure(governor),
            figure(aerorate),
            format!("{:.2}", tidegate.ratio_to(governor)),
        ]
    });
    table(header, rows)
}

/// The table of figures side by side.
pub(crate) fn beside(rows: &[Beside]) -> String {
    let header = ["measurement", "a check", "beside", "a check", "ratio"];
    let rows = rows.iter().map(|row| {
        [
            row.label.clone(),
            format!("{:.0} ns", row.nanoseconds),
            row.other.into(),
            format!("{:.0} ns", row.other_nanoseconds),
            format!("{:.2}", row.ratio),
        ]
    });
    table(header, rows)
}

/// The table of longest calls.
pub(crate) fn longest(rows: &[Longest]) -> String {
    let rows = rows
        .iter()
        .map(|row| [row.label.clone(), format!("{:.1} us", row.us())]);
    table(["the longest single call", "processor time"], rows)
}

/// The table of policies.
pub(crate) fn through(rows: &[Through]) -> String {
    let header = [
        "through a policy",
        "bare limiter",
        "1 level",
        "1 level, 1,000 overrides",
        "2 levels",
    ];
    let rows = rows.iter().map(|row| {
        [
            row.label.clone(),
            format!("{:.0} ns", row.bare),
            format!("{:.2}", row.one),
            format!("{:.2}", row.overridden),
            format!("{:.2}", row.two),
        ]
    });
    table(header, rows)
}

/// What comes after this line stays on the terminal: goals, and counts of instructions.
pub(crate) const DETAILS: &str = "Not for docs/benchmarks.md:\n";

/// Prints figures with the goals that they should reach, and whether they do.
pub(crate) fn print_goals(rows: impl IntoIterator<Item = (String, f64, Goal)>) {
    let header = ["goal", "figure", "should be", ""];
    let rows = rows.into_iter().map(|(what, figure, goal)| {
        [
            what,
            format!("{figure:.2}"),
            goal.to_string(),
            goal.verdict(figure).into(),
        ]
    });
    println!("{DETAILS}\n{}", table(header, rows));
}

/// The goals of the limiter in memory.
pub(crate) fn print_core_goals(
    comparisons: &[Comparison],
    besides: &[Beside],
    through: &[Through],
    longest: &[Longest],
) {
    let compared = comparisons.iter().filter_map(|row| {
        let [tidegate, governor, _] = &row.series;
        let ratio = tidegate.ratio_to(governor);
        Some((row.label.clone(), ratio, Goal::AtMost(row.goal?)))
    });
    let besides = besides
        .iter()
        .filter_map(|row| Some((row.label.clone(), row.ratio, Goal::AtMost(row.goal?))));
    let through = through.iter().map(|row| {
        let what = format!("through a policy of 1 level: {}", row.label);
        (what, row.one, Goal::AtMost(ONE_LEVEL))
    });
    let longest = longest.iter().map(|row| {
        (
            format!("{}, us", row.label),
            row.us(),
            Goal::AtMost(LONGEST_US),
        )
    });
    print_goals(compared.chain(besides).chain(through).chain(longest));
}

/// What a figure should be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

impl Goal {
    /// Judged as printed, so that a table agrees with itself.
    fn verdict(self, figure: f64) -> &'static str {
        let printed = |figure: f64| (figure * 100.0).round();
        let met = match self {
            Self::AtMost(goal) => printed(figure) <= printed(goal),
            Self::AtLeast(goal) => printed(figure) >= printed(goal),
        };
        if met { "met" } else { "missed" }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(goal) => write!(f, "at most {goal:.2}"),
            Self::AtLeast(goal) => write!(f, "at least {goal:.2}"),
        }
    }
}

/// The table of tidegate alone.
pub(crate) fn growth(growth: &[Growth]) -> String {
    let header = ["keys held by tidegate", "a check", "times the first"];
    let rows = growth.iter().map(|row| {
        [
            row.keys.clone(),
            format!("{:.0} ns", row.nanoseconds),
            format!("{:.2}", row.times_the_first),
        ]
    });
    table(header, rows)
}

/// The first column to the left, the others to the right.
pub(crate) fn table<const COLUMNS: usize>(
    header: [&str; COLUMNS],
    rows: impl Iterator<Item = [String; COLUMNS]>,
) -> String {
    let mut lines = vec![header.map(String::from)];
    lines.extend(rows);
    let widths: [usize; COLUMNS] = std::array::from_fn(|column| {
        let widths = lines.iter().map(|line| line[column].chars().count());
        widths.max().unwrap_or_default().max(3)
    });
    let rule: [String; COLUMNS] = std::array::from_fn(|column| match column {
        0 => "-".repeat(widths[column]),
        _ => format!("{}:", "-".repeat(widths[column] - 1)),
    });
    lines.insert(1, rule);
    let mut text = String::new();
    for line in &lines {
        for (column, cell) in line.iter().enumerate() {
            let width = widths[column];
            let cell = match column {
                0 => format!("| {cell:<width$} "),
                _ => format!("| {cell:>width$} "),
            };
            text.push_str(&cell);
        }
        text.push_str("|\n");
    }
    text
}

/// `12,345`.
pub(crate) fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Microseconds, or milliseconds where these are many.
pub(crate) fn time(us: f64) -> String {
    match us {
        1_000.0.. => format!("{:.1} ms", us / 1_000.0),
        _ => format!("{us:.0} us"),
    }
}

/// Where and when: times mean nothing without it.
pub(crate) fn machine() -> String {
    let information = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = information
        .lines()
        .filter(|line| line.starts_with("model name"))
        .find_map(|line| line.split(": ").nth(1));
    let mut text = String::from(model.unwrap_or("unknown processor"));
    if let Ok(cores) = std::thread::available_parallelism() {
        write!(text, ", {cores} cores").expect("a string takes everything");
    }
    for command in [["date", "+%F"], ["rustc", "--version"]] {
        if let Some(output) = output(command) {
            write!(text, ", {output}").expect("a string takes everything");
        }
    }
    // Other load on the machine is in the figures, too.
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    if let Some(load) = load.split(' ').next().filter(|load| !load.is_empty()) {
        write!(text, ", load {load} at the start").expect("a string takes everything");
    }
    text + "."
}

fn output([program, argument]: [&str; 2]) -> Option<String> {
    let output = Command::new(program).arg(argument).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    // The version of a compiler, without its commit.
    let text = text.split(" (").next().unwrap_or_default();
    Some(text.trim().to_owned()).filter(|text| output.status.success() && !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned_markdown() {
        let rows = [
            ["one".into(), "1.00".into()],
            ["eleven".into(), "11.00".into()],
        ];
        assert_eq!(
            table(["name", "n"], rows.into_iter()),
            "| name   |     n |\n\
             | ------ | ----: |\n\
             | one    |  1.00 |\n\
             | eleven | 11.00 |\n"
        );
    }

    #[test]
    fn goal_is_judged_by_the_figure_as_printed() {
        for (goal, ratio, expected) in [
            (Goal::AtLeast(0.8), 0.796, "met"),
            (Goal::AtLeast(0.8), 0.794, "missed"),
            (Goal::AtMost(1.1), 1.104, "met"),
            (Goal::AtMost(1.1), 1.106, "missed"),
        ] {
            assert_eq!(goal.verdict(ratio), expected, "{goal}: {ratio}");
        }
    }

    #[test]
    fn numbers_are_made_to_be_read() {
        assert_eq!(thousands(999.6), "1,000");
        assert_eq!(thousands(123.0), "123");
        assert_eq!(thousands(1_234_567.0), "1,234,567");
        assert_eq!(
            (time(87.4), time(1_260.0)),
            ("87 us".into(), "1.3 ms".into())
        );
    }
}
