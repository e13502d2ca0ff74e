//! A YAML document as a tree that knows its lines. Bounded: however a file nests, or
//! repeats its anchors, it is refused before it takes much memory.

use std::collections::HashMap;
use std::rc::Rc;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};
use tidegate::text::shown;

/// How deep values may nest.
const MAX_DEPTH: usize = 100;

/// How many values a file may have, those that aliases repeat included.
const MAX_VALUES: usize = 1_000_000;

/// A value.
#[derive(Debug, Clone)]
pub(super) struct Value {
    pub(super) line: usize,
    pub(super) kind: Kind,
    /// How many values it has, itself and repeated ones included.
    size: usize,
}

#[derive(Debug, Clone)]
pub(super) enum Kind {
    /// Text; whether it stands there without quotes.
    Scalar(Rc<str>, bool),
    List(Rc<[Value]>),
    /// Keys and values, in order.
    Map(Rc<[(Value, Value)]>),
}

/// Why a text is no document, and in which line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) line: usize,
    pub(super) message: String,
}

fn wrong<T>(line: usize, message: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong {
        line,
        message: message.into(),
    })
}

/// Reads a document; `None` if there is nothing in it.
pub(super) fn read(text: &str) -> Result<Option<Value>, Wrong> {
    let mut reading = Reading {
        parser: Parser::new_from_str(text),
        anchors: HashMap::new(),
        values: 0,
    };
    let mut document = None;
    loop {
        let (event, line) = reading.next()?;
        match event {
            Event::StreamEnd => return Ok(document),
            Event::DocumentStart(_) if document.is_some() => {
                return wrong(
                    line,
                    "a second document begins: expected one document per file",
                );
            }
            Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
            event => document = Some(reading.value(event, line, 0)?),
        }
    }
}

struct Reading<'t> {
    parser: Parser<'t, saphyr_parser::StrInput<'t>>,
    anchors: HashMap<usize, Value>,
    /// How many values there are so far.
    values: usize,
}

impl<'t> Reading<'t> {
    fn next(&mut self) -> Result<(Event<'t>, usize), Wrong> {
        match self.parser.next_event() {
            Some(Ok((event, Span { start, .. }))) => Ok((event, start.line())),
            Some(Err(error)) => wrong(error.marker().line(), format!("not YAML: {}", error.info())),
            None => Ok((Event::StreamEnd, 0)),
        }
    }

    fn value(&mut self, event: Event<'t>, line: usize, depth: usize) -> Result<Value, Wrong> {
        if depth > MAX_DEPTH {
            let message = format!("nested too deeply: expected at most {MAX_DEPTH} levels");
            return wrong(line, message);
        }
        let (anchor, tag) = match &event {
            Event::Scalar(_, _, anchor, tag)
            | Event::SequenceStart(anchor, tag)
            | Event::MappingStart(anchor, tag) => (*anchor, tag.as_ref()),
            _ => (0, None),
        };
        if let Some(tag) = tag {
            let handle = match tag.is_yaml_core_schema() {
                true => "!!",
                false => &tag.handle,
            };
            let message = format!(
                "the tag {handle}{} is not supported: expected none",
                tag.suffix
            );
            return wrong(line, message);
        }
        let before = self.values;
        self.add(line, 1)?;
        let kind = match event {
            Event::Scalar(text, style, ..) => {
                Kind::Scalar(text.into(), style == ScalarStyle::Plain)
            }
            Event::SequenceStart(..) => Kind::List(self.list(depth)?.into()),
            Event::MappingStart(..) => Kind::Map(self.map(depth)?.into()),
            Event::Alias(anchor) => {
                let Some(value) = self.anchors.get(&anchor) else {
                    return wrong(line, "an alias inside its own anchor: expected a value");
                };
                let (kind, size) = (value.kind.clone(), value.size);
                self.add(line, size - 1)?;
                kind
            }
            _ => return wrong(line, "not YAML: expected a value"),
        };
        let size = self.values - before;
        let value = Value { line, kind, size };
        if anchor > 0 {
            self.anchors.insert(anchor, value.clone());
        }
        Ok(value)
    }

    fn add(&mut self, line: usize, values: usize) -> Result<(), Wrong> {
        self.values += values;
        if self.values > MAX_VALUES {
            let message = format!(
                "too many values: expected at most {MAX_VALUES}, those that aliases repeat included"
            );
            return wrong(line, message);
        }
        Ok(())
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Value>, Wrong> {
        let mut values = Vec::new();
        loop {
            let (event, line) = self.next()?;
            if event == Event::SequenceEnd {
                return Ok(values);
            }
            values.push(self.value(event, line, depth + 1)?);
        }
    }

    fn map(&mut self, depth: usize) -> Result<Vec<(Value, Value)>, Wrong> {
        let mut pairs = Vec::new();
        loop {
            let (event, line) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(pairs);
            }
            let key = self.value(event, line, depth + 1)?;
            let (event, line) = self.next()?;
            let value = self.value(event, line, depth + 1)?;
            pairs.push((key, value));
        }
    }
}

impl Value {
    /// What it is, in words for errors.
    pub(super) fn shown(&self) -> String {
        match &self.kind {
            Kind::Scalar(text, _) if text.is_empty() => "empty".into(),
            Kind::Scalar(text, _) => shown(text),
            Kind::List(_) => "a list".into(),
            Kind::Map(_) => "a map".into(),
        }
    }

    /// Whether it says nothing.
    pub(super) fn is_null(&self) -> bool {
        match &self.kind {
            Kind::Scalar(text, true) => matches!(&**text, "" | "~" | "null" | "Null" | "NULL"),
            _ => false,
        }
    }
}
