//! Many questions in one go: those of one read of a connection. Counts in memory are
//! decided in one pass without waiting, the entries of all keys fetched before any is
//! decided; questions for Redis are sent together. Answers are in order.

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use tidegate::{
    Attributes, Charge, Check, Cost, Decision, LimitError, PolicyDecision, PolicyLimiter, Question,
};
use tidegate_redis::TryCheckError;

use super::adhoc::{AdHoc, Bucket, Numbers};
use super::home::at;
use super::{Current, Engine, Entry};

/// Questions of a usual pipeline.
const USUAL: usize = 32;

/// What a question is about.
#[derive(Debug, Clone)]
pub enum Subject<'a> {
    /// The attribute `key`.
    Key(&'a [u8]),
    /// Any attributes.
    Pairs(Box<[(&'a str, &'a [u8])]>),
}

impl Attributes for Subject<'_> {
    #[inline]
    fn value(&self, name: &str) -> Option<&[u8]> {
        match self {
            Self::Key(key) => (name == "key").then_some(*key),
            Self::Pairs(pairs) => pairs.value(name),
        }
    }
}

/// A question.
#[derive(Debug)]
pub struct Asked<'a> {
    /// Whom to ask.
    pub entry: &'a Entry,
    /// What about.
    pub subject: Subject<'a>,
    /// What it costs, or would cost.
    pub cost: Cost,
    /// It charges nothing.
    pub is_look: bool,
    /// Which of the batch's buckets decides, in place of the policy's own limit.
    bucket: Option<usize>,
}

/// Questions that were put together.
#[derive(Debug, Default)]
pub struct Batch<'a> {
    asked: Vec<Asked<'a>>,
    buckets: Vec<Arc<Bucket>>,
    is_shared: bool,
}

/// What became of a question.
#[derive(Debug)]
pub enum Answer<'d> {
    /// A decision under numbers that came with the call.
    Bucket(&'d Bucket, &'d Decision),
    /// A decision of a policy.
    Policy(&'d PolicyDecision<'d>),
    /// None.
    Error(&'d TryCheckError),
}

impl<'a> Batch<'a> {
    /// How many questions there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.asked.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// Whether an answer has to be waited for.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// The questions, in order.
    #[must_use]
    pub fn asked(&self) -> &[Asked<'a>] {
        &self.asked
    }

    /// Room for a usual pipeline.
    #[must_use]
    pub fn new() -> Self {
        Self {
            asked: Vec::with_capacity(USUAL),
            ..Self::default()
        }
    }

    /// Adds a question to a policy.
    pub fn ask(&mut self, entry: &'a Entry, subject: Subject<'a>, cost: Cost, is_look: bool) {
        self.add(Asked {
            entry,
            subject,
            cost,
            is_look,
            bucket: None,
        });
    }

    /// Adds a question that brings its own numbers; one without a cost only looks.
    #[inline]
    pub fn ask_bucket(
        &mut self,
        adhoc: &'a AdHoc,
        numbers: Numbers,
        key: &'a [u8],
        cost: Option<Cost>,
    ) -> Result<(), LimitError> {
        // Mostly the numbers of the question before it.
        let is_last = self.buckets.last().is_some_and(|it| it.numbers == numbers);
        if !is_last {
            self.buckets.push(adhoc.bucket(numbers)?);
        }
        self.add(Asked {
            entry: adhoc.entry(),
            subject: Subject::Key(key),
            cost: cost.unwrap_or(Cost::ONE),
            is_look: cost.is_none(),
            bucket: Some(self.buckets.len() - 1),
        });
        Ok(())
    }

    #[inline]
    fn add(&mut self, asked: Asked<'a>) {
        self.is_shared |= asked.entry.handle().in_memory().is_none();
        self.asked.push(asked);
    }

    fn bucket(&self, asked: &Asked<'_>) -> Option<&Bucket> {
        asked.bucket.map(|index| &*self.buckets[index])
    }
}

/// Decisions of one policy, until they are counted.
#[derive(Default)]
struct Results {
    allowed: u64,
    denied: u64,
    would_deny: u64,
}

impl Engine {
    /// Decides a batch whose counts are all kept in this process. Each answer is counted,
    /// logged and recorded as that of [`decide`](Self::decide); looks are only counted, as
    /// looks.
    pub fn decide_each_now(
        &self,
        current: &Current,
        batch: &Batch<'_>,
        mut each: impl FnMut(&Asked<'_>, Answer<'_>),
    ) {
        let mut rest = batch.asked();
        while let Some(first) = rest.first() {
            let Some(memory) = first.entry.handle().in_memory() else {
                return;
            };
            let done = self.decide_run(current, batch, memory, rest, &mut each);
            rest = &rest[done..];
        }
    }

    /// Decides the first questions of `rest` that go to one policy, and says how many
    /// these were.
    fn decide_run(
        &self,
        current: &Current,
        batch: &Batch<'_>,
        memory: &PolicyLimiter,
        rest: &[Asked<'_>],
        each: &mut impl FnMut(&Asked<'_>, Answer<'_>),
    ) -> usize {
        let start = Instant::now();
        let first = &rest[0];
        let is_look = first.is_look;
        let (store, charge) = (memory.store(), charge(memory, is_look));
        let checks = rest.iter().map_while(|asked| {
            let is_alike = std::ptr::eq(asked.entry, first.entry) && asked.is_look == is_look;
            is_alike.then(|| check(batch, memory, asked)).flatten()
        });
        let is_noted = self.notes.is_noting() && !is_look;
        let top = first.entry.top();
        let (mut done, mut results) = (0, Results::default());
        store.decide_each(checks, charge, |decision| {
            let asked = &rest[done];
            done += 1;
            if let Some(bucket) = batch.bucket(asked) {
                match decision.allowed() {
                    true => results.allowed += 1,
                    false => results.denied += 1,
                }
                if !is_look {
                    top.seen(&asked.subject, !decision.allowed());
                }
                if is_noted && let Some((_, case)) = memory.only_check(&asked.subject) {
                    let decision = memory.decided(case, decision.clone());
                    self.note_asked(current, &decision, asked, Some(bucket));
                }
                each(asked, Answer::Bucket(bucket, &decision));
                return;
            }
            let Some((_, case)) = memory.only_check(&asked.subject) else {
                return;
            };
            let decision = memory.decided(case, decision);
            match (decision.allowed(), decision.would_deny()) {
                (_, true) => results.would_deny += 1,
                (true, false) => results.allowed += 1,
                (false, false) => results.denied += 1,
            }
            if !is_look {
                top.seen(&asked.subject, !decision.allowed() || decision.would_deny());
            }
            if is_noted || decision.would_deny() {
                self.note_asked(current, &decision, asked, None);
            }
            each(asked, Answer::Policy(&decision));
        });
        if done == 0 {
            self.decide_other(current, memory, first, each);
            return 1;
        }
        if is_look {
            self.metrics.peeked(first.entry.policy().name(), done);
        } else {
            let Results {
                allowed,
                denied,
                would_deny,
            } = results;
            let counts = [allowed, denied, would_deny];
            let took = start.elapsed() / u32::try_from(done).unwrap_or(u32::MAX);
            first.entry.tally().meter.count_stored(counts, took);
            self.try_each(current, &rest[..done]);
        }
        done
    }

    /// Decides a question to a policy of several levels, or one that is wrong.
    fn decide_other(
        &self,
        current: &Current,
        memory: &PolicyLimiter,
        asked: &Asked<'_>,
        each: &mut impl FnMut(&Asked<'_>, Answer<'_>),
    ) {
        let start = Instant::now();
        let (entry, subject, cost) = (asked.entry, &asked.subject, asked.cost);
        let decided = match asked.is_look {
            false => memory.check(subject, cost).map(|decision| {
                self.try_now(current, entry, subject, cost);
                self.decided(current, entry, decision, subject, cost, None, start)
                    .decision
            }),
            true => {
                self.metrics.peeked(entry.policy().name(), 1);
                memory.peek(subject, cost)
            }
        };
        match decided {
            Ok(decision) => each(asked, Answer::Policy(&decision)),
            Err(error) => each(asked, Answer::Error(&error.into())),
        }
    }

    /// Decides a batch of which some counts are kept elsewhere: all questions are on their
    /// way before the first answer is waited for.
    pub async fn decide_each(
        &self,
        current: &Current,
        batch: &Batch<'_>,
        mut each: impl FnMut(&Asked<'_>, Answer<'_>),
    ) {
        let answers = batch.asked().iter();
        let answers = answers.map(|asked| self.decide_asked(current, batch, asked));
        let answers = at(self.home.as_ref(), join_all(answers)).await;
        for (asked, answer) in batch.asked().iter().zip(answers) {
            match (answer, batch.bucket(asked)) {
                (Ok(decision), Some(bucket)) => {
                    each(asked, Answer::Bucket(bucket, &decision.into_decision()));
                }
                (Ok(decision), None) => each(asked, Answer::Policy(&decision)),
                (Err(error), _) => each(asked, Answer::Error(&error)),
            }
        }
    }

    async fn decide_asked<'c>(
        &self,
        current: &Current,
        batch: &Batch<'_>,
        asked: &Asked<'c>,
    ) -> Result<PolicyDecision<'c>, TryCheckError> {
        let (entry, subject, start) = (asked.entry, &asked.subject, Instant::now());
        let (handle, cost) = (entry.handle(), asked.cost);
        let limit = batch.bucket(asked).map(Bucket::limit);
        if asked.is_look {
            self.metrics.peeked(entry.policy().name(), 1);
        }
        let decision = match (handle.in_memory(), limit) {
            (Some(memory), _) => {
                let decision = decide_in_memory(batch, memory, asked)?;
                self.try_each(current, std::slice::from_ref(asked));
                decision
            }
            (None, limit) => {
                let look = asked.is_look;
                let question = Question {
                    limit,
                    look,
                    ..Question::new(subject, cost)
                };
                let asking = handle.ask(&question);
                match look {
                    true => return asking.await,
                    false => self.tried(current, entry, subject, cost, asking).await?,
                }
            }
        };
        if asked.is_look {
            return Ok(decision);
        }
        let decided = self.decided(current, entry, decision, subject, cost, limit, start);
        Ok(decided.decision)
    }

    /// Asks the trials of questions that were decided without waiting.
    #[inline]
    fn try_each(&self, current: &Current, asked: &[Asked<'_>]) {
        let tried = |it: &&Asked<'_>| !it.is_look && !it.entry.trials().is_empty();
        for asked in asked.iter().filter(tried) {
            self.try_now(current, asked.entry, &asked.subject, asked.cost);
        }
    }

    fn note_asked(
        &self,
        current: &Current,
        decision: &PolicyDecision<'_>,
        asked: &Asked<'_>,
        bucket: Option<&Bucket>,
    ) {
        let limit = bucket.map(Bucket::limit);
        self.note(current, decision, &asked.subject, asked.cost, limit);
    }
}

/// Decides a question among others that are asked elsewhere.
fn decide_in_memory<'c>(
    batch: &Batch<'_>,
    memory: &'c PolicyLimiter,
    asked: &Asked<'_>,
) -> Result<PolicyDecision<'c>, TryCheckError> {
    let (store, charge) = (memory.store(), charge(memory, asked.is_look));
    let only = memory.only_check(&asked.subject);
    if let (Some((_, case)), Some(check)) = (only, check(batch, memory, asked)) {
        return Ok(memory.decided(case, store.decide(&[check], charge)));
    }
    Ok(match asked.is_look {
        false => memory.check(&asked.subject, asked.cost)?,
        true => memory.peek(&asked.subject, asked.cost)?,
    })
}

fn charge(memory: &PolicyLimiter, is_look: bool) -> Charge {
    match is_look {
        true => Charge::Nothing,
        false => memory.charge(),
    }
}

/// The check of a question, where it is only one.
#[inline]
fn check<'b>(
    batch: &'b Batch<'_>,
    memory: &'b PolicyLimiter,
    asked: &'b Asked<'_>,
) -> Option<Check<'b>> {
    let check = match (batch.bucket(asked), &asked.subject) {
        (Some(bucket), Subject::Key(key)) => bucket.level()?.check(*key),
        _ => memory.only_check(&asked.subject)?.0,
    };
    Some(check.cost(asked.cost))
}
