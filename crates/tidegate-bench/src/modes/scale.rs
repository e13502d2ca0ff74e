//! The picture of docs/scale.md: what a thousand nodes that lease ask the store, and what
//! they admit, from the lines that the simulation of `tidegate-redis` writes.

use std::path::Path;

use crate::pictures::svg::{Anchor, Svg};

const WIDTH: u32 = 720;
const HEIGHT: u32 = 580;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 700.0;

/// Told apart by people who see few colours, too.
const COLOURS: [&str; 7] = [
    "#666666", "#9b4f96", "#0072b2", "#a67c00", "#d55e00", "#00795a", "#111111",
];

/// One fleet: its name, and for each moment the time in ms, the calls per second, and the
/// share of what is allowed that was admitted by then.
struct Line<'a> {
    name: &'a str,
    points: Vec<(f64, f64, f64)>,
}

/// One of the two diagrams: what it shows, where it lies, and its scale.
struct Panel {
    title: &'static str,
    top: f64,
    bottom: f64,
    marks: &'static [(f64, &'static str)],
    of: fn(&(f64, f64, f64)) -> f64,
}

const PANELS: [Panel; 2] = [
    Panel {
        title: "calls to the store per second, of 500,000 requests",
        top: 70.0,
        bottom: 240.0,
        marks: &[
            (0.0, "0"),
            (125_000.0, "125,000"),
            (250_000.0, "250,000"),
            (375_000.0, "375,000"),
            (500_000.0, "500,000"),
        ],
        of: |point| point.1,
    },
    Panel {
        title: "admitted by the ten busiest keys so far, of what their limit allows",
        top: 290.0,
        bottom: 440.0,
        marks: &[(0.0, "0"), (0.5, "50 %"), (1.0, "100 %"), (1.5, "150 %")],
        of: |point| point.2,
    },
];

/// Reads the lines of a simulation, and draws them.
pub(crate) fn write(lines: &Path, picture: &Path) -> std::io::Result<()> {
    let text = std::fs::read_to_string(lines)?;
    let drawn = draw(&read(&text)).ok_or_else(|| {
        let told = "expected lines of a fleet, ms, calls and a share, with tabs between them";
        std::io::Error::new(std::io::ErrorKind::InvalidData, told)
    })?;
    std::fs::write(picture, drawn)
}

fn read(text: &str) -> Vec<Line<'_>> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for row in text.lines() {
        let mut parts = row.split('\t');
        let name = parts.next().unwrap_or_default();
        let mut number = || parts.next().and_then(|part| part.parse().ok());
        let (Some(at_ms), Some(calls), Some(share)) = (number(), number(), number()) else {
            continue;
        };
        let is_known = lines.last().is_some_and(|line| line.name == name);
        if !is_known {
            let points = Vec::new();
            lines.push(Line { name, points });
        }
        if let Some(line) = lines.last_mut() {
            line.points.push((at_ms, calls, share));
        }
    }
    lines
}

fn draw(lines: &[Line<'_>]) -> Option<String> {
    let end_ms = lines.first()?.points.last()?.0;
    let x = |at_ms: f64| LEFT + (RIGHT - LEFT) * at_ms / end_ms;
    let title = "A thousand nodes, a hundred thousand keys, 500,000 requests per second";
    let told: Vec<String> = lines.iter().map(described).collect();
    let mut svg = Svg::new(WIDTH, HEIGHT, title, &told.join(" "));
    let heading = r##"font-size="16" fill="#111""##;
    svg.text(LEFT, 28.0, Anchor::Start, heading, title);
    let grey = r##"fill="#555""##;
    for panel in &PANELS {
        let most = panel.marks.last()?.0;
        let y = |value: f64| panel.bottom - (panel.bottom - panel.top) * value / most;
        svg.text(LEFT, panel.top - 12.0, Anchor::Start, grey, panel.title);
        for (value, name) in panel.marks {
            let line = format!("M{LEFT:.1} {:.1}H{RIGHT:.1}", y(*value));
            svg.path(&line, r##"stroke="#ddd" fill="none""##);
            svg.text(LEFT - 8.0, y(*value) + 4.0, Anchor::End, grey, name);
        }
        for (line, colour) in lines.iter().zip(COLOURS) {
            let mut path = String::new();
            for (index, point) in line.points.iter().enumerate() {
                let command = if index == 0 { 'M' } else { 'L' };
                let value = (panel.of)(point).min(most);
                path.push_str(&format!("{command}{:.1} {:.1}", x(point.0), y(value)));
            }
            let look = format!(r#"stroke="{colour}" stroke-width="2" fill="none""#);
            svg.path(&path, &look);
        }
        let struck = format!("M{:.1} {:.1}V{:.1}", x(2_000.0), panel.top, panel.bottom);
        let dashed = r##"stroke="#999" stroke-dasharray="4 4" fill="none""##;
        svg.path(&struck, dashed);
    }
    for seconds in [0.0, 1.0, 2.0, 3.0, 4.0] {
        let text = format!("{seconds} s");
        svg.text(x(1_000.0 * seconds), 458.0, Anchor::Middle, grey, &text);
    }
    for (number, (line, colour)) in (0_u8..).zip(lines.iter().zip(COLOURS)) {
        let place = LEFT + 320.0 * f64::from(number % 2);
        let height = 486.0 + 22.0 * f64::from(number / 2);
        svg.dot(place, height, &format!(r#"fill="{colour}""#));
        let name = line.name.replace('`', "");
        svg.text(place + 10.0, height + 4.0, Anchor::Start, grey, &name);
    }
    Some(svg.finish())
}

/// The end of a line in words.
fn described(line: &Line<'_>) -> String {
    let calls = line.points.iter().map(|point| point.1).sum::<f64>();
    let mean = calls / f64::from(u32::try_from(line.points.len()).unwrap_or(1).max(1));
    let share = line.points.last().map_or(0.0, |point| 100.0 * point.2);
    let name = line.name.replace('`', "");
    format!("{name}: {mean:.0} calls per second, {share:.1} % admitted.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fleet_is_in_both_panels_and_told() {
        let text = "a\t100\t500000\t0.9\na\t200\t700000\t1.0\nb\t100\t1\t0.5\nb\t200\t3\t0.25\n";
        let drawn = draw(&read(text)).unwrap();
        assert_eq!(drawn.matches(r#"stroke-width="2""#).count(), 4);
        assert!(drawn.contains("a: 600000 calls per second, 100.0 % admitted."));
        assert!(drawn.contains("b: 2 calls per second, 25.0 % admitted."));
        assert!(draw(&read("nothing")).is_none());
    }
}
