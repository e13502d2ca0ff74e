//! The conformance suite in memory, through a policy: checks one by one, several at once, and
//! beside levels that never refuse.

use tidegate::{
    Charge, Cost, Decision, LevelDecision, LevelOutcome, Limit, ManualClock, MemoryStore, Policy,
    PolicyDecision, PolicyLimiter, Receipt, Which,
};
use tidegate_testkit::conformance::{Subject, run};

/// Some decades after the epoch, where minutes and hours begin.
const START_US: u64 = 3_000_002_400_000_000;

const KEY: [(&str, &str); 1] = [("key", "x")];

struct Memory {
    limiter: PolicyLimiter,
    clock: ManualClock,
    receipts: Vec<Receipt>,
    /// How many levels the scenario has, and how many that never refuse stand beside them.
    levels: usize,
    beside: usize,
    /// Whether checks of one level are decided by `decide_each`.
    at_once: bool,
}

/// One level is all of a policy, so that its check is the policy's only one.
fn policy(limits: &[Limit], beside: usize, charge: Charge) -> Policy {
    let policy = Policy::builder("p").count_denied(charge == Charge::Always);
    let policy = match (limits, beside) {
        ([limit], 0) => policy.limit(*limit),
        _ => {
            let wide = Limit::parse("4294967295/1ms").expect("a limit");
            let limits = limits.iter().copied();
            // A policy has at most 16 levels.
            let limits = limits.chain(std::iter::repeat_n(wide, beside)).take(16);
            limits.enumerate().fold(policy, |policy, (index, limit)| {
                policy.level(index.to_string(), "{key}", limit)
            })
        }
    };
    policy.build().expect("a policy")
}

impl Memory {
    fn new(limits: &[Limit], charge: Charge, beside: usize) -> Self {
        let clock = ManualClock::at_us(START_US);
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let limiter = PolicyLimiter::over(&store, policy(limits, beside, charge));
        Self {
            limiter: limiter.expect("one store"),
            clock,
            receipts: Vec::new(),
            levels: limits.len(),
            beside,
            at_once: false,
        }
    }

    /// The decision as it would be without the levels beside.
    fn own(&self, decision: PolicyDecision<'_>, cost: Cost) -> Decision {
        let decision = decision.into_decision();
        let outcome = |level: &LevelDecision| LevelOutcome::new(level.outcome(), cost, 0);
        Decision::from_store(
            decision.levels()[..self.levels].iter().map(outcome),
            decision.decided_at_us(),
            decision.denied_by(),
            decision.source(),
            None,
        )
    }
}

impl Subject for Memory {
    fn at(&mut self, since_start_us: u64) {
        self.clock.set_us(START_US + since_start_us);
    }

    fn checks(&mut self, times: usize, cost: Cost) -> Vec<Decision> {
        let mut decisions = Vec::new();
        match self.limiter.only_check(&KEY) {
            Some((check, case)) if self.at_once => {
                let checks = std::iter::repeat_n(check.cost(cost), times);
                let each = |decision| decisions.push(self.limiter.decided(case, decision));
                let store = self.limiter.store();
                store.decide_each(checks, self.limiter.charge(), each);
            }
            _ => decisions
                .extend((0..times).map(|_| self.limiter.check(&KEY, cost).expect("the key"))),
        }
        let receipts = decisions.iter().filter_map(|it| it.receipt());
        self.receipts.extend(receipts);
        let decisions = decisions.into_iter();
        decisions.map(|decision| self.own(decision, cost)).collect()
    }

    fn look(&mut self, cost: Cost) -> Decision {
        let look = self.limiter.peek(&KEY, cost).expect("the key");
        self.own(look, cost)
    }

    fn refund(&mut self, charge: usize) {
        let receipt = &self.receipts[charge];
        self.limiter.refund(&KEY, receipt).expect("the key");
    }

    fn reset(&mut self, level: usize) {
        let levels = self.limiter.policy().levels().iter().enumerate();
        // The others never refuse, even after the largest costs.
        let meant = levels.filter(|(index, _)| *index == level || *index >= self.levels);
        for (_, level) in meant {
            let forgotten = self.limiter.reset(&KEY, Which::Level(level.name()));
            forgotten.expect("a level");
        }
    }

    fn set_limits(&mut self, limits: Vec<Limit>) {
        let changed = policy(&limits, self.beside, self.limiter.charge());
        self.limiter = self.limiter.changed(changed).expect("few limits");
        self.levels = limits.len();
    }
}

#[test]
fn one_by_one() {
    run(|_, limits, charge| Memory::new(limits, charge, 0));
}

#[test]
fn several_at_once() {
    run(|_, limits, charge| Memory {
        at_once: true,
        ..Memory::new(limits, charge, 0)
    });
}

/// Two to four levels are decided in one way, more in another.
#[test]
fn beside_levels_that_never_refuse() {
    for beside in [1, 4] {
        run(|_, limits, charge| Memory::new(limits, charge, beside));
    }
}
