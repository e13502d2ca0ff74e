//! A fast parser for the common check: an object of plain ASCII strings without escapes.
//! Anything else is left to serde, which also reports errors.

use tidegate::Cost;

use super::check::Question;
use super::query::Pairs;

/// The most attributes of such a question.
const MOST: usize = 8;

/// A question such as `{"policy":"api","key":"k"}` or
/// `{"policy":"api","attributes":{"ip":"::1","user":"7"},"cost":2}`; `None` for all that
/// is not as plain as that, right or wrong.
pub(super) fn question(text: &[u8]) -> Option<Question<'_>> {
    let mut rest = Rest(text);
    let (mut policy, mut attributes, mut cost) = (None, Pairs::new(), Cost::ONE);
    let (mut has_attributes, mut has_cost) = (false, false);
    rest.expect(b'{')?;
    loop {
        match rest.name()? {
            b"policy" if policy.is_none() => policy = Some(text_of(rest.text()?)?),
            b"key" if attributes.is_empty() && !has_attributes => {
                attributes.push(("key".into(), rest.text()?.into()));
            }
            b"attributes" if attributes.is_empty() && !has_attributes => {
                has_attributes = true;
                rest.expect(b'{')?;
                loop {
                    let name = text_of(rest.name()?)?;
                    if attributes.iter().any(|(other, _)| *other == name) {
                        return None;
                    }
                    attributes.push((name.into(), rest.text()?.into()));
                    // Longer lists are rare, and their length has a bound.
                    if attributes.len() > MOST {
                        return None;
                    }
                    if rest.is_end()? {
                        break;
                    }
                }
            }
            b"cost" if !has_cost => {
                has_cost = true;
                cost = rest.cost()?;
            }
            _ => return None,
        }
        if rest.is_end()? {
            break;
        }
    }
    rest.0.is_empty().then_some(Question {
        policy: policy?.into(),
        attributes,
        cost,
        peek: false,
    })
}

/// What is still to be read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    #[inline]
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// The next byte, which must be this one; a space before it is skipped.
    #[inline]
    fn expect(&mut self, byte: u8) -> Option<()> {
        let mut next = self.next()?;
        if next == b' ' {
            next = self.next()?;
        }
        (next == byte).then_some(())
    }

    /// A text in quotes.
    #[inline]
    fn text(&mut self) -> Option<&'a [u8]> {
        self.expect(b'"')?;
        let end = self.0.iter().position(|byte| !is_plain(*byte))?;
        let (text, rest) = self.0.split_at(end);
        self.0 = rest;
        (self.next()? == b'"').then_some(text)
    }

    /// A text in quotes, and the colon behind it.
    #[inline]
    fn name(&mut self) -> Option<&'a [u8]> {
        let name = self.text()?;
        self.expect(b':')?;
        Some(name)
    }

    /// Whether an object ends here; otherwise there is a comma.
    #[inline]
    fn is_end(&mut self) -> Option<bool> {
        match self.next()? {
            b'}' => Some(true),
            b',' => Some(false),
            _ => None,
        }
    }

    /// A cost of a few digits.
    fn cost(&mut self) -> Option<Cost> {
        if self.0.first() == Some(&b' ') {
            self.next();
        }
        let length = self.0.iter().take_while(|byte| byte.is_ascii_digit());
        let (digits, rest) = self.0.split_at(length.count());
        self.0 = rest;
        let is_plain = (1..=9).contains(&digits.len()) && digits[0] != b'0';
        let number: u64 = text_of(digits)?.parse().ok()?;
        Cost::new(number).ok().filter(|_| is_plain)
    }
}

/// Bytes that stand for themselves in a text.
#[inline]
fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\'
}

/// Plain bytes are text.
#[inline]
fn text_of(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::api::check;

    #[test]
    fn everyday_questions_are_read_here() {
        for text in [
            r#"{"policy":"api","key":"k"}"#,
            r#"{"key":"k","policy":"api"}"#,
            r#"{"policy": "api", "key": "a b"}"#,
            r#"{"policy":"api"}"#,
            r#"{"policy":"api","attributes":{"ip":"::1","user":""},"cost":7}"#,
        ] {
            assert!(question(text.as_bytes()).is_some(), "{text}");
        }
    }

    const PIECES: &str = r#"{ } [ : , " "policy" "key" "attributes" "cost" "peek"
        "attributes_b64" "a" "\n" "\u0041" "é" 0 1 01 -1 1.5 4294967296 true null {}
        "policy":"p" "key":"k" "attributes":{"a":"1"} "cost":3"#;

    /// Texts that are nearly questions.
    fn texts() -> impl Strategy<Value = String> {
        let pieces = PIECES.split_whitespace();
        let pieces = pieces.chain([" ", "\"b c\"", "\"\u{7f}\"", "\"\t\"", "\"cost\": 2"]);
        let piece = prop::sample::select(pieces.collect::<Vec<_>>());
        prop_oneof![
            prop::collection::vec(piece.clone(), 0..12).prop_map(|pieces| pieces.concat()),
            prop::collection::vec(piece, 0..6)
                .prop_map(|pieces| format!("{{{}}}", pieces.join(","))),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn what_is_read_here_is_what_serde_reads(text in texts()) {
            if let Some(quick) = question(text.as_bytes()) {
                let thorough = check::question(&text);
                prop_assert!(thorough.is_ok(), "{}: {:?}", text, thorough);
                prop_assert_eq!(thorough.unwrap(), quick, "{}", text);
            }
        }
    }
}
