//! `{resource}:{consumer}`: which attributes make a key.

use std::fmt;

use super::name::{self, shown};

/// The maximum number of attributes per key.
const MAX_ATTRIBUTES: usize = 16;

/// The attributes that make a level's key, in order.
///
/// The text between them only helps the reader: a key is the tuple of the values, each
/// encoded separately, so no value can make two different keys equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    text: Box<str>,
    attributes: Box<[Box<str>]>,
}

impl Template {
    /// The default key of a level: the attribute `key`.
    pub(crate) const DEFAULT: &'static str = "{key}";

    /// Parses a template.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut attributes: Vec<Box<str>> = Vec::new();
        let mut rest = text;
        while let Some(brace) = rest.find(['{', '}']) {
            let inside = rest[brace..]
                .strip_prefix('{')
                .and_then(|inside| inside.split_once('}'));
            let Some((attribute, after)) = inside else {
                return Err(format!(
                    "{}: an unmatched brace: expected attributes in braces, such as \"{{ip}}\"",
                    shown(text)
                ));
            };
            if !name::is_name(attribute) {
                return Err(format!(
                    "{}: the attribute {}: expected {}",
                    shown(text),
                    shown(attribute),
                    name::EXPECTED
                ));
            }
            if attributes.iter().any(|other| **other == *attribute) {
                return Err(format!(
                    "{}: the attribute {} appears twice: expected it once",
                    shown(text),
                    shown(attribute)
                ));
            }
            attributes.push(attribute.into());
            rest = after;
        }
        if attributes.len() > MAX_ATTRIBUTES {
            return Err(format!(
                "{}: {} attributes: expected at most {MAX_ATTRIBUTES}",
                shown(text),
                attributes.len()
            ));
        }
        Ok(Self {
            text: text.into(),
            attributes: attributes.into(),
        })
    }

    /// The names of the attributes, in order.
    pub fn attributes(&self) -> impl ExactSizeIterator<Item = &str> {
        self.attributes.iter().map(|attribute| &**attribute)
    }

    #[inline]
    pub(super) fn names(&self) -> &[Box<str>] {
        &self.attributes
    }

    /// The template as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The position of an attribute.
    pub(crate) fn position(&self, attribute: &str) -> Option<usize> {
        self.attributes().position(|other| other == attribute)
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
