//! The scripts: put together, for the algorithms of a policy's levels, from one fragment per
//! algorithm, which stands beside the algorithm in the crate `tidegate`.
//!
//! A script knows no numbers, only which algorithms it has to run in which order, so
//! that policies with the same algorithms share one, and a change of a limit is a change of
//! its arguments.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use redis::ServerError;
use smallvec::SmallVec;
use tidegate::{Algorithm, Limit};

use crate::error::StoreError;
use crate::lock::lock;

/// A script and the name that Redis knows it by.
#[derive(Debug)]
pub(crate) struct Script {
    text: String,
    sha: String,
    /// How many bytes each number of its reply has.
    reply: Box<[u8]>,
    /// Whether a user has written it: its errors may read like the server's.
    is_custom: bool,
}

impl Script {
    pub(crate) fn new(text: String) -> Self {
        let sha = redis::Script::new(&text).get_hash().to_owned();
        Self {
            text,
            sha,
            reply: Box::default(),
            is_custom: false,
        }
    }

    /// The numbers of a reply; `None` when it is none of this script.
    pub(crate) fn numbers(&self, reply: &[u8]) -> Option<SmallVec<[i64; 16]>> {
        let (numbers, rest) = self.numbers_and_rest(reply)?;
        rest.is_empty().then_some(numbers)
    }

    /// The numbers of a reply, and what follows them.
    pub(crate) fn numbers_and_rest<'r>(
        &self,
        reply: &'r [u8],
    ) -> Option<(SmallVec<[i64; 16]>, &'r [u8])> {
        unpack(&self.reply, reply)
    }

    /// A script of the user's own.
    pub(crate) fn custom(text: String) -> Self {
        Self {
            is_custom: true,
            ..Self::new(text)
        }
    }

    /// An error that it, or the server, has answered.
    pub(crate) fn error(&self, error: &ServerError) -> StoreError {
        match self.is_custom {
            true => StoreError::from_custom_script(error),
            false => StoreError::from_server(error),
        }
    }

    /// Whether the server does not know it, and so has not run it.
    pub(crate) fn is_unknown(&self, error: &ServerError) -> bool {
        let is_servers = |details: &str| !self.is_custom || details.contains("No matching script");
        error.code() == "NOSCRIPT" && is_servers(error.details().unwrap_or_default())
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn sha(&self) -> &str {
        &self.sha
    }
}

/// Numbers of these many bytes each, and what follows them.
pub(crate) fn unpack<'b>(
    lengths: &[u8],
    mut bytes: &'b [u8],
) -> Option<(SmallVec<[i64; 16]>, &'b [u8])> {
    let mut numbers = SmallVec::new();
    for length in lengths {
        let (first, rest) = bytes.split_at_checked(usize::from(*length))?;
        let mut number = [0; 8];
        number[..first.len()].copy_from_slice(first);
        numbers.push(i64::from_le_bytes(number));
        bytes = rest;
    }
    Some((numbers, bytes))
}

/// What a script is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Task {
    /// Decide one check, or many in one call.
    Check,
    Checks,
    /// The same, and count refusals, too.
    CheckCounting,
    ChecksCounting,
    /// Give back.
    Refund,
    /// Count what was admitted elsewhere.
    Flush,
    /// Return leases, ask, and take another one.
    Lease,
}

/// Where a script's time comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Time {
    /// The server's clock.
    Server,
    /// The argument after all others: for tests that compare decisions at the same instants.
    #[cfg(test)]
    Argument,
}

/// The scripts that were needed so far.
#[derive(Debug)]
pub(crate) struct Scripts {
    time: Time,
    known: Mutex<HashMap<Purpose, Arc<Script>>>,
}

/// What a script does, and the algorithms of its levels in order.
type Purpose = (Task, Vec<Algorithm>);

impl Scripts {
    pub(crate) fn new(time: Time) -> Self {
        Self {
            time,
            known: Mutex::default(),
        }
    }

    /// The script for levels of these limits, in this order.
    pub(crate) fn get<'l>(
        &self,
        task: Task,
        limits: impl IntoIterator<Item = &'l Limit>,
    ) -> Arc<Script> {
        let algorithms: Vec<Algorithm> = limits.into_iter().map(Limit::algorithm).collect();
        let mut known = lock(&self.known);
        let script = known.entry((task, algorithms));
        let script = script.or_insert_with_key(|(task, algorithms)| {
            Arc::new(assemble(*task, algorithms, self.time))
        });
        Arc::clone(script)
    }
}

const CHECK: &str = include_str!("../scripts/check.lua");
const CHECKS: &str = include_str!("../scripts/checks.lua");
const ADMIT: &str = include_str!("../scripts/admit.lua");
const REFUND: &str = include_str!("../scripts/refund.lua");
const FLUSH: &str = include_str!("../scripts/flush.lua");
const LEASE: &str = include_str!("../scripts/lease.lua");
const STATE: &str = include_str!("../scripts/state.lua");

/// Levels whose limits stay unpacked from one check of a call to the next. Of more, Lua
/// could not hold all the names at once.
const KEPT: usize = 4;

/// Puts a script together: the skeleton of its task, with the levels' sections in the
/// places that name them (`--+name`).
fn assemble(task: Task, algorithms: &[Algorithm], time: Time) -> Script {
    let skeleton = match task {
        Task::Check | Task::CheckCounting => CHECK,
        Task::Checks | Task::ChecksCounting => CHECKS,
        Task::Refund => REFUND,
        Task::Flush => FLUSH,
        Task::Lease => LEASE,
    };
    let assembly = Assembly {
        task,
        algorithms,
        time,
    };
    let mut reply = vec![7, 4];
    for algorithm in algorithms {
        let (_, format) = names(&part(algorithm.profile().lua, "numbers"));
        reply.extend(lengths(&format));
    }
    if task == Task::Lease {
        // How long the lease runs, what is out, in how many leases, and until when.
        reply.extend([7, 4, 2, 7]);
    }
    Script {
        reply: reply.into(),
        ..Script::new(assembly.fill(skeleton))
    }
}

/// A script that is being put together.
struct Assembly<'s> {
    task: Task,
    /// Of the levels, in order.
    algorithms: &'s [Algorithm],
    time: Time,
}

impl Assembly<'_> {
    /// A skeleton with everything in its place. What stands behind code goes on its line.
    fn fill(&self, skeleton: &str) -> String {
        let mut text = String::new();
        for line in code(skeleton) {
            let (before, section) = match line.split_once("--+") {
                Some((before, section)) => (before, Some(section)),
                None => (line, None),
            };
            if !before.trim().is_empty() {
                text.push_str(before);
            }
            text.push_str(&section.map_or_else(String::new, |it| self.section(it)));
            text.push('\n');
        }
        text
    }

    fn section(&self, section: &str) -> String {
        match section {
            "counting" => {
                matches!(self.task, Task::CheckCounting | Task::ChecksCounting).to_string()
            }
            // A local name is found sooner than a field of a global one.
            "names" => "local call, pcall, pack, unpack, format = redis.call, redis.pcall, \
                struct.pack, struct.unpack, string.format"
                .into(),
            "time" => match self.time {
                Time::Server => {
                    "local time = call('TIME')\nlocal now = time[1] * 1000000 + time[2]".into()
                }
                #[cfg(test)]
                Time::Argument => "local now = table.remove(ARGV) + 0".into(),
            },
            "once" => {
                let mut text = String::new();
                let mut done: Vec<Algorithm> = Vec::new();
                for algorithm in self.algorithms {
                    if !done.contains(algorithm) {
                        text.push_str(&part(algorithm.profile().lua, "once"));
                        done.push(*algorithm);
                    }
                }
                text
            }
            "keys" => {
                let counting = self.algorithms.iter().filter(|it| it.profile().counts);
                counting.count().to_string()
            }
            "cached" if self.is_cached() => format!("local last, {}", self.arguments().0),
            "cached" => String::new(),
            "limits" => {
                let (names, format) = self.arguments();
                let unpacked = format!("{names} = unpack('<{format}', argument)");
                match self.is_cached() {
                    true => format!("if argument ~= last then\nlast = argument\n{unpacked}\nend"),
                    false => format!("local {unpacked}"),
                }
            }
            "pack" => {
                let (mut numbers, mut format) = ("now, admitted".to_owned(), "I7I4".to_owned());
                self.join("numbers", &mut numbers, &mut format);
                format!("pack('<{format}', {numbers})")
            }
            "admit" => self.fill(ADMIT),
            "run" => {
                let (mut names, mut format) = ("asked, cost".to_owned(), "I4I4".to_owned());
                self.join("lease-price", &mut names, &mut format);
                format!("{names}, at = unpack('<{format}', argument, at)")
            }
            section => self.levels(section),
        }
    }

    /// Whether limits stay unpacked while checks of a call have the same.
    fn is_cached(&self) -> bool {
        let has_many = matches!(self.task, Task::Checks | Task::ChecksCounting);
        has_many && self.algorithms.len() <= KEPT
    }

    /// What a packed argument has in it.
    fn arguments(&self) -> (String, String) {
        let (mut all, mut format) = match self.task {
            Task::Flush | Task::Lease => (String::new(), String::new()),
            _ => ("asked, cost".to_owned(), "I4I4".to_owned()),
        };
        self.join("limit", &mut all, &mut format);
        if self.task == Task::Flush {
            self.join("parcel", &mut all, &mut format);
        }
        if self.task == Task::Lease {
            all.push_str(", half, settles, want, nonce, runs, at");
            format.push_str("I4BI4c8B");
        }
        (all, format)
    }

    /// Appends the names and formats that every level has in a section.
    fn join(&self, section: &str, all: &mut String, format: &mut String) {
        for (level, algorithm) in self.algorithms.iter().enumerate() {
            let (more, its) = names(&part(algorithm.profile().lua, section));
            if !more.is_empty() {
                if !all.is_empty() {
                    all.push_str(", ");
                }
                all.push_str(&more.replace('@', &level.to_string()));
                format.push_str(&its);
            }
        }
    }

    /// A section of every level, with its own names, key and arguments.
    fn levels(&self, section: &str) -> String {
        let mut text = String::new();
        let mut keys = 0;
        for (level, algorithm) in self.algorithms.iter().enumerate() {
            let profile = algorithm.profile();
            keys += usize::from(profile.counts);
            let key = match self.task {
                Task::Check | Task::CheckCounting | Task::Refund => format!("KEYS[{keys}]"),
                Task::Checks | Task::ChecksCounting | Task::Flush | Task::Lease => {
                    format!("KEYS[first + {keys}]")
                }
            };
            // A refund has two arguments for each level.
            let argument = 2 + 2 * keys;
            let part = match section {
                "refund-limits" if profile.counts => {
                    let (names, format) = names(&part(profile.lua, "limit"));
                    format!("local {names} = unpack('<{format}', ARGV[{argument}])\n")
                }
                "decide" if !profile.counts => String::new(),
                "tell" if !profile.can_lease => String::new(),
                section => part(profile.lua, section),
            };
            let part = part
                .replace("@key", &key)
                .replace("@mark", &format!("ARGV[{}]", argument + 1))
                .replace("@stale", if self.is_cached() { "last = nil" } else { "" })
                .replace('@', &level.to_string());
            text.push_str(&part);
        }
        text
    }
}

/// Reads `a, b = I7I4`.
fn names(line: &str) -> (String, String) {
    let (names, format) = line.trim().split_once(" = ").unwrap_or_default();
    (names.into(), format.into())
}

/// The lengths that a format has: `I7B` has 7 and 1.
fn lengths(format: &str) -> Vec<u8> {
    let parts = format.split_inclusive(|sign: char| sign.is_ascii_digit());
    let digits = parts.filter_map(|part| part.trim_start_matches('I').parse().ok());
    digits.collect()
}

/// One section of a fragment, or of what all have in common, with the sections it names in
/// their places.
fn part(fragment: &str, section: &str) -> String {
    let from = match section {
        "decide" | "other" | "earlier" | "tell" => STATE,
        "owners" => return owners(),
        _ => fragment,
    };
    let mut inside = false;
    let mut text = String::new();
    for line in code(from) {
        if let Some(header) = line.strip_prefix("--@") {
            inside = header == section;
        } else if !inside {
        } else if let Some(other) = line.trim_start().strip_prefix("--+") {
            text.push_str(&part(fragment, other));
        } else {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// Whether a value is the state of any algorithm.
fn owners() -> String {
    let fragments = Algorithm::counting().map(|it| it.profile().lua);
    let owned = fragments.map(|lua| format!("known = known or {}", part(lua, "own")));
    owned.collect()
}

/// The lines that are neither empty nor comments.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| {
        let line = line.trim_start();
        let comment = line.strip_prefix("--");
        !line.is_empty() && comment.is_none_or(|it| it.starts_with(['@', '+']))
    })
}
