//! The conformance suite on the store in memory: checks one by one, and several at once.

use tidegate::{Charge, Check, Cost, Decision, Level, Limit, ManualClock, MemoryStore, Receipt};
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
}

impl Memory {
    fn new(limits: &[Limit], charge: Charge, at_once: bool) -> Self {
        let clock = ManualClock::at_us(START_US);
        let store = MemoryStore::builder().clock(clock.clone()).build();
        Self {
            store,
            clock,
            limits: limits.to_vec(),
            charge,
            receipts: Vec::new(),
            at_once,
        }
    }

    fn levels(&self) -> Vec<Level> {
        let named = self.limits.iter().enumerate();
        named
            .map(|(index, limit)| {
                self.store
                    .level(&index.to_string(), *limit)
                    .expect("few limits")
            })
            .collect()
    }
}

fn with_cost<'l>(levels: &'l [Level], cost: Cost) -> Vec<Check<'l>> {
    levels
        .iter()
        .map(|level| level.check("key").cost(cost))
        .collect()
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
                self.store
                    .decide_each(checks, self.charge, |it| decisions.push(it));
            }
            levels => {
                let checks = with_cost(levels, cost);
                decisions.extend((0..times).map(|_| self.store.decide(&checks, self.charge)));
            }
        }
        self.receipts
            .extend(decisions.iter().filter_map(Decision::receipt));
        decisions
    }

    fn look(&mut self, cost: Cost) -> Decision {
        let levels = self.levels();
        self.store
            .decide(&with_cost(&levels, cost), Charge::Nothing)
    }

    fn refund(&mut self, charge: usize) {
        let levels = self.levels();
        self.store
            .refund(&with_cost(&levels, Cost::ONE), &self.receipts[charge]);
    }

    fn reset(&mut self, level: usize) {
        self.store.reset(&self.levels()[level], "key");
    }

    fn set_limits(&mut self, limits: Vec<Limit>) {
        self.limits = limits;
    }
}

#[test]
fn one_by_one() {
    run(|_, limits, charge| Memory::new(limits, charge, false));
}

#[test]
fn several_at_once() {
    run(|_, limits, charge| Memory::new(limits, charge, true));
}
