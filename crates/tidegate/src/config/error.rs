//! What is wrong with a file, and where.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

/// Everything that is wrong with a file, in the order of its lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(Vec<ConfigError>);

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {field}: {message}")]
pub struct ConfigError {
    file: String,
    line: usize,
    column: usize,
    field: String,
    message: String,
}

impl ConfigError {
    /// The line, counted from 1.
    #[must_use]
    pub fn line(&self) -> usize {
        self.line
    }

    /// The column, counted from 1 in characters.
    #[must_use]
    pub fn column(&self) -> usize {
        self.column
    }

    /// The field, with the tables it lies in.
    #[must_use]
    pub fn field(&self) -> &str {
        &self.field
    }

    /// The value, and what was expected.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl ConfigErrors {
    /// The errors one by one; there is at least one.
    #[must_use]
    pub fn as_slice(&self) -> &[ConfigError] {
        &self.0
    }
}

impl fmt::Display for ConfigErrors {
    /// A line an error.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// Errors as they are found.
pub(super) struct Errors<'t> {
    text: &'t str,
    found: RefCell<Vec<Found>>,
}

struct Found {
    span: Range<usize>,
    field: String,
    message: String,
}

impl<'t> Errors<'t> {
    /// So many errors are reported; a file that is not a config at all has more.
    const MAX: usize = 100;

    pub(super) fn new(text: &'t str) -> Self {
        Self {
            text,
            found: RefCell::default(),
        }
    }

    pub(super) fn add(
        &self,
        span: Range<usize>,
        field: impl Into<String>,
        message: impl Into<String>,
    ) {
        let mut found = self.found.borrow_mut();
        if found.len() < Self::MAX {
            found.push(Found {
                span,
                field: field.into(),
                message: message.into(),
            });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.borrow().is_empty()
    }

    /// Whether this field was found to be wrong.
    pub(super) fn has(&self, field: &str) -> bool {
        self.found.borrow().iter().any(|found| found.field == field)
    }

    /// A value as it stands in the file, if that is short.
    pub(super) fn source(&self, span: Range<usize>) -> &'t str {
        self.text.get(span).unwrap_or_default()
    }

    pub(super) fn into_errors(self, file: &str) -> ConfigErrors {
        let mut found = self.found.into_inner();
        found.sort_by_key(|found| found.span.start);
        let locate = |found: Found| {
            let (line, column) = position(self.text, found.span.start);
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

/// Line and column of an offset, counted from 1.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (line, before[start..].chars().count() + 1)
}
