//! A batch in flight: turns requests into commands and interprets the replies.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::FixedState;
use redis::Value;
use smallvec::smallvec;
use tidegate::{Charge, Decision};

use crate::acks::Acks;
use crate::call::{Call, decisions};
use crate::error::{ErrorKind, ErrorReply, StoreError};
use crate::lane::Request;
use crate::pending::{
    Bundle, CALLERS, Pending, PendingCheck, PendingCommand, PendingFlush, bundles,
};
use crate::question::{Asked, Command, Question, Responder};
use crate::script::Script;
use crate::wire::{self, Reply};

/// A command on its way.
pub(crate) struct Sent {
    batch: u64,
    /// Whether its script was named, and not sent.
    by_name: bool,
    what: What,
}

enum What {
    /// The keys of the next command are on their way to this server.
    Asking,
    Checks(Bundle<PendingCheck>),
    Flushes(Bundle<PendingFlush>),
    Command(PendingCommand),
    /// Replicas must have all that was sent before.
    Wait,
}

/// An answer that waits until replicas have what was charged.
pub(crate) enum Held {
    Check(Responder<Decision>, Decision),
    Command(Responder<Value>, Value),
}

impl Held {
    /// Hands it out, or what is wrong with the replicas.
    pub(crate) fn settle(self, wrong: Option<&StoreError>) {
        let wrong = wrong.cloned();
        match self {
            Self::Check(responder, decision) => {
                drop(responder.send(wrong.map_or(Ok(decision), Err)));
            }
            Self::Command(responder, value) => {
                drop(responder.send(wrong.map_or(Ok(value), Err)));
            }
        }
    }
}

/// What a reply leaves to do.
#[derive(Default)]
pub(crate) struct Settled {
    /// What has to be sent again, and whether scripts may be named then.
    pub(crate) again: Vec<Request>,
    pub(crate) by_name: bool,
    /// How many replicas have what was sent, or why nobody knows.
    pub(crate) replicas: Option<Result<i64, StoreError>>,
    /// Whether the server is no master, or has none.
    pub(crate) is_master_gone: bool,
    /// What was wrong with ASKING.
    pub(crate) refused: Option<StoreError>,
}

/// Writes a batch.
pub(crate) struct Writer<'l> {
    pub(crate) out: &'l mut Vec<u8>,
    pub(crate) sent: &'l mut VecDeque<Sent>,
    pub(crate) batch: u64,
    pub(crate) by_name: bool,
}

impl Writer<'_> {
    /// Writes requests as few commands: how many they are.
    pub(crate) fn write(&mut self, requests: Vec<Request>, is_cluster: bool) -> u64 {
        let (mut checks, mut flushes) = (Vec::new(), Vec::new());
        let mut known: HashMap<u64, usize, FixedState> = HashMap::default();
        let mut commands = 0;
        for request in requests {
            let Request {
                asked,
                asking,
                deadline,
                is_alone,
            } = request;
            match asked {
                Asked::Check(call, responder) => {
                    let alike = known.get(&call.hash).and_then(|index| {
                        let check: Option<&mut PendingCheck> = checks.get_mut(*index);
                        check.filter(|it| it.asking == asking && it.waiting.len() < CALLERS)
                    });
                    match alike.filter(|check| check.call.is_like(&call)) {
                        Some(check) => check.waiting.push((responder, deadline)),
                        None => {
                            known.insert(call.hash, checks.len());
                            checks.push(PendingCheck {
                                call,
                                asking,
                                is_alone,
                                waiting: smallvec![(responder, deadline)],
                            });
                        }
                    }
                }
                Asked::Flush(flush, responder) => flushes.push(PendingFlush {
                    flush,
                    asking,
                    is_alone,
                    responder,
                    deadline,
                }),
                Asked::Command(command, responder) => {
                    commands += 1;
                    self.command(PendingCommand {
                        command,
                        asking,
                        responder,
                        deadline,
                    });
                }
            }
        }
        let calls = bundles(checks, is_cluster);
        commands += calls.len() as u64;
        calls.into_iter().for_each(|call| self.checks(call));
        let calls = bundles(flushes, is_cluster);
        commands += calls.len() as u64;
        calls.into_iter().for_each(|call| self.flushes(call));
        commands
    }

    /// Waits until replicas have all that was sent before.
    pub(crate) fn wait(&mut self, acks: Acks) {
        acks.write(self.out);
        self.push(What::Wait);
    }

    fn push(&mut self, what: What) {
        self.sent.push_back(Sent {
            batch: self.batch,
            by_name: self.by_name,
            what,
        });
    }

    /// Says that the keys of the next command are on their way to this server.
    fn asking(&mut self, asking: bool) {
        if asking {
            wire::command(self.out, 1);
            wire::word(self.out, b"ASKING");
            self.push(What::Asking);
        }
    }

    /// The head of a call of a script with so many keys and arguments.
    fn script(&mut self, script: &Script, keys: usize, arguments: usize) {
        wire::command(self.out, 3 + keys + arguments);
        match self.by_name {
            true => {
                wire::word(self.out, b"EVALSHA");
                wire::word(self.out, script.sha().as_bytes());
            }
            false => {
                wire::word(self.out, b"EVAL");
                wire::word(self.out, script.text().as_bytes());
            }
        }
        wire::number(self.out, keys);
    }

    fn checks(&mut self, bundle: Bundle<PendingCheck>) {
        self.asking(bundle.asking);
        let checks = &bundle.all;
        let script = match &checks[..] {
            [one] => one.call.script(),
            _ => &bundle.script,
        };
        let keys = checks.iter().map(|check| check.call.keys.len()).sum();
        // Arguments at the end that are alike are written once.
        let differ = |two: &[PendingCheck]| two[0].argument() != two[1].argument();
        let arguments = 1 + checks.windows(2).rposition(differ).map_or(0, |at| at + 1);
        self.script(script, keys, arguments);
        for key in checks.iter().flat_map(|check| &check.call.keys) {
            wire::word(self.out, key.as_bytes());
        }
        for check in checks.iter().take(arguments) {
            let (asked, limits) = check.argument();
            wire::word_of(self.out, &asked, limits);
        }
        self.push(What::Checks(bundle));
    }

    fn flushes(&mut self, bundle: Bundle<PendingFlush>) {
        self.asking(bundle.asking);
        let flushes = &bundle.all;
        self.script(&bundle.script, flushes.len(), flushes.len());
        for key in flushes.iter().flat_map(|it| &it.flush.key) {
            wire::word(self.out, key.as_bytes());
        }
        for it in flushes {
            wire::word(self.out, &it.flush.argument);
        }
        self.push(What::Flushes(bundle));
    }

    fn command(&mut self, pending: PendingCommand) {
        self.asking(pending.asking);
        match &*pending.command {
            Command::Script {
                script,
                keys,
                arguments,
            } => {
                self.script(script, keys.len(), arguments.len());
                for key in keys {
                    wire::word(self.out, key.as_bytes());
                }
                for argument in arguments {
                    wire::word(self.out, argument);
                }
            }
            Command::Delete(keys) => {
                wire::command(self.out, 1 + keys.len());
                wire::word(self.out, b"DEL");
                for key in keys {
                    wire::word(self.out, key.as_bytes());
                }
            }
            Command::Load(script) => {
                wire::command(self.out, 3);
                for word in ["SCRIPT", "LOAD", script.text()] {
                    wire::word(self.out, word.as_bytes());
                }
            }
            Command::Memory => {
                wire::command(self.out, 2);
                wire::word(self.out, b"INFO");
                wire::word(self.out, b"memory");
            }
        }
        self.push(What::Command(pending));
    }
}

impl Sent {
    pub(crate) fn batch(&self) -> u64 {
        self.batch
    }

    /// There will be no reply.
    pub(crate) fn fail(self, error: &StoreError) {
        match self.what {
            What::Asking | What::Wait => {}
            What::Checks(checks) => checks.fail(error),
            What::Flushes(flushes) => flushes.fail(error),
            What::Command(pending) => pending.fail(error),
        }
    }

    /// Hands out what a reply says. Charges go to `held`, where replicas must have them.
    /// `refused` is what was wrong with the ASKING before it.
    pub(crate) fn settle(
        self,
        reply: &Reply<'_>,
        bytes: &[u8],
        refused: Option<StoreError>,
        held: Option<&mut Vec<Held>>,
    ) -> Settled {
        let mut settled = Settled {
            by_name: true,
            ..Settled::default()
        };
        let error = match reply {
            Reply::Error(line) => Some(ErrorReply::new(line)),
            _ => None,
        };
        let by_name = self.by_name;
        match (self.what, error) {
            (What::Asking, error) => {
                settled.refused = error.map(|error| StoreError::from_server(&error));
            }
            (What::Wait, Some(error)) => {
                settled.replicas = Some(Err(StoreError::from_server(&error)));
            }
            (What::Wait, None) => {
                settled.replicas = Some(Ok(match reply {
                    Reply::Number(replicas) => *replicas,
                    _ => 0,
                }));
            }
            (What::Checks(checks), Some(error)) => {
                let verdict = verdict(&checks.script, &error, by_name, checks.all.len());
                settled.refuse(checks, verdict, refused);
            }
            (What::Checks(checks), None) => answer_checks(checks.all, reply, held),
            (What::Flushes(flushes), Some(error)) => {
                let verdict = verdict(&flushes.script, &error, by_name, flushes.all.len());
                settled.refuse(flushes, verdict, refused);
            }
            (What::Flushes(flushes), None) => answer_flushes(flushes.all, reply),
            (What::Command(pending), Some(error)) => {
                let verdict = match &*pending.command {
                    Command::Script { script, .. } => verdict(script, &error, by_name, 1),
                    _ => Verdict::Failed(StoreError::from_server(&error)),
                };
                settled.refuse(pending, verdict, refused);
            }
            (What::Command(pending), None) => {
                let PendingCommand {
                    command, responder, ..
                } = pending;
                match (redis::parse_redis_value(bytes), held) {
                    (Ok(value), Some(held)) if command.writes() => {
                        held.push(Held::Command(responder, value));
                    }
                    (Ok(value), _) => drop(responder.send(Ok(value))),
                    (Err(error), _) => {
                        let error = StoreError::new(ErrorKind::Script, error.to_string());
                        drop(responder.send(Err(error)));
                    }
                }
            }
        }
        settled
    }
}

/// What an error in place of a whole reply means.
enum Verdict {
    /// The server does not know the script: it gets the text, which it keeps.
    Unknown,
    /// The call did not run, and its parts may.
    Apart,
    Failed(StoreError),
}

fn verdict(script: &Script, error: &ErrorReply<'_>, by_name: bool, parts: usize) -> Verdict {
    if by_name && script.is_unknown(error) {
        return Verdict::Unknown;
    }
    let error = script.error(error);
    // Of a slot that is being moved, some keys are here and some are not.
    match matches!(error.kind(), ErrorKind::Moved | ErrorKind::TryAgain) && parts > 1 {
        true => Verdict::Apart,
        false => Verdict::Failed(error),
    }
}

impl Settled {
    /// The server has refused a whole command.
    fn refuse(&mut self, all: impl Pending, verdict: Verdict, refused: Option<StoreError>) {
        match verdict {
            Verdict::Unknown => {
                self.by_name = false;
                all.send_again(false, &mut self.again);
            }
            Verdict::Apart => all.send_again(true, &mut self.again),
            Verdict::Failed(error) => {
                self.is_master_gone =
                    matches!(error.kind(), ErrorKind::ReadOnly | ErrorKind::MasterDown);
                // A user who may not say ASKING is sent back and forth: that is why.
                all.fail(&refused.unwrap_or(error));
            }
        }
    }
}

/// The replies of a call's parts.
fn parts<'r, 'b>(reply: &'r Reply<'b>, parts: usize) -> Vec<Option<&'r Reply<'b>>> {
    match reply {
        Reply::List(list) if list.len() == parts => list.iter().map(Some).collect(),
        _ => (0..parts).map(|_| None).collect(),
    }
}

fn answer_checks(checks: Vec<PendingCheck>, reply: &Reply<'_>, mut held: Option<&mut Vec<Held>>) {
    // One check alone has no list around its reply.
    let parts = match checks.len() {
        1 => vec![Some(reply)],
        many => parts(reply, many),
    };
    for (check, part) in checks.into_iter().zip(parts) {
        check.answer(part, held.as_deref_mut());
    }
}

impl PendingCheck {
    fn answer(self, reply: Option<&Reply<'_>>, mut held: Option<&mut Vec<Held>>) {
        let numbers = match reply {
            Some(Reply::Text(bytes)) => self.call.script().numbers_and_rest(bytes),
            Some(Reply::Error(line)) => {
                let error = self.call.script().error(&ErrorReply::new(line));
                return self.fail(&error);
            }
            _ => None,
        };
        let asked = self.waiting.len();
        let decisions = numbers.and_then(|(numbers, rest)| read(&self.call, &numbers, rest, asked));
        let Some(decisions) = decisions else {
            let error = StoreError::new(ErrorKind::Script, "not a reply of the script");
            return self.fail(&error);
        };
        for ((responder, _), decision) in self.waiting.into_iter().zip(decisions) {
            match &mut held {
                // Who was refused waits for nobody.
                Some(held) if decision.receipt().is_some() => {
                    held.push(Held::Check(responder, decision));
                }
                _ => drop(responder.send(Ok(decision))),
            }
        }
    }
}

/// The decisions of a reply: one for each who asked.
fn read(call: &Call, numbers: &[i64], leases: &[u8], asked: usize) -> Option<Vec<Decision>> {
    let looks = call.charge == Charge::Nothing;
    let charged = if looks { 0 } else { asked };
    let decisions = decisions(
        call.limits(),
        call.cost,
        call.charge,
        charged,
        numbers,
        leases,
    );
    let mut decisions = decisions.ok()?;
    if let (true, Some(look)) = (looks, decisions.first().cloned()) {
        decisions.resize(asked, look);
    }
    Some(decisions)
}

fn answer_flushes(flushes: Vec<PendingFlush>, reply: &Reply<'_>) {
    let parts = parts(reply, flushes.len());
    for (it, part) in flushes.into_iter().zip(parts) {
        let answer = match part {
            Some(Reply::Text(bytes)) => Ok(bytes.to_vec()),
            Some(Reply::Error(line)) => {
                let error = it.flush.script.error(&ErrorReply::new(line));
                Err(match error.kind() {
                    ErrorKind::WrongType => error.about(it.flush.keys()),
                    _ => error,
                })
            }
            _ => Err(StoreError::new(ErrorKind::Script, "no list of counts")),
        };
        drop(it.responder.send(answer));
    }
}
