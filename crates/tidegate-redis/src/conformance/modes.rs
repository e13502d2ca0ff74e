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

/// Whether every policy that was left out has one of these reasons.
fn assert_reasons(left_out: &[String], reasons: &[&str]) {
    for name in left_out {
        println!("left out: {name}");
        let is_reason = |reason: &&str| name.contains(*reason);
        assert!(reasons.iter().any(is_reason), "left out: {name}");
    }
    for reason in reasons {
        let is_there = left_out.iter().any(|name| name.contains(reason));
        assert!(is_there, "no scenario was left out for {reason:?}");
    }
}

/// A node that asks for keys too rarely to get leases: its messages want none. Checks of
/// several levels, and those whose refusals count, are sent as in the mode `exact`.
struct Cold(Pair);

impl Cold {
    /// Has the store decide in a message about leases.
    fn ask(&mut self, limit: Limit, times: usize, cost: Cost) -> Vec<Decision> {
        let now_us = self.0.now_us;
        let mut key = Key::new(limit, now_us);
        (0..times).for_each(|number| key.wait(cost, number));
        let mut decisions = Vec::new();
        while key.has_waiting() {
            let message = key.message(now_us, Why::Asked, || 1);
            let message = message.expect("checks that wait");
            assert_eq!(message.grant, None, "a cold key wants no lease");
            let reply = self.0.message(&message);
            let answers = key.answered(1, &reply, now_us);
            decisions.extend(
                answers
                    .into_iter()
                    .map(|(_, answer)| decision(answer, cost)),
            );
        }
        decisions
    }
}

/// What a check makes of an answer.
fn decision(answer: Answer, cost: Cost) -> Decision {
    let (at_us, outcome, mark, is_admitted) = match answer {
        Answer::Admitted {
            at_us,
            era_us,
            outcome,
        } => (at_us, outcome, era_us, true),
        Answer::Refused(refused) => (refused.at_us, refused.outcome, 0, false),
        Answer::Spent(spent, _) => panic!("a cold key has no leases: {spent:?}"),
    };
    let level = LevelOutcome {
        outcome,
        cost,
        mark,
    };
    let denied_by = (!is_admitted).then_some(0);
    let receipt = is_admitted.then(Receipt::fresh_id);
    Decision::from_store([level], at_us, denied_by, Source::Store, receipt)
}

impl Subject for Cold {
    fn at(&mut self, since_start_us: u64) {
        self.0.at(since_start_us);
    }

    fn checks(&mut self, times: usize, cost: Cost) -> Vec<Decision> {
        let can_lease = |limit: Limit| policy(&[limit], Charge::Admitted, Mode::Lease).is_ok();
        match (self.0.charge, &self.0.limits[..]) {
            (Charge::Admitted, &[limit]) if limit != Limit::block() && can_lease(limit) => {
                let got = self.ask(limit, times, cost);
                self.0.keep(cost, &got);
                got
            }
            // That is also what becomes of a limit that is changed to another algorithm.
            _ => self.0.checks(times, cost),
        }
    }

    fn look(&mut self, cost: Cost) -> Decision {
        self.0.look(cost)
    }

    fn refund(&mut self, charge: usize) {
        Subject::refund(&mut self.0, charge);
    }

    fn reset(&mut self, level: usize) {
        self.0.reset(level);
    }

    fn set_limits(&mut self, limits: Vec<Limit>) {
        self.0.limits = limits;
    }
}

#[test]
fn every_scenario_comes_out_as_written_on_a_node_that_leases() {
    let server = Server::start();
    let left_out = run_some(|it: &Scenario<'_>| {
        policy(&it.limits, it.charge, Mode::Lease)?;
        let mut pair = Pair::new(&server, &it.name, &it.limits);
        pair.charge = it.charge;
        Ok::<_, String>(Cold(pair))
    });
    assert_reasons(&left_out, &["only token_bucket and fixed_window can lease"]);
}

/// A node that decides by itself and reports to the store after each step. Its decisions,
/// and what the store has after it was told, are those of the mode `exact`.
///
/// A node knows of a log only how much is in it, so one that refuses asks the store when it
/// reports, and decides again.
struct Reporting {
    pair: Pair,
    table: Table<background::Key>,
    /// The node's own clock.
    now_us: u64,
}

impl Reporting {
    fn policy(&self) -> Policy {
        let policy = policy(&self.pair.limits, Charge::Admitted, Mode::Background);
        policy.expect("limits of a scenario")
    }

    fn decide(&self, cost: Cost) -> Decision {
        let policy = self.policy();
        let check = check(&policy, &[("key", "k")], cost);
        let decided = self.table.decide(&check, self.now_us);
        decided.expect("room for a key").decision
    }

    /// The keys of its levels in the store.
    fn stored(&self) -> Vec<String> {
        let policy = self.policy();
        let keys = policy.keys(&[("key", "k")]).expect("the one attribute");
        keys.iter().map(|key| key.stored("tg")).collect()
    }

    fn flush(&mut self) {
        let stored = self.stored();
        let round = (Why::Round, stored.len());
        let parcels = Rounds::default().messages(&self.table, round, 0, self.now_us);
        for outgoing in parcels {
            let level = stored.iter().position(|key| **key == *outgoing.stored);
            let level = level.expect("a key of these");
            let limit = outgoing.message.limit;
            let key = counter(&self.pair.keys[level], limit.algorithm());
            let argument = outgoing.message.argument();
            let reply = self
                .pair
                .call(Task::Flush, &[limit], vec![key], vec![argument]);
            let reply = Vec::<Vec<u8>>::from_redis_value(reply.expect("a reply"));
            let script = self.pair.scripts.get(Task::Flush, [&limit]);
            let numbers = script.numbers(&reply.expect("a list")[0]);
            let heard = heard(&limit, &numbers.expect("numbers")).expect("a count");
            self.table.answered(&outgoing, heard, self.now_us);
        }
    }
}

impl Subject for Reporting {
    fn at(&mut self, since_start_us: u64) {
        self.now_us = since_start_us;
        self.pair.at(since_start_us);
    }

    fn checks(&mut self, times: usize, cost: Cost) -> Vec<Decision> {
        if self.pair.limits.contains(&Limit::block()) {
            // A block is decided before anything is counted.
            return self.pair.checks(times, cost);
        }
        let mut has_heard = false;
        let mut decisions = Vec::new();
        for _ in 0..times {
            let mut decision = self.decide(cost);
            if !decision.allowed() && !has_heard {
                has_heard = true;
                self.flush();
                decision = self.decide(cost);
            }
            decisions.push(decision);
        }
        self.flush();
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
            LevelOutcome {
                outcome,
                cost,
                mark: 0,
            }
        });
        let levels: Vec<LevelOutcome> = levels.collect();
        let at_us = self.pair.now_us;
        let receipt = is_allowed.then(Receipt::fresh_id);
        let source = Source::Background;
        decisions.push(Decision::from_store(
            levels,
            at_us,
            last.denied_by(),
            source,
            receipt,
        ));
        decisions
    }

    fn look(&mut self, cost: Cost) -> Decision {
        self.pair.look(cost)
    }

    fn refund(&mut self, _charge: usize) {
        unreachable!("scenarios with refunds are left out");
    }

    fn reset(&mut self, level: usize) {
        self.table
            .forget(&self.stored()[level..=level], self.now_us);
        self.pair.reset(level);
    }

    fn set_limits(&mut self, limits: Vec<Limit>) {
        self.pair.limits = limits;
    }
}

/// Why a scenario cannot come out the same in the mode `background`.
const REFUND: &str = "a charge that the store has been told of is not given back";
const STEP: &str = "a node hears of a step of the store's clock after it has decided";

#[test]
fn every_scenario_comes_out_as_written_on_a_node_in_the_background() {
    let server = Server::start();
    let left_out = run_some(|it: &Scenario<'_>| {
        policy(&it.limits, it.charge, Mode::Background)?;
        if it.has("refund") {
            return Err(REFUND.to_owned());
        }
        if it.steps_back() {
            return Err(STEP.to_owned());
        }
        Ok(Reporting {
            pair: Pair::new(&server, &it.name, &it.limits),
            table: table("tg", it.limits.len(), START_US, 0),
            now_us: 0,
        })
    });
    let counting = "\"background\" with count_denied = true";
    assert_reasons(&left_out, &[counting, REFUND, STEP]);
}
