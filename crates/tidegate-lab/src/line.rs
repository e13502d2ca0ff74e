//! A line of a record.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// A decision about a level's key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line<'a> {
    /// The policy.
    #[serde(borrow)]
    pub policy: Cow<'a, str>,
    /// Its level.
    #[serde(borrow)]
    pub level: Cow<'a, str>,
    /// The key, or a hash of it.
    #[serde(borrow)]
    pub key: Cow<'a, str>,
    /// The limit that was in force, as text.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Cow<'a, str>>,
    /// When it was decided, on the store's clock.
    pub at_us: u64,
    /// What it cost.
    pub cost: u32,
    /// Whether it was admitted.
    pub allowed: bool,
    /// Who decided.
    #[serde(borrow)]
    pub source: Cow<'a, str>,
    /// What was admitted then was given back later.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refunded: bool,
}

/// So many lines that there was no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dropped {
    /// How many.
    pub dropped: u64,
}

/// What can stand on a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry<'a> {
    /// A decision.
    Line(Line<'a>),
    /// So many lines that there was no room for.
    Dropped(u64),
}

impl Line<'_> {
    /// Appends it to a text, with the end of the line.
    pub fn write(&self, text: &mut Vec<u8>) {
        write(self, text);
    }
}

impl Dropped {
    /// Appends it to a text, with the end of the line.
    pub fn write(self, text: &mut Vec<u8>) {
        write(&self, text);
    }
}

fn write(value: &impl Serialize, text: &mut Vec<u8>) {
    serde_json::to_writer(&mut *text, value).expect("memory takes what is made here");
    text.push(b'\n');
}

/// Reads a line.
pub fn parse(text: &[u8]) -> Result<Entry<'_>, serde_json::Error> {
    if text.starts_with(b"{\"dropped\"") {
        let Dropped { dropped } = serde_json::from_slice(text)?;
        return Ok(Entry::Dropped(dropped));
    }
    serde_json::from_slice(text).map(Entry::Line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_read_back() {
        tidegate_testkit::cases::rows(include_str!("rows.txt"), "lines of a record", |row| {
            let mut text = Vec::new();
            match parse(row.as_bytes()).unwrap() {
                Entry::Line(line) => line.write(&mut text),
                Entry::Dropped(dropped) => Dropped { dropped }.write(&mut text),
            }
            match String::from_utf8(text).unwrap() {
                text if text == format!("{row}\n") => "as written".into(),
                text => text,
            }
        });
    }
}
