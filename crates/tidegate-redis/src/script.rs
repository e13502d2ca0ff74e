//! The scripts: put together, for a policy's shape, from a fragment an algorithm.
//!
//! A script knows no numbers, only which algorithms it has to run in which order, so
//! that policies of the same shape share one, and a change of a limit is a change of
//! its arguments.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tidegate::{Algorithm, Limit};

/// A script and the name that Redis knows it by.
#[derive(Debug)]
pub(crate) struct Script {
    text: String,
    sha: String,
}

impl Script {
    pub(crate) fn new(text: String) -> Self {
        let sha = redis::Script::new(&text).get_hash().to_owned();
        Self { text, sha }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn sha(&self) -> &str {
        &self.sha
    }
}

/// What a script is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Task {
    /// Decide.
    Check,
    /// Decide, and count refusals, too.
    CheckCounting,
    /// Give back.
    Refund,
    /// Count what was admitted elsewhere.
    Flush,
}

/// Where a script's time comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Time {
    /// The server's clock.
    Server,
    /// The last argument: for tests that compare decisions at the same instants.
    #[cfg(test)]
    Argument,
}

/// The scripts that were needed so far.
#[derive(Debug)]
pub(crate) struct Scripts {
    time: Time,
    known: Mutex<HashMap<Shape, Arc<Script>>>,
}

/// What tells scripts apart.
type Shape = (Task, Vec<Algorithm>);

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
        let shape: Vec<Algorithm> = limits.into_iter().map(Limit::algorithm).collect();
        let mut known = self.known.lock().expect("nothing panics under this lock");
        let script = known
            .entry((task, shape))
            .or_insert_with_key(|(task, shape)| {
                Arc::new(Script::new(assemble(*task, shape, self.time)))
            });
        Arc::clone(script)
    }
}

const CHECK: &str = include_str!("../scripts/check.lua");
const REFUND: &str = include_str!("../scripts/refund.lua");
const FLUSH: &str = include_str!("../scripts/flush.lua");
const STATE: &str = include_str!("../scripts/state.lua");

fn fragment(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::TokenBucket => include_str!("../scripts/token_bucket.lua"),
        Algorithm::FixedWindow => include_str!("../scripts/fixed_window.lua"),
        Algorithm::SlidingWindow => include_str!("../scripts/sliding_window.lua"),
        Algorithm::SlidingLog => include_str!("../scripts/sliding_log.lua"),
        Algorithm::Block => include_str!("../scripts/block.lua"),
    }
}

/// Puts a script together: the skeleton of its task, with the levels' sections in the
/// places that name them (`--+name`).
fn assemble(task: Task, shape: &[Algorithm], time: Time) -> String {
    let skeleton = match task {
        Task::Check | Task::CheckCounting => CHECK,
        Task::Refund => REFUND,
        Task::Flush => FLUSH,
    };
    let mut text = String::new();
    for line in code(skeleton) {
        let Some(section) = line.trim_start().strip_prefix("--+") else {
            text.push_str(line);
            text.push('\n');
            continue;
        };
        match section {
            "time" => text.push_str(match time {
                Time::Server => {
                    "local time = redis.call('TIME')\nlocal now = time[1] * 1000000 + time[2]\n"
                }
                #[cfg(test)]
                Time::Argument => "local now = ARGV[#ARGV] + 0\n",
            }),
            "reply" => {
                let numbers = ", 0".repeat(shape.iter().map(|it| reply_length(*it)).sum());
                let line = format!("local reply = {{now, admitted{numbers}}}\n");
                text.push_str(&line);
            }
            "once" => {
                let mut done: Vec<Algorithm> = Vec::new();
                for algorithm in shape {
                    if !done.contains(algorithm) {
                        text.push_str(&part(fragment(*algorithm), "once"));
                        done.push(*algorithm);
                    }
                }
            }
            "decide" if task == Task::CheckCounting => {
                text.push_str(&levels(task, shape, "decide-counting"));
            }
            section => text.push_str(&levels(task, shape, section)),
        }
    }
    text
}

/// How many numbers a level replies with.
fn reply_length(algorithm: Algorithm) -> usize {
    match algorithm {
        Algorithm::TokenBucket | Algorithm::FixedWindow => 3,
        Algorithm::SlidingWindow | Algorithm::SlidingLog => 4,
        Algorithm::Block => 0,
    }
}

/// A section of every level, with its own names, key, arguments and places in the
/// reply.
fn levels(task: Task, shape: &[Algorithm], section: &str) -> String {
    let mut text = String::new();
    // The time, and how many are admitted, come first in a reply.
    let (mut keys, mut reply) = (0, 2);
    for (level, algorithm) in shape.iter().enumerate() {
        keys += usize::from(*algorithm != Algorithm::Block);
        // A check has one argument a level, a refund two, and what is told has one level.
        let argument = match task {
            Task::Flush => 1,
            Task::Refund => 1 + 2 * keys,
            Task::Check | Task::CheckCounting => 2 + keys,
        };
        let mut part = part(fragment(*algorithm), section);
        for number in 1..=reply_length(*algorithm) {
            part = part.replace(&format!("@+{number}"), &(reply + number).to_string());
        }
        reply += reply_length(*algorithm);
        let part = part
            .replace("@key", &format!("KEYS[{keys}]"))
            .replace("@argument", &format!("ARGV[{argument}]"))
            .replace("@mark", &format!("ARGV[{}]", argument + 1))
            .replace('@', &level.to_string());
        text.push_str(&part);
    }
    text
}

/// One section of a fragment, with the sections it names in their places.
fn part(fragment: &str, section: &str) -> String {
    let mut inside = false;
    let mut text = String::new();
    for line in code(fragment) {
        if let Some(header) = line.strip_prefix("--@") {
            inside = header == section;
        } else if !inside {
        } else if let Some(other) = line.trim_start().strip_prefix("--+") {
            let from = match other {
                "other" | "junk" => STATE,
                _ => fragment,
            };
            text.push_str(&part(from, other));
        } else {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// The lines that are neither empty nor comments.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| {
        let line = line.trim_start();
        let comment = line.strip_prefix("--");
        !line.is_empty() && comment.is_none_or(|it| it.starts_with(['@', '+']))
    })
}
