//! Parses arguments into a check or another command.

use tidegate::{Attributes, CheckError, Cost, LimitError, Which};

use super::frame::Arguments;
use super::session::Session;
use super::text::{number, shown};
use super::throttle::{Dialect, Throttle};
use crate::api::query::MAX_ATTRIBUTES;
use crate::engine::{AdHoc, Current, Entry, Kind};

/// What a command asks for.
pub(super) enum Reading<'b> {
    /// A decision under the numbers of the call.
    Throttle(Dialect, &'b AdHoc, Throttle<'b>),
    /// A decision of a policy, or only a look at it.
    Check(&'b Entry, Subject<'b>, Cost, Kind),
    /// Something else.
    Other(Command<'b>),
}

/// A command that asks for no decision.
pub(super) enum Command<'b> {
    Reset(Reset<'b>),
    Refund(&'b [u8]),
    Policies,
    /// By its name in capitals, with its arguments.
    Housekeeping(Name, Arguments<'b>),
}

/// What a command is about.
pub(super) enum Subject<'b> {
    /// The attribute `key`.
    Key(&'b [u8]),
    /// Any attributes.
    Pairs(Box<[(&'b str, &'b [u8])]>),
}

impl Attributes for Subject<'_> {
    #[inline]
    fn value(&self, name: &str) -> Option<&[u8]> {
        match self {
            Self::Key(key) => (name == "key").then_some(*key),
            Self::Pairs(pairs) => pairs.value(name),
        }
    }
}

/// Keys to forget.
pub(super) struct Reset<'b> {
    pub(super) entry: &'b Entry,
    pub(super) subject: Subject<'b>,
    pub(super) which: Which<'b>,
}

/// Names of commands, none of which is longer.
pub(super) type Name = smallvec::SmallVec<[u8; 16]>;

/// What is wrong with a command.
#[derive(Debug)]
pub(super) struct CommandError {
    pub(super) code: &'static str,
    pub(super) message: String,
}

impl CommandError {
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

impl From<String> for CommandError {
    fn from(message: String) -> Self {
        Self::new("ERR", message)
    }
}

impl From<LimitError> for CommandError {
    fn from(error: LimitError) -> Self {
        let message = match error {
            LimitError::Requests(count) => {
                format!("count: {count}: expected at most one request per nanosecond of the period")
            }
            LimitError::BurstRefill { max, .. } => {
                format!(
                    "max_burst: it would take more than 100 years to refill: expected a burst of at most {max}"
                )
            }
            error => error.to_string(),
        };
        Self::new("ERR", message)
    }
}

impl From<CheckError> for CommandError {
    fn from(error: CheckError) -> Self {
        let code = match error {
            CheckError::UnknownPolicy(_) => "NOPOLICY",
            _ => "ERR",
        };
        Self::new(code, error.to_string())
    }
}

/// Reads a command of at least one argument.
#[inline]
pub(super) fn read<'b>(
    current: &'b Current,
    session: &Session,
    arguments: &Arguments<'b>,
) -> Result<Reading<'b>, CommandError> {
    let name = arguments[0];
    if session.may_ask(current) {
        let is_named = |dialect: &Dialect| name.eq_ignore_ascii_case(dialect.name().as_bytes());
        if let Some(dialect) = Dialect::ALL.into_iter().find(is_named) {
            let adhoc = current.adhoc();
            let adhoc = adhoc.ok_or_else(|| "ad-hoc limits are off".to_owned())?;
            return Ok(Reading::Throttle(dialect, adhoc, dialect.read(arguments)?));
        }
        if name.eq_ignore_ascii_case(b"TG.CHECK") {
            return read_check(current, arguments);
        }
    }
    read_other(current, session, arguments).map(Reading::Other)
}

fn read_other<'b>(
    current: &'b Current,
    session: &Session,
    arguments: &Arguments<'b>,
) -> Result<Command<'b>, CommandError> {
    let Some(name) = Some(arguments[0]).filter(|name| name.len() <= 16) else {
        return Err(unknown(arguments[0]));
    };
    let name: Name = name.to_ascii_uppercase().into();
    let is_open = matches!(&name[..], b"AUTH" | b"HELLO" | b"QUIT" | b"RESET");
    if !is_open && !session.may_ask(current) {
        return Err(CommandError::new("NOAUTH", "Authentication required."));
    }
    match &name[..] {
        b"TG.RESET" => {
            session.may_change(current, "TG.RESET")?;
            read_reset(current, arguments).map(Command::Reset)
        }
        b"TG.REFUND" => {
            session.may_change(current, "TG.REFUND")?;
            match arguments[1..] {
                [receipt] => Ok(Command::Refund(receipt)),
                _ => Err(wrong_count("TG.REFUND", "receipt")),
            }
        }
        b"TG.POLICIES" => match arguments.len() {
            1 => Ok(Command::Policies),
            _ => Err(wrong_count("TG.POLICIES", "")),
        },
        _ => Ok(Command::Housekeeping(name, arguments.clone())),
    }
}

pub(super) fn unknown(name: &[u8]) -> CommandError {
    let hint = match name.to_ascii_uppercase().as_slice() {
        b"MULTI" | b"EXEC" | b"WATCH" => ": transactions are not supported; use a pipeline",
        _ => "",
    };
    CommandError::new("ERR", format!("unknown command {}{hint}", shown(name)))
}

pub(super) fn wrong_count(name: &str, usage: &str) -> CommandError {
    let message = format!("wrong number of arguments for '{name}': expected {name} {usage}");
    CommandError::new("ERR", message.trim_end())
}

const CHECK: &str = "policy [COST n] [PEEK] KEY value | ATTR name value [name value ...]";
const RESET: &str = "policy [LEVEL name | ALL] KEY value | ATTR name value [name value ...]";

fn read_check<'b>(
    current: &'b Current,
    arguments: &Arguments<'b>,
) -> Result<Reading<'b>, CommandError> {
    let wrong = || wrong_count("TG.CHECK", CHECK);
    let (policy, mut rest) = arguments[1..].split_first().ok_or_else(wrong)?;
    let entry = current.entry(policy_name(policy)?)?;
    let (mut cost, mut kind) = (Cost::ONE, Kind::Check);
    loop {
        let (word, after) = rest.split_first().ok_or_else(wrong)?;
        rest = after;
        if word.eq_ignore_ascii_case(b"COST") {
            let (text, after) = rest.split_first().ok_or_else(wrong)?;
            let read = number(text).and_then(|number| Cost::new(number).ok());
            cost = read.ok_or_else(|| {
                let (text, most) = (shown(text), u32::MAX);
                format!("COST: {text}: expected a whole number from 1 to {most}")
            })?;
            rest = after;
        } else if word.eq_ignore_ascii_case(b"PEEK") {
            kind = Kind::Peek;
        } else {
            let subject = read_subject(word, rest, "COST, PEEK, KEY or ATTR", CHECK, "TG.CHECK")?;
            if kind == Kind::Peek && entry.policy().script().is_some() {
                let name = entry.policy().name();
                return Err(format!(
                    "PEEK: policy {name:?} has a script, which has no numbers to show"
                )
                .into());
            }
            return Ok(Reading::Check(entry, subject, cost, kind));
        }
    }
}

fn read_reset<'b>(
    current: &'b Current,
    arguments: &Arguments<'b>,
) -> Result<Reset<'b>, CommandError> {
    let wrong = || wrong_count("TG.RESET", RESET);
    let (policy, mut rest) = arguments[1..].split_first().ok_or_else(wrong)?;
    let entry = current.entry(policy_name(policy)?)?;
    let mut which = Which::Only;
    loop {
        let (word, after) = rest.split_first().ok_or_else(wrong)?;
        rest = after;
        if word.eq_ignore_ascii_case(b"LEVEL") {
            let (level, after) = rest.split_first().ok_or_else(wrong)?;
            which = Which::Level(text(level, "LEVEL")?);
            rest = after;
        } else if word.eq_ignore_ascii_case(b"ALL") {
            which = Which::All;
        } else {
            let expected = "LEVEL, ALL, KEY or ATTR";
            return Ok(Reset {
                entry,
                subject: read_subject(word, rest, expected, RESET, "TG.RESET")?,
                which,
            });
        }
    }
}

/// `KEY value`, or `ATTR name value ...`.
fn read_subject<'b>(
    word: &[u8],
    rest: &[&'b [u8]],
    expected: &str,
    usage: &str,
    name: &str,
) -> Result<Subject<'b>, CommandError> {
    if word.eq_ignore_ascii_case(b"KEY") {
        return match rest {
            [value] => Ok(Subject::Key(value)),
            _ => Err(wrong_count(name, usage)),
        };
    }
    if !word.eq_ignore_ascii_case(b"ATTR") {
        return Err(format!("{}: expected {expected}", shown(word)).into());
    }
    let (pairs, []) = rest.as_chunks::<2>() else {
        return Err(wrong_count(name, usage));
    };
    if pairs.is_empty() || pairs.len() > MAX_ATTRIBUTES {
        let count = pairs.len();
        return Err(format!("ATTR: {count} pairs: expected 1 to {MAX_ATTRIBUTES}").into());
    }
    let mut read: Vec<(&str, &[u8])> = Vec::with_capacity(pairs.len());
    for [name, value] in pairs {
        let name = text(name, "ATTR")?;
        if read.iter().any(|(other, _)| *other == name) {
            let name = shown(name.as_bytes());
            return Err(format!("ATTR: {name} twice: expected it once").into());
        }
        read.push((name, value));
    }
    Ok(Subject::Pairs(read.into()))
}

/// A name, which must be text.
fn text<'b>(bytes: &'b [u8], field: &str) -> Result<&'b str, CommandError> {
    std::str::from_utf8(bytes)
        .map_err(|_| format!("{field}: {}: expected UTF-8", shown(bytes)).into())
}

/// The name of a policy, of which an error repeats only so much.
fn policy_name(bytes: &[u8]) -> Result<&str, CommandError> {
    const LONGEST: usize = 64;
    match std::str::from_utf8(bytes) {
        Ok(name) if name.len() <= LONGEST => Ok(name),
        _ => Err(CommandError::new(
            "NOPOLICY",
            format!("no policy named {}", shown(bytes)),
        )),
    }
}
