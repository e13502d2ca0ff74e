//! `{resource}:{consumer}`: which attributes make a key; and what names look like.

use std::fmt;

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
            if let Some(problem) = name_problem(attribute) {
                return Err(format!("{}: the attribute {problem}", shown(text)));
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

/// The longest name of a policy, a level, an attribute or a store.
const MAX: usize = 64;

/// What a name looks like, for messages.
pub const NAME: &str = "1 to 64 of the characters A-Z a-z 0-9 _ -";

/// Whether this can be the name of a policy, a level, an attribute or a store: such a name needs
/// no escaping in a key, a header, a metric or a log line.
pub fn is_name(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (1..=MAX).contains(&text.len()) && text.bytes().all(is_part)
}

/// Why this cannot be a name.
pub(crate) fn name_problem(text: &str) -> Option<String> {
    (!is_name(text)).then(|| format!("{}: expected {NAME}", shown(text)))
}

/// Whether one of these was probably meant to be the other: they differ in one place, by at
/// most two characters.
pub(super) fn is_near(a: &str, b: &str) -> bool {
    let before = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let (a, b) = (&a.as_bytes()[before..], &b.as_bytes()[before..]);
    let ends = a.iter().rev().zip(b.iter().rev());
    let after = ends.take_while(|(a, b)| a == b).count();
    let rest = a.len().max(b.len()) - after;
    (1..=2).contains(&rest) && rest <= before + after
}

/// Names as they are listed in a message, which stays short.
pub fn listed<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    const LISTED: usize = 16;
    let mut names = names.into_iter();
    let mut list: Vec<String> = names.by_ref().take(LISTED).map(shown).collect();
    if names.next().is_some() {
        list.push("…".into());
    }
    list.join(", ")
}

/// A wrong text as it is repeated in a message: in quotes, escaped and not too long.
pub fn shown(text: &str) -> String {
    let mut start: String = text.chars().take(MAX).collect();
    if start.len() < text.len() {
        start.push('…');
    }
    format!("{start:?}")
}
