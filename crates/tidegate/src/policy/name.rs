//! Names of policies, levels, attributes and stores.

/// The longest name.
const MAX: usize = 64;

/// What a name looks like, for messages.
pub const EXPECTED: &str = "1 to 64 of the characters A-Z a-z 0-9 _ -";

/// Whether this can be the name of a policy, a level, an attribute or a store: such a name needs no escaping in a key, a header, a
/// metric or a log line.
pub fn is_name(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (1..=MAX).contains(&text.len()) && text.bytes().all(is_part)
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
