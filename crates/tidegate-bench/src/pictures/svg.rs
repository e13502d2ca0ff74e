//! SVG, as far as the pictures need it: a few shapes and words, written as text.

use std::fmt::{Display, Write};

/// A drawing in the making.
pub(crate) struct Svg {
    text: String,
}

/// On which side of its place a text lies.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    /// A drawing of this size on white, with a text for readers who cannot see it.
    pub(crate) fn new(width: u32, height: u32, title: &str, description: &str) -> Self {
        let mut svg = Self {
            text: String::new(),
        };
        svg.push(format_args!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" font-family="Helvetica, Arial, 'DejaVu Sans', sans-serif" font-size="12">"#
        ));
        svg.push(format_args!("<title>{}</title>", escaped(title)));
        svg.push(format_args!("<desc>{}</desc>", escaped(description)));
        svg.push(format_args!(
            r##"<rect width="{width}" height="{height}" rx="6" fill="#fff"/>"##
        ));
        svg
    }

    /// A path of SVG's own path commands, with its `fill`, `stroke` and so on.
    pub(crate) fn path(&mut self, commands: &str, look: &str) {
        self.push(format_args!(r#"<path d="{commands}" {look}/>"#));
    }

    pub(crate) fn dot(&mut self, x: f64, y: f64, look: &str) {
        self.push(format_args!(
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" {look}/>"#
        ));
    }

    pub(crate) fn text(&mut self, x: f64, y: f64, anchor: Anchor, look: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(text);
        self.push(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" {look}>{text}</text>"#
        ));
    }

    /// The file.
    pub(crate) fn finish(mut self) -> String {
        self.push("</svg>");
        self.text
    }

    fn push(&mut self, element: impl Display) {
        writeln!(self.text, "{element}").expect("a string takes everything");
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_cannot_become_markup() {
        let mut svg = Svg::new(8, 6, "a < b", "b & c");
        svg.text(1.0, 2.0, Anchor::End, r#"fill="red""#, "c > d");
        let text = svg.finish();
        assert!(text.contains("<title>a &lt; b</title>"));
        assert!(text.contains("<desc>b &amp; c</desc>"));
        assert!(
            text.contains(r#"<text x="1.0" y="2.0" text-anchor="end" fill="red">c &gt; d</text>"#)
        );
        assert!(text.ends_with("</svg>\n"));
    }
}
