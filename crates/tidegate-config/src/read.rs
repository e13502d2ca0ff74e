//! Reads the fields of a table one by one. A field is valid, absent, or an error with its
//! position, its value and what was expected. Fields that were not read are unknown. Programs
//! use the same functions to read their own sections.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use tidegate::text::{self, DurationText, is_name, shown};

use crate::error::{ConfigErrors, Errors};
use crate::schema::{Rows, Table};
use crate::syntax;
use crate::url::Secret;

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
    let root = Fields::new(document.get_ref(), String::new(), 0..0, &errors);
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
    fn new(
        table: &'a DeTable<'a>,
        path: String,
        span: Range<usize>,
        errors: &'a Errors<'a>,
    ) -> Self {
        Self {
            table,
            path,
            span,
            known: RefCell::default(),
            errors,
        }
    }

    /// Reads the rows of a table: what the file does not have stays as it is.
    #[must_use]
    pub fn rows<T: Table>(&self, mut table: T) -> T {
        table.rows(&mut Rows::reading(self));
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

    /// Reports a field that is missing.
    pub(crate) fn require(&self, name: &'static str, expected: &str) {
        if !self.has(name) {
            self.error(name, format!("missing: expected {expected}"));
        }
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
    fn value<V>(
        &self,
        name: &'static str,
        expected: impl Display,
        convert: impl FnOnce(&'a DeValue<'a>) -> Option<V>,
    ) -> Option<V> {
        let value = self.get(name)?;
        let converted = convert(value.get_ref());
        if converted.is_none() {
            self.expected(value, name, expected);
        }
        converted
    }

    /// Reports a field, or an item of it, that is something else than expected.
    fn expected(&self, value: &Spanned<DeValue<'_>>, name: &str, expected: impl Display) {
        let message = format!("{}: expected {expected}", self.shown(value));
        self.error_at(value.span(), name, message);
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

    /// A text.
    pub fn text(&self, name: &'static str, expected: &str) -> Option<&'a str> {
        self.value(name, expected, DeValue::as_str)
    }

    /// `true` or `false`.
    pub fn flag(&self, name: &'static str) -> Option<bool> {
        self.value(name, "true or false", DeValue::as_bool)
    }

    /// A whole number in this range.
    pub fn number_in(&self, name: &'static str, range: Range<u64>) -> Option<u64> {
        let expected = format!("a whole number from {} to {}", range.start, range.end - 1);
        self.value(name, expected, |value| {
            // In any notation TOML has.
            let integer = value.as_integer()?;
            let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok();
            number.filter(|number| range.contains(number))
        })
    }

    pub(crate) fn fraction(&self, name: &'static str) -> Option<f64> {
        self.value(name, "a number such as 0.5", |value| match value {
            DeValue::Float(float) => float.as_str().parse().ok(),
            DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str().parse().ok(),
            _ => None,
        })
    }

    /// A duration in quotes, such as `"50ms"`, in this range.
    pub fn duration(
        &self,
        name: &'static str,
        range: RangeInclusive<Duration>,
    ) -> Option<Duration> {
        let (from, to) = (DurationText(*range.start()), DurationText(*range.end()));
        let expected =
            format!("a duration in quotes, such as \"50ms\" or \"1s\", from {from} to {to}");
        self.value(name, expected, |value| {
            let duration = value.as_str().and_then(text::duration);
            duration.filter(|duration| range.contains(duration))
        })
    }

    /// One of a few words, converted to its value.
    pub fn choice<T: Copy>(&self, name: &'static str, choices: &[(&str, T)]) -> Option<T> {
        let words = choices.iter().map(|(word, _)| format!("{word:?}"));
        let expected = format!("one of {}", words.collect::<Vec<_>>().join(", "));
        self.value(name, expected, |value| {
            let text = value.as_str()?;
            let choice = choices.iter().find(|(word, _)| text == *word);
            choice.map(|(_, choice)| *choice)
        })
    }

    /// A list of texts, numbers and flags, all as text.
    pub(crate) fn scalars(&self, name: &'static str) -> Option<Vec<String>> {
        let expected = "a list of strings and decimal numbers, such as [10, 60]";
        let list = self.value(name, expected, DeValue::as_array)?;
        let scalar = |item: &Spanned<DeValue<'_>>| match item.get_ref() {
            DeValue::String(text) => Some(text.to_string()),
            DeValue::Boolean(flag) => Some(flag.to_string()),
            DeValue::Integer(number) if number.radix() == 10 => Some(number.to_string()),
            DeValue::Float(number) => Some(number.to_string()),
            _ => {
                self.expected(item, name, expected);
                None
            }
        };
        Some(list.iter().filter_map(scalar).collect())
    }

    /// A secret, or where it comes from. `what` says what it is, such as `a password`.
    pub fn secret(&self, name: &'static str, what: &str) -> Option<Secret> {
        let expected = format!("\"file:PATH\", \"env:NAME\", or {what}");
        let text = self.hidden(name, &expected)?;
        let secret = Secret::parse(text);
        if secret.is_none() {
            self.error(name, format!("{}: expected {expected}", shown(text)));
        }
        secret
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

    /// A list of strings, each with its position, without the invalid ones. If `one` is
    /// true, a single string counts as a list.
    pub fn texts(
        &self,
        name: &'static str,
        one: bool,
        expected: &str,
    ) -> Option<Vec<(&'a str, Range<usize>)>> {
        let value = self.get(name)?;
        match value.get_ref() {
            DeValue::Array(list) => {
                let items = list.iter();
                let texts = items.filter_map(|item| self.item(name, item, expected));
                Some(texts.collect())
            }
            DeValue::String(text) if one => Some(vec![(&**text, value.span())]),
            _ => {
                self.expected(value, name, expected);
                None
            }
        }
    }

    /// A text inside of a field.
    fn item(
        &self,
        name: &str,
        item: &'a Spanned<DeValue<'a>>,
        expected: &str,
    ) -> Option<(&'a str, Range<usize>)> {
        let text = item.get_ref().as_str();
        if text.is_none() {
            self.expected(item, name, expected);
        }
        Some((text?, item.span()))
    }

    /// The path of a file.
    pub fn path(&self, name: &'static str) -> Option<String> {
        let path = self.text(name, "the path of a file")?;
        if path.is_empty() {
            self.error(name, "\"\": expected the path of a file");
        }
        Some(path.into())
    }

    /// Reports one of two fields without the other, such as a certificate without its key.
    pub fn pair(&self, one: &'static str, two: &'static str) {
        for (field, other) in [(one, two), (two, one)] {
            if let Some(text) = self
                .peek_text(field)
                .filter(|_| !self.has(other) && !self.is_wrong(field))
            {
                let text = shown(text);
                self.error(
                    other,
                    format!("missing: expected it together with {field} = {text}"),
                );
            }
        }
    }

    /// Every field of a table with its value as text.
    pub(crate) fn pairs(
        &self,
        name: &'static str,
        expected: &str,
    ) -> Option<Vec<(String, String)>> {
        let table = self.value(name, expected, DeValue::as_table)?;
        let pairs = table.iter().filter_map(|(attribute, value)| {
            let (text, _) = self.item(name, value, "a value in quotes")?;
            Some((attribute.get_ref().to_string(), text.into()))
        });
        Some(pairs.collect())
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
        Some(Self::new(
            table,
            self.path_of(name),
            value.span(),
            self.errors,
        ))
    }

    /// The tables in a table, by name. Anything else in it is reported without its value,
    /// which may be secret.
    pub(crate) fn named_tables(&self) -> Vec<(&'a str, Fields<'a>)> {
        let mut tables = Vec::new();
        for (name, value) in self.table {
            let (text, span) = (name.get_ref().as_ref(), name.span());
            if !is_name(text) {
                let message = format!("the name {}: expected {}", shown(text), text::NAME);
                self.errors.add(span, self.path.clone(), message);
                continue;
            }
            let path = self.path_of(text);
            let DeValue::Table(table) = value.get_ref() else {
                let message = format!(
                    "not a table: expected a table for each of the {0}, such as [{0}.default]",
                    self.path
                );
                self.errors.add(span, path, message);
                continue;
            };
            let fields = Self::new(table, path, value.span(), self.errors);
            tables.push((text, fields));
        }
        tables
    }

    /// The tables of a list, each identified by its `name` if that is valid.
    pub(crate) fn tables(&self, name: &'static str) -> Vec<Fields<'a>> {
        let Some(value) = self.get(name) else {
            return Vec::new();
        };
        let expected = match self.path.as_str() {
            "" => format!("tables, each headed [[{name}]]"),
            _ => format!("tables, each headed [[policies.{name}]]"),
        };
        let DeValue::Array(list) = value.get_ref() else {
            self.expected(value, name, expected);
            return Vec::new();
        };
        let mut tables: Vec<Fields<'a>> = Vec::new();
        let mut taken: HashSet<&str> = HashSet::new();
        for (index, item) in list.iter().enumerate() {
            let DeValue::Table(table) = item.get_ref() else {
                self.expected(item, name, &expected);
                continue;
            };
            let own = table.get("name").and_then(|own| own.get_ref().as_str());
            let own = own.filter(|own| is_name(own) && taken.insert(own));
            let path = match own {
                Some(own) => format!("{}.{own}", self.path_of(name)),
                None => format!("{}[{index}]", self.path_of(name)),
            };
            tables.push(Self::new(table, path, item.span(), self.errors));
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
