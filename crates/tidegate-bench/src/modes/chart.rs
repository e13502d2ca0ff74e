//! The picture of docs/modes.md: what is admitted of what is offered.

use crate::pictures::svg::{Anchor, Svg};

const WIDTH: u32 = 720;
const HEIGHT: u32 = 400;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 700.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 330.0;

/// Told apart by people who see few colours, too.
const COLOURS: [&str; 4] = ["#0072b2", "#9b4f96", "#d55e00", "#00795a"];

/// One mode: what was offered, and what was admitted, both in multiples of the limit.
pub(super) struct Line {
    pub(super) name: &'static str,
    pub(super) points: Vec<(f64, f64)>,
}

fn x(offered: f64) -> f64 {
    LEFT + (RIGHT - LEFT) * offered / 10.5
}

fn y(admitted: f64) -> f64 {
    BOTTOM - (BOTTOM - TOP) * admitted / 2.0
}

pub(super) fn draw(lines: &[Line]) -> String {
    let title = "What three nodes admit of what they are offered";
    let told: Vec<String> = lines.iter().map(described).collect();
    let mut svg = Svg::new(WIDTH, HEIGHT, title, &told.join(" "));
    svg.text(
        LEFT,
        28.0,
        Anchor::Start,
        r##"font-size="16" fill="#111""##,
        title,
    );
    let grey = r##"fill="#555""##;
    for times in [0.0, 0.5, 1.0, 1.5, 2.0] {
        let stroke = if times == 1.0 { "#111" } else { "#ddd" };
        let line = format!("M{LEFT:.1} {0:.1}H{RIGHT:.1}", y(times));
        svg.path(&line, &format!(r#"stroke="{stroke}" fill="none""#));
        svg.text(
            LEFT - 8.0,
            y(times) + 4.0,
            Anchor::End,
            grey,
            &times.to_string(),
        );
    }
    for times in [0.0, 2.0, 4.0, 6.0, 8.0, 10.0] {
        svg.text(
            x(times),
            BOTTOM + 18.0,
            Anchor::Middle,
            grey,
            &times.to_string(),
        );
    }
    let middle = f64::midpoint(LEFT, RIGHT);
    let below = "offered, in multiples of the limit";
    svg.text(middle, BOTTOM + 38.0, Anchor::Middle, grey, below);
    svg.text(
        LEFT,
        TOP - 12.0,
        Anchor::Start,
        grey,
        "admitted, in multiples of the limit",
    );
    svg.text(
        LEFT + 6.0,
        y(1.0) + 16.0,
        Anchor::Start,
        r##"fill="#111""##,
        "the limit",
    );
    for (number, (line, colour)) in lines.iter().zip(COLOURS).enumerate() {
        let mut path = String::new();
        for (index, (offered, admitted)) in line.points.iter().enumerate() {
            let command = if index == 0 { 'M' } else { 'L' };
            path.push_str(&format!("{command}{:.1} {:.1}", x(*offered), y(*admitted)));
        }
        svg.path(
            &path,
            &format!(r#"stroke="{colour}" stroke-width="2" fill="none""#),
        );
        let fill = format!(r#"fill="{colour}""#);
        for (offered, admitted) in &line.points {
            svg.dot(x(*offered), y(*admitted), &fill);
        }
        let place = LEFT + 10.0 + 215.0 * f64::from(u8::try_from(number).unwrap_or(0));
        svg.dot(place, f64::from(HEIGHT) - 14.0, &fill);
        svg.text(
            place + 8.0,
            f64::from(HEIGHT) - 10.0,
            Anchor::Start,
            grey,
            line.name,
        );
    }
    svg.finish()
}

/// The line in words.
fn described(line: &Line) -> String {
    let points = line.points.iter();
    let points: Vec<String> = points
        .map(|(offered, admitted)| format!("{admitted:.2} at {offered}"))
        .collect();
    format!("{}: {}.", line.name, points.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_is_in_the_picture_and_told() {
        let points = vec![(1.0, 1.0), (10.0, 1.4)];
        let line = Line {
            name: "exact",
            points,
        };
        let text = draw(&[line]);
        assert_eq!(text.matches("<circle").count(), 3);
        assert!(text.contains("exact: 1.00 at 1, 1.40 at 10."));
    }
}
