//! The policies of a file: parsed into drafts, which are then built like those made in
//! code. Errors are reported with their position in the file.

use std::collections::{BTreeMap, HashSet};

use tidegate::draft::{LevelDraft, Place, Problem, Settings};
use tidegate::text::{listed, shown};
use tidegate::{
    CustomScript, Dialect, Mode, OnError, Override, Policy, PolicyBuilder, PolicyError,
};

use crate::limits;
use crate::read::Fields;
use crate::schema::{Rows, Table};
use crate::stores::StoreConfig;
use crate::url::{StoreUrl, public};

/// Reads all policies and reports their errors.
pub(crate) fn read(root: &Fields<'_>, stores: &BTreeMap<String, StoreConfig>) -> Vec<Policy> {
    let tables = root.tables("policies");
    let mut names: HashSet<String> = HashSet::new();
    let (mut policies, mut trials): (Vec<Policy>, Vec<Tried<'_>>) = Default::default();
    for fields in &tables {
        if root.is_hopeless() {
            break;
        }
        let draft = draft(fields);
        let name = &draft.draft.name;
        if !names.insert(name.clone()) && !fields.is_wrong("name") {
            let message = "two policies have this name: expected different names";
            fields.error("name", format!("{}: {message}", shown(name)));
        }
        let store = &*draft.draft.settings.store;
        let unreadable = root.is_wrong("stores") || root.is_wrong(&format!("stores.{store}"));
        if !stores.contains_key(store) && !unreadable {
            let message = format!(
                "{}: no such store: expected one of {}",
                shown(&public(store)),
                listed(stores.keys().map(String::as_str))
            );
            fields.error("store", message);
        }
        let in_memory = stores.get(store).map(|store| store.url == StoreUrl::Memory);
        let judged = !unreadable && !root.is_wrong(&format!("stores.{store}.url"));
        if draft.draft.script.is_some() && in_memory == Some(true) && judged {
            let message = "\"script\" needs a Redis store, which runs it: expected another algorithm, or store = the name of one";
            fields.error("algorithm", message);
        }
        let (name, of) = (name.clone(), draft.draft.settings.trial_of.clone());
        trials.extend(of.map(|of| Tried { fields, name, of }));
        policies.extend(draft.build());
    }
    for trial in &trials {
        if let Err(message) = trial.check(&names, &policies) {
            trial.fields.error("trial_of", message);
        }
    }
    policies
}

/// A policy that is tried on the checks of another one.
struct Tried<'a> {
    fields: &'a Fields<'a>,
    name: String,
    of: String,
}

impl Tried<'_> {
    /// Whether the other policy is there, is no trial itself, and is asked with all
    /// attributes that this one needs.
    fn check(&self, names: &HashSet<String>, policies: &[Policy]) -> Result<(), String> {
        let of = shown(&self.of);
        if self.of == self.name {
            return Err(format!("{of}: the policy itself: expected another policy"));
        }
        if !names.contains(&self.of) {
            let others = policies.iter().filter(|it| it.trial_of().is_none());
            let expected = match listed(others.map(Policy::name)) {
                none if none.is_empty() => "the name of another policy".into(),
                others => format!("one of {others}"),
            };
            return Err(format!("{of}: no policy of this name: expected {expected}"));
        }
        // What could not be built has been reported.
        let find = |name: &str| policies.iter().find(|policy| policy.name() == name);
        let (Some(trial), Some(live)) = (find(&self.name), find(&self.of)) else {
            return Ok(());
        };
        if live.trial_of().is_some() {
            return Err(format!(
                "{of}: a trial itself: expected a policy that is not"
            ));
        }
        let (needed, given) = (trial.attributes(), live.attributes());
        let unknown = needed.into_iter().filter(|name| !given.contains(name));
        let (unknown, given) = (listed(unknown), listed(given.iter().copied()));
        match (unknown.is_empty(), given.is_empty()) {
            (true, _) => Ok(()),
            (false, true) => Err(format!(
                "{of}: has no attributes in its keys: expected no {unknown} in the keys of its trial"
            )),
            (false, false) => Err(format!(
                "{of}: has no {unknown} in its keys: expected only {given} in the keys of its trial"
            )),
        }
    }
}

/// A draft, and the tables it came from.
struct Drafted<'a> {
    draft: PolicyBuilder,
    policy: &'a Fields<'a>,
    levels: Vec<Fields<'a>>,
    overrides: Vec<Fields<'a>>,
}

fn draft<'a>(fields: &'a Fields<'a>) -> Drafted<'a> {
    let levels = fields.tables("levels");
    let overrides = fields.tables("overrides");
    let (name, key) = (name(fields), key(fields));
    let (limit, is_script) = limits::read_policy(fields);
    let draft = PolicyBuilder {
        name,
        script: script(fields, is_script),
        only: LevelDraft {
            name: String::new(),
            key,
            limit,
        },
        levels: levels.iter().map(level).collect(),
        tag: fields.text("tag", TEMPLATE).map(str::to_owned),
        overrides: overrides.iter().map(change).collect(),
        headers: headers(fields),
        settings: fields.rows(Settings::default()),
    };
    Drafted {
        draft,
        policy: fields,
        levels,
        overrides,
    }
}

impl Drafted<'_> {
    fn build(self) -> Option<Policy> {
        let built = self.draft.clone().build();
        let problems = built.as_ref().map_or_else(PolicyError::problems, |_| &[]);
        for problem in problems {
            if self.policy.is_hopeless() {
                break;
            }
            if !self.follows(problem) {
                self.report(problem);
            }
        }
        self.policy.finish();
        for table in self.levels.iter().chain(&self.overrides) {
            table.finish_within(self.policy);
        }
        built.ok()
    }

    fn report(&self, problem: &Problem) {
        let table = self.table(problem.place);
        let mut message = problem.message.clone();
        let of_limit = limits::FIELDS.contains(&problem.field) && problem.field != "limit";
        if of_limit && !table.has(problem.field) {
            message.push_str(" (fields that an override leaves out keep the policy's value)");
        }
        table.error(problem.field, message);
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

fn name(fields: &Fields<'_>) -> String {
    let expected = "a name in quotes";
    let name = fields.text("name", expected);
    fields.require("name", expected);
    name.unwrap_or_default().into()
}

fn script(fields: &Fields<'_>, is_script: bool) -> Option<CustomScript> {
    let expected = "the path of a Lua script, relative to this file";
    let (file, args) = (fields.text("script", expected), fields.scalars("args"));
    if !is_script {
        for field in ["script", "args"] {
            if fields.has(field) && !fields.is_wrong("algorithm") && !fields.is_wrong(field) {
                fields.error(field, "only algorithm = \"script\" has this");
            }
        }
        return None;
    }
    fields.require("script", expected);
    // What could not be read has been said: any path will do to judge the rest.
    let script = CustomScript::file(file.unwrap_or("unknown"));
    Some(script.args(args.unwrap_or_default()))
}

fn key(fields: &Fields<'_>) -> Option<String> {
    fields.text("key", TEMPLATE).map(str::to_owned)
}

fn level(fields: &Fields<'_>) -> LevelDraft {
    LevelDraft {
        name: name(fields),
        key: key(fields),
        limit: limits::read(fields),
    }
}

fn change(fields: &Fields<'_>) -> Override {
    let expected = "attributes and their values, such as { ip = \"10.1.2.3\" }";
    let matches = fields.pairs("match", expected);
    fields.require("match", expected);
    let level = fields.text("level", "the name of a level");
    Override {
        matches: matches.unwrap_or_default(),
        level: level.map(str::to_owned),
        limit: limits::read(fields),
        enabled: fields.flag("enabled").unwrap_or(true),
    }
}

fn headers(fields: &Fields<'_>) -> Dialect {
    const EXPECTED: &str = "\"ietf\", \"x-ratelimit\", \"draft-06\", \"none\", or a list of three names for limit, reset and remaining";
    let texts = fields.texts("headers", true, EXPECTED);
    let Some(texts) = texts.filter(|_| !fields.is_wrong("headers")) else {
        return Dialect::default();
    };
    let texts: Vec<&str> = texts.into_iter().map(|(text, _)| text).collect();
    let dialect = match texts[..] {
        [limit, reset, remaining] => {
            Some(Dialect::Custom([limit, reset, remaining].map(Box::from)))
        }
        [name] => Dialect::named(name),
        _ => None,
    };
    dialect.unwrap_or_else(|| {
        let value = match texts[..] {
            [text] => shown(text),
            _ => format!("a list of {}", texts.len()),
        };
        fields.error("headers", format!("{value}: expected {EXPECTED}"));
        Dialect::default()
    })
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
        let print = |share| format!("{share:?}");
        rows.row(
            "local_share",
            &mut self.local_share,
            Fields::fraction,
            print,
        );
        rows.print_if(true);
        rows.flag("count_denied", &mut self.count_denied);
        rows.flag("shadow", &mut self.shadow);
        rows.text("trial_of", "the name of a policy", &mut self.trial_of);
        rows.flag("enabled", &mut self.enabled);
        rows.text("store", "the name of a store", &mut self.store);
    }
}
