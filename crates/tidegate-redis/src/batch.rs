//! Commands, and which requests share one: identical checks are one check with several
//! callers, and checks by one script are one call.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use foldhash::fast::FixedState;
use redis::{Cmd, ServerError, Value};
use smallvec::{SmallVec, smallvec};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::error::{ErrorKind, StoreError};
use crate::script::Script;
use crate::slots::slot;

/// Callers of one check, and checks or keys of one call.
const CALLERS: usize = 1_000;
pub(crate) const PARTS: usize = 16;

/// The bytes of an argument that say how many identical checks ask.
const ASKED: usize = 4;

/// The bytes of a reply that say how many of them are admitted.
const ADMITTED: std::ops::Range<usize> = 7..11;

/// What a server is told to do. It may be sent more than once.
#[derive(Debug)]
pub(crate) struct Command {
    verb: Verb,
    pub(crate) keys: SmallVec<[String; 2]>,
    /// Whether a request waits for it to be decided.
    pub(crate) is_check: bool,
    /// Whether replicas must have what it writes.
    is_durable: bool,
    /// When it left the queue that it was put into last.
    pub(crate) sent: Mutex<Option<Instant>>,
}

#[derive(Debug)]
enum Verb {
    Share(Share),
    /// A script that is run alone.
    Run {
        script: Arc<Script>,
        arguments: Vec<Vec<u8>>,
    },
    /// Anything else: the words before the keys.
    Words(Vec<String>),
}

/// A script that others may share: one for a single request, and one for many, which takes an
/// argument for each and answers with a list.
#[derive(Debug)]
struct Share {
    one: Arc<Script>,
    many: Arc<Script>,
    argument: Arc<[u8]>,
    /// Requests with the same number may be identical. Then they are sent once, and the
    /// argument begins with how many they are.
    same: Option<u64>,
}

/// A command of a caller, who waits for the answer.
pub(crate) struct Request {
    pub(crate) command: Arc<Command>,
    /// Whether its keys are on their way to this server.
    pub(crate) asking: bool,
    /// From then on nobody waits for it: it must not be sent.
    pub(crate) deadline: Instant,
    /// Whether it must have a call of its own.
    pub(crate) is_alone: bool,
    pub(crate) reply: Responder,
}

/// Where a reply goes.
pub(crate) type Responder = oneshot::Sender<Result<Reply, StoreError>>;

/// What the server has answered to `of` identical requests, of which this is the one at
/// `place`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reply {
    pub(crate) value: Value,
    pub(crate) place: u32,
    pub(crate) of: u32,
}

impl Reply {
    /// The bytes that a script of ours answers with.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match &self.value {
            Value::BulkString(bytes) => Some(bytes),
            _ => None,
        }
    }
}

impl Command {
    fn new(verb: Verb, keys: SmallVec<[String; 2]>) -> Self {
        Self {
            verb,
            keys,
            is_check: false,
            is_durable: false,
            sent: Mutex::default(),
        }
    }

    /// A check, or a look, which is none that a request waits for.
    pub(crate) fn check(
        [one, many]: [&Arc<Script>; 2],
        keys: SmallVec<[String; 2]>,
        argument: &Arc<[u8]>,
        same: Option<u64>,
        is_look: bool,
    ) -> Self {
        let share = Share {
            one: Arc::clone(one),
            many: Arc::clone(many),
            argument: Arc::clone(argument),
            same,
        };
        Self {
            is_check: !is_look,
            is_durable: true,
            ..Self::new(Verb::Share(share), keys)
        }
    }

    /// A message about a key, which does not wait for replicas.
    pub(crate) fn message(script: &Arc<Script>, key: String, argument: Vec<u8>) -> Self {
        let argument = argument.into();
        Self {
            is_durable: false,
            ..Self::check([script; 2], smallvec![key], &argument, None, true)
        }
    }

    /// A script with keys and arguments of its own: a script of the user's own decides. (A
    /// refund is one, too, and hardly ever fails alone.)
    pub(crate) fn script(script: Arc<Script>, keys: Vec<String>, arguments: Vec<Vec<u8>>) -> Self {
        Self {
            is_check: true,
            is_durable: true,
            ..Self::new(Verb::Run { script, arguments }, keys.into())
        }
    }

    /// Forgets keys.
    pub(crate) fn delete(keys: Vec<String>) -> Self {
        Self {
            is_durable: true,
            ..Self::new(Verb::Words(vec!["DEL".into()]), keys.into())
        }
    }

    /// A command without keys.
    pub(crate) fn words(words: &[&str]) -> Self {
        let words = words.iter().map(|word| (*word).to_owned());
        Self::new(Verb::Words(words.collect()), SmallVec::new())
    }

    fn share(&self) -> Option<&Share> {
        match &self.verb {
            Verb::Share(share) => Some(share),
            Verb::Run { .. } | Verb::Words(_) => None,
        }
    }
}

impl Request {
    /// Whether its caller still waits. On a machine that was busy, callers whose deadline
    /// has passed may not know it yet.
    pub(crate) fn is_wanted(&self, now: Instant) -> bool {
        !self.reply.is_closed() && self.deadline > now
    }

    /// Whether one answer can serve both, which have the same number.
    fn is_like(&self, other: &Self) -> bool {
        let shares = self.command.share().zip(other.command.share());
        self.asking == other.asking
            && self.command.keys == other.command.keys
            && shares.is_some_and(|(share, other)| {
                share.argument == other.argument && Arc::ptr_eq(&share.one, &other.one)
            })
    }

    /// What those that share a call have in common: the script, and in a cluster the slot.
    fn place(&self, is_cluster: bool) -> Option<(*const Script, u16)> {
        let may_share = !self.is_alone && !self.asking;
        let share = self.command.share().filter(|_| may_share)?;
        let key = self.command.keys.first()?;
        let slot = if is_cluster { slot(key.as_bytes()) } else { 0 };
        Some((Arc::as_ptr(&share.many), slot))
    }
}

/// Requests that are answered by one command.
pub(crate) struct Call {
    /// Never empty, and neither is any of them. Those in one of them are identical.
    parts: Vec<SmallVec<[Request; 1]>>,
    /// Whether its script is named, and not sent.
    by_name: bool,
}

/// What has to be done about a call that did not run.
pub(crate) enum Retry {
    /// The server does not know the script: it gets the text, which it keeps.
    ByText,
    /// Its parts may run.
    Apart,
}

/// A reply that waits until replicas have what was charged.
pub(crate) type HeldReply = (Responder, Reply);

/// Puts together what can share a call, in order.
pub(crate) fn calls(
    requests: impl IntoIterator<Item = Request>,
    is_cluster: bool,
    by_name: bool,
) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    let mut open: HashMap<(*const Script, u16), usize, FixedState> = HashMap::default();
    let mut known: HashMap<u64, (usize, usize), FixedState> = HashMap::default();
    for request in requests {
        let same = request.command.share().and_then(|share| share.same);
        let alike = same.and_then(|same| known.get(&same));
        let alike = alike.map(|(call, part)| &mut calls[*call].parts[*part]);
        if let Some(alike) = alike
            && alike.len() < CALLERS
            && alike[0].is_like(&request)
        {
            alike.push(request);
            continue;
        }
        let place = request.place(is_cluster);
        let number = place.and_then(|place| open.get(&place).copied());
        let number = number.filter(|number| calls[*number].parts.len() < PARTS);
        let number = number.unwrap_or_else(|| {
            calls.push(Call {
                parts: Vec::new(),
                by_name,
            });
            calls.len() - 1
        });
        if let Some(place) = place {
            open.insert(place, number);
        }
        let parts = &mut calls[number].parts;
        if let Some(same) = same {
            known.insert(same, (number, parts.len()));
        }
        parts.push(smallvec![request]);
    }
    calls
}

impl Call {
    /// The first request of each part.
    fn requests(&self) -> impl Iterator<Item = &Request> {
        self.parts.iter().map(|part| &part[0])
    }

    fn first(&self) -> &Command {
        &self.parts[0][0].command
    }

    /// Whether its keys are on their way to this server.
    pub(crate) fn is_asking(&self) -> bool {
        self.parts[0][0].asking
    }

    /// The script that it runs, and whether that answers with a list.
    fn script(&self) -> Option<(&Arc<Script>, bool)> {
        match &self.first().verb {
            Verb::Share(share) if self.parts.len() == 1 => {
                Some((&share.one, Arc::ptr_eq(&share.one, &share.many)))
            }
            Verb::Share(share) => Some((&share.many, true)),
            Verb::Run { script, .. } => Some((script, false)),
            Verb::Words(_) => None,
        }
    }

    /// As it is sent.
    pub(crate) fn command(&self) -> Cmd {
        let mut command = Cmd::new();
        let keys = || self.requests().flat_map(|it| &it.command.keys);
        if let Some((script, _)) = self.script() {
            match self.by_name {
                true => command.arg("EVALSHA").arg(script.sha()),
                false => command.arg("EVAL").arg(script.text()),
            };
            command.arg(keys().count());
        } else if let Verb::Words(words) = &self.first().verb {
            command.arg(words);
        }
        for key in keys() {
            command.arg(key);
        }
        if let Verb::Run { arguments, .. } = &self.first().verb {
            command.arg(arguments);
        }
        let arguments = self.parts.iter().filter_map(|part| argument(part));
        let mut arguments: SmallVec<[SmallVec<[u8; 64]>; PARTS]> = arguments.collect();
        // Those at the end that are alike are written once.
        let differ = arguments.windows(2).rposition(|two| two[0] != two[1]);
        arguments.truncate(differ.map_or(1, |at| at + 2));
        for argument in arguments {
            command.arg(&argument[..]);
        }
        command
    }

    /// What an error in place of the whole reply leads to.
    pub(crate) fn retry(&self, error: &ServerError) -> Result<Retry, StoreError> {
        let script = self.script().map(|(script, _)| script);
        if self.by_name && script.is_some_and(|script| script.is_unknown(error)) {
            return Ok(Retry::ByText);
        }
        let error = match script {
            Some(script) => script.error(error),
            None => StoreError::from_server(error),
        };
        // Of a slot that is being moved, some keys are here and some are not.
        let is_elsewhere = matches!(error.kind(), ErrorKind::Moved | ErrorKind::TryAgain);
        match is_elsewhere && self.parts.len() > 1 {
            true => Ok(Retry::Apart),
            false => Err(error),
        }
    }

    /// Its requests, to be sent again.
    pub(crate) fn again(self, retry: &Retry) -> impl Iterator<Item = Request> {
        let is_apart = matches!(retry, Retry::Apart);
        self.parts
            .into_iter()
            .flatten()
            .map(move |request| Request {
                is_alone: request.is_alone || is_apart,
                ..request
            })
    }

    /// Nobody gets an answer.
    pub(crate) fn fail(self, error: &StoreError) {
        for request in self.parts.into_iter().flatten() {
            drop(request.reply.send(Err(error.clone())));
        }
    }

    /// Hands out what the server has answered. Charges go to `held`, where replicas must
    /// have them.
    pub(crate) fn answer(self, value: Value, mut held: Option<&mut Vec<HeldReply>>) {
        let script = self
            .script()
            .map(|(script, is_list)| (Arc::clone(script), is_list));
        let values = match (&script, value) {
            (Some((_, true)), Value::Array(values)) if values.len() == self.parts.len() => values,
            (Some((_, true)), _) => vec![Value::Nil; self.parts.len()],
            (_, value) => vec![value],
        };
        for (part, value) in self.parts.into_iter().zip(values) {
            let answer = match (value, &script) {
                (Value::ServerError(error), Some((script, _))) => Err(script.error(&error)),
                (value, _) => Ok(value),
            };
            hand_out(part, answer, held.as_deref_mut());
        }
    }
}

/// The argument of identical requests in a call that others may share.
fn argument(part: &[Request]) -> Option<SmallVec<[u8; 64]>> {
    let mut argument = SmallVec::from_slice(&part[0].command.share()?.argument);
    if part.len() > 1 {
        argument[..ASKED].copy_from_slice(&count(part).to_le_bytes());
    }
    Some(argument)
}

/// One answer for identical requests, which are charged in order.
fn hand_out(
    part: SmallVec<[Request; 1]>,
    answer: Result<Value, StoreError>,
    mut held: Option<&mut Vec<HeldReply>>,
) {
    let of = count(&part);
    let charged = match (&answer, part[0].command.share()) {
        (Ok(value), Some(_)) => admitted(value).unwrap_or(0),
        (Ok(_), None) => of,
        (Err(_), _) => 0,
    };
    let answers = std::iter::repeat_n(answer, part.len());
    for ((place, request), answer) in (0..).zip(part).zip(answers) {
        match (answer, &mut held) {
            // A refused request waits for nobody.
            (Ok(value), Some(held)) if request.command.is_durable && place < charged => {
                held.push((request.reply, Reply { value, place, of }));
            }
            (answer, _) => {
                let reply = answer.map(|value| Reply { value, place, of });
                drop(request.reply.send(reply));
            }
        }
    }
}

fn count(part: &[Request]) -> u32 {
    u32::try_from(part.len()).unwrap_or(u32::MAX)
}

/// How many of identical checks are admitted.
fn admitted(value: &Value) -> Option<u32> {
    let Value::BulkString(bytes) = value else {
        return None;
    };
    let admitted = bytes.get(ADMITTED)?;
    Some(u32::from_le_bytes(admitted.try_into().ok()?))
}
