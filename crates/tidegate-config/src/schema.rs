//! A table of the file as a list of rows, one per field: its name, the values it can have, and
//! what it needs to have an effect. The same rows read a table, check it and print it.

use std::fmt::{self, Display, Formatter};
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use crate::read::Fields;
use crate::url::Secret;
use crate::write::{duration, quoted};

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
        for (line, standard) in Rows::printed(self).iter().zip(Rows::printed(standard)) {
            let is_said = f.alternate() || line.value != standard.value;
            if is_said && line.is_shown && !line.value.is_empty() {
                writeln!(f, "{} = {}", line.name, line.value)?;
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
    pass: Pass<'r>,
    condition: Condition,
}

enum Pass<'r> {
    Read(&'r Fields<'r>),
    Print(Vec<Line>),
}

/// A field as it is printed.
struct Line {
    name: &'static str,
    /// As TOML; empty if there is none.
    value: String,
    is_shown: bool,
}

/// When fields have an effect.
struct Condition {
    holds: bool,
    /// The field that decides it, and what to say about a field that has no effect.
    message: Option<(&'static str, &'static str)>,
}

impl Condition {
    const ALWAYS: Self = Self {
        holds: true,
        message: None,
    };
}

impl<'r> Rows<'r> {
    pub(crate) fn reading(fields: &'r Fields<'r>) -> Self {
        Self {
            pass: Pass::Read(fields),
            condition: Condition::ALWAYS,
        }
    }

    fn printed(table: &impl Table) -> Vec<Line> {
        let mut rows = Self {
            pass: Pass::Print(Vec::new()),
            condition: Condition::ALWAYS,
        };
        table.clone().rows(&mut rows);
        match rows.pass {
            Pass::Print(lines) => lines,
            Pass::Read(_) => Vec::new(),
        }
    }

    /// The rows that follow have an effect only if `holds`, which the field `decided_by`
    /// decides. Otherwise they are not printed, and must keep their default value.
    pub fn only(&mut self, holds: bool, decided_by: &'static str, message: &'static str) {
        self.condition = Condition {
            holds,
            message: Some((decided_by, message)),
        };
    }

    /// The rows that follow are printed only if `holds`. Whether they may have a value otherwise
    /// is decided elsewhere.
    pub fn print_if(&mut self, holds: bool) {
        self.condition = Condition {
            holds,
            message: None,
        };
    }

    /// A field: how it is read, and how it is printed. An empty text is not printed.
    pub fn row<V, P>(
        &mut self,
        name: &'static str,
        place: &mut P,
        read: impl FnOnce(&Fields<'r>, &'static str) -> Option<V>,
        print: impl FnOnce(V) -> String,
    ) where
        P: Clone + PartialEq + From<V> + Into<Option<V>>,
    {
        match &mut self.pass {
            Pass::Read(fields) => {
                let Some(value) = read(fields, name).map(P::from) else {
                    return;
                };
                if let Condition {
                    holds: false,
                    message: Some((decided_by, message)),
                } = self.condition
                    && value != *place
                    && !fields.is_wrong(decided_by)
                    && !fields.is_wrong(name)
                {
                    fields.error(name, message);
                }
                *place = value;
            }
            Pass::Print(lines) => lines.push(Line {
                name,
                value: place.clone().into().map(print).unwrap_or_default(),
                is_shown: self.condition.holds,
            }),
        }
    }

    /// `true` or `false`.
    pub fn flag<P>(&mut self, name: &'static str, place: &mut P)
    where
        P: Clone + PartialEq + From<bool> + Into<Option<bool>>,
    {
        self.row(name, place, Fields::flag, |flag| flag.to_string());
    }

    /// A whole number in this range.
    pub fn number<N>(&mut self, name: &'static str, range: Range<u64>, place: &mut N)
    where
        N: Clone + PartialEq + TryFrom<u64> + Display,
    {
        let read = |fields: &Fields<'r>, name| N::try_from(fields.number_in(name, range)?).ok();
        self.row(name, place, read, |number: N| number.to_string());
    }

    /// A duration in this range.
    pub fn duration(
        &mut self,
        name: &'static str,
        range: RangeInclusive<Duration>,
        place: &mut Duration,
    ) {
        let read = |fields: &Fields<'r>, name| fields.duration(name, range);
        self.row(name, place, read, duration);
    }

    /// One of a few words.
    pub fn choice<V, P>(&mut self, name: &'static str, choices: &[(&str, V)], place: &mut P)
    where
        V: Copy + PartialEq,
        P: Clone + PartialEq + From<V> + Into<Option<V>>,
    {
        let read = |fields: &Fields<'r>, name| fields.choice(name, choices);
        let word = |value| choices.iter().find(|(_, other)| *other == value);
        self.row(name, place, read, |value| {
            word(value).map_or_else(String::new, |(word, _)| quoted(word))
        });
    }

    /// A text.
    pub fn text<P>(&mut self, name: &'static str, expected: &str, place: &mut P)
    where
        P: Clone + PartialEq + From<String> + Into<Option<String>>,
    {
        let read = |fields: &Fields<'r>, name| Some(fields.text(name, expected)?.to_owned());
        self.row(name, place, read, |text| quoted(&text));
    }

    /// The path of a file.
    pub fn path(&mut self, name: &'static str, place: &mut Option<String>) {
        self.row(name, place, Fields::path, |path| quoted(&path));
    }

    /// A secret such as a token, or where it comes from. In place of a secret that is written in
    /// the file itself, a variable to set is printed: the printed text does not work without it.
    pub fn secret(&mut self, name: &'static str, what: &str, place: &mut Option<Secret>) {
        let read = |fields: &Fields<'r>, name| fields.secret(name, what);
        self.row(name, place, read, |secret| match secret {
            Secret::Env(variable) => quoted(&format!("env:{variable}")),
            Secret::File(path) => quoted(&format!("file:{path}")),
            Secret::Text(_) => "\"env:SET_ME\"".into(),
        });
    }
}
