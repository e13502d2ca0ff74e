//! The charts of the page, as SVG.

use std::fmt::Write;

use super::{Safe, TAKES_ALL, readable};
use crate::figures::thousands;
use crate::simulate::report::{numbers, percent};
use crate::simulate::summary::{OverTime, Suggested};
use crate::simulate::time;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 8.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 26.0;

/// How an amount becomes a height.
struct Axis {
    largest: f64,
}

impl Axis {
    /// Up to a round number at or above this one.
    fn new(largest: f64) -> Self {
        let largest = largest.max(f64::MIN_POSITIVE);
        let unit = 10_f64.powf(largest.log10().floor());
        let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
        let step = steps.into_iter().find(|step| unit * step >= largest);
        Self {
            largest: unit * step.unwrap_or(10.0),
        }
    }

    fn y(&self, amount: f64) -> f64 {
        TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - amount / self.largest)
    }

    /// Lines with their labels.
    fn grid(&self, label: impl Fn(f64) -> String) -> String {
        let mut text = String::new();
        for part in [0.0, 0.5, 1.0] {
            let amount = self.largest * part;
            let y = self.y(amount);
            write!(
                text,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 8.0,
                y + 4.0,
                Safe(&label(amount))
            )
            .expect(TAKES_ALL);
        }
        text
    }
}

fn figure(label: &str, inside: &str, caption: &str) -> String {
    format!(
        "<figure><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">{inside}</svg>\
         <figcaption>{caption}</figcaption></figure>\n",
        Safe(label)
    )
}

/// Requests over time, the refused ones below the others.
pub(super) fn over_time(over_time: &OverTime) -> String {
    if over_time.requests.is_empty() {
        return String::new();
    }
    let caption = format!(
        "Requests per {}: <span class=\"key is-admitted\"><span>admitted</span></span> and \
         <span class=\"key is-refused\"><span>refused</span></span>",
        length(over_time.width_s)
    );
    let bars = bars(over_time, &over_time.requests, &over_time.denied, "refused");
    figure("Requests over time, admitted and refused", &bars, &caption)
}

/// Where two algorithms differ.
pub(super) fn differences(over_time: &OverTime, differ: &[u64]) -> String {
    let caption = format!(
        "Requests per {} that are <span class=\"key is-refused\"><span>decided differently</span></span>",
        length(over_time.width_s)
    );
    let bars = bars(over_time, differ, differ, "decided differently");
    figure("Requests that are decided differently", &bars, &caption)
}

fn length(seconds: u64) -> String {
    let (number, unit) = match seconds {
        _ if seconds.is_multiple_of(86_400) => (seconds / 86_400, "day"),
        _ if seconds.is_multiple_of(3_600) => (seconds / 3_600, "hour"),
        _ if seconds.is_multiple_of(60) => (seconds / 60, "minute"),
        _ => (seconds, "second"),
    };
    match number {
        1 => unit.into(),
        number => format!("{number} {unit}s"),
    }
}

fn bars(over_time: &OverTime, all: &[u64], marked: &[u64], word: &str) -> String {
    let largest = all.iter().copied().max().unwrap_or(0).max(1);
    let axis = Axis::new(number(largest));
    let mut text = axis.grid(thousands_of);
    let room = WIDTH - LEFT - RIGHT;
    let columns = number(all.len().max(1) as u64);
    let width = room / columns;
    let gap = if width > 3.0 { 1.0 } else { 0.0 };
    for (index, (all, marked)) in all.iter().zip(marked).enumerate() {
        if *all == 0 {
            continue;
        }
        let x = LEFT + number(index as u64) * width;
        let start = over_time.start_us + index as u64 * over_time.width_s * 1_000_000;
        let (zero, middle, top) = (axis.y(0.0), axis.y(number(*marked)), axis.y(number(*all)));
        let bar = width - gap;
        write!(
            text,
            "<g><title>{}: {} requests, {} {word}</title>\
             <rect class=\"admitted\" x=\"{x:.2}\" y=\"{top:.1}\" width=\"{bar:.2}\" height=\"{:.1}\"/>\
             <rect class=\"refused\" x=\"{x:.2}\" y=\"{middle:.1}\" width=\"{bar:.2}\" height=\"{:.1}\"/></g>",
            Safe(&readable(&time::text(start))),
            thousands(*all),
            thousands(*marked),
            middle - top,
            zero - middle
        )
        .expect(TAKES_ALL);
    }
    let end = over_time.start_us + all.len() as u64 * over_time.width_s * 1_000_000;
    let middle = over_time.start_us + (end - over_time.start_us) / 2 / 1_000_000 * 1_000_000;
    for (x, anchor, at_us) in [
        (LEFT, "start", over_time.start_us),
        (LEFT + room / 2.0, "middle", middle),
        (WIDTH - RIGHT, "end", end),
    ] {
        write!(
            text,
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            HEIGHT - 6.0,
            Safe(&readable(&time::text(at_us)))
        )
        .expect(TAKES_ALL);
    }
    text
}

/// What limits around the suggested one refuse.
pub(super) fn curve(suggested: &Suggested) -> String {
    let points = &suggested.curve;
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return String::new();
    };
    let shares = points.iter().map(|point| point.denied_share);
    let largest = shares.fold(suggested.below, f64::max);
    let axis = Axis::new(largest);
    let (low, high) = (f64::from(first.number), f64::from(last.number));
    let room = WIDTH - LEFT - RIGHT - 24.0;
    let x = |number: u32| LEFT + 12.0 + room * (f64::from(number) - low) / (high - low).max(1.0);
    let mut text = axis.grid(percent);
    let asked = axis.y(suggested.below);
    write!(
        text,
        "<line class=\"asked\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{asked:.1}\" y2=\"{asked:.1}\"/>",
        WIDTH - RIGHT
    )
    .expect(TAKES_ALL);
    let line = points
        .iter()
        .map(|point| format!("{:.1},{:.1}", x(point.number), axis.y(point.denied_share)));
    let line: Vec<String> = line.collect();
    write!(
        text,
        "<polyline class=\"curve\" points=\"{}\"/>",
        line.join(" ")
    )
    .expect(TAKES_ALL);
    for point in points {
        let (class, radius) = match point.is_best {
            true => ("best", 6),
            false => ("point", 3),
        };
        write!(
            text,
            "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius}\"><title>{}: {}</title></circle>",
            x(point.number),
            axis.y(point.denied_share),
            Safe(&numbers(&point.limit, point.burst)),
            percent(point.denied_share)
        )
        .expect(TAKES_ALL);
    }
    for (point, anchor) in [(first, "start"), (last, "end")] {
        write!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            x(point.number),
            HEIGHT - 6.0,
            Safe(&point.limit)
        )
        .expect(TAKES_ALL);
    }
    let caption = format!(
        "Share of {} refused by limits around the suggested one; the dashed line is {}",
        suggested.of,
        percent(suggested.below)
    );
    figure(
        "Share refused by limits around the suggested one",
        &text,
        &caption,
    )
}

#[expect(clippy::cast_precision_loss, reason = "a place on a chart")]
fn number(number: u64) -> f64 {
    number as f64
}

fn thousands_of(amount: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an amount of requests, which was a whole number"
    )]
    match amount.fract() {
        0.0 => thousands(amount as u64),
        _ => format!("{amount:.1}"),
    }
}
