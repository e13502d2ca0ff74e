//! Readable messages for files that are not valid TOML.

use std::ops::Range;

use tidegate::text::shown;
use toml::de::Error;

use crate::error::Errors;

/// Reports the first mistake of each line: those after it mostly follow from it.
pub(crate) fn report(text: &str, found: &[Error], errors: &Errors<'_>) {
    let mut found: Vec<(Range<usize>, &str)> = found
        .iter()
        .map(|error| (error.span().unwrap_or_default(), error.message()))
        .collect();
    found.sort_by_key(|(span, _)| span.start);
    let mut line_end = None;
    for (span, said) in found {
        if line_end.is_some_and(|line_end| span.start <= line_end) {
            continue;
        }
        let rest = text.get(span.start..).unwrap_or_default();
        let rest = rest.split('\n').next().unwrap_or_default();
        line_end = Some(span.start + rest.len());
        let source = text.get(span.clone()).unwrap_or_default();
        errors.add(span, "toml", message(said, source, rest));
    }
}

/// What the parser says, or better words: `rest` is the line from the mistake on.
fn message(said: &str, source: &str, rest: &str) -> String {
    let rest = rest.trim();
    if said.starts_with("string values must be quoted") {
        return match rest.is_empty() || rest.starts_with('#') {
            true => "no value: expected one after the equals sign".into(),
            false => "a string without quotes: expected it in quotes".into(),
        };
    }
    if said == "duplicate key" {
        return format!("{}: twice: expected it once", shown(source));
    }
    let said = said.strip_suffix(", expected nothing").unwrap_or(said);
    // One line an error, whatever the parser says.
    said.replace(char::is_control, " ")
}
