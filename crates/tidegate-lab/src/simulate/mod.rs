//! `tidegate simulate`: what limits would have done to the requests of access logs.
//!
//! ```text
//! logs -> lines -> times and attributes -> one order of time -> decided -> counted -> report
//! ```
//!
//! One thread reads (`order`), another decides (`decide`), by the limiter that the
//! server uses, on a clock that shows the time of each request. Neither keeps the log: the
//! memory is bounded by the number of clients.

mod arguments;

mod format;
mod input;
mod time;
mod values;

mod batch;
mod order;
mod spool;

mod decide;

mod chart;
mod compare;
mod suggest;
mod tally;

mod html;
mod report;
mod summary;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, sync_channel};

use anyhow::{Context, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use tidegate::{ManualClock, Mode, Policy};
use tidegate_config::{Config, StoreUrl};

use crate::say;
pub use arguments::{Format, Of, Share, Simulate};
use batch::Batch;
use compare::Comparison;
use decide::Decider;
use format::Source;
use input::Log;
use order::Found;
use spool::Spool;
use suggest::{Question, suggest};
use summary::{Compared, LeftOut, PolicyBody, Suggested, Summary};
use tally::Tally;

/// How many batches may wait to be decided.
const WAITING: usize = 4;

/// A policy, and what it did so far.
struct Judge {
    decider: Decider,
    tally: Tally,
    /// Requests refused first by each level.
    refused_by: Vec<u64>,
    without_key: u64,
    comparison: Option<Comparison>,
}

/// Says what limits would have done.
pub fn run(arguments: &Simulate) -> anyhow::Result<ExitCode> {
    let source = Source::new(arguments)?;
    let config = config(arguments)?;
    let (policies, left_out) = choose(arguments, &config, &source)?;
    // Before the run, or all of it would be for nothing.
    let page = arguments.html.as_deref().map(create).transpose()?;
    let mut names: Vec<String> = Vec::new();
    let optional = policies
        .iter()
        .flat_map(|policy| policy.optional_attributes());
    let optional = optional.filter(|name| source.reader(&[name]).is_ok());
    let in_keys = policies.iter().flat_map(|policy| policy.attributes());
    for name in in_keys.chain(optional) {
        if names.iter().all(|other| other != name) {
            names.push(name.to_owned());
        }
    }
    let mut judges = judges(arguments, &config, &policies, &names)?;
    let mut spool = arguments.suggest.map(|_| Spool::new()).transpose()?;
    let bar = bar(arguments);
    let found = read(arguments, &source, &names, &bar, |batch| {
        if let Some(spool) = &mut spool {
            spool.push(batch)?;
        }
        batch.each(names.len(), |at_us, values| {
            for judge in &mut judges {
                judge.take(at_us, &names, values);
            }
        });
        Ok(())
    })?;
    let bodies = judges.iter().map(|judge| {
        let mut body = judge.body(&config, &names);
        if let (Some(share), Some(spool)) = (arguments.suggest, &spool) {
            let question = judge.question(share, arguments.of);
            match suggest(&question, spool, &names, &bar)? {
                Ok(found) => body.suggested = Some(Suggested::new(&found, &question, share)),
                Err(why) => body.not_suggested = Some(why),
            }
        }
        Ok(body)
    });
    let bodies = bodies.collect::<anyhow::Result<_>>()?;
    bar.finish_and_clear();
    let summary = Summary::new(found, source.format_name(), bodies, left_out);
    if let Some((mut file, name)) = page {
        let page = html::page(&summary);
        file.write_all(page.as_bytes()).with_context(|| name)?;
    }
    match arguments.json {
        true => say(&serde_json::to_string(&summary)?),
        false => say(&report::text(&summary)),
    }
    Ok(ExitCode::SUCCESS)
}

fn config(arguments: &Simulate) -> anyhow::Result<Config> {
    let Some(file) = &arguments.config else {
        return Ok(Config::default());
    };
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).with_context(|| name.clone())?;
    Ok(Config::parse(&text, &name)?)
}

fn create(file: &Path) -> anyhow::Result<(File, String)> {
    let name = format!("--html {}", file.display());
    let file = File::create(file).with_context(|| name.clone())?;
    Ok((file, name))
}

/// The policies that can be simulated, and the others with the reason.
fn choose<'c>(
    arguments: &Simulate,
    config: &'c Config,
    source: &Source<'_>,
) -> anyhow::Result<(Vec<&'c Policy>, Vec<LeftOut>)> {
    let is_asked = |policy: &&Policy| match &arguments.policy {
        Some(name) => policy.name() == name,
        None => true,
    };
    let (mut chosen, mut left_out) = (Vec::new(), Vec::new());
    for policy in config.policies.iter().filter(is_asked) {
        match obstacle(policy, source) {
            None => chosen.push(policy),
            Some(reason) => left_out.push(LeftOut {
                name: policy.name().into(),
                reason,
            }),
        }
    }
    if let (true, Some(LeftOut { name, reason })) = (chosen.is_empty(), left_out.first()) {
        bail!("policy {name:?} cannot be simulated: {reason}");
    }
    if let (Some(name), true) = (&arguments.policy, chosen.is_empty()) {
        let names: Vec<&str> = config.policies.iter().map(Policy::name).collect();
        bail!(
            "no policy named {name:?}: expected one of {}",
            names.join(", ")
        );
    }
    Ok((chosen, left_out))
}

/// Why a policy cannot be simulated.
fn obstacle(policy: &Policy, source: &Source<'_>) -> Option<String> {
    if policy.script().is_some() {
        return Some("its script runs only in Redis".into());
    }
    policy.attributes().into_iter().find_map(|name| {
        let error = source.reader(&[name]).err()?;
        Some(format!(
            "its key has the attribute {name:?}: {error:#}; --attr {name}=FIELD says which field it is"
        ))
    })
}

fn judges(
    arguments: &Simulate,
    config: &Config,
    policies: &[&Policy],
    names: &[String],
) -> anyhow::Result<Vec<Judge>> {
    let clock = ManualClock::at_us(0);
    let stores = config.stores.iter();
    let stores: Vec<_> = stores
        .map(|(name, store)| (name, decide::store(Some(store), &clock)))
        .collect();
    let judges = policies.iter().map(|policy| {
        let store = stores.iter().find(|(name, _)| *name == policy.store());
        let (_, store) = store.with_context(|| format!("no store named {:?}", policy.store()))?;
        let comparison = arguments
            .compare
            .map(|pair| Comparison::new(policy, pair, names));
        Ok(Judge {
            decider: Decider::new(policy, store.clone(), &clock, names)?,
            tally: Tally::default(),
            refused_by: vec![0; policy.levels().len()],
            without_key: 0,
            comparison: comparison.transpose()?,
        })
    });
    judges.collect()
}

impl Judge {
    #[inline]
    fn take(&mut self, at_us: u64, names: &[String], values: &[Option<&[u8]>]) {
        let Some(key) = self.decider.key(values) else {
            self.without_key += 1;
            return;
        };
        let refused_by = self.decider.refused_by(at_us, names, values);
        if let Some(level) = refused_by {
            self.refused_by[level] += 1;
        }
        if let Some(comparison) = &mut self.comparison {
            comparison.take(at_us, names, values, key.clone());
        }
        self.tally.add(at_us, key, refused_by.is_some());
    }

    fn question(&self, share: Share, of: Of) -> Question<'_> {
        Question {
            policy: self.decider.policy(),
            share,
            of,
            requests: self.tally.all().requests,
            clients: self.tally.clients().requests,
            most: self.tally.most(),
        }
    }

    fn body(&self, config: &Config, names: &[String]) -> PolicyBody {
        let policy = self.decider.policy();
        let mut body = PolicyBody::new(policy, &self.tally, &self.refused_by);
        body.without_key = self.without_key;
        body.notes = self.notes(config, names);
        let comparison = self.comparison.as_ref();
        body.compared = comparison.map(|comparison| Compared::new(policy, comparison));
        body
    }

    /// What the reader should know about the numbers.
    fn notes(&self, config: &Config, names: &[String]) -> Vec<String> {
        let policy = self.decider.policy();
        let mut notes = Vec::new();
        let store = config.stores.get(policy.store());
        let in_redis = store.is_some_and(|store| store.url != StoreUrl::Memory);
        match policy.mode() {
            Mode::Exact if in_redis => {
                notes.push("the policy counts in Redis: simulated as exact, in memory".into());
            }
            Mode::Exact => {}
            Mode::Lease | Mode::Background => notes.push(format!(
                "the mode is {}: simulated as exact, in memory, as one node without delays would decide",
                policy.mode().as_str()
            )),
        }
        if policy.shadow() {
            notes.push(
                "the policy is in shadow mode: refused requests are those it would refuse".into(),
            );
        }
        if !policy.enabled() {
            notes.push("the policy is not enabled: it refuses nothing".into());
        }
        let is_read = |name: &&str| names.iter().any(|other| other == name);
        for name in policy.optional_attributes().filter(|it| !is_read(it)) {
            notes.push(format!(
                "the log has no {name:?}: overrides that match on it do not apply; --attr {name}=FIELD says which field it is"
            ));
        }
        let stats = self.decider.stats();
        if stats.evicted > 0 {
            notes.push(format!(
                "{} clients in use were evicted from the store (by all its policies together): max_keys is too small for this log",
                stats.evicted
            ));
        }
        if stats.denied_full > 0 {
            notes.push(format!(
                "{} requests were refused because the store was full (all its policies together)",
                stats.denied_full
            ));
        }
        notes
    }
}

fn bar(arguments: &Simulate) -> ProgressBar {
    let logs = arguments.logs.iter().map(|path| Log::new(path).length());
    let length: Option<u64> = logs.sum();
    let (bar, template) = match length {
        Some(length) => (
            ProgressBar::new(length),
            "{bar:32} {bytes} of {total_bytes}, {eta} left {msg}",
        ),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes} {msg}"),
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// Reads the logs in one thread, and hands batches to `each` in this one.
fn read(
    arguments: &Simulate,
    source: &Source<'_>,
    names: &[String],
    bar: &ProgressBar,
    each: impl FnMut(&Batch) -> anyhow::Result<()>,
) -> anyhow::Result<Found> {
    let logs: Vec<Log> = arguments.logs.iter().map(|path| Log::new(path)).collect();
    let inputs = logs.iter().filter(|log| matches!(log, Log::Input));
    if inputs.count() > 1 {
        bail!("standard input is named twice: expected - once");
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let reader = source.reader(&names)?;
    let bytes = Arc::new(AtomicU64::new(0));
    let (send, receive) = sync_channel::<Batch>(WAITING);
    std::thread::scope(|scope| {
        let counter = Arc::clone(&bytes);
        let reading = scope
            .spawn(move || order::read(&logs, &reader, &counter, |batch| send.send(batch).is_ok()));
        decide_all(receive, &bytes, bar, each)?;
        let found = reading
            .join()
            .map_err(|_| anyhow!("reading has panicked"))?;
        found.map_err(|error| anyhow!("{error}"))
    })
}

fn decide_all(
    batches: Receiver<Batch>,
    bytes: &AtomicU64,
    bar: &ProgressBar,
    mut each: impl FnMut(&Batch) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for batch in batches {
        each(&batch)?;
        bar.set_position(bytes.load(Relaxed));
    }
    Ok(())
}
