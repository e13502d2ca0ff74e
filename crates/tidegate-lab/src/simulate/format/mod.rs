//! A line in, its time and attributes out.
//!
//! Which field makes which attribute is settled once, before the first line
//! ([`Reader::new`]); reading a line then allocates nothing.

mod common;
mod envoy;
mod json;
mod names;
mod pattern;

use anyhow::{anyhow, bail};

use super::arguments::{Format, Simulate};
use super::time::{At, Times};
use super::values::{Shape, Values};
use common::Column;
use json::Tree;
use pattern::Pattern;

/// Why a line cannot be read.
pub(super) type Unreadable = &'static str;

/// Reads the lines of a format.
#[derive(Debug, Clone)]
pub(super) struct Reader {
    slots: usize,
    times: Times,
    json: Option<Tree>,
    text: Option<Text>,
    pattern: Option<Pattern>,
}

/// Lines with fields in fixed places.
#[derive(Debug, Clone)]
struct Text {
    layout: Layout,
    /// For each slot, where its value stands.
    columns: Vec<Option<(Column, Shape)>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// The common log format, and whether referer and user agent have to follow.
    Common {
        combined: bool,
    },
    Envoy,
}

/// Where attributes come from, as the command line says it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'a> {
    arguments: &'a Simulate,
    format: Format,
}

impl<'a> Source<'a> {
    pub(super) fn new(arguments: &'a Simulate) -> anyhow::Result<Self> {
        let format = arguments.format.unwrap_or(Format::Nginx);
        let source = Self { arguments, format };
        for (name, field) in &arguments.attr {
            source
                .reader(&[name.as_str()])
                .map_err(|error| anyhow!("--attr {name}={field}: {error:#}"))?;
        }
        if arguments.time.is_some() && arguments.pattern.is_none() && names::json(format).is_none()
        {
            bail!(
                "--time: the time has a fixed place in this format: expected --pattern or a JSON format"
            );
        }
        source.reader(&[])?;
        Ok(source)
    }

    /// How lines are called in messages.
    pub(super) fn format_name(&self) -> &'static str {
        match self.arguments.pattern {
            Some(_) => "the pattern",
            None => names::name(self.format),
        }
    }

    /// Reads lines for these attributes, one slot for each; or says which attribute no
    /// field is known for.
    pub(super) fn reader(&self, attributes: &[&str]) -> anyhow::Result<Reader> {
        let mut reader = Reader {
            slots: attributes.len(),
            times: Times::default(),
            json: None,
            text: None,
            pattern: None,
        };
        if let Some(pattern) = &self.arguments.pattern {
            let time = self.arguments.time.as_deref().unwrap_or("time");
            let new = Pattern::new(
                pattern,
                time,
                attributes,
                |name| self.fields(name, |_| None),
                |name| self.shape(name),
            );
            reader.pattern = Some(new?);
            return Ok(reader);
        }
        if let Some(known) = names::json(self.format) {
            let mut tree = Tree::new();
            match &self.arguments.time {
                Some(field) => tree.time(field, 0),
                None => {
                    for (rank, field) in (0..).zip(known.time) {
                        tree.time(field, rank);
                    }
                }
            }
            for (slot, name) in attributes.iter().enumerate() {
                let fields = self.fields(name, |name| names::find(known.attributes, name));
                for (rank, field) in (0..).zip(&fields) {
                    tree.slot(field, slot, rank, self.shape(name));
                }
            }
            reader.json = Some(tree);
        }
        if let Some(layout) = layout(self.format) {
            let table = layout.columns();
            let columns = attributes.iter().map(|name| {
                let fields = self.fields(name, |_| None);
                let field = fields.first().copied().unwrap_or(name);
                let known = table.iter().find(|(names, _)| names.contains(&field));
                match known {
                    Some((_, column)) => Ok(Some((*column, self.shape(name)))),
                    None if reader.json.is_some() => Ok(None),
                    None => {
                        let names = table.iter().map(|(names, _)| names[0]);
                        Err(anyhow!(
                            "no field named {field:?}: expected one of {}",
                            names.collect::<Vec<_>>().join(", ")
                        ))
                    }
                }
            });
            let columns = columns.collect::<anyhow::Result<_>>()?;
            reader.text = Some(Text { layout, columns });
        }
        Ok(reader)
    }

    /// The fields that may hold an attribute, first choice first.
    fn fields<'n>(
        &'n self,
        name: &'n str,
        known: impl Fn(&str) -> Option<&'static [&'static str]>,
    ) -> Vec<&'n str> {
        if let Some(field) = self.given(name) {
            return vec![field];
        }
        if name == "key" {
            return self.fields("ip", known);
        }
        match known(name) {
            Some(fields) => fields.to_vec(),
            None => vec![name],
        }
    }

    /// The field that the command line gives for an attribute.
    fn given(&self, name: &str) -> Option<&'a str> {
        let mut attributes = self.arguments.attr.iter();
        let found = attributes.find(|(other, _)| other == name);
        found.map(|(_, field)| field.as_str())
    }

    fn shape(&self, name: &str) -> Shape {
        match (name, self.given(name)) {
            ("key", None) => Shape::of("ip"),
            _ => Shape::of(name),
        }
    }
}

fn layout(format: Format) -> Option<Layout> {
    match format {
        Format::Nginx | Format::Common | Format::Traefik => {
            Some(Layout::Common { combined: false })
        }
        Format::Combined => Some(Layout::Common { combined: true }),
        Format::Envoy => Some(Layout::Envoy),
        Format::Json | Format::Caddy => None,
    }
}

impl Layout {
    fn columns(self) -> &'static [(&'static [&'static str], Column)] {
        match self {
            Self::Common { .. } => common::COLUMNS,
            Self::Envoy => envoy::COLUMNS,
        }
    }
}

impl Reader {
    /// Reads a line without its end.
    pub(super) fn read(&mut self, line: &[u8], values: &mut Values) -> Result<At, Unreadable> {
        values.clear(self.slots);
        if let Some(pattern) = &mut self.pattern {
            return pattern.read(line, &mut self.times, values);
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            return Err("an empty line");
        }
        match (&self.json, &self.text) {
            (Some(tree), _) if line.trim_ascii_start().starts_with(b"{") => {
                tree.read(line, &mut self.times, values)
            }
            (_, Some(text)) => {
                let mut found = [None; Column::COUNT];
                let at = match text.layout {
                    Layout::Common { combined } => {
                        common::read(line, combined, &mut self.times, &mut found)?
                    }
                    Layout::Envoy => envoy::read(line, &mut self.times, &mut found)?,
                };
                for (slot, column) in text.columns.iter().enumerate() {
                    if let Some((column, shape)) = column
                        && let Some(value) = found[*column as usize]
                    {
                        values.set(slot, 0, *shape, value);
                    }
                }
                Ok(at)
            }
            _ => Err("not a JSON object"),
        }
    }
}
