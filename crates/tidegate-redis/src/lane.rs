//! A lane: one connection, and the queue of those who wait for it.
//!
//! Whoever waits when the lane is ready travels in one batch, as one write; identical
//! checks in it travel as one call. So a lane that is idle adds nothing to a round
//! trip, and a busy one sends larger batches instead of more of them.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, ServerError, Value};
use tidegate::{Charge, Decision};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use crate::acks::Acks;
use crate::call::{Call, decisions};
use crate::connector::Connector;
use crate::error::{ErrorKind, StoreError};
use crate::node::Wiring;
use crate::script::Script;

/// Questions that may wait for a lane.
const QUEUE: usize = 8_192;

/// Commands of one batch, and checks of one command.
const BATCH: usize = 256;
const ALIKE: usize = 1_000;

/// Batches of one lane that are on their way at once: while one is being answered, the
/// next is being written.
const IN_FLIGHT: usize = 3;

/// A connection that was not used for so long may have been closed by the server.
const IDLE: Duration = Duration::from_millis(10);

/// What to ask.
#[derive(Debug)]
pub(crate) enum Question {
    /// A check, which may share its call with others like it.
    Check(Call),
    /// A script with keys and arguments of its own.
    Script {
        script: Arc<Script>,
        keys: Vec<String>,
        arguments: Vec<Vec<u8>>,
        /// Whether replicas must have what it writes.
        is_acknowledged: bool,
    },
    /// Keys to forget.
    Delete(Vec<String>),
    /// A script to compile and keep.
    Load(Arc<Script>),
    /// What the server says about its memory.
    Memory,
}

impl Question {
    /// The keys it is about.
    pub(crate) fn keys(&self) -> &[String] {
        match self {
            Self::Check(call) => &call.keys,
            Self::Script { keys, .. } | Self::Delete(keys) => keys,
            Self::Load(_) | Self::Memory => &[],
        }
    }

    fn script(&self) -> Option<&Script> {
        match self {
            Self::Check(call) => Some(call.script()),
            Self::Script { script, .. } => Some(script),
            Self::Delete(_) | Self::Load(_) | Self::Memory => None,
        }
    }

    /// Whether the server does not know its script.
    fn is_unknown(&self, error: &ServerError) -> bool {
        let script = self.script();
        script.is_some_and(|script| script.is_unknown(error))
    }

    /// What the server's error means.
    fn error(&self, error: &ServerError) -> StoreError {
        match self.script() {
            Some(script) => script.error(error),
            None => StoreError::from_server(error),
        }
    }

    /// Whether it may change anything that replicas should have.
    fn writes(&self) -> bool {
        match self {
            Self::Check(call) => call.charge != Charge::Nothing,
            Self::Script {
                is_acknowledged, ..
            } => *is_acknowledged,
            Self::Delete(_) => true,
            Self::Load(_) | Self::Memory => false,
        }
    }
}

/// What came back.
#[derive(Debug)]
pub(crate) enum Answer {
    Decision(Decision),
    Value(Value),
}

type Responder = oneshot::Sender<Result<Answer, StoreError>>;

struct Request {
    question: Arc<Question>,
    /// Whether its keys are on their way to this server.
    asking: bool,
    /// From then on nobody waits for it: it must not be sent.
    deadline: Instant,
    responder: Responder,
}

/// Checks alike, or a single question of another kind.
struct Group {
    question: Arc<Question>,
    asking: bool,
    responders: Vec<(Responder, Instant)>,
}

impl Group {
    /// Leaves out callers who have left, or whose deadline has passed: on a machine that
    /// was busy, they may not know it yet.
    fn keep_waiting(&mut self, now: Instant) {
        let is_waiting = |(responder, deadline): &(Responder, Instant)| {
            !responder.is_closed() && *deadline > now
        };
        self.responders.retain(is_waiting);
    }
}

/// How much was asked, and how much of that was sent.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) questions: AtomicU64,
    pub(crate) commands: AtomicU64,
    pub(crate) batches: AtomicU64,
}

/// One connection to a server, made when it is first needed.
pub(crate) struct Lane {
    connector: Connector,
    /// How long callers wait.
    deadline: Duration,
    traffic: Arc<Traffic>,
    acks: Option<Acks>,
    queue: Mutex<Option<mpsc::Sender<Request>>>,
}

impl Lane {
    pub(crate) fn new(connector: Connector, wiring: &Wiring) -> Self {
        Self {
            connector,
            deadline: wiring.timeout,
            traffic: Arc::clone(&wiring.traffic),
            acks: Acks::new(wiring.replica_acks, wiring.timeout),
            queue: Mutex::new(None),
        }
    }

    /// Puts a question into the queue; what comes of it arrives later.
    pub(crate) fn ask(
        &self,
        question: &Arc<Question>,
        asking: bool,
        deadline: Instant,
    ) -> Result<oneshot::Receiver<Result<Answer, StoreError>>, StoreError> {
        let (responder, answer) = oneshot::channel();
        let request = Request {
            question: Arc::clone(question),
            asking,
            deadline,
            responder,
        };
        // A caller without a runtime panics in `start`, before anything is changed.
        let queue = self.queue.lock();
        let mut queue = queue.unwrap_or_else(PoisonError::into_inner);
        let sender = queue.get_or_insert_with(|| self.start());
        match sender.try_send(request) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                let detail = format!("{QUEUE} checks are waiting already");
                return Err(StoreError::new(ErrorKind::QueueFull, detail));
            }
            // The runtime it was started on has ended.
            Err(TrySendError::Closed(request)) => {
                let sender = queue.insert(self.start());
                if sender.try_send(request).is_err() {
                    return Err(StoreError::new(ErrorKind::Other, "the runtime is ending"));
                }
            }
        }
        Ok(answer)
    }

    fn start(&self) -> mpsc::Sender<Request> {
        let (sender, queue) = mpsc::channel(QUEUE);
        let work = Work {
            connector: self.connector.clone(),
            deadline: self.deadline,
            traffic: Arc::clone(&self.traffic),
            acks: self.acks,
        };
        tokio::spawn(work.run(queue));
        sender
    }
}

/// A connection, and whether it is still good.
#[derive(Clone)]
struct Link {
    connection: MultiplexedConnection,
    /// Where it leads, if another one may lead elsewhere.
    server: Option<Arc<str>>,
    broken: Arc<AtomicBool>,
    used: Instant,
}

impl Link {
    /// Whether it can still be used. A server that has closed it has told the connection
    /// but not us, and a question that is handed to it then would count as lost.
    async fn is_good(&mut self) -> bool {
        if self.broken.load(Relaxed) || self.used.elapsed() < IDLE {
            return !self.broken.load(Relaxed);
        }
        // One that is closed says so at once. Otherwise the command is taken back before
        // it is sent.
        let ping = redis::cmd("PING");
        tokio::select! {
            biased;
            answer = self.connection.send_packed_command(&ping) => answer.is_ok(),
            () = std::future::ready(()) => true,
        }
    }
}

/// What the task of a lane needs.
struct Work {
    connector: Connector,
    deadline: Duration,
    traffic: Arc<Traffic>,
    acks: Option<Acks>,
}

impl Work {
    /// Takes what waits, batch by batch, until nobody can ask any more.
    async fn run(self, mut queue: mpsc::Receiver<Request>) {
        // WAIT holds up whatever comes after it on the connection.
        let most = if self.acks.is_some() { 1 } else { IN_FLIGHT };
        let in_flight = Arc::new(Semaphore::new(most));
        let mut link: Option<Link> = None;
        while let Some(first) = queue.recv().await {
            let Ok(permit) = Arc::clone(&in_flight).acquire_owned().await else {
                return;
            };
            let current = |link: &Link| self.connector.leads_to(link.server.as_deref());
            let connected = match reuse(link.take().filter(current)).await {
                Some(link) => Ok(link),
                None => connect(&self.connector, self.deadline).await,
            };
            // Not before: connecting takes time, and who has given up meanwhile must not
            // be charged.
            let groups = gather(first, &mut queue, &self.traffic);
            match connected {
                Ok(mut good) => {
                    if !groups.is_empty() {
                        good.used = Instant::now();
                        let traffic = Arc::clone(&self.traffic);
                        tokio::spawn(send(good.clone(), groups, traffic, self.acks, permit));
                    }
                    link = Some(good);
                }
                Err(error) => fail(groups, &error),
            }
        }
    }
}

async fn reuse(link: Option<Link>) -> Option<Link> {
    let mut link = link?;
    link.is_good().await.then_some(link)
}

/// Everybody who waits and has not given up, those who ask the same together.
fn gather(first: Request, queue: &mut mpsc::Receiver<Request>, traffic: &Traffic) -> Vec<Group> {
    let now = Instant::now();
    let mut groups: Vec<Group> = Vec::new();
    let mut next = Some(first);
    while let Some(request) = next {
        let Request {
            question,
            asking,
            deadline,
            responder,
        } = request;
        if !responder.is_closed() && deadline > now {
            traffic.questions.fetch_add(1, Relaxed);
            let alike = |group: &&mut Group| {
                group.responders.len() < ALIKE
                    && group.asking == asking
                    && match (&*group.question, &*question) {
                        (Question::Check(a), Question::Check(b)) => a.is_like(b),
                        _ => false,
                    }
            };
            match groups.iter_mut().find(alike) {
                Some(group) => group.responders.push((responder, deadline)),
                None => groups.push(Group {
                    question,
                    asking,
                    responders: vec![(responder, deadline)],
                }),
            }
        }
        next = match groups.len() < BATCH {
            true => queue.try_recv().ok(),
            false => None,
        };
    }
    groups
}

async fn connect(connector: &Connector, deadline: Duration) -> Result<Link, StoreError> {
    let connected = connector.connect(deadline).await;
    let connected = connected.map_err(|error| StoreError::from_client(&error, false))?;
    let (connection, server) = connected;
    Ok(Link {
        connection,
        server,
        broken: Arc::default(),
        used: Instant::now(),
    })
}

fn fail(groups: Vec<Group>, error: &StoreError) {
    for (responder, _) in groups.into_iter().flat_map(|group| group.responders) {
        drop(responder.send(Err(error.clone())));
    }
}

/// Sends a batch and hands out the answers.
async fn send(
    mut link: Link,
    groups: Vec<Group>,
    traffic: Arc<Traffic>,
    acks: Option<Acks>,
    permit: OwnedSemaphorePermit,
) {
    traffic.batches.fetch_add(1, Relaxed);
    let (mut waiting, mut by_name) = (groups, true);
    while !waiting.is_empty() {
        traffic.commands.fetch_add(waiting.len() as u64, Relaxed);
        // Those who only look wait for nobody.
        let acks = acks.filter(|_| waiting.iter().any(|group| group.question.writes()));
        let (pipeline, length) = pipeline(&waiting, by_name, acks);
        let sent = link.connection.send_packed_commands(&pipeline, 0, length);
        let mut values = match sent.await {
            Ok(values) if values.len() == length => values.into_iter(),
            Ok(_) => {
                link.broken.store(true, Relaxed);
                let error = StoreError::new(ErrorKind::Other, "answers do not match questions");
                return fail(waiting, &error);
            }
            Err(error) => {
                link.broken.store(true, Relaxed);
                return fail(waiting, &StoreError::from_client(&error, true));
            }
        };
        // Who has too few replicas is told so, however well the rest went.
        let missing = acks.and_then(|acks| acks.missing(values.next_back()));
        let mut unknown = Vec::new();
        for group in waiting {
            let asking = group.asking.then(|| values.next()).flatten();
            let value = match (asking, values.next().unwrap_or(Value::Nil)) {
                // Who may not say ASKING is sent back and forth: that is why.
                (Some(refused @ Value::ServerError(_)), Value::ServerError(_)) => refused,
                (_, value) => value,
            };
            match value {
                Value::ServerError(error) if by_name && group.question.is_unknown(&error) => {
                    unknown.push(group);
                }
                Value::ServerError(error) => {
                    let error = group.question.error(&error);
                    // A master that was replaced stays a replica; another connection may
                    // lead to its successor.
                    if matches!(error.kind(), ErrorKind::ReadOnly | ErrorKind::MasterDown) {
                        link.broken.store(true, Relaxed);
                    }
                    fail(vec![group], &error);
                }
                value => respond(group, value, missing.as_ref()),
            }
        }
        // A server that has lost its scripts gets their text, which it keeps.
        (waiting, by_name) = (unknown, false);
        let now = Instant::now();
        waiting.iter_mut().for_each(|group| group.keep_waiting(now));
        waiting.retain(|group| !group.responders.is_empty());
    }
    drop(permit);
}

/// A batch, and how many commands it has: one for each group, another before it where
/// keys are on their way, and one at the end where replicas must have it.
fn pipeline(groups: &[Group], by_name: bool, acks: Option<Acks>) -> (Pipeline, usize) {
    let mut pipeline = Pipeline::with_capacity(groups.len() + 1);
    let mut length = groups.len();
    for group in groups {
        if group.asking {
            pipeline.add_command(redis::cmd("ASKING"));
            length += 1;
        }
        pipeline.add_command(command(group, by_name));
    }
    if let Some(acks) = acks {
        pipeline.add_command(acks.command());
        length += 1;
    }
    (pipeline, length)
}

fn command(group: &Group, by_name: bool) -> Cmd {
    // Enough for a check of two levels, so that few commands grow while they are made.
    let mut command = Cmd::with_capacity(8, 224);
    let run = |command: &mut Cmd, script: &Script| {
        match by_name {
            true => command.arg("EVALSHA").arg(script.sha()),
            false => command.arg("EVAL").arg(script.text()),
        };
    };
    match &*group.question {
        Question::Check(call) => {
            run(&mut command, call.script());
            command.arg(call.keys.len()).arg(&call.keys[..]);
            let asked = match call.charge {
                Charge::Nothing => 0,
                _ => group.responders.len(),
            };
            command.arg(asked).arg(call.cost.get());
            for packed in call.packed() {
                command.arg(packed);
            }
        }
        Question::Script {
            script,
            keys,
            arguments,
            ..
        } => {
            run(&mut command, script);
            command.arg(keys.len()).arg(keys).arg(arguments);
        }
        Question::Delete(keys) => {
            command.arg("DEL").arg(keys);
        }
        Question::Load(script) => {
            command.arg("SCRIPT").arg("LOAD").arg(script.text());
        }
        Question::Memory => {
            command.arg("INFO").arg("memory");
        }
    }
    command
}

/// Answers a group. Where replicas are `missing`, those who were charged hear of that; who
/// was refused waits for nobody.
fn respond(group: Group, value: Value, missing: Option<&StoreError>) {
    if let Some(error) = missing
        && !matches!(*group.question, Question::Check(_))
        && group.question.writes()
    {
        return fail(vec![group], error);
    }
    let Group {
        question,
        responders,
        ..
    } = group;
    let Question::Check(call) = &*question else {
        for (responder, _) in responders {
            drop(responder.send(Ok(Answer::Value(value.clone()))));
        }
        return;
    };
    match read(call, &value, responders.len()) {
        Some(decisions) => {
            for ((responder, _), decision) in responders.into_iter().zip(decisions) {
                let is_charged = decision.receipt().is_some();
                drop(responder.send(match missing {
                    Some(error) if is_charged => Err(error.clone()),
                    _ => Ok(Answer::Decision(decision)),
                }));
            }
        }
        None => {
            let error = StoreError::new(ErrorKind::Script, "a reply that no script gives");
            for (responder, _) in responders {
                drop(responder.send(Err(error.clone())));
            }
        }
    }
}

/// The decisions of a reply: one for each who asked.
fn read(call: &Call, value: &Value, asked: usize) -> Option<Vec<Decision>> {
    let Value::Array(numbers) = value else {
        return None;
    };
    let numbers = numbers.iter().map(|number| match number {
        Value::Int(number) => Some(*number),
        _ => None,
    });
    let numbers: Option<smallvec::SmallVec<[i64; 16]>> = numbers.collect();
    let looks = call.charge == Charge::Nothing;
    let charged = if looks { 0 } else { asked };
    let decisions = decisions(call.limits(), call.cost, call.charge, charged, &numbers?);
    let mut decisions = decisions.ok()?;
    if let (true, Some(look)) = (looks, decisions.first().cloned()) {
        decisions.resize(asked, look);
    }
    Some(decisions)
}
