//! The conformance suite in memory: checks one by one, several at once, beside levels that
//! never refuse, and through a policy.

use tidegate::{
    Charge, Check, Cost, Decision, Level, LevelOutcome, Limit, ManualClock, MemoryStore, Policy,
    PolicyLimiter, Receipt, Which,
};
use tidegate_testkit::conformance::{Subject, run};

/// Some decades after the epoch, where minutes and hours begin.
const START_US: u64 = 3_000_002_400_000_000;

struct Memory {
    store: MemoryStore,
    clock: ManualClock,
    limits: Vec<Limit>,
    charge: Charge,
    receipts: Vec<Receipt>,
    /// Whether checks of one level are decided by `decide_each`.
    at_once: bool,
    /// How many levels that never refuse stand beside those of the scenario.
    beside: usize,
}

impl Memory {
    fn new(limits: &[Limit], charge: Charge) -> Self {
        let clock = ManualClock::at_us(START_US);
        Self {
            store: MemoryStore::builder().clock(clock.clone()).build(),
            clock,
            limits: limits.to_vec(),
            charge,
            receipts: Vec::new(),
            at_once: false,
            beside: 0,
        }
    }

    fn levels(&self) -> Vec<Level> {
        let wide = Limit::parse("4294967295/1ms").expect("a limit");
        let limits = self.limits.iter().copied();
        let limits = limits.chain(std::iter::repeat_n(wide, self.beside));
        let level = |(index, limit): (usize, Limit)| self.store.level(&index.to_string(), limit);
        let levels = limits.enumerate().map(level);
        levels.collect::<Result<_, _>>().expect("few limits")
    }
}

fn with_cost(levels: &[Level], cost: Cost) -> Vec<Check<'_>> {
    let checks = levels.iter().map(|level| level.check("key").cost(cost));
    checks.collect()
}

/// The decision as it would be with this many levels only.
fn without(decision: Decision, levels: usize, cost: Cost) -> Decision {
    let outcome = |level: &tidegate::LevelDecision| LevelOutcome {
        outcome: level.outcome(),
        cost,
        mark: 0,
    };
    let outcomes = decision.levels()[..levels].iter().map(outcome);
    Decision::from_store(
        outcomes,
        decision.decided_at_us(),
        decision.denied_by(),
        decision.source(),
        None,
    )
}

impl Subject for Memory {
    fn at(&mut self, since_start_us: u64) {
        self.clock.set_us(START_US + since_start_us);
    }

    fn checks(&mut self, times: usize, cost: Cost) -> Vec<Decision> {
        let levels = self.levels();
        let mut decisions = Vec::new();
        match &levels[..] {
            [level] if self.at_once => {
                let checks = (0..times).map(|_| level.check("key").cost(cost));
                let each = |decision| decisions.push(decision);
                self.store.decide_each(checks, self.charge, each);
            }
            levels => {
                let checks = with_cost(levels, cost);
                decisions.extend((0..times).map(|_| self.store.decide(&checks, self.charge)));
            }
        }
        let receipts = decisions.iter().filter_map(Decision::receipt);
        self.receipts.extend(receipts);
        let decisions = decisions.into_iter();
        let decisions = decisions.map(|decision| without(decision, self.limits.len(), cost));
        decisions.collect()
    }

    fn look(&mut self, cost: Cost) -> Decision {
        let levels = self.levels();
        let look = self
            .store
            .decide(&with_cost(&levels, cost), Charge::Nothing);
        without(look, self.limits.len(), cost)
    }

    fn refund(&mut self, charge: usize) {
        let levels = self.levels();
        self.store
            .refund(&with_cost(&levels, Cost::ONE), &self.receipts[charge]);
    }

    fn reset(&mut self, level: usize) {
        let levels = self.levels();
        let (own, beside) = levels.split_at(self.limits.len());
        // The others never refuse, even after the largest costs.
        for level in beside.iter().chain([&own[level]]) {
            self.store.reset(level, "key");
        }
    }

    fn set_limits(&mut self, limits: Vec<Limit>) {
        self.limits = limits;
    }
}

struct InPolicy {
    limiter: PolicyLimiter,
    clock: ManualClock,
    charge: Charge,
    receipts: Vec<Receipt>,
}

const KEY: [(&str, &str); 1] = [("key", "x")];

fn policy(limits: &[Limit], charge: Charge) -> Policy {
    let policy = Policy::builder("p").count_denied(charge == Charge::Always);
    let levels = limits.iter().enumerate();
    let policy = levels.fold(policy, |policy, (index, limit)| {
        policy.level(index.to_string(), "{key}", *limit)
    });
    policy.build().expect("a policy")
}

impl InPolicy {
    fn new(limits: &[Limit], charge: Charge) -> Self {
        let clock = ManualClock::at_us(START_US);
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let limiter = PolicyLimiter::over(&store, policy(limits, charge));
        Self {
            limiter: limiter.expect("one store"),
            clock,
            charge,
            receipts: Vec::new(),
        }
    }
}

impl Subject for InPolicy {
    fn at(&mut self, since_start_us: u64) {
        self.clock.set_us(START_US + since_start_us);
    }

    fn checks(&mut self, times: usize, cost: Cost) -> Vec<Decision> {
        let check = |_| self.limiter.check(&KEY, cost).expect("the key");
        let decisions: Vec<_> = (0..times).map(check).collect();
        let receipts = decisions.iter().filter_map(|decision| decision.receipt());
        self.receipts.extend(receipts);
        decisions.into_iter().map(|it| it.into_decision()).collect()
    }

    fn look(&mut self, cost: Cost) -> Decision {
        let look = self.limiter.peek(&KEY, cost).expect("the key");
        look.into_decision()
    }

    fn refund(&mut self, charge: usize) {
        let receipt = &self.receipts[charge];
        self.limiter.refund(&KEY, receipt).expect("the key");
    }

    fn reset(&mut self, level: usize) {
        let level = level.to_string();
        let forgotten = self.limiter.reset(&KEY, Which::Level(&level));
        forgotten.expect("a level");
    }

    fn set_limits(&mut self, limits: Vec<Limit>) {
        let changed = self.limiter.changed(policy(&limits, self.charge));
        self.limiter = changed.expect("few limits");
    }
}

#[test]
fn one_by_one() {
    run(|_, limits, charge| Memory::new(limits, charge));
}

#[test]
fn several_at_once() {
    run(|_, limits, charge| Memory {
        at_once: true,
        ..Memory::new(limits, charge)
    });
}

/// Two to four levels are decided in one way, more in another.
#[test]
fn beside_levels_that_never_refuse() {
    for beside in [1, 4] {
        run(|_, limits, charge| Memory {
            beside,
            ..Memory::new(limits, charge)
        });
    }
}

#[test]
fn through_a_policy() {
    run(|_, limits, charge| InPolicy::new(limits, charge));
}
