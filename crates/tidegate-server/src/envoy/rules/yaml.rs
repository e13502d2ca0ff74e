//! Drafts from files in the YAML of envoyproxy/ratelimit, with `window`, `algorithm` and
//! `burst` besides its own fields. Unknown keys are errors; all errors of all files are
//! reported together.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use prost_types::value::Kind as Json;
use prost_types::{ListValue, Struct, Value as JsonValue};
use tidegate::Algorithm;
use tidegate::text::duration;
use tidegate_redis::read_file;

use super::tree::{self, Kind, Value};
use super::{DescriptorDraft, DomainDraft, LimitDraft, Place, RulesError, RulesErrors};
use crate::envoy::section;
use crate::envoy::wire::Unit;

/// The files of a path: itself, or those of a directory whose names end with `.yaml` or
/// `.yml`, in the order of their names. Names that begin with a dot are left out.
pub fn files(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if !std::fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        let is_yaml = path
            .extension()
            .is_some_and(|it| it == "yaml" || it == "yml");
        let name = path.file_name().map(|it| it.to_string_lossy());
        let is_hidden = name.is_none_or(|it| it.starts_with('.'));
        if is_yaml && !is_hidden && path.is_file() {
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// The largest file.
pub(crate) const MAX_MEBIBYTES: u16 = 16;

/// Reads these files. A file that cannot be read is an error, too.
pub fn read_all(files: &[PathBuf]) -> Result<Vec<DomainDraft>, RulesErrors> {
    let (mut drafts, mut errors) = (Vec::new(), Vec::new());
    for file in files {
        let name = file.display().to_string();
        let text = read_file(file, MAX_MEBIBYTES).map_err(|error| error.to_string());
        let text = text.and_then(|bytes| {
            String::from_utf8(bytes).map_err(|_| "not UTF-8: expected a text file".into())
        });
        match text {
            Ok(text) => match read_text(&text, &name) {
                Ok(draft) => drafts.push(draft),
                Err(RulesErrors(wrong)) => errors.extend(wrong),
            },
            Err(message) => errors.push(RulesError {
                place: Place {
                    file: name.into(),
                    line: 0,
                },
                message,
            }),
        }
    }
    match errors.is_empty() {
        true => Ok(drafts),
        false => Err(RulesErrors(errors)),
    }
}

/// Reads the text of one file: one domain.
pub fn read_text(text: &str, file: &str) -> Result<DomainDraft, RulesErrors> {
    let mut reading = Reading {
        file: file.into(),
        errors: Vec::new(),
    };
    let domain = match tree::read(text) {
        Ok(document) => reading.domain(document),
        Err(tree::Wrong { line, message }) => {
            reading.wrong(line, message);
            None
        }
    };
    match domain {
        Some(domain) if reading.errors.is_empty() => Ok(domain),
        _ => Err(RulesErrors(reading.errors)),
    }
}

const ROOT: &[&str] = &["domain", "descriptors"];

const DESCRIPTOR: &[&str] = &[
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];

const LIMIT: &[&str] = &[
    "unit",
    "requests_per_unit",
    "unlimited",
    "name",
    "replaces",
    "window",
    "algorithm",
    "burst",
];

struct Reading {
    file: Arc<str>,
    errors: Vec<RulesError>,
}

/// A key of a map, with its value.
type Field = (Arc<str>, Value);

impl Reading {
    fn place(&self, line: usize) -> Place {
        Place {
            file: Arc::clone(&self.file),
            line,
        }
    }

    fn wrong(&mut self, line: usize, message: impl Into<String>) {
        self.errors.push(RulesError {
            place: self.place(line),
            message: message.into(),
        });
    }

    fn unexpected(&mut self, value: &Value, name: &str, expected: &str) {
        let shown = value.shown();
        self.wrong(
            value.line,
            format!("{name} is {shown}: expected {expected}"),
        );
    }

    fn domain(&mut self, document: Option<Value>) -> Option<DomainDraft> {
        let document = document.filter(|it| !it.is_null());
        let Some(document) = document else {
            self.wrong(1, "the file is empty: expected domain and descriptors");
            return None;
        };
        let fields = self.fields(&document, "the file", ROOT)?;
        let mut draft = DomainDraft {
            place: self.place(document.line),
            domain: String::new(),
            descriptors: Vec::new(),
        };
        for (key, value) in &fields {
            match &**key {
                "domain" => {
                    draft.place.line = value.line;
                    draft.domain = self.text(value, "domain")?;
                }
                _ => draft.descriptors = self.descriptors(value),
            }
        }
        Some(draft)
    }

    fn descriptors(&mut self, value: &Value) -> Vec<DescriptorDraft> {
        let items = self.items(value, "descriptors");
        items
            .iter()
            .filter_map(|item| self.descriptor(item))
            .collect()
    }

    fn descriptor(&mut self, value: &Value) -> Option<DescriptorDraft> {
        let fields = self.fields(value, "a descriptor", DESCRIPTOR)?;
        let mut draft = DescriptorDraft::new(self.place(value.line), "", "");
        for (key, value) in &fields {
            let name = &**key;
            match name {
                "key" => draft.key = self.text(value, name).unwrap_or_default(),
                "value" => draft.value = self.text(value, name).unwrap_or_default(),
                "rate_limit" => draft.rate_limit = self.limit(value),
                "descriptors" => draft.descriptors = self.descriptors(value),
                "metadata" => draft.metadata = self.metadata(value),
                "shadow_mode" => draft.shadow_mode = self.flag(value, name),
                "quota_mode" => draft.quota_mode = self.flag(value, name),
                "detailed_metric" => draft.detailed_metric = self.flag(value, name),
                "value_to_metric" => draft.value_to_metric = self.flag(value, name),
                _ => draft.share_threshold = self.flag(value, name),
            }
        }
        Some(draft)
    }

    fn limit(&mut self, value: &Value) -> Option<LimitDraft> {
        if value.is_null() {
            return None;
        }
        let fields = self.fields(value, "rate_limit", LIMIT)?;
        let mut draft = LimitDraft::new(self.place(value.line));
        for (key, value) in &fields {
            match &**key {
                "unit" => draft.unit = self.unit(value),
                "requests_per_unit" => {
                    draft.requests_per_unit = self.number(value, "rate_limit.requests_per_unit");
                    // Each error is reported once.
                    draft.requests_per_unit = draft.requests_per_unit.or(Some(0));
                }
                "unlimited" => draft.unlimited = self.flag(value, "rate_limit.unlimited"),
                "name" => draft.name = self.text(value, "rate_limit.name").unwrap_or_default(),
                "replaces" => draft.replaces = self.replaces(value),
                "window" => draft.window = self.window(value),
                "algorithm" => draft.algorithm = self.algorithm(value),
                _ => draft.burst = self.number(value, "rate_limit.burst"),
            }
        }
        Some(draft)
    }

    fn unit(&mut self, value: &Value) -> Option<Unit> {
        let text = self.text(value, "rate_limit.unit")?;
        if text.is_empty() {
            return None;
        }
        let found = Unit::ALL
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(&text));
        if found.is_none() {
            let expected = one_of(Unit::ALL.map(|(name, _)| name));
            self.unexpected(value, "rate_limit.unit", &expected);
        }
        found.map(|(_, unit)| *unit)
    }

    fn window(&mut self, value: &Value) -> Option<std::time::Duration> {
        let text = self.text(value, "rate_limit.window")?;
        let window = duration(&text);
        if window.is_none() {
            let expected = "a duration such as 30s, 5m or 12h";
            self.unexpected(value, "rate_limit.window", expected);
        }
        window
    }

    fn algorithm(&mut self, value: &Value) -> Option<Algorithm> {
        let text = self.text(value, "rate_limit.algorithm")?;
        let found = section::ALGORITHMS.iter().find(|(name, _)| *name == text);
        if found.is_none() {
            let expected = one_of(section::ALGORITHMS.map(|(name, _)| name));
            self.unexpected(value, "rate_limit.algorithm", &expected);
        }
        found.map(|(_, algorithm)| *algorithm)
    }

    fn replaces(&mut self, value: &Value) -> Vec<String> {
        let items = self.items(value, "rate_limit.replaces");
        let mut names = Vec::new();
        for item in items.iter() {
            let fields = self.fields(item, "an item of rate_limit.replaces", &["name"]);
            let Some(fields) = fields else {
                continue;
            };
            let name = fields.first().map(|(_, value)| value);
            let name = name.map(|value| self.text(value, "rate_limit.replaces.name"));
            names.push(name.flatten().unwrap_or_default());
        }
        names
    }

    /// The items of a list; none of an empty value.
    fn items(&mut self, value: &Value, name: &str) -> Vec<Value> {
        match &value.kind {
            Kind::List(items) => items.to_vec(),
            _ if value.is_null() => Vec::new(),
            _ => {
                self.unexpected(value, name, "a list");
                Vec::new()
            }
        }
    }

    /// The fields of a map, with those it merges (`<<`).
    fn fields(&mut self, value: &Value, name: &str, known: &[&str]) -> Option<Vec<Field>> {
        let Kind::Map(pairs) = &value.kind else {
            self.unexpected(
                value,
                name,
                &format!("a map with {}", one_of(known.iter().copied())),
            );
            return None;
        };
        let (mut fields, mut merged): (Vec<Field>, Vec<Value>) = (Vec::new(), Vec::new());
        for (key, value) in pairs.iter() {
            let Kind::Scalar(text, is_plain) = &key.kind else {
                self.unexpected(key, "a key", "text");
                continue;
            };
            if *is_plain && &**text == "<<" {
                match &value.kind {
                    Kind::List(items) => merged.extend(items.iter().cloned()),
                    _ => merged.push(value.clone()),
                }
                continue;
            }
            if !known.contains(&&**text) {
                let shown = key.shown();
                let message = format!(
                    "unknown key {shown}: expected {}",
                    one_of(known.iter().copied())
                );
                self.wrong(key.line, message);
                continue;
            }
            if fields.iter().any(|(other, _)| **other == **text) {
                self.wrong(key.line, format!("{text} occurs twice: expected it once"));
                continue;
            }
            fields.push((Arc::from(&**text), value.clone()));
        }
        for value in merged {
            for (key, value) in self.fields(&value, "a merged value", known)? {
                if fields.iter().all(|(other, _)| *other != key) {
                    fields.push((key, value));
                }
            }
        }
        Some(fields)
    }

    fn text(&mut self, value: &Value, name: &str) -> Option<String> {
        match &value.kind {
            _ if value.is_null() => Some(String::new()),
            Kind::Scalar(text, _) => Some((**text).to_owned()),
            _ => {
                self.unexpected(value, name, "text");
                None
            }
        }
    }

    fn number(&mut self, value: &Value, name: &str) -> Option<u32> {
        let number = match &value.kind {
            Kind::Scalar(text, true) => text.replace('_', "").parse().ok(),
            _ => None,
        };
        if number.is_none() {
            self.unexpected(value, name, "a whole number from 0 to 4294967295");
        }
        number
    }

    fn flag(&mut self, value: &Value, name: &str) -> bool {
        if value.is_null() {
            return false;
        }
        let flag = match &value.kind {
            Kind::Scalar(text, true) => boolean(text),
            _ => None,
        };
        if flag.is_none() {
            self.unexpected(value, name, "true or false");
        }
        flag.unwrap_or_default()
    }

    fn metadata(&mut self, value: &Value) -> Option<Struct> {
        if value.is_null() {
            return None;
        }
        let Kind::Map(_) = &value.kind else {
            self.unexpected(value, "metadata", "a map");
            return None;
        };
        match self.json(value).kind {
            Some(Json::StructValue(metadata)) => Some(metadata),
            _ => None,
        }
    }

    fn json(&mut self, value: &Value) -> JsonValue {
        let kind = match &value.kind {
            _ if value.is_null() => Json::NullValue(0),
            Kind::Scalar(text, true) => match (boolean(text), text.parse::<f64>()) {
                (Some(flag), _) => Json::BoolValue(flag),
                (None, Ok(number)) if number.is_finite() => Json::NumberValue(number),
                _ => Json::StringValue((**text).to_owned()),
            },
            Kind::Scalar(text, false) => Json::StringValue((**text).to_owned()),
            Kind::List(items) => Json::ListValue(ListValue {
                values: items.iter().map(|item| self.json(item)).collect(),
            }),
            Kind::Map(pairs) => {
                let mut metadata = Struct::default();
                for (key, value) in pairs.iter() {
                    if let Some(key) = self.text(key, "a key of metadata") {
                        metadata.fields.insert(key, self.json(value));
                    }
                }
                Json::StructValue(metadata)
            }
        };
        JsonValue { kind: Some(kind) }
    }
}

/// `a, b or c`.
fn one_of<'w>(words: impl IntoIterator<Item = &'w str>) -> String {
    let words: Vec<&str> = words.into_iter().collect();
    match &words[..] {
        [before @ .., last] if !before.is_empty() => format!("{} or {last}", before.join(", ")),
        words => words.concat(),
    }
}

/// The words for true and false.
fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "y" => Some(true),
        "false" | "no" | "off" | "n" => Some(false),
        _ => None,
    }
}
