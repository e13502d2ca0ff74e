//! The picture of a run: what was offered and admitted over time against the limit, and
//! latencies over time and by percentile. One SVG that needs nothing else, on white, so
//! that it reads the same on a dark page.

use std::ops::Range;

use anyhow::anyhow;
use hdrhistogram::Histogram;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::figures::{about, time};
use super::summary::Summary;

const WIDTH: u32 = 900;
const HEIGHT: u32 = 860;

/// Where charts begin.
const LEFT: i32 = 88;
const FONT: &str = "Helvetica, Arial, 'DejaVu Sans', sans-serif";

// Distinguishable with color blindness, too.
const BLUE: RGBColor = RGBColor(0, 114, 178);
const ORANGE: RGBColor = RGBColor(213, 94, 0);
const GREEN: RGBColor = RGBColor(0, 121, 90);
const GREY: RGBColor = RGBColor(85, 85, 85);
const PALE: RGBColor = RGBColor(225, 225, 225);

/// Where latencies lie between 0 and 1, and how many nines that is.
const NINES: [(f64, &str); 7] = [
    (0.0, "0"),
    (1.0, "90 %"),
    (2.0, "99 %"),
    (3.0, "99.9 %"),
    (4.0, "99.99 %"),
    (5.0, "99.999 %"),
    (6.0, "99.9999 %"),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A line of a chart.
struct Line {
    name: &'static str,
    colour: RGBColor,
    /// Parts without a gap.
    parts: Vec<Vec<(f64, f64)>>,
}

/// The text of the SVG file.
pub(super) fn picture(summary: &Summary, waits: &Histogram<u64>) -> anyhow::Result<String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
        draw(&root, summary, waits).map_err(|error| anyhow!("the picture: {error}"))?;
        root.present()
            .map_err(|error| anyhow!("the picture: {error}"))?;
    }
    Ok(text)
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw(root: &Area<'_>, summary: &Summary, waits: &Histogram<u64>) -> Drawn {
    root.fill(&WHITE)?;
    let (heading, rest) = root.split_vertically(64);
    let title = (FONT, 20).into_font().color(&BLACK);
    let limits = summary.limits.join(" and ");
    heading.draw_text(&format!("tidegate bench: {limits}"), &title, (24, 16))?;
    let small = (FONT, 14).into_font().color(&GREY);
    heading.draw_text(&subtitle(summary), &small, (24, 42))?;
    let panels = rest.split_evenly((3, 1));
    over_time(&panels[0], summary)?;
    latency_over_time(&panels[1], summary)?;
    by_percentile(&panels[2], waits)
}

fn subtitle(summary: &Summary) -> String {
    let verdict = match summary.verdict.held {
        Some(true) => "the limit held",
        Some(false) => "the limit was broken",
        None => "not judged",
    };
    format!(
        "{}, {}, {} loop, {} x {} callers, {} checks per second: {verdict}",
        summary.target,
        summary.mode,
        summary.kind,
        summary.processes,
        summary.callers,
        about(summary.checks_per_second)
    )
}

/// Offered and admitted a second, and the limit.
fn over_time(area: &Area<'_>, summary: &Summary) -> Drawn {
    let bins = &summary.bins;
    let seconds = bins.length_ms as f64 / 1e3;
    let cost = f64::from(summary.cost);
    let rates = |counts: &[u64]| {
        let points = counts
            .iter()
            .map(|count| Some(*count as f64 * cost / seconds));
        parts(points, seconds, true)
    };
    let end = bins.offered.len() as f64 * seconds;
    let mut lines = Vec::new();
    // Of all keys together, by the policy's first level.
    let limit = summary.verdict.levels.first();
    let limit = limit.map(|level| level.rate_per_second);
    if let Some(limit) = limit.filter(|limit| *limit > 0.0) {
        lines.push(Line {
            name: "the limit of all keys",
            colour: BLACK,
            parts: vec![vec![(0.0, limit), (end, limit)]],
        });
    }
    lines.extend([
        Line {
            name: "offered",
            colour: ORANGE,
            parts: rates(&bins.offered),
        },
        Line {
            name: "admitted",
            colour: BLUE,
            parts: rates(&bins.admitted),
        },
    ]);
    let title = match summary.cost {
        1 => "Checks per second over the run",
        _ => "Cost per second over the run",
    };
    chart(area, title, Axis::seconds(end), &lines, about)
}

fn latency_over_time(area: &Area<'_>, summary: &Summary) -> Drawn {
    let bins = &summary.bins;
    let seconds = bins.length_ms as f64 / 1e3;
    let end = bins.offered.len() as f64 * seconds;
    let of = |name, colour, values: &[Option<f64>]| Line {
        name,
        colour,
        parts: parts(values.iter().copied(), seconds, false),
    };
    let lines = [
        of("max", ORANGE, &bins.max_us),
        of("p99", BLUE, &bins.p99_us),
        of("p50", GREEN, &bins.p50_us),
    ];
    let title = "Latency, by the scheduled time of a check";
    chart(area, title, Axis::seconds(end), &lines, time)
}

/// Points at the middle of each part of the run; what is missing makes a gap. As steps,
/// each value holds for its whole part.
fn parts(
    values: impl Iterator<Item = Option<f64>>,
    length: f64,
    steps: bool,
) -> Vec<Vec<(f64, f64)>> {
    let mut parts: Vec<Vec<(f64, f64)>> = vec![Vec::new()];
    for (index, value) in (0_u32..).zip(values) {
        let start = f64::from(index) * length;
        match (value, parts.last_mut()) {
            (Some(value), Some(part)) if steps => {
                part.extend([(start, value), (start + length, value)]);
            }
            (Some(value), Some(part)) => part.push((start + length / 2.0, value)),
            _ => parts.push(Vec::new()),
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// How long the slowest share of all checks took: the more nines, the rarer.
fn by_percentile(area: &Area<'_>, waits: &Histogram<u64>) -> Drawn {
    let end = (waits.len().max(10) as f64).log10().ceil().min(6.0);
    let points = (0..=600_u32).map(|step| end * f64::from(step) / 600.0);
    let points = points.map(|nines| {
        let quantile = 1.0 - 10_f64.powf(-nines);
        (nines, waits.value_at_quantile(quantile) as f64 / 1e3)
    });
    let line = Line {
        name: "latency",
        colour: BLUE,
        parts: vec![points.collect()],
    };
    let marks = NINES.iter().filter(|(nines, _)| *nines <= end);
    let axis = Axis {
        end,
        marks: marks
            .map(|(nines, text)| (*nines, (*text).to_owned()))
            .collect(),
    };
    let title = "Latency, by the share of checks that were at least as fast";
    chart(area, title, axis, &[line], time)
}

/// A chart with a logarithmic axis for the values, on which nothing lies at the bottom.
fn chart(
    area: &Area<'_>,
    title: &str,
    axis: Axis,
    lines: &[Line],
    label: fn(f64) -> String,
) -> Drawn {
    let values = values(lines);
    let bottom = values.start;
    let marks = axis.marks.clone();
    let heading = (FONT, 15).into_font().color(&BLACK);
    area.draw_text(title, &heading, (LEFT, 4))?;
    if lines.len() > 1 {
        legend(area, lines)?;
    }
    let mut chart = ChartBuilder::on(area)
        .margin_top(28)
        .margin_left(16)
        .margin_right(40)
        .margin_bottom(8)
        .x_label_area_size(28)
        .y_label_area_size(LEFT - 16)
        .build_cartesian_2d(axis, values.log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(PALE)
        .axis_style(GREY)
        .label_style((FONT, 13).into_font().color(&GREY))
        .x_label_formatter(&|at| {
            let mark = marks.iter().find(|(mark, _)| mark == at);
            mark.map(|(_, text)| text.clone()).unwrap_or_default()
        })
        .y_labels(6)
        .y_label_formatter(&|value| label(*value).replace(".00", "").replace(".0", ""))
        .draw()?;
    for line in lines {
        for part in &line.parts {
            let points = part.iter().map(|(x, y)| (*x, y.max(bottom)));
            chart.draw_series(LineSeries::new(points, line.style()))?;
        }
    }
    Ok(())
}

/// The names of lines beside the title, where nothing is drawn over.
fn legend(area: &Area<'_>, lines: &[Line]) -> Drawn {
    let words = (FONT, 13).into_font().color(&BLACK);
    let (width, _) = area.dim_in_pixel();
    let mut right = i32::try_from(width)? - 40;
    for line in lines.iter().rev() {
        let (length, _) = area.estimate_text_size(line.name, &words)?;
        right -= i32::try_from(length)?;
        area.draw_text(line.name, &words, (right, 6))?;
        let sample = [(right - 28, 13), (right - 8, 13)];
        area.draw(&PathElement::new(sample, line.style()))?;
        right -= 52;
    }
    Ok(())
}

impl Line {
    fn style(&self) -> ShapeStyle {
        ShapeStyle::from(self.colour).stroke_width(2)
    }
}

/// Whole powers of ten around all values above zero.
fn values(lines: &[Line]) -> Range<f64> {
    let points = lines.iter().flat_map(|line| line.parts.iter().flatten());
    let values = points.map(|(_, value)| *value).filter(|value| *value > 0.0);
    let (least, most) = values.fold((f64::MAX, f64::MIN_POSITIVE), |(least, most), value| {
        (least.min(value), most.max(value))
    });
    if least > most {
        return 1.0..10.0;
    }
    let (low, high) = (least.log10().floor(), most.log10().ceil());
    10_f64.powf(low)..10_f64.powf(high.max(low + 1.0))
}

/// An axis from zero to its end, with words at some places.
struct Axis {
    end: f64,
    marks: Vec<(f64, String)>,
}

impl Axis {
    /// The seconds of a run, with at most a dozen marks.
    fn seconds(end: f64) -> Self {
        let steps = [
            0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 3_600.0, 7_200.0,
        ];
        let step = steps.into_iter().find(|step| end / step <= 12.0);
        let step = step.unwrap_or(end / 12.0);
        let marks = (0..=12_u32).map(|mark| f64::from(mark) * step);
        let marks = marks.take_while(|at| *at <= end * 1.001);
        Self {
            end,
            marks: marks
                .map(|at| (at, format!("{} s", (at * 10.0).round() / 10.0)))
                .collect(),
        }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    #[expect(
        clippy::cast_possible_truncation,
        reason = "a place on a picture that is not as wide"
    )]
    fn map(&self, value: &f64, (left, right): (i32, i32)) -> i32 {
        left + (f64::from(right - left) * value / self.end).round() as i32
    }

    fn key_points<H: KeyPointHint>(&self, _: H) -> Vec<f64> {
        self.marks.iter().map(|(at, _)| *at).collect()
    }

    fn range(&self) -> Range<f64> {
        0.0..self.end
    }
}

impl ValueFormatter<f64> for Axis {
    fn format(value: &f64) -> String {
        value.to_string()
    }
}
