//! The conformance suite on one node in the modes `lease` and `background`, whose clock is
//! the store's. What a mode cannot do is left out by the reason that the mode gives.

use redis::FromRedisValue;
use tidegate::{Charge, Cost, Decision, LevelOutcome, Limit, Mode, Policy, Receipt, Source};
use tidegate_testkit::conformance::{Scenario, Subject, run_some};
use tidegate_testkit::redis::Server;

use super::pair::{Pair, START_US, counter};
use crate::mode::background::{self, heard, table};
use crate::mode::lease::key::{Answer, Key};
use crate::mode::tests::check;
use crate::node::{Rounds, Table, Why};
use crate::script::Task;

/// A policy of these limits in a mode, or what is wrong with it.
fn policy(limits: &[Limit], charge: Charge, mode: Mode) -> Result<Policy, String> {
    let mut policy = Policy::builder("p")
        .mode(mode)
        .count_denied(charge == Charge::Always);
    for (number, limit) in limits.iter().enumerate() {
        policy = policy.level(format!("l{number}"), "{key}", *limit);
    }
    policy.build().map_err(|error| error.to_string())
}

/// A node, and the stores that it is held to.
struct Node {
    pair: Pair,
    /// What it knows in the mode `background`. It reports to the store after each step: its
    /// decisions, and what the store has after it was told, are those of the mode `exact`.
    ///
    /// It knows of a log only how much is in it, so when it refuses it asks the store as it
    /// reports, and decides again.
    ///
    /// In the mode `lease` a node asks too rarely to get leases: its messages want none.
    /// Checks of several levels, and those whose refusals count, are sent as in the mode
    /// `exact`.
    table: Option<Table<background::Key>>,
}

impl Node {
    /// The node's own clock.
    fn now_us(&self) -> u64 {
        self.pair.now_us - START_US
    }

    /// Has the store decide in messages about leases.
    fn ask_cold(&mut self, limit: Limit, times: usize, cost: Cost) -> Vec<Decision> {
        let now_us = self.pair.now_us;
        let mut key = Key::new(limit, now_us);
        (0..times).for_each(|number| key.wait(cost, number));
        let mut decisions = Vec::new();
        while key.has_waiting() {
            let message = key.message(now_us, Why::Asked, || 1);
            let message = message.expect("checks that wait");
            assert_eq!(message.grant, None, "a cold key wants no lease");
            let reply = self.pair.message(&message);
            let answers = key.answered(1, &reply, now_us).into_iter();
            decisions.extend(answers.map(|(_, answer)| decision(answer, cost)));
        }
        decisions
    }

    fn policy(&self) -> Policy {
        let policy = policy(&self.pair.limits, Charge::Admitted, Mode::Background);
        policy.expect("limits of a scenario")
    }

    /// The keys of its levels in the store.
    fn stored(&self) -> Vec<String> {
        let policy = self.policy();
        let keys = policy.keys(&[("key", "k")]).expect("the one attribute");
        keys.iter().map(|key| key.stored("tg")).collect()
    }

    fn decide(&self, table: &Table<background::Key>, cost: Cost) -> Decision {
        let policy = self.policy();
        let check = check(&policy, &[("key", "k")], cost);
        let decided = table.decide(&check, self.now_us());
        decided.expect("room for a key").decision
    }

    fn flush(&mut self, table: &Table<background::Key>) {
        let (stored, now_us) = (self.stored(), self.now_us());
        let round = (Why::Round, stored.len());
        for outgoing in Rounds::default().messages(table, round, 0, now_us) {
            let level = stored.iter().position(|key| **key == *outgoing.stored);
            let limit = outgoing.message.limit;
            let key = counter(
                &self.pair.keys[level.expect("a key of these")],
                limit.algorithm(),
            );
            let argument = outgoing.message.argument();
            let reply = self
                .pair
                .call(Task::Flush, &[limit], vec![key], vec![argument]);
            let reply = Vec::<Vec<u8>>::from_redis_value(reply.expect("a reply"));
            let script = self.pair.scripts.get(Task::Flush, [&limit]);
            let numbers = script.numbers(&reply.expect("a list")[0]);
            let heard = heard(&limit, &numbers.expect("numbers")).expect("a count");
            table.answered(&outgoing, heard, now_us);
        }
    }

    fn decide_and_report(
        &mut self,
        table: &Table<background::Key>,
        times: usize,
        cost: Cost,
    ) -> Vec<Decision> {
        let mut has_heard = false;
        let mut decisions = Vec::new();
        for _ in 0..times {
            let mut decision = self.decide(table, cost);
            if !decision.allowed() && !has_heard {
                has_heard = true;
                self.flush(table);
                decision = self.decide(table, cost);
            }
            decisions.push(decision);
        }
        self.flush(table);
        self.pair.keep(cost, &decisions);
        // The numbers are those of the store, now that it has been told.
        let last = decisions.pop().expect("a check");
        let is_allowed = last.allowed();
        let cost = if is_allowed { Cost::ONE } else { cost };
        let seen = self.pair.look(cost);
        let levels = seen.levels().iter().map(|level| {
            let mut outcome = level.outcome();
            if is_allowed {
                outcome.retry_after_us = Some(0);
            }
            LevelOutcome::new(outcome, cost, 0)
        });
        let levels: Vec<LevelOutcome> = levels.collect();
        let (at_us, denied_by) = (self.pair.now_us, last.denied_by());
        let receipt = is_allowed.then(Receipt::fresh_id);
        let source = Source::Background;
        let decision = Decision::from_store(levels, at_us, denied_by, source, receipt);
        decisions.push(decision);
        decisions
    }
}

/// What a check makes of an answer.
fn decision(answer: Answer, cost: Cost) -> Decision {
    let (at_us, outcome, mark, denied_by) = match answer {
        Answer::Admitted {
            at_us,
            era_us,
            outcome,
        } => (at_us, outcome, era_us, None),
        Answer::Refused(refused) => (refused.at_us, refused.outcome, 0, Some(0)),
        Answer::Spent(spent, _) => panic!("a cold key has no leases: {spent:?}"),
    };
    let level = LevelOutcome::new(outcome, cost, mark);
    let receipt = denied_by.is_none().then(Receipt::fresh_id);
    Decision::from_store([level], at_us, denied_by, Source::Store, receipt)
}

impl Subject for Node {
    fn at(&mut self, since_start_us: u64) {
        self.pair.at(since_start_us);
    }

    fn checks(&mut self, times: usize, cost: Cost) -> Vec<Decision> {
        if self.pair.limits.contains(&Limit::block()) {
            // A block is decided before anything is counted.
            return self.pair.checks(times, cost);
        }
        if let Some(table) = self.table.take() {
            let decisions = self.decide_and_report(&table, times, cost);
            self.table = Some(table);
            return decisions;
        }
        let can_lease = |limit: Limit| policy(&[limit], Charge::Admitted, Mode::Lease).is_ok();
        match (self.pair.charge, &self.pair.limits[..]) {
            (Charge::Admitted, &[limit]) if can_lease(limit) => {
                let got = self.ask_cold(limit, times, cost);
                self.pair.keep(cost, &got);
                got
            }
            // That is also what becomes of a limit that is changed to another algorithm.
            _ => self.pair.checks(times, cost),
        }
    }

    fn look(&mut self, cost: Cost) -> Decision {
        self.pair.look(cost)
    }

    fn refund(&mut self, charge: usize) {
        self.pair.refund(charge);
    }

    fn reset(&mut self, level: usize) {
        if let Some(table) = &self.table {
            table.forget(&self.stored()[level..=level], self.now_us());
        }
        self.pair.reset(level);
    }

    fn set_limits(&mut self, limits: Vec<Limit>) {
        self.pair.limits = limits;
    }
}

/// Why a scenario cannot come out the same in the mode `background`.
const REFUND: &str = "a charge that the store has been told of is not given back";
const STEP: &str = "a node hears of a step of the store's clock after it has decided";

/// Runs all scenarios but those that are left out for one of these reasons.
fn comes_out_as_written(mode: Mode, reasons: &[&str]) {
    let server = Server::start();
    let left_out = run_some(|it: &Scenario<'_>| {
        policy(&it.limits, it.charge, mode)?;
        let is_background = mode == Mode::Background;
        if is_background && it.has("refund") {
            return Err(REFUND.to_owned());
        }
        if is_background && it.steps_back() {
            return Err(STEP.to_owned());
        }
        let mut pair = Pair::new(&server, &it.name, &it.limits);
        pair.charge = it.charge;
        let table = is_background.then(|| table("tg", it.limits.len(), START_US, 0));
        Ok(Node { pair, table })
    });
    for name in &left_out {
        println!("left out: {name}");
        let is_reason = |reason: &&str| name.contains(*reason);
        assert!(reasons.iter().any(is_reason), "left out: {name}");
    }
    for reason in reasons {
        let is_there = left_out.iter().any(|name| name.contains(reason));
        assert!(is_there, "no scenario was left out for {reason:?}");
    }
}

#[test]
fn every_scenario_comes_out_as_written_on_a_node_that_leases() {
    let reason = "only token_bucket and fixed_window can lease";
    comes_out_as_written(Mode::Lease, &[reason]);
}

#[test]
fn every_scenario_comes_out_as_written_on_a_node_in_the_background() {
    let counting = "\"background\" with count_denied = true";
    comes_out_as_written(Mode::Background, &[counting, REFUND, STEP]);
}
