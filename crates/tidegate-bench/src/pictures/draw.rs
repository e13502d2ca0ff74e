//! The layout of a picture: three panels over one axis of time.
//!
//! At the top each request is a tick, admitted or refused; below it what was admitted
//! in the last window, against the limit; at the bottom what remains. All pictures
//! have the same scales, so that they can be compared.

use std::fmt::Write;

use super::Picture;
use super::run::{Run, Sample};
use super::svg::{Anchor, Svg};
use super::traffic::{END_MS, PHASES, REQUESTS, WINDOW_MS};

const WIDTH: u32 = 800;
const HEIGHT: u32 = 500;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 780.0;

/// The tops of the ticks of admitted and of refused requests, and their height.
const ADMITTED_Y: f64 = 104.0;
const REFUSED_Y: f64 = 128.0;
const TICK: f64 = 18.0;

const IN_WINDOW: Panel = Panel {
    top: 194.0,
    bottom: 332.0,
    max: 24,
};
const REMAINING: Panel = Panel {
    top: 374.0,
    bottom: 444.0,
    max: 11,
};

// Told apart by people who see few colours, too.
const BLUE: &str = "#0072b2";
const ORANGE: &str = "#d55e00";
const GREEN: &str = "#00795a";
const GREY: &str = "#555";
const PALE: &str = "#ddd";

/// A panel with an axis of its own that starts at 0.
struct Panel {
    top: f64,
    bottom: f64,
    max: u32,
}

impl Panel {
    fn y(&self, value: u32) -> f64 {
        self.bottom - (self.bottom - self.top) * f64::from(value) / f64::from(self.max)
    }
}

fn x(at_ms: u32) -> f64 {
    LEFT + (RIGHT - LEFT) * f64::from(at_ms) / f64::from(END_MS)
}

/// The picture as the text of an SVG file.
pub(crate) fn picture(picture: &Picture, run: &Run) -> String {
    let most = run.most();
    let description = format!(
        "The limit {} under light traffic, a blast, a pause, a blast across the edge of a \
         window, and busy traffic. Here at most {} requests are admitted in any 10 seconds.",
        picture.limit, most.admitted_in_window
    );
    let mut svg = Svg::new(WIDTH, HEIGHT, picture.title, &description);
    heading(&mut svg, picture);
    time_axis(&mut svg, picture.aligned);
    requests(&mut svg, run);
    in_window(&mut svg, run);
    remaining(&mut svg, run);
    svg.finish()
}

fn heading(svg: &mut Svg, picture: &Picture) {
    let bold = r#"font-size="18" font-weight="bold" fill="black""#;
    svg.text(LEFT, 34.0, Anchor::Start, bold, picture.title);
    let mono = format!(r#"font-family="monospace" font-size="13" fill="{GREY}""#);
    svg.text(RIGHT, 34.0, Anchor::End, &mono, &picture.limit.to_string());
}

/// The axis of time, and a line through every panel at each multiple of the window.
fn time_axis(svg: &mut Svg, aligned: bool) {
    let grey = fill(GREY);
    let look = if aligned {
        format!("{} stroke-dasharray=\"5 4\"", stroke("#888", 1.0))
    } else {
        stroke(PALE, 1.0)
    };
    let panels = [
        (ADMITTED_Y, REFUSED_Y + TICK),
        (IN_WINDOW.top, IN_WINDOW.bottom),
        (REMAINING.top, REMAINING.bottom),
    ];
    for at_ms in (0..=END_MS).step_by(WINDOW_MS as usize) {
        let x = x(at_ms);
        for (top, bottom) in panels {
            svg.path(&format!("M{x:.1} {top}V{bottom}"), &look);
        }
        let seconds = (at_ms / 1_000).to_string();
        svg.text(x, REMAINING.bottom + 18.0, Anchor::Middle, &grey, &seconds);
    }
    let words = if aligned {
        "time in seconds (dashed: the edges of the windows)"
    } else {
        "time in seconds"
    };
    let middle = f64::midpoint(LEFT, RIGHT);
    svg.text(
        middle,
        REMAINING.bottom + 38.0,
        Anchor::Middle,
        &grey,
        words,
    );
}

fn requests(svg: &mut Svg, run: &Run) {
    let rows = [
        (true, "admitted", ADMITTED_Y, BLUE),
        (false, "refused", REFUSED_Y, ORANGE),
    ];
    for (admitted, name, y, colour) in rows {
        let mut ticks = String::new();
        for request in &run.requests {
            if request.admitted == admitted {
                let x = x(request.at_ms);
                write!(ticks, "M{x:.1} {y}v{TICK}").expect("a string takes everything");
            }
        }
        svg.text(LEFT - 8.0, y + 13.0, Anchor::End, &fill(colour), name);
        svg.path(&ticks, &stroke(colour, 1.0));
    }
    for (phase, (traffic, admitted)) in PHASES.iter().zip(run.admitted()).enumerate() {
        // The last two phases touch: their words lie on either side.
        let (x, anchor) = match phase {
            2 => (x(traffic.end_ms()) - 4.0, Anchor::End),
            3 => (x(traffic.start_ms) + 4.0, Anchor::Start),
            _ => (
                f64::midpoint(x(traffic.start_ms), x(traffic.end_ms())),
                Anchor::Middle,
            ),
        };
        let passed = format!("{admitted} of {} pass", traffic.requests);
        svg.text(x, 78.0, anchor, &fill("black"), traffic.name);
        svg.text(x, 94.0, anchor, &fill(GREY), &passed);
    }
}

fn in_window(svg: &mut Svg, run: &Run) {
    let panel = &IN_WINDOW;
    let seconds = WINDOW_MS / 1_000;
    title(svg, panel, &format!("Admitted in the last {seconds} s"));
    let twice = 2 * REQUESTS;
    let labels = [
        (0, "0".into()),
        (REQUESTS, format!("N = {REQUESTS}")),
        (twice, format!("2N = {twice}")),
    ];
    value_axis(svg, panel, &labels);

    let count = |sample: &Sample| sample.admitted_in_window;
    let above = |sample: &Sample| count(sample).max(REQUESTS);
    let area = format!("{}V{:.1}H{LEFT}Z", steps(run, panel, count), panel.y(0));
    svg.path(&area, &format!("{} fill-opacity=\"0.12\"", fill(BLUE)));
    let area = steps(run, panel, above);
    let area = format!("{area}V{:.1}H{LEFT}Z", panel.y(REQUESTS));
    svg.path(&area, &format!("{} fill-opacity=\"0.45\"", fill(ORANGE)));
    let limit = format!("M{LEFT} {:.1}H{RIGHT}", panel.y(REQUESTS));
    svg.path(&limit, &stroke("black", 1.2));
    svg.path(&steps(run, panel, count), &stroke(BLUE, 1.8));

    let most = run.most();
    let (x, y) = (x(most.at_ms), panel.y(count(&most)));
    svg.dot(x, y, &fill(BLUE));
    let words = format!(
        "the most: {}, at {}.{} s",
        count(&most),
        most.at_ms / 1_000,
        most.at_ms % 1_000 / 100
    );
    let (x, anchor) = if most.at_ms < END_MS / 2 {
        (x + 8.0, Anchor::Start)
    } else {
        (x - 8.0, Anchor::End)
    };
    // Above the line of the limit, and readable across the edges of windows.
    let y = y.min(panel.y(REQUESTS)) - 8.0;
    let look = r##"fill="black" stroke="#fff" stroke-width="3" paint-order="stroke""##;
    svg.text(x, y, anchor, look, &words);
}

fn remaining(svg: &mut Svg, run: &Run) {
    let panel = &REMAINING;
    title(svg, panel, "Remaining: what would be admitted at once");
    value_axis(
        svg,
        panel,
        &[(0, "0".into()), (5, "5".into()), (10, "10".into())],
    );
    let line = steps(run, panel, |sample| sample.remaining);
    let area = format!("{line}V{:.1}H{LEFT}Z", panel.y(0));
    svg.path(&area, &format!("{} fill-opacity=\"0.12\"", fill(GREEN)));
    svg.path(&line, &stroke(GREEN, 1.8));
}

fn title(svg: &mut Svg, panel: &Panel, words: &str) {
    let look = r#"font-weight="bold" fill="black""#;
    svg.text(LEFT, panel.top - 12.0, Anchor::Start, look, words);
}

fn value_axis(svg: &mut Svg, panel: &Panel, labels: &[(u32, String)]) {
    for (value, label) in labels {
        let y = panel.y(*value);
        svg.path(&format!("M{LEFT} {y:.1}H{RIGHT}"), &stroke(PALE, 1.0));
        svg.text(LEFT - 8.0, y + 4.0, Anchor::End, &fill(GREY), label);
    }
}

/// A line that keeps each value until the next one.
fn steps(run: &Run, panel: &Panel, value: impl Fn(&Sample) -> u32) -> String {
    let mut line = String::new();
    let mut last = None;
    for sample in &run.samples {
        let (x, value) = (x(sample.at_ms), value(sample));
        let y = panel.y(value);
        match last.replace(value) {
            None => write!(line, "M{x:.1} {y:.1}"),
            Some(last) if last == value => Ok(()),
            Some(_) => write!(line, "H{x:.1}V{y:.1}"),
        }
        .expect("a string takes everything");
    }
    line + &format!("H{RIGHT}")
}

fn fill(colour: &str) -> String {
    format!(r#"fill="{colour}""#)
}

fn stroke(colour: &str, width: f64) -> String {
    format!(r#"fill="none" stroke="{colour}" stroke-width="{width}""#)
}
