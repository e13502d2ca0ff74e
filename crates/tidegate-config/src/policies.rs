//! The policies of a file: parsed into drafts, which are then built like those made in
//! code. Errors are reported with their position in the file.

use std::collections::{BTreeMap, HashSet};

use tidegate::draft::{LevelDraft, LimitFields, Place, Problem, Settings};
use tidegate::text::{listed, shown};
use tidegate::{
    CustomScript, Dialect, Mode, OnError, Override, Policy, PolicyBuilder, PolicyError,
    ScriptSource,
};
use toml::de::DeValue;

use crate::limits;
use crate::read::Fields;
use crate::schema::{Rows, Table};
use crate::stores::StoreConfig;
use crate::url::{StoreUrl, public};
use crate::write::{list, quoted};

/// Reads all policies and reports their errors.
pub(crate) fn read(root: &Fields<'_>, stores: &BTreeMap<String, StoreConfig>) -> Vec<Policy> {
    let tables = root.tables("policies");
    let mut names: HashSet<String> = HashSet::new();
    let (mut policies, mut trials) = (Vec::new(), Vec::new());
    for fields in &tables {
        if root.is_hopeless() {
            break;
        }
        let draft = Drafted::read(fields);
        let name = &draft.draft.name;
        if !names.insert(name.clone()) && !fields.is_wrong("name") {
            let message = "two policies have this name: expected different names";
            fields.error("name", format!("{}: {message}", shown(name)));
        }
        let store = &*draft.draft.settings.store;
        let unreadable = root.is_wrong("stores") || root.is_wrong(&format!("stores.{store}"));
        let unreadable_url = unreadable || root.is_wrong(&format!("stores.{store}.url"));
        let is_memory = |store: &StoreConfig| store.url == StoreUrl::Memory;
        if !stores.contains_key(store) && !unreadable {
            let names = listed(stores.keys().map(String::as_str));
            let message = format!("no such store: expected one of {names}");
            fields.error("store", format!("{}: {message}", shown(&public(store))));
        }
        if draft.draft.script.is_some()
            && !unreadable_url
            && stores.get(store).is_some_and(is_memory)
        {
            let message = "\"script\" needs a Redis store, which runs it: expected another algorithm, or store = the name of one";
            fields.error("algorithm", message);
        }
        let (name, of) = (name.clone(), draft.draft.settings.trial_of.clone());
        trials.extend(of.map(|of| (fields, name, of)));
        policies.extend(draft.build());
    }
    for (fields, name, of) in &trials {
        if let Some(problem) = trial_problem(name, of, &names, &policies) {
            fields.error("trial_of", problem);
        }
    }
    policies
}

/// Why a policy cannot be tried on the checks of the policy `of`, which must be there, be no
/// trial itself, and be asked with all attributes that the trial needs.
fn trial_problem(
    name: &str,
    of: &str,
    names: &HashSet<String>,
    policies: &[Policy],
) -> Option<String> {
    let problem = if of == name {
        "the policy itself: expected another policy".into()
    } else if !names.contains(of) {
        let others = policies.iter().filter(|it| it.trial_of().is_none());
        let expected = match listed(others.map(Policy::name)) {
            none if none.is_empty() => "the name of another policy".into(),
            others => format!("one of {others}"),
        };
        format!("no policy of this name: expected {expected}")
    } else {
        // What could not be built has been reported.
        let find = |name: &str| policies.iter().find(|policy| policy.name() == name);
        let (trial, live) = (find(name)?, find(of)?);
        let (needed, given) = (trial.attributes(), live.attributes());
        let unknown = needed.into_iter().filter(|name| !given.contains(name));
        match (listed(unknown), listed(given.iter().copied())) {
            _ if live.trial_of().is_some() => {
                "a trial itself: expected a policy that is not".into()
            }
            (unknown, _) if unknown.is_empty() => return None,
            (unknown, given) if given.is_empty() => format!(
                "has no attributes in its keys: expected no {unknown} in the keys of its trial"
            ),
            (unknown, given) => format!(
                "has no {unknown} in its keys: expected only {given} in the keys of its trial"
            ),
        }
    };
    Some(format!("{}: {problem}", shown(of)))
}

/// A draft, and the tables it came from.
struct Drafted<'a> {
    draft: PolicyBuilder,
    policy: &'a Fields<'a>,
    levels: Vec<Fields<'a>>,
    overrides: Vec<Fields<'a>>,
}

impl<'a> Drafted<'a> {
    fn read(policy: &'a Fields<'a>) -> Self {
        let levels = policy.tables("levels");
        let overrides = policy.tables("overrides");
        let mut draft = policy.rows(PolicyBuilder::default());
        draft.levels = levels
            .iter()
            .map(|it| it.rows(LevelDraft::default()))
            .collect();
        draft.overrides = overrides.iter().map(|it| it.rows(unmatched())).collect();
        Self {
            draft,
            policy,
            levels,
            overrides,
        }
    }

    fn build(self) -> Option<Policy> {
        let built = self.draft.clone().build();
        let problems = built.as_ref().map_or_else(PolicyError::problems, |_| &[]);
        for problem in problems {
            if self.policy.is_hopeless() {
                break;
            }
            if !self.follows(problem) {
                let table = self.table(problem.place);
                let (field, mut message) = (problem.field, problem.message.clone());
                if limits::FIELDS[1..].contains(&field) && !table.has(field) {
                    message += " (fields that an override leaves out keep the policy's value)";
                }
                table.error(field, message);
            }
        }
        self.policy.finish();
        for table in self.levels.iter().chain(&self.overrides) {
            table.finish_within(self.policy);
        }
        built.ok()
    }

    fn table(&self, place: Place) -> &Fields<'_> {
        match place {
            Place::Level(index) if !self.levels.is_empty() => &self.levels[index],
            Place::Policy | Place::Level(_) => self.policy,
            Place::Override(index) => &self.overrides[index],
        }
    }

    /// Whether a problem may only be there because something else could not be read.
    fn follows(&self, problem: &Problem) -> bool {
        let table = self.table(problem.place);
        let wrong =
            |table: &Fields<'_>, fields: &[&str]| fields.iter().any(|field| table.is_wrong(field));
        let any_level = |fields: &[&str]| {
            wrong(self.policy, fields) || self.levels.iter().any(|level| wrong(level, fields))
        };
        let is_override = matches!(problem.place, Place::Override(_));
        if wrong(table, &[problem.field])
            || wrong(self.policy, &["levels"]) && problem.place != Place::Policy
        {
            return true;
        }
        match problem.field {
            // What a limit is without depends on few of its fields.
            "limit" if !is_override && !table.has("limit") => wrong(table, &["block", "algorithm"]),
            field if limits::FIELDS.contains(&field) && problem.place != Place::Policy => {
                wrong(table, &limits::FIELDS)
                    || is_override && (wrong(table, &["enabled"]) || any_level(&limits::FIELDS))
            }
            "tag" | "match" => any_level(&["key", "levels"]),
            "level" => any_level(&["name"]),
            "sync_interval" | "refusal_memory" => wrong(table, &["mode"]),
            "local_share" => wrong(table, &["on_error"]),
            _ => false,
        }
    }
}

const TEMPLATE: &str = "a template such as \"{ip}\"";

impl Table for PolicyBuilder {
    fn rows(&mut self, rows: &mut Rows<'_>) {
        name(rows, &mut self.name);
        rows.text("key", TEMPLATE, &mut self.only.key);
        self.only.limit.rows(rows);
        script(rows, &mut self.script);
        rows.text("tag", TEMPLATE, &mut self.tag);
        // Messages list it before the settings, which are printed first.
        let _ = rows.fields.map(|fields| fields.has("headers"));
        self.settings.rows(rows);
        let print = |dialect| match dialect {
            Dialect::Custom(names) => list(names),
            dialect => quoted(dialect.as_str()),
        };
        rows.row("headers", &mut self.headers, headers, print);
    }
}

impl Table for LevelDraft {
    fn rows(&mut self, rows: &mut Rows<'_>) {
        name(rows, &mut self.name);
        rows.text("key", TEMPLATE, &mut self.key);
        limits::rows(&mut self.limit, rows);
    }
}

impl Table for Override {
    fn rows(&mut self, rows: &mut Rows<'_>) {
        let expected = "attributes and their values, such as { ip = \"10.1.2.3\" }";
        let read = |fields: &Fields<'_>, name| {
            let table = fields.value(name, expected, DeValue::as_table)?;
            let pairs = table.iter().filter_map(|(attribute, value)| {
                let text = fields.converted(value, name, "a value in quotes", DeValue::as_str)?;
                Some((attribute.get_ref().to_string(), text.to_owned()))
            });
            Some(pairs.collect::<Vec<_>>())
        };
        let print = |pairs: Vec<(String, String)>| {
            let pairs = pairs
                .iter()
                .map(|(name, value)| format!("{name} = {}", quoted(value)));
            format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
        };
        rows.row("match", &mut self.matches, read, print);
        rows.required("match", expected);
        rows.text("level", "the name of a level", &mut self.level);
        limits::rows(&mut self.limit, rows);
        rows.print_if(!self.enabled);
        rows.flag("enabled", &mut self.enabled);
    }
}

/// An override before its fields are read.
pub(crate) fn unmatched() -> Override {
    Override {
        matches: Vec::new(),
        level: None,
        limit: LimitFields::default(),
        enabled: true,
    }
}

fn name(rows: &mut Rows<'_>, name: &mut String) {
    let expected = "a name in quotes";
    rows.text("name", expected, name);
    rows.required("name", expected);
}

fn script(rows: &mut Rows<'_>, script: &mut Option<CustomScript>) {
    let mut algorithm = script.as_ref().map(|_| "script");
    let mut source = script.as_ref().map(|script| script.source().clone());
    let mut args: Option<Vec<String>> = script
        .as_ref()
        .map(|script| script.arguments().map(String::from).collect());
    let read = |fields: &Fields<'_>, _| limits::is_script(fields).then_some("script");
    rows.row("algorithm", &mut algorithm, read, quoted);
    rows.only(
        algorithm.is_some(),
        "algorithm",
        "only algorithm = \"script\" has this",
    );
    let expected = "the path of a Lua script, relative to this file";
    let read = |fields: &Fields<'_>, name| {
        let path = fields.value(name, expected, DeValue::as_str)?;
        Some(ScriptSource::File(path.into()))
    };
    rows.row("script", &mut source, read, |source| match source {
        ScriptSource::File(path) => quoted(&path),
        ScriptSource::Text(_) => "\"\" # the script is in the program".into(),
    });
    let read = |fields: &Fields<'_>, name| {
        let expected = "a list of strings and decimal numbers, such as [10, 60]";
        let args = fields.items(name, expected, false, scalar)?.into_iter();
        Some(args.map(|(arg, _)| arg).collect::<Vec<_>>())
    };
    rows.row("args", &mut args, read, list);
    rows.print_if(true);
    if algorithm.is_some() {
        rows.required("script", expected);
        // What could not be read has been reported: any path will do to judge the rest.
        let path = match source {
            Some(ScriptSource::File(path)) => path,
            _ => "unknown".into(),
        };
        *script = Some(CustomScript::file(path).args(args.unwrap_or_default()));
    }
}

/// A text, a number or a flag, as text.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Boolean(flag) => Some(flag.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        _ => None,
    }
}

fn headers(fields: &Fields<'_>, name: &'static str) -> Option<Dialect> {
    let expected = "\"ietf\", \"x-ratelimit\", \"draft-06\", \"none\", or a list of three names for limit, reset and remaining";
    let texts = fields.items(name, expected, true, DeValue::as_str)?;
    let texts: Vec<&str> = texts.into_iter().map(|(text, _)| text).collect();
    let dialect = match texts[..] {
        _ if fields.is_wrong(name) => return None,
        [limit, reset, remaining] => {
            Some(Dialect::Custom([limit, reset, remaining].map(Box::from)))
        }
        [dialect] => Dialect::named(dialect),
        _ => None,
    };
    if dialect.is_none() {
        let value = match texts[..] {
            [text] => shown(text),
            _ => format!("a list of {}", texts.len()),
        };
        fields.error(name, format!("{value}: expected {expected}"));
    }
    dialect
}

/// Whether a setting may be there with the others is decided where policies are built.
impl Table for Settings {
    fn rows(&mut self, rows: &mut Rows<'_>) {
        let modes = Mode::ALL.map(|mode| (mode.as_str(), mode));
        rows.choice("mode", &modes, &mut self.mode);
        rows.print_if(self.mode == Mode::Background);
        let intervals = Self::SYNC_INTERVALS;
        rows.duration("sync_interval", intervals, &mut self.sync_interval);
        rows.print_if(self.mode == Mode::Exact);
        let memories = Self::REFUSAL_MEMORIES;
        rows.duration("refusal_memory", memories, &mut self.refusal_memory);
        rows.print_if(true);
        let answers = OnError::ALL.map(|answer| (answer.as_str(), answer));
        rows.choice("on_error", &answers, &mut self.on_error);
        rows.print_if(self.on_error == Some(OnError::Local));
        let share = |fields: &Fields<'_>, name| {
            fields.value(name, "a number such as 0.5", |value| match value {
                DeValue::Float(float) => float.as_str().parse().ok(),
                DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str().parse().ok(),
                _ => None,
            })
        };
        let print = |share: f64| format!("{share:?}");
        rows.row("local_share", &mut self.local_share, share, print);
        rows.print_if(true);
        rows.flag("count_denied", &mut self.count_denied);
        rows.flag("shadow", &mut self.shadow);
        rows.text("trial_of", "the name of a policy", &mut self.trial_of);
        rows.flag("enabled", &mut self.enabled);
        rows.text("store", "the name of a store", &mut self.store);
    }
}
