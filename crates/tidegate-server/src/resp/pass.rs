//! One pass over all complete commands of a read.
//!
//! Questions that follow each other are put together and decided in one go.
//! Any other command, and any that is wrong, is answered in its place between them.

use std::sync::Arc;

use tidegate::Cost;

use super::command::{Command, Reading, Subject, read};
use super::frame::{self, Arguments, Next};
use super::reply::Replies;
use super::session::Session;
use super::throttle::Dialect;
use super::{housekeeping, policy};
use crate::engine::{Answer, Bucket, Call, Current, Engine, Entry, Kind};

/// The most questions that are decided in one go.
const MAX_BATCH: usize = 1_024;

/// Bytes of replies after which the client's turn to read has come.
const ENOUGH: usize = 16 << 10;

/// A connection's commands, decided as they come.
pub struct Pass {
    engine: Arc<Engine>,
    session: Session,
    replies: Replies,
}

/// A question, and how its answer is to be written.
struct Asked<'b> {
    entry: &'b Entry,
    subject: Subject<'b>,
    cost: Cost,
    kind: Kind,
    /// Of a call that brings its own numbers: its words, and its bucket.
    throttle: Option<(Dialect, usize)>,
}

/// Questions that follow each other.
#[derive(Default)]
struct Questions<'b> {
    asked: Vec<Asked<'b>>,
    buckets: Vec<Arc<Bucket>>,
}

impl Pass {
    /// For a connection that begins.
    #[must_use]
    pub fn new(engine: Arc<Engine>, session: Session) -> Self {
        Self {
            engine,
            session,
            replies: Replies::default(),
        }
    }

    /// Replies that were not [forgotten](Self::forget).
    #[must_use]
    pub fn replies(&self) -> &[u8] {
        &self.replies.bytes
    }

    /// Forgets the first bytes of the replies. When none are left, keeps room for no more
    /// than `kept` bytes.
    pub fn forget(&mut self, sent: usize, kept: usize) {
        let replies = &mut self.replies.bytes;
        replies.drain(..sent);
        if replies.is_empty() {
            replies.shrink_to(kept);
        }
    }

    /// Whether nothing more is to be read.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.session.is_over
    }

    /// Replies with an error, after which nothing more is read.
    pub fn refuse(&mut self, message: impl std::fmt::Display) {
        self.replies.error("ERR", message);
        self.session.is_over = true;
    }

    /// Answers the commands in these bytes: how many bytes they were, and whether there may
    /// be more that had to wait. `begin` is called when the first command is complete, and
    /// what it returns is kept until the last one is answered.
    pub async fn run<B>(&mut self, bytes: &[u8], begin: impl FnOnce() -> B) -> (usize, bool) {
        let (mut at, mut begin, mut begun) = (0, Some(begin), None);
        let engine = Arc::clone(&self.engine);
        loop {
            let current = engine.current();
            let mut questions = Questions {
                asked: Vec::with_capacity(32),
                buckets: Vec::new(),
            };
            let stop = self.gather(&current, bytes, &mut at, &mut questions);
            if at > 0 && begun.is_none() {
                begun = begin.take().map(|begin| begin());
            }
            self.decide(&engine, &questions).await;
            drop(questions);
            match stop {
                Stop::Partial => return (at, false),
                Stop::Enough => {}
                Stop::Wrong(error) => {
                    self.refuse(error);
                    return (at, false);
                }
                Stop::Error(error) => self.replies.error(error.code, error.message),
                Stop::Command(command) => self.answer(&engine, &current, command).await,
                Stop::Line(line) => match frame::words(line) {
                    Ok(words) => self.line(&engine, &current, &words).await,
                    Err(error) => {
                        self.refuse(error);
                        return (at, false);
                    }
                },
            }
            if self.session.is_over {
                return (at, false);
            }
            if self.replies.bytes.len() >= ENOUGH {
                return (at, true);
            }
        }
    }

    /// Puts the questions together that come next, up to what is not one.
    fn gather<'b>(
        &self,
        current: &'b Current,
        bytes: &'b [u8],
        at: &mut usize,
        questions: &mut Questions<'b>,
    ) -> Stop<'b> {
        let mut arguments = Arguments::new();
        loop {
            match frame::next(&bytes[*at..], &mut arguments) {
                Ok(Next::Partial) => return Stop::Partial,
                Err(error) => return Stop::Wrong(error),
                Ok(Next::Line(length)) => {
                    let start = *at;
                    *at += length;
                    return Stop::Line(&bytes[start..*at]);
                }
                Ok(Next::Command(length)) => *at += length,
            }
            if arguments.is_empty() {
                continue;
            }
            if let Some(stop) = self.gather_one(current, &arguments, questions) {
                return stop;
            }
            if questions.asked.len() == MAX_BATCH {
                return Stop::Enough;
            }
        }
    }

    /// Adds a question; anything else is returned.
    fn gather_one<'b>(
        &self,
        current: &'b Current,
        arguments: &Arguments<'b>,
        questions: &mut Questions<'b>,
    ) -> Option<Stop<'b>> {
        let Questions { asked, buckets } = questions;
        match read(current, &self.session, arguments) {
            Ok(Reading::Throttle(dialect, adhoc, call)) => {
                // Mostly the numbers of the question before it.
                if buckets.last().is_none_or(|it| it.numbers != call.numbers) {
                    match adhoc.bucket(call.numbers) {
                        Ok(bucket) => buckets.push(bucket),
                        Err(error) => return Some(Stop::Error(error.into())),
                    }
                }
                asked.push(Asked {
                    entry: adhoc.entry(),
                    subject: Subject::Key(call.key),
                    cost: call.quantity.unwrap_or(Cost::ONE),
                    kind: call.quantity.map_or(Kind::Peek, |_| Kind::Check),
                    throttle: Some((dialect, buckets.len() - 1)),
                });
                None
            }
            Ok(Reading::Check(entry, subject, cost, kind)) => {
                asked.push(Asked {
                    entry,
                    subject,
                    cost,
                    kind,
                    throttle: None,
                });
                None
            }
            Ok(Reading::Other(command)) => Some(Stop::Command(command)),
            Err(error) => Some(Stop::Error(error)),
        }
    }

    /// Decides, and writes the answers.
    async fn decide(&mut self, engine: &Engine, questions: &Questions<'_>) {
        let Questions { asked, buckets } = questions;
        let calls = asked.iter().map(|it| Call {
            bucket: it.throttle.map(|(_, bucket)| &*buckets[bucket]),
            kind: it.kind,
            ..Call::new(it.entry, &it.subject, it.cost)
        });
        let calls: Vec<Call<'_>> = calls.collect();
        let (mut rest, replies) = (asked.iter(), &mut self.replies);
        let each = |call: &Call<'_>, answer: &Answer<'_>| {
            let throttle = rest.next().and_then(|it| it.throttle);
            match (answer, throttle.zip(call.bucket)) {
                (Ok(decision), Some(((dialect, _), bucket))) => {
                    let quantity = Some(call.cost).filter(|_| call.kind == Kind::Check);
                    dialect.write(replies, bucket, quantity, decision);
                }
                (Ok(decision), None) => policy::write(replies, call, decision),
                (Err(error), _) => policy::write_error(replies, error),
            }
        };
        engine.ask(&calls, each).await;
    }

    /// Answers the words of a line.
    async fn line(&mut self, engine: &Engine, current: &Current, words: &[Vec<u8>]) {
        let arguments: Arguments<'_> = words.iter().map(Vec::as_slice).collect();
        if arguments.is_empty() {
            return;
        }
        let mut questions = Questions::default();
        let stop = self.gather_one(current, &arguments, &mut questions);
        self.decide(engine, &questions).await;
        match stop {
            Some(Stop::Command(command)) => self.answer(engine, current, command).await,
            Some(Stop::Error(error)) => self.replies.error(error.code, error.message),
            _ => {}
        }
    }

    /// Answers what is no question.
    async fn answer(&mut self, engine: &Engine, current: &Current, command: Command<'_>) {
        let (session, replies) = (&mut self.session, &mut self.replies);
        match command {
            Command::Reset(reset) => policy::reset(engine, replies, reset).await,
            Command::Refund(receipt) => policy::refund(engine, current, replies, receipt).await,
            Command::Policies => policy::names(current, replies),
            Command::Housekeeping(name, arguments) => {
                housekeeping::answer(current, session, replies, name, &arguments);
            }
        }
    }
}

/// Why a batch ends.
enum Stop<'b> {
    /// What follows is not complete.
    Partial,
    /// It is large enough.
    Enough,
    /// What follows is no command.
    Wrong(frame::FrameError),
    /// A command that is wrong.
    Error(super::command::CommandError),
    /// A command that is no question.
    Command(Command<'b>),
    /// A line of words.
    Line(&'b [u8]),
}
