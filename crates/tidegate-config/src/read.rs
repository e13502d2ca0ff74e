//! Reads the fields of a table one by one. A field is valid, absent, or an error with its
//! position, its value and what was expected. Fields that were not read are unknown. Programs
//! use the same functions to read their own sections.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt::Display;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use tidegate::text::{NAME, is_name, shown};

use crate::error::{ConfigErrors, Errors};
use crate::schema::{Rows, Table};
use crate::syntax;

/// Reads a TOML file with `sections`, which reads the fields it knows from the root table.
/// Returns its result, or all errors, including unknown fields.
pub fn read<T>(
    text: &str,
    file: &str,
    sections: impl FnOnce(&Fields<'_>) -> T,
) -> Result<T, ConfigErrors> {
    // Some editors begin a file with a byte-order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let errors = Errors::new(text);
    let (document, syntax) = DeTable::parse_recoverable(text);
    if !syntax.is_empty() {
        // What could not be read cannot be judged.
        syntax::report(text, &syntax, &errors);
        return Err(errors.into_errors(file));
    }
    let root = Fields {
        table: document.get_ref(),
        path: String::new(),
        span: 0..0,
        known: RefCell::default(),
        errors: &errors,
    };
    let read = sections(&root);
    root.finish();
    match errors.is_empty() {
        true => Ok(read),
        false => Err(errors.into_errors(file)),
    }
}

/// A table of the file, whose fields are read one by one.
///
/// A valid field is returned. An absent field is `None`, and so is an invalid one, after its
/// error was reported. The table remembers which fields were read; the others are unknown.
pub struct Fields<'a> {
    table: &'a DeTable<'a>,
    /// Its path, such as `policies.login`.
    path: String,
    span: Range<usize>,
    /// The fields that were read.
    known: RefCell<Vec<&'static str>>,
    errors: &'a Errors<'a>,
}

impl<'a> Fields<'a> {
    /// A table in this one.
    fn inside(&self, table: &'a DeTable<'a>, path: String, span: Range<usize>) -> Self {
        Self {
            table,
            path,
            span,
            known: RefCell::default(),
            errors: self.errors,
        }
    }

    /// Reads the rows of a table: what the file does not have stays as it is.
    #[must_use]
    pub fn rows<T: Table>(&self, mut table: T) -> T {
        table.rows(&mut Rows::new(Some(self)));
        table
    }

    fn get(&self, name: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        let mut known = self.known.borrow_mut();
        if !known.contains(&name) {
            known.push(name);
        }
        self.peek(name)
    }

    fn peek(&self, name: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.table.get(name)
    }

    /// The text of a field, if it is one.
    pub(crate) fn peek_text(&self, name: &str) -> Option<&'a str> {
        self.peek(name)?.get_ref().as_str()
    }

    /// Whether the file has a field.
    #[must_use]
    pub fn has(&self, name: &'static str) -> bool {
        self.get(name).is_some()
    }

    /// The path of a field.
    pub(crate) fn path_of(&self, name: &str) -> String {
        match self.path.as_str() {
            "" => name.into(),
            path => format!("{path}.{name}"),
        }
    }

    /// Reports an invalid field: its value, and what was expected. An absent field is
    /// reported at the beginning of its table.
    pub fn error(&self, name: &str, message: impl Into<String>) {
        let span = self.peek(name).map_or(self.span.clone(), Spanned::span);
        self.errors.add(span, self.path_of(name), message);
    }

    /// Whether the maximum number of errors is reached.
    pub(crate) fn is_hopeless(&self) -> bool {
        self.errors.is_full()
    }

    /// Whether a field has an error.
    #[must_use]
    pub fn is_wrong(&self, name: &str) -> bool {
        self.errors.has(&self.path_of(name))
    }

    /// Reports an error in a part of a field, such as an item of a list.
    pub fn error_at(&self, span: Range<usize>, name: &str, message: impl Into<String>) {
        self.errors.add(span, self.path_of(name), message);
    }

    /// A field with a value that `convert` understands; any other is reported.
    pub(crate) fn value<V>(
        &self,
        name: &'static str,
        expected: impl Display,
        convert: impl FnOnce(&'a DeValue<'a>) -> Option<V>,
    ) -> Option<V> {
        self.converted(self.get(name)?, name, expected, convert)
    }

    /// The same for a field that was found, or an item of it.
    pub(crate) fn converted<V>(
        &self,
        value: &'a Spanned<DeValue<'a>>,
        name: &str,
        expected: impl Display,
        convert: impl FnOnce(&'a DeValue<'a>) -> Option<V>,
    ) -> Option<V> {
        let converted = convert(value.get_ref());
        if converted.is_none() {
            let message = format!("{}: expected {expected}", self.shown(value));
            self.error_at(value.span(), name, message);
        }
        converted
    }

    /// A value as it is repeated in a message.
    fn shown(&self, value: &Spanned<DeValue<'_>>) -> String {
        const SHOWN: usize = 40;
        match value.get_ref() {
            DeValue::Table(_) => return "a table".into(),
            DeValue::Array(_) => return "a list".into(),
            DeValue::String(text) => return shown(text),
            _ => {}
        }
        let source = self.errors.source(value.span());
        let start = source.chars().take(SHOWN);
        // The parser takes some control characters for a part of a number.
        let mut shown: String = start.flat_map(char::escape_debug).collect();
        if source.chars().nth(SHOWN).is_some() {
            shown.push('…');
        }
        shown
    }

    /// A text that `parse` understands. Its error is the message.
    pub fn parsed<V>(
        &self,
        name: &'static str,
        expected: &str,
        parse: impl FnOnce(&str) -> Result<V, String>,
    ) -> Option<V> {
        let parsed = parse(self.value(name, expected, DeValue::as_str)?);
        parsed.map_err(|message| self.error(name, message)).ok()
    }

    /// One of a few words, converted to its value.
    pub(crate) fn choice<T: Copy>(&self, name: &'static str, choices: &[(&str, T)]) -> Option<T> {
        let words = choices.iter().map(|(word, _)| format!("{word:?}"));
        let expected = format!("one of {}", words.collect::<Vec<_>>().join(", "));
        self.value(name, expected, |value| {
            let text = value.as_str()?;
            let choice = choices.iter().find(|(word, _)| text == *word);
            choice.map(|(_, choice)| *choice)
        })
    }

    /// A string that no message repeats, even if it is invalid.
    pub(crate) fn hidden(&self, name: &'static str, expected: &str) -> Option<&'a str> {
        let value = self.get(name)?;
        let text = value.get_ref().as_str();
        if text.is_none() {
            self.error(name, format!("not a string: expected {expected}"));
        }
        text
    }

    /// The items of a list that `convert` understands, each with its position; the others are
    /// reported. If `may_be_item` is true, a single string counts as a list.
    pub(crate) fn items<V>(
        &self,
        name: &'static str,
        expected: &str,
        may_be_item: bool,
        convert: impl Fn(&'a DeValue<'a>) -> Option<V>,
    ) -> Option<Vec<(V, Range<usize>)>> {
        let value = self.get(name)?;
        let items: Vec<_> = match value.get_ref() {
            DeValue::String(_) if may_be_item => vec![value],
            _ => {
                let list = self.converted(value, name, expected, DeValue::as_array)?;
                list.iter().collect()
            }
        };
        let item = |item: &'a Spanned<DeValue<'a>>| {
            let converted = self.converted(item, name, expected, &convert)?;
            Some((converted, item.span()))
        };
        Some(items.into_iter().filter_map(item).collect())
    }

    /// Reports one of two fields without the other, such as a certificate without its key.
    pub fn pair(&self, one: &'static str, two: &'static str) {
        for (field, other) in [(one, two), (two, one)] {
            let text = self.peek_text(field);
            if let Some(text) = text.filter(|_| !self.has(other) && !self.is_wrong(field)) {
                let field = format!("{field} = {}", shown(text));
                self.error(other, format!("missing: expected it together with {field}"));
            }
        }
    }

    /// A table inside this one. Read its fields and [`finish`](Self::finish) it, or drop it
    /// to ignore its contents.
    pub fn table(&self, name: &'static str) -> Option<Fields<'a>> {
        let value = self.get(name)?;
        let DeValue::Table(table) = value.get_ref() else {
            // Not repeated: it may hold a secret that belongs into the table.
            let message = format!("not a table: expected a table, [{}]", self.path_of(name));
            self.error(name, message);
            return None;
        };
        Some(self.inside(table, self.path_of(name), value.span()))
    }

    /// The tables in a table, by name. Anything else in it is reported without its value,
    /// which may be secret.
    pub(crate) fn named_tables(&self) -> Vec<(&'a str, Fields<'a>)> {
        let mut tables = Vec::new();
        for (name, value) in self.table {
            let (text, span) = (name.get_ref().as_ref(), name.span());
            let (path, message) = match value.get_ref() {
                _ if !is_name(text) => {
                    let message = format!("the name {}: expected {NAME}", shown(text));
                    (self.path.clone(), message)
                }
                DeValue::Table(table) => {
                    let fields = self.inside(table, self.path_of(text), value.span());
                    tables.push((text, fields));
                    continue;
                }
                _ => {
                    let expected = format!(
                        "a table for each of the {0}, such as [{0}.default]",
                        self.path
                    );
                    (
                        self.path_of(text),
                        format!("not a table: expected {expected}"),
                    )
                }
            };
            self.errors.add(span, path, message);
        }
        tables
    }

    /// The tables of a list, each identified by its `name` if that is valid.
    pub(crate) fn tables(&self, name: &'static str) -> Vec<Fields<'a>> {
        let expected = match self.path.as_str() {
            "" => format!("tables, each headed [[{name}]]"),
            _ => format!("tables, each headed [[policies.{name}]]"),
        };
        let list = self.value(name, &expected, DeValue::as_array);
        let mut tables: Vec<Fields<'a>> = Vec::new();
        let mut taken: HashSet<&str> = HashSet::new();
        for (index, item) in list.into_iter().flatten().enumerate() {
            let table = self.converted(item, name, &expected, DeValue::as_table);
            let Some(table) = table else { continue };
            let own = table.get("name").and_then(|own| own.get_ref().as_str());
            let own = own.filter(|own| is_name(own) && taken.insert(own));
            let path = match own {
                Some(own) => format!("{}.{own}", self.path_of(name)),
                None => format!("{}[{index}]", self.path_of(name)),
            };
            tables.push(self.inside(table, path, item.span()));
        }
        tables
    }

    /// Reports the unknown fields of this table. [`read`] does this for the root.
    pub fn finish(&self) {
        self.report_unknown(&[]);
    }

    /// The same for a table of a policy. A field may belong to the policy instead.
    pub(crate) fn finish_within(&self, policy: &Self) {
        self.report_unknown(&policy.known.borrow());
    }

    fn report_unknown(&self, policy: &[&'static str]) {
        let known = self.known.borrow();
        for name in self.table.keys() {
            let (text, span) = (name.get_ref().as_ref(), name.span());
            if known.contains(&text) {
                continue;
            }
            if self.is_hopeless() {
                break;
            }
            let advice = match nearest(text, &known) {
                _ if policy.contains(&text) => "expected it in the policy, not here".into(),
                Some(near) => format!("did you mean {near:?}?"),
                None => format!("expected one of {}", known.join(", ")),
            };
            let shown: String = text.escape_debug().take(64).collect();
            self.error_at(span, &shown, format!("unknown field: {advice}"));
        }
    }
}

/// The known name that the user probably meant.
pub(crate) fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    const ALIKE: f64 = 0.8;
    // Longer than any name: not worth comparing.
    if name.len() > 64 {
        return None;
    }
    let name = name.to_lowercase().replace('-', "_");
    let scored = known
        .iter()
        .map(|other| (strsim::jaro_winkler(&name, other), *other));
    let best = scored.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (best.0 >= ALIKE).then_some(best.1)
}
