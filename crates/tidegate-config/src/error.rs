//! Errors in a config file, with their positions.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

/// All errors in a file, in line order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(Vec<ConfigError>);

/// One error in a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {field}: {message}")]
#[non_exhaustive]
pub struct ConfigError {
    /// The name of the file.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The column, counted from 1 in characters.
    pub column: usize,
    /// The path of the field, such as `policies.login.limit`.
    pub field: String,
    /// The invalid value, and what was expected.
    pub message: String,
}

impl ConfigErrors {
    /// The errors one by one; there is at least one.
    #[must_use]
    pub fn as_slice(&self) -> &[ConfigError] {
        &self.0
    }
}

impl fmt::Display for ConfigErrors {
    /// One line per error.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}

/// Errors as they are found.
pub(crate) struct Errors<'t> {
    text: &'t str,
    found: RefCell<Vec<Found>>,
}

struct Found {
    span: Range<usize>,
    field: String,
    message: String,
}

impl<'t> Errors<'t> {
    /// The maximum number of reported errors. A file that is not a config has more.
    const MAX: usize = 100;

    pub(crate) fn new(text: &'t str) -> Self {
        Self {
            text,
            found: RefCell::default(),
        }
    }

    pub(crate) fn add(
        &self,
        span: Range<usize>,
        field: impl Into<String>,
        message: impl Into<String>,
    ) {
        if !self.is_full() {
            self.found.borrow_mut().push(Found {
                span,
                field: field.into(),
                message: message.into(),
            });
        }
    }

    /// Whether the maximum is reached, so that there is no need to look for more.
    pub(crate) fn is_full(&self) -> bool {
        self.found.borrow().len() >= Self::MAX
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.borrow().is_empty()
    }

    /// Whether this field has an error.
    pub(crate) fn has(&self, field: &str) -> bool {
        self.found.borrow().iter().any(|found| found.field == field)
    }

    /// A value as written in the file, if it is short.
    pub(crate) fn source(&self, span: Range<usize>) -> &'t str {
        self.text.get(span).unwrap_or_default()
    }

    pub(crate) fn into_errors(self, file: &str) -> ConfigErrors {
        let mut found = self.found.into_inner();
        found.sort_by_key(|found| found.span.start);
        let (mut offset, mut line, mut column) = (0, 1, 1);
        let locate = |found: Found| {
            let start = self.text.floor_char_boundary(found.span.start);
            for char in self.text[offset..start].chars() {
                (line, column) = match char {
                    '\n' => (line + 1, 1),
                    _ => (line, column + 1),
                };
            }
            offset = start;
            ConfigError {
                file: file.into(),
                line,
                column,
                field: found.field,
                message: found.message,
            }
        };
        ConfigErrors(found.into_iter().map(locate).collect())
    }
}
