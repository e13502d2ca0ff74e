//! `tidegate verify`: checks from a server's record that limits held.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use tidegate::audit::{Audit, Background, Record};
use tidegate::{Algorithm, Align, Cost, Limit, Source};
use tidegate_config::Config;

use crate::bench::duration;
use crate::line::{Entry, Line, parse};
use crate::offered::Offered;
use crate::say;

/// `tidegate verify`.
#[derive(Debug, Args)]
pub struct Verify {
    /// The records of servers that share a store, checked together.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Also fail if the recorded limits differ from this config.
    #[arg(long, value_name = "FILE", conflicts_with = "limit")]
    pub config: Option<PathBuf>,
    /// Check all decisions against this limit instead of the recorded ones, such as
    /// "100r/s burst=20".
    #[arg(long, value_name = "LIMIT", value_parser = limit)]
    pub limit: Option<Limit>,
    /// How often a store may have lost its counters, in a failover, a restart or a reset.
    #[arg(long, value_name = "N", default_value = "0")]
    pub losses: u32,
    /// Some requests may be missing: other servers shared the limit, or counters were in use
    /// before the record began.
    #[arg(long)]
    pub partial: bool,
    /// For mode background: each file is one node; allow for news of the others that is this
    /// old: 2 * (sync interval + round trip), plus any outage of the store.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub stale: Option<Duration>,
}

/// The longest line, in bytes: one that never ends must not fill the memory.
const MAX_LINE: u64 = 1 << 20;

/// All that is in a record, by what it is held to.
struct Records<'a> {
    arguments: &'a Verify,
    config: Option<Config>,
    /// In the order of their first lines.
    groups: Vec<Group>,
    /// Lines that the record says are missing.
    dropped: u64,
    /// Files so far.
    files: usize,
    /// The group of the line before: mostly also that of the next.
    last: usize,
}

/// The decisions of a level under one limit.
struct Group {
    policy: String,
    level: String,
    limit: Limit,
    /// The limit as the lines have it.
    text: Option<String>,
    audit: Audit,
    /// What the node of each file was offered, where that matters.
    offered: Vec<Offered>,
}

/// Says whether limits held.
pub fn run(arguments: &Verify) -> anyhow::Result<ExitCode> {
    let config = match &arguments.config {
        Some(file) => {
            let name = file.display().to_string();
            let text = std::fs::read_to_string(file).with_context(|| name.clone())?;
            Some(Config::parse(&text, &name)?)
        }
        None => None,
    };
    let mut records = Records {
        arguments,
        config,
        groups: Vec::new(),
        dropped: 0,
        files: 0,
        last: 0,
    };
    for file in &arguments.files {
        records.files += 1;
        records.read(file)?;
    }
    if records.groups.is_empty() {
        bail!("no decisions: expected one line per decision");
    }
    Ok(records.judge())
}

impl Records<'_> {
    /// Takes in a file.
    fn read(&mut self, file: &Path) -> anyhow::Result<()> {
        let name = file.display();
        let opened = File::open(file).with_context(|| name.to_string())?;
        let mut reader = BufReader::with_capacity(1 << 16, opened);
        let mut line = Vec::new();
        for number in 1_u64.. {
            line.clear();
            let mut rest = (&mut reader).take(MAX_LINE);
            let length = rest.read_until(b'\n', &mut line);
            let length = length.with_context(|| format!("{name}:{number}"))?;
            if length == 0 {
                break;
            }
            let is_whole = line.pop_if(|byte| *byte == b'\n').is_some();
            if !is_whole && line.len() as u64 == MAX_LINE {
                bail!("{name}:{number}: a line of more than {MAX_LINE} bytes");
            }
            let entry = match parse(&line) {
                Ok(entry) => entry,
                // The writer was interrupted.
                Err(_) if !is_whole => {
                    say(&format!("{name}:{number}: truncated, ignored"));
                    break;
                }
                Err(error) => return Err(anyhow!("{name}:{number}: {}", described(&error))),
            };
            match entry {
                Entry::Dropped(count) => self.dropped = self.dropped.saturating_add(count),
                Entry::Line(line) => {
                    let taken = self.take(&line);
                    taken.with_context(|| format!("{name}:{number}"))?;
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, line: &Line<'_>) -> anyhow::Result<()> {
        let cost = Cost::new(line.cost.into())?;
        let mut sources = Source::ALL.into_iter();
        let Some(source) = sources.find(|source| source.as_str() == line.source) else {
            let known = Source::ALL.map(Source::as_str).join(", ");
            bail!("source: {:?}: expected one of {known}", line.source);
        };
        let (files, stale) = (self.files, self.arguments.stale);
        let group = self.group(line)?;
        let audit = &mut group.audit;
        if line.refunded {
            audit.refund(line.key.as_bytes(), line.at_us, cost);
        } else {
            audit.push(&Record {
                key: line.key.as_bytes(),
                at_us: line.at_us,
                cost,
                source,
                allowed: line.allowed,
            });
            if let Some(stale) = stale {
                let length_us = u64::try_from(stale.as_micros()).unwrap_or(u64::MAX);
                group.offered.resize_with(files, Offered::default);
                let node = &mut group.offered[files - 1];
                node.add(line.key.as_bytes(), line.at_us, cost.get(), length_us);
            }
        }
        Ok(())
    }

    /// Where a line belongs.
    fn group(&mut self, line: &Line<'_>) -> anyhow::Result<&mut Group> {
        let is_same = |group: &Group| {
            group.text.as_deref() == line.limit.as_deref()
                && group.level == line.level
                && group.policy == line.policy
        };
        if !self.groups.get(self.last).is_some_and(is_same) {
            let found = self.groups.iter().position(is_same);
            self.last = match found {
                Some(found) => found,
                None => {
                    let limit = self.limit(line)?;
                    self.groups.push(Group {
                        policy: line.policy.as_ref().into(),
                        level: line.level.as_ref().into(),
                        text: line.limit.as_deref().map(Into::into),
                        audit: Audit::new(limit).allow_losses(self.arguments.losses),
                        offered: Vec::new(),
                        limit,
                    });
                    self.groups.len() - 1
                }
            };
        }
        Ok(&mut self.groups[self.last])
    }

    /// What a line is held to: what the command line says, or the config, or the line.
    fn limit(&self, line: &Line<'_>) -> anyhow::Result<Limit> {
        if let Some(limit) = self.arguments.limit {
            return Ok(limit);
        }
        let own = line.limit.as_deref().map(Limit::parse).transpose()?;
        let Some(config) = &self.config else {
            return own.ok_or_else(|| {
                anyhow!("no limit: expected one in the line, or --limit, or --config")
            });
        };
        let (policy, level) = (&*line.policy, &*line.level);
        let mut policies = config.policies.iter();
        let Some(found) = policies.find(|other| other.name() == policy) else {
            bail!("policy {policy:?}: expected one of the config");
        };
        let mut levels = found.levels().iter();
        let Some(found) = levels.find(|other| other.name() == level) else {
            bail!("level {level:?}: expected one of policy {policy:?}");
        };
        // A hashed key does not show which override is in force.
        let overrides = found.overrides().filter_map(|(_, limit)| limit);
        let mut limits = std::iter::once(found.limit()).chain(overrides);
        match own {
            Some(own) if limits.any(|limit| *limit == own) => Ok(own),
            Some(own) => bail!(
                "limit: {:?}: expected {:?}, as the config has it for {policy}/{level}",
                own.to_string(),
                found.limit().to_string()
            ),
            None if found.overrides().len() == 0 => Ok(*found.limit()),
            None => {
                bail!("no limit: expected one in the line, since {policy}/{level} has overrides")
            }
        }
    }

    /// Says what held and what did not.
    fn judge(mut self) -> ExitCode {
        let partial = self.arguments.partial || self.dropped > 0;
        let (mut held, mut hint) = (true, false);
        self.groups
            .sort_by(|one, other| (&one.policy, &one.level).cmp(&(&other.policy, &other.level)));
        for group in self.groups {
            let mut audit = group.audit.partial(partial);
            if let Some(stale) = self.arguments.stale {
                let offered = group.offered.iter().map(|node| node.most);
                let nodes = Background::new(Duration::ZERO, Duration::ZERO, offered);
                audit = audit.background(nodes.outage(stale));
            }
            let verdict = audit.verdict();
            let (policy, level, limit) = (&group.policy, &group.level, &group.limit);
            let keys = match verdict.keys {
                1 => "1 key".into(),
                keys => format!("{keys} keys"),
            };
            let admitted = verdict.admitted;
            let (refused, outside) = (verdict.refused, verdict.outside);
            let counts = format!(
                "{admitted} admitted to {keys}, {refused} refused, {outside} decided without the store"
            );
            match &verdict.broken {
                None => say(&format!("{policy}/{level} {limit}: held: {counts}")),
                Some(broken) => {
                    held = false;
                    let first = limit.spec().is_some_and(|spec| {
                        spec.algorithm == Algorithm::FixedWindow && spec.align == Align::First
                    });
                    hint |= first && !partial;
                    let count = verdict.broken_keys;
                    say(&format!(
                        "{policy}/{level} {limit}: broken for {count} of {keys}: {counts}"
                    ));
                    say(&format!("  {broken}"));
                }
            }
        }
        if hint {
            say(
                "windows are assumed to open with the first request in the record: pass --partial if some are missing",
            );
        }
        if self.dropped > 0 {
            let dropped = self.dropped;
            say(&format!(
                "the record is incomplete: {dropped} lines were dropped"
            ));
        }
        match held {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        }
    }
}

/// What is wrong with a line: the position within it is one of bytes.
fn described(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.replace(" at line 1 column ", ", at byte ")
}

fn limit(text: &str) -> Result<Limit, String> {
    Limit::parse(text).map_err(|error| error.to_string())
}
