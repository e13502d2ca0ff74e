//! Lines of any look: a regular expression whose named groups are fields.

use anyhow::{Context, anyhow};
use regex::bytes::{CaptureLocations, Regex};

use super::Unreadable;
use crate::simulate::time::{At, Times};
use crate::simulate::values::{Shape, Values};

/// A pattern, and which of its groups hold what.
#[derive(Debug, Clone)]
pub(super) struct Pattern {
    regex: Regex,
    found: CaptureLocations,
    time: usize,
    /// For each slot, its group.
    groups: Vec<(usize, Shape)>,
}

impl Pattern {
    pub(super) fn new<'n>(
        pattern: &str,
        time: &str,
        attributes: &[&'n str],
        fields: impl Fn(&'n str) -> Vec<&'n str>,
        shape: impl Fn(&str) -> Shape,
    ) -> anyhow::Result<Self> {
        let regex = Regex::new(pattern).map_err(|error| anyhow!("--pattern: {}", short(&error)))?;
        let group = |name: &str| {
            let position = regex.capture_names().position(|other| other == Some(name));
            position.with_context(|| {
                let names: Vec<&str> = regex.capture_names().flatten().collect();
                match names.is_empty() {
                    true => {
                        format!("--pattern has no group named {name:?}: expected (?P<{name}>...)")
                    }
                    false => format!(
                        "--pattern has no group named {name:?}: it has {}",
                        names.join(", ")
                    ),
                }
            })
        };
        let time = group(time)?;
        let groups = attributes.iter().map(|name| {
            // A group of that name is the key, and not the address.
            if *name == "key"
                && let Ok(own) = group(name)
                && fields(name) == ["ip"]
            {
                return Ok((own, Shape::AsIs));
            }
            let field = fields(name).first().copied().unwrap_or(name);
            Ok((group(field)?, shape(name)))
        });
        Ok(Self {
            groups: groups.collect::<anyhow::Result<_>>()?,
            found: regex.capture_locations(),
            time,
            regex,
        })
    }

    pub(super) fn read(
        &mut self,
        line: &[u8],
        times: &mut Times,
        values: &mut Values,
    ) -> Result<At, Unreadable> {
        let found = self.regex.captures_read(&mut self.found, line);
        found.ok_or("the pattern does not match")?;
        let (start, end) = self
            .found
            .get(self.time)
            .ok_or("the group of the time is empty")?;
        let at = times.read(&line[start..end]);
        let at = at.ok_or("the group of the time is not a time with a zone")?;
        for (slot, (group, shape)) in self.groups.iter().enumerate() {
            if let Some((start, end)) = self.found.get(*group) {
                values.set(slot, 0, *shape, &line[start..end]);
            }
        }
        Ok(at)
    }
}

/// The last line of what the parser of regular expressions says: the others draw arrows.
fn short(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}
