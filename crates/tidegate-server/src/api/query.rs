//! The query of a URL: names and values, any bytes.

use std::borrow::Cow;

use percent_encoding::percent_decode;
use smallvec::SmallVec;
use tidegate::Attributes;

/// The most names in one query, and the most attributes in one check.
pub const MAX_ATTRIBUTES: usize = 64;

/// Names that are no attributes in a URL.
pub(crate) const RESERVED: [&str; 5] = ["deny", "body", "cost", "level", "all"];

/// Names and values, copied only where they are not written as they are.
pub(super) type Pairs<'a> = SmallVec<[(Cow<'a, str>, Cow<'a, [u8]>); 2]>;

/// Names and values: of attributes, and of our own.
#[derive(Debug, Default)]
pub struct Query<'a> {
    attributes: Pairs<'a>,
    reserved: Pairs<'a>,
}

impl<'a> Query<'a> {
    /// Reads a query, or says what is wrong with it.
    pub fn parse(text: &'a str) -> Result<Self, String> {
        let mut query = Self::default();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair
                .split_once('=')
                .ok_or_else(|| format!("the query: {:?}: expected name=value", short(pair)))?;
            let name = match decode(name)? {
                Cow::Borrowed(name) => std::str::from_utf8(name).map(Cow::Borrowed).ok(),
                Cow::Owned(name) => String::from_utf8(name).map(Cow::Owned).ok(),
            };
            let name = name.ok_or("the query: a name that is not UTF-8")?;
            let list = match RESERVED.contains(&&*name) {
                true => &mut query.reserved,
                false => &mut query.attributes,
            };
            // With two values, an injected one could win.
            if list.iter().any(|(other, _)| *other == name) {
                return Err(format!(
                    "the query: {:?} twice: expected it once",
                    short(&name)
                ));
            }
            list.push((name, decode(value)?));
            if query.attributes.len() > MAX_ATTRIBUTES {
                return Err(format!(
                    "the query: expected at most {MAX_ATTRIBUTES} attributes"
                ));
            }
        }
        Ok(query)
    }

    /// Adds an attribute that came in another way. False if it is there with another
    /// value: one of the two may be injected.
    #[must_use]
    pub(super) fn add(&mut self, name: &'a str, value: Cow<'a, [u8]>) -> bool {
        match self.attributes.value(name) {
            Some(other) => other == &*value,
            None => {
                self.attributes.push((name.into(), value));
                true
            }
        }
    }

    /// Refuses names of our own that mean something elsewhere only.
    pub(super) fn expect(&self, meant: &[&str]) -> Result<(), String> {
        let mut names = self.reserved.iter().map(|(name, _)| name);
        match names.find(|name| !meant.contains(&&***name)) {
            None => Ok(()),
            Some(name) => Err(format!(
                "the query: {name:?} is reserved and has no meaning here"
            )),
        }
    }

    /// The attributes.
    #[must_use]
    pub fn attributes(&self) -> &[(Cow<'a, str>, Cow<'a, [u8]>)] {
        &self.attributes
    }

    /// The value of a name of our own.
    pub(super) fn reserved(&self, name: &str) -> Option<Cow<'_, str>> {
        let value = self.reserved.as_slice().value(name)?;
        Some(String::from_utf8_lossy(value))
    }
}

impl Attributes for Query<'_> {
    #[inline]
    fn value(&self, name: &str) -> Option<&[u8]> {
        self.attributes.as_slice().value(name)
    }
}

/// As forms and browsers write it: `%20` is a space, and so is `+`.
fn decode(text: &str) -> Result<Cow<'_, [u8]>, String> {
    if !text.bytes().any(|byte| matches!(byte, b'%' | b'+')) {
        return Ok(text.as_bytes().into());
    }
    let mut parts = text.split('%');
    let is_hex = |part: &str| {
        let digits = part.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    parts.next();
    if !parts.all(is_hex) {
        return Err(format!(
            "the query: {:?}: expected two hexadecimal digits after each %",
            short(text)
        ));
    }
    let spaced = text.replace('+', " ");
    Ok(percent_decode(spaced.as_bytes())
        .collect::<Vec<u8>>()
        .into())
}

/// Enough of a text to know it again.
pub(super) fn short(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_a_query_is_any_bytes_and_wrong_queries_are_errors() {
        let rows = include_str!("query.txt");
        tidegate_testkit::cases::rows(rows, "query => key", |query| match Query::parse(query) {
            Ok(query) => {
                let key = query.attributes().value("key").map(<[u8]>::escape_ascii);
                key.map_or("none".into(), |key| key.to_string())
            }
            Err(error) => error,
        });
        let many: String = (0..65).map(|number| format!("a{number}=1&")).collect();
        let expected = "the query: expected at most 64 attributes";
        assert_eq!(Query::parse(&many).unwrap_err(), expected);
        let cost = Query::parse("cost=2").unwrap();
        assert_eq!(cost.attributes().value("cost"), None, "not an attribute");
    }
}
