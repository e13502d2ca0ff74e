//! Decides. Every door asks [`Engine::ask`], and nothing else decides, asks trials, counts,
//! samples keys, logs or records.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tidegate::{Charge, CheckError, Mode, PolicyDecision, PolicyLimiter, Source};
use tokio::runtime::Handle;

use super::Engine;
use super::home::at;
use super::lines::Notes;
use super::question::{Answer, Call, Kind};

/// Decisions of one policy and one source, until they are counted together.
#[derive(Default)]
pub(super) struct Counts {
    /// Allowed, denied, and allowed although a policy in shadow mode would deny.
    pub(super) results: [u64; 3],
    pub(super) peeks: u64,
}

impl Engine {
    /// Answers these calls, in order. It does not wait for what this process can decide:
    /// counts in memory are decided in one pass, the entries of all keys fetched before any
    /// is decided. Questions for a store are sent together.
    pub async fn ask<'q>(
        &self,
        calls: &[Call<'q>],
        mut each: impl FnMut(&Call<'q>, &Answer<'q>) + Send,
    ) {
        let in_memory = |call: &Call<'_>| call.entry.handle().in_memory().is_some();
        if !calls.iter().all(in_memory) {
            let answers = calls.iter().map(|call| self.ask_one(call));
            let answers = join_all(answers).await;
            calls.iter().zip(&answers).for_each(|it| each(it.0, it.1));
            return;
        }
        let mut rest = calls;
        while let [first, ..] = rest {
            let mut done = self.ask_alike(rest, &mut each);
            if done == 0 {
                // A policy of several levels, or a question that is wrong.
                if let Some(answer) = self.ask_now(first) {
                    each(first, &answer);
                }
                done = 1;
            }
            rest = &rest[done..];
        }
    }

    /// Answers one call, without waiting where this process can decide.
    #[inline]
    pub async fn ask_one<'q>(&self, call: &Call<'q>) -> Answer<'q> {
        match self.ask_now(call) {
            Some(answer) => answer,
            None => Box::pin(self.ask_store(call)).await,
        }
    }

    /// Answers a call if this process can decide: its counts are in memory, it has a lease,
    /// or it counts in the background. Otherwise `None`, with nothing charged.
    #[inline]
    fn ask_now<'q>(&self, call: &Call<'q>) -> Option<Answer<'q>> {
        let start = Instant::now();
        let handle = call.entry.handle();
        let decision = match handle.in_memory() {
            Some(memory) => match in_memory(memory, call) {
                Ok(decision) => decision,
                Err(error) => return Some(Err(error.into())),
            },
            None => self.ahead(call)?,
        };
        self.try_now(call);
        self.notes.settle_one(call, &decision, start.elapsed());
        Some(Ok(decision))
    }

    /// Decides by what was taken out of the store ahead of time, where the policy does that.
    fn ahead<'q>(&self, call: &Call<'q>) -> Option<PolicyDecision<'q>> {
        let charges = matches!(call.kind, Kind::Check | Kind::Assign);
        if call.entry.policy().mode() == Mode::Exact || !charges {
            return None;
        }
        let _entered = self.home.as_ref().map(Handle::enter);
        call.entry.handle().now(&call.question())
    }

    /// Asks the store.
    async fn ask_store<'q>(&self, call: &Call<'q>) -> Answer<'q> {
        let (start, handle, question) = (Instant::now(), call.entry.handle(), call.question());
        if call.kind == Kind::GiveBack {
            let given = handle.give_back(call.attributes, call.cost);
            at(self.home.as_ref(), given).await?;
        }
        let asked = async {
            match call.is_strict && !question.look {
                true => handle.try_check(call.attributes, call.cost).await,
                false => handle.ask(&question).await,
            }
        };
        let decision = self.tried(call, asked).await?;
        self.notes.settle_one(call, &decision, start.elapsed());
        Ok(decision)
    }

    /// Decides the first calls that are alike in one pass over a store in memory, and says
    /// how many these were: none, where the policy has several levels.
    fn ask_alike<'q>(
        &self,
        calls: &[Call<'q>],
        each: &mut impl FnMut(&Call<'q>, &Answer<'q>),
    ) -> usize {
        let (start, first) = (Instant::now(), &calls[0]);
        let Some(memory) = first.entry.handle().in_memory() else {
            return 0;
        };
        let charge = match first.kind {
            Kind::Check | Kind::Assign => memory.charge(),
            Kind::Peek => Charge::Nothing,
            Kind::GiveBack => return 0,
        };
        let is_alike =
            |call: &&Call<'_>| std::ptr::eq(call.entry, first.entry) && call.kind == first.kind;
        let checks = calls.iter().take_while(is_alike);
        // Nothing behind the first that is unlike it, however often the store asks for more.
        let checks = checks
            .map_while(|call| Some(call.only_check(memory)?.0))
            .fuse();
        let (mut done, mut counts) = (0, Counts::default());
        memory.store().decide_each(checks, charge, |decision| {
            let call = &calls[done];
            done += 1;
            let Some(case) = call.case(memory) else {
                return;
            };
            let answer = Ok(memory.decided(case, decision));
            if let Ok(decision) = &answer {
                self.notes.settle(call, decision, &mut counts);
            }
            each(call, &answer);
        });
        if done > 0 {
            first.entry.count(&counts, Source::Store, start.elapsed());
            calls[..done].iter().for_each(|it| self.try_now(it));
        }
        done
    }
}

/// Decides one call in memory.
#[inline]
pub(super) fn in_memory<'q>(
    memory: &'q PolicyLimiter,
    call: &Call<'q>,
) -> Result<PolicyDecision<'q>, CheckError> {
    if call.kind == Kind::GiveBack {
        memory.give_back(call.attributes, call.cost);
    }
    memory.ask(&call.question())
}

impl Notes {
    /// Counts, logs and records a decision that took so long.
    #[inline]
    pub(super) fn settle_one(
        &self,
        call: &Call<'_>,
        decision: &PolicyDecision<'_>,
        took: Duration,
    ) {
        let mut counts = Counts::default();
        self.settle(call, decision, &mut counts);
        call.entry.count(&counts, decision.source(), took);
    }

    /// What follows every decision: it joins those that are counted together, its key may be
    /// among the most frequent ones, and it is logged and recorded where that is wanted.
    #[inline(always)]
    fn settle(&self, call: &Call<'_>, decision: &PolicyDecision<'_>, counts: &mut Counts) {
        match call.kind {
            Kind::Peek | Kind::GiveBack => {
                counts.peeks += 1;
                return;
            }
            Kind::Check => {
                let result = match (decision.allowed(), decision.would_deny()) {
                    (_, true) => 2,
                    (true, false) => 0,
                    (false, false) => 1,
                };
                counts.results[result] += 1;
                call.entry.top().seen(call.attributes, result != 0);
            }
            Kind::Assign => {}
        }
        self.note(call, decision);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;
    use tidegate::{Cost, MemoryStore};

    use super::*;

    #[test]
    fn call_in_memory_is_answered_at_the_first_poll_and_its_future_is_small() {
        let engine = Engine::on_store(MemoryStore::new());
        let current = engine.current();
        let key = [("key", "a")];
        let call = Call::new(current.entry("default").expect("a policy"), &key, Cost::ONE);
        let asked = pin!(engine.ask_one(&call));
        let size = size_of_val(&*asked);
        assert!(size <= 512, "{size} bytes");
        let decision = asked.now_or_never().expect("no store to wait for");
        assert!(decision.expect("a decision").allowed());
    }
}
