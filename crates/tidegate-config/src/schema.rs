//! A table of the file as a list of rows, one per field: its name, the values it can have, and
//! what it needs to have an effect. The same rows read a table, check it and print it.

use std::fmt::{self, Display, Formatter};
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use tidegate::text::{self, DurationText, shown};
use toml::de::DeValue;

use crate::read::Fields;
use crate::url::Secret;
use crate::write::{self, quoted};

/// A table of the file whose fields are rows.
///
/// ```
/// use std::time::Duration;
/// use tidegate_config::{Config, Rows, Table, read};
///
/// #[derive(Clone)]
/// struct Job {
///     every: Duration,
///     verbose: bool,
/// }
///
/// impl Table for Job {
///     fn rows(&mut self, rows: &mut Rows<'_>) {
///         rows.duration("every", Duration::from_secs(1)..=Duration::from_secs(60), &mut self.every);
///         rows.flag("verbose", &mut self.verbose);
///     }
/// }
///
/// let standard = Job { every: Duration::from_secs(5), verbose: false };
/// let job = read("[job]\nevery = \"10s\"", "job.toml", |root| {
///     let fields = root.table("job").expect("a table");
///     let job = fields.rows(standard.clone());
///     fields.finish();
///     job
/// })?;
/// assert_eq!(job.every, Duration::from_secs(10));
/// # Ok::<(), tidegate_config::ConfigErrors>(())
/// ```
pub trait Table: Clone {
    /// Names each field and the place of its value, in the order in which they are printed.
    fn rows(&mut self, rows: &mut Rows<'_>);

    /// Prints the fields whose values are not those of `standard`; with `{:#}`, all of them.
    fn print(&self, f: &mut Formatter<'_>, standard: &Self) -> fmt::Result {
        let lines = |mut table: Self| {
            let mut rows = Rows::new(None);
            table.rows(&mut rows);
            rows.lines
        };
        for (line, standard) in lines(self.clone()).iter().zip(lines(standard.clone())) {
            let (name, value, is_shown) = line;
            if *is_shown && (f.alternate() || *value != standard.1) {
                writeln!(f, "{name} = {value}")?;
            }
        }
        Ok(())
    }
}

/// The rows of a [`Table`], on their way through the file or into a text.
///
/// A field that the file does not have keeps its value. So does an invalid one, whose error is
/// reported.
pub struct Rows<'r> {
    /// The table that is read; `None` while one is printed.
    pub(crate) fields: Option<&'r Fields<'r>>,
    lines: Vec<Line>,
    /// Whether fields have an effect.
    is_in_force: bool,
    /// Where they have none: the field that decides it, and what to say about the others.
    otherwise: Option<(&'static str, &'static str)>,
}

/// A field as it is printed: its name, its value as TOML, and whether there is one to show.
type Line = (&'static str, String, bool);

/// Where a row has its value: it always has one, or it is an `Option`.
pub trait Place<V>: Clone + PartialEq + From<V> + Into<Option<V>> {}

impl<V, P: Clone + PartialEq + From<V> + Into<Option<V>>> Place<V> for P {}

/// What a list may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
    /// Any list.
    Any,
    /// A list with an item.
    Filled,
    /// A list with an item, or the item alone.
    FilledOrItem,
}

impl<'r> Rows<'r> {
    pub(crate) fn new(fields: Option<&'r Fields<'r>>) -> Self {
        Self {
            fields,
            lines: Vec::new(),
            is_in_force: true,
            otherwise: None,
        }
    }

    /// The rows that follow have an effect only if `holds`, which the field `decided_by`
    /// decides. Otherwise they are not printed, and must keep their default value.
    pub fn only(&mut self, holds: bool, decided_by: &'static str, message: &'static str) {
        self.is_in_force = holds;
        self.otherwise = Some((decided_by, message));
    }

    /// The rows that follow are printed only if `holds`. Whether they may have a value otherwise
    /// is decided elsewhere.
    pub fn print_if(&mut self, holds: bool) {
        self.is_in_force = holds;
        self.otherwise = None;
    }

    /// A field: how it is read, and how it is printed. An empty text is not printed.
    pub fn row<V, P: Place<V>>(
        &mut self,
        name: &'static str,
        place: &mut P,
        read: impl FnOnce(&Fields<'r>, &'static str) -> Option<V>,
        print: impl FnOnce(V) -> String,
    ) {
        let Some(fields) = self.fields else {
            let value = place.clone().into().map(print).unwrap_or_default();
            let is_shown = self.is_in_force && !value.is_empty();
            return self.lines.push((name, value, is_shown));
        };
        let Some(value) = read(fields, name).map(P::from) else {
            return;
        };
        if let (false, Some((decided_by, message))) = (self.is_in_force, self.otherwise)
            && value != *place
            && !fields.is_wrong(decided_by)
            && !fields.is_wrong(name)
        {
            fields.error(name, message);
        }
        *place = value;
    }

    /// Reports a field that the file does not have.
    pub fn required(&self, name: &'static str, expected: &str) {
        if let Some(fields) = self.fields.filter(|fields| !fields.has(name)) {
            fields.error(name, format!("missing: expected {expected}"));
        }
    }

    /// `true` or `false`.
    pub fn flag(&mut self, name: &'static str, place: &mut impl Place<bool>) {
        let read =
            |fields: &Fields<'r>, name| fields.value(name, "true or false", DeValue::as_bool);
        self.row(name, place, read, |flag| flag.to_string());
    }

    /// A whole number in this range.
    pub fn number<N: TryFrom<u64> + Display>(
        &mut self,
        name: &'static str,
        range: Range<u64>,
        place: &mut impl Place<N>,
    ) {
        let expected = format!("a whole number from {} to {}", range.start, range.end - 1);
        let number = |value: &DeValue<'_>| {
            // In any notation TOML has.
            let integer = value.as_integer()?;
            let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok()?;
            N::try_from(number).ok().filter(|_| range.contains(&number))
        };
        let read = |fields: &Fields<'r>, name| fields.value(name, expected, number);
        self.row(name, place, read, |number| number.to_string());
    }

    /// A duration in quotes, such as `"50ms"`, in this range.
    pub fn duration(
        &mut self,
        name: &'static str,
        range: RangeInclusive<Duration>,
        place: &mut Duration,
    ) {
        let (from, to) = (DurationText(*range.start()), DurationText(*range.end()));
        let expected =
            format!("a duration in quotes, such as \"50ms\" or \"1s\", from {from} to {to}");
        let duration = |value: &DeValue<'_>| {
            let duration = text::duration(value.as_str()?)?;
            range.contains(&duration).then_some(duration)
        };
        let read = |fields: &Fields<'r>, name| fields.value(name, expected, duration);
        self.row(name, place, read, write::duration);
    }

    /// One of a few words.
    pub fn choice<V: Copy + PartialEq>(
        &mut self,
        name: &'static str,
        choices: &[(&str, V)],
        place: &mut impl Place<V>,
    ) {
        let read = |fields: &Fields<'r>, name| fields.choice(name, choices);
        let word = |value| choices.iter().find(|(_, other)| *other == value);
        self.row(name, place, read, |value| {
            word(value).map_or_else(String::new, |(word, _)| quoted(word))
        });
    }

    /// A text.
    pub fn text(&mut self, name: &'static str, expected: &str, place: &mut impl Place<String>) {
        self.text_if(name, expected, |_| true, place);
    }

    /// A text that `is_right`.
    pub fn text_if(
        &mut self,
        name: &'static str,
        expected: &str,
        is_right: impl FnOnce(&str) -> bool,
        place: &mut impl Place<String>,
    ) {
        let text = |value: &DeValue<'_>| {
            let text = value.as_str()?;
            is_right(text).then(|| text.to_owned())
        };
        let read = |fields: &Fields<'r>, name| fields.value(name, expected, text);
        self.row(name, place, read, |text| quoted(&text));
    }

    /// The path of a file.
    pub fn path(&mut self, name: &'static str, place: &mut Option<String>) {
        self.text_if(name, "the path of a file", |path| !path.is_empty(), place);
    }

    /// A list of texts. `item` converts each, and is given the items before it. Its error is
    /// the message.
    pub fn list<T: Clone + PartialEq + Display>(
        &mut self,
        name: &'static str,
        list: List,
        expected: &str,
        place: &mut Vec<T>,
        item: impl Fn(&str, &[T]) -> Result<T, String>,
    ) {
        let read = |fields: &Fields<'r>, name| {
            let mut items = Vec::new();
            let may_be_item = list == List::FilledOrItem;
            for (text, span) in fields.items(name, expected, may_be_item, DeValue::as_str)? {
                match item(text, &items) {
                    Ok(item) => items.push(item),
                    Err(message) => fields.error_at(span, name, message),
                }
            }
            if items.is_empty() && list != List::Any && !fields.is_wrong(name) {
                fields.error(name, format!("an empty list: expected {expected}"));
            }
            Some(items)
        };
        self.row(name, place, read, write::list);
    }

    /// A secret such as a token, or where it comes from. In place of a secret that is written in
    /// the file itself, a variable to set is printed: the printed text does not work without it.
    pub fn secret(&mut self, name: &'static str, what: &str, place: &mut Option<Secret>) {
        let expected = format!("\"file:PATH\", \"env:NAME\", or {what}");
        let read = |fields: &Fields<'r>, name| {
            let text = fields.hidden(name, &expected)?;
            let secret = Secret::parse(text);
            if secret.is_none() {
                fields.error(name, format!("{}: expected {expected}", shown(text)));
            }
            secret
        };
        self.row(name, place, read, |secret| match secret {
            Secret::Env(variable) => quoted(&format!("env:{variable}")),
            Secret::File(path) => quoted(&format!("file:{path}")),
            Secret::Text(_) => "\"env:SET_ME\"".into(),
        });
    }
}
