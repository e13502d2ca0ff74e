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
