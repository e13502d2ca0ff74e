//! Processes of one machine that share leases: they ask the store less often than as many
//! nodes would, and whatever happens to one of them, the limit holds.

use std::collections::BTreeMap;

use tidegate::audit::{Audit, Record};
use tidegate::{Cost, Limit, Policy};
use tokio::sync::oneshot;

use super::common::{LeaseBucket, LeaseTable};
use super::fault::Fault;
use super::kept::Store;
use super::key::{Answer, Reason};
use super::message::Reply;
use super::near;
use super::table::{Outgoing, Table, Taken, Waiter};
use crate::error::StoreError;
use crate::simulator::Random;

const START_US: u64 = 1_700_000_000_000_000;
const SWEEP_US: u64 = 50_000;

type Waiting = oneshot::Receiver<Result<Answer, StoreError>>;

/// What happens besides requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    /// Processes are killed and started anew, stop for a while, and end; messages are lost.
    All,
}

/// What lies ahead.
enum Event {
    Sweep,
    Arrives(usize, Outgoing),
    /// To this process, unless it is another one by now.
    Answers(usize, u64, Outgoing, Reply),
}

/// A process, and until when it stands still.
struct Process {
    table: Table,
    /// How often it was started.
    start: u64,
    stopped_until_us: u64,
    waiting: Vec<Waiting>,
}

struct Instance {
    policy: Policy,
    limit: Limit,
    memory: LeaseTable,
    store: Store,
    processes: Vec<Process>,
    events: BTreeMap<(u64, u64), Event>,
    random: Random,
    trouble: Trouble,
    now_us: u64,
    events_so_far: u64,
    calls: u64,
    admitted: Vec<u64>,
}

impl Instance {
    fn new(limit: &str, processes: usize, trouble: Trouble, seed: u64) -> Self {
        let limit = Limit::parse(limit).expect("a limit");
        let policy = Policy::builder("p").limit(limit).build();
        let buckets: Box<[LeaseBucket]> = (0..2).map(|_| LeaseBucket::default()).collect();
        let memory = LeaseTable::new(Box::leak(buckets), [seed, 1]);
        let process = |_| Process::new(memory, 0);
        let mut instance = Self {
            policy: policy.expect("a policy"),
            limit,
            memory,
            store: Store {
                kept: None,
                fault: Fault::None,
            },
            processes: (0..processes).map(process).collect(),
            events: BTreeMap::new(),
            random: Random::new(seed),
            trouble,
            now_us: 10_000_000,
            events_so_far: 0,
            calls: 0,
            admitted: Vec::new(),
        };
        instance.later(SWEEP_US, Event::Sweep);
        instance
    }

    fn later(&mut self, in_us: u64, event: Event) {
        self.events_so_far += 1;
        let at = (self.now_us + in_us, self.events_so_far);
        self.events.insert(at, event);
    }

    /// Sends a number of requests, with this many microseconds between them on average.
    fn run(&mut self, requests: u64, every_us: u64) {
        for _ in 0..requests {
            let next_us = self.now_us + self.random.below(2 * every_us + 1);
            while let Some(event) = self.events.first_entry()
                && event.key().0 <= next_us
            {
                self.now_us = self.now_us.max(event.key().0);
                let event = event.remove();
                self.happens(event);
            }
            self.now_us = self.now_us.max(next_us);
            if self.trouble == Trouble::All && self.random.below(500) == 0 {
                self.misfortune();
            }
            let process = self.random.below(self.processes.len() as u64);
            self.request(usize::try_from(process).expect("a few"));
        }
    }

    fn misfortune(&mut self) {
        let which = usize::try_from(self.random.below(self.processes.len() as u64)).expect("few");
        let start = self.processes[which].start + 1;
        match self.random.below(3) {
            // Killed: it returns nothing.
            0 => self.processes[which] = Process::new(self.memory, start),
            // Stopped by a signal for a while, in which leases end.
            1 => {
                let until_us = self.now_us + self.random.below(3_000_000);
                self.processes[which].stopped_until_us = until_us;
            }
            // Reloaded: it returns its leases, and another takes its place.
            _ => {
                let returned = self.processes[which]
                    .table
                    .sweep(true, usize::MAX, self.now_us);
                for outgoing in returned {
                    self.send(which, outgoing);
                }
                self.processes[which] = Process::new(self.memory, start);
            }
        }
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Sweep => {
                for which in 0..self.processes.len() {
                    if self.processes[which].stopped_until_us > self.now_us {
                        continue;
                    }
                    for outgoing in
                        self.processes[which]
                            .table
                            .sweep(false, usize::MAX, self.now_us)
                    {
                        self.send(which, outgoing);
                    }
                }
                self.later(SWEEP_US, Event::Sweep);
            }
            Event::Arrives(which, outgoing) => {
                let now_us = START_US + self.now_us;
                let reply = self.store.message(&outgoing.message, now_us);
                // Also those whose answer is lost: they open windows, too.
                let admitted: u32 = reply.admitted.iter().sum();
                let admitted = (0..admitted).map(|_| reply.now_us);
                self.admitted.extend(admitted);
                let start = self.processes[which].start;
                let trip_us = self.trip_us();
                self.later(trip_us, Event::Answers(which, start, outgoing, reply));
            }
            Event::Answers(which, start, outgoing, reply) => {
                let process = &mut self.processes[which];
                if process.start != start {
                    return;
                }
                if process.stopped_until_us > self.now_us {
                    let in_us = process.stopped_until_us - self.now_us;
                    self.later(in_us, Event::Answers(which, start, outgoing, reply));
                    return;
                }
                let next = process.table.answered(&outgoing, &reply, self.now_us);
                process.waiting.retain_mut(|waiting| {
                    match waiting.try_recv() {
                        Ok(Ok(Answer::Spent(spent, _))) => self.admitted.push(spent.at_us),
                        Ok(_) | Err(oneshot::error::TryRecvError::Closed) => {}
                        Err(oneshot::error::TryRecvError::Empty) => return true,
                    }
                    false
                });
                if let Some(next) = next {
                    self.send(which, next);
                }
            }
        }
    }

    fn trip_us(&mut self) -> u64 {
        match self.trouble {
            Trouble::None => 100,
            Trouble::All if self.random.below(50) == 0 => self.random.below(2_000_000),
            Trouble::All => self.random.below(5_000),
        }
    }

    fn send(&mut self, which: usize, outgoing: Outgoing) {
        self.calls += 1;
        if self.trouble == Trouble::All && self.random.below(50) == 0 {
            return;
        }
        let trip_us = self.trip_us();
        self.later(trip_us, Event::Arrives(which, outgoing));
    }

    fn request(&mut self, which: usize) {
        let now_us = self.now_us;
        let process = &mut self.processes[which];
        if process.stopped_until_us > now_us {
            return;
        }
        // The list of a thread, which serves one process.
        near::clear();
        let keys = self.policy.keys(&[("key", "a")]).expect("a key");
        let key = keys.iter().next().expect("a level");
        let fingerprint = process.table.fingerprint(&key);
        let taken = process
            .table
            .take(fingerprint, &self.limit, Cost::ONE, now_us);
        let mut outgoing = None;
        let demand = match taken {
            Taken::Spent(spent) => {
                self.admitted.push(spent.at_us);
                if spent.is_half {
                    outgoing = process.table.message(fingerprint, Reason::Usual, now_us);
                }
                Some(None)
            }
            Taken::Refused(_) => Some(None),
            Taken::Missing(demand) => Some(Some(demand)),
            Taken::Cold => None,
        };
        let is_exact = match demand {
            Some(None) => false,
            None => true,
            Some(Some(demand)) => {
                let (waiter, waiting): (Waiter, Waiting) = oneshot::channel();
                let asked = (Cost::ONE, demand);
                let waits = process
                    .table
                    .wait(fingerprint, &key, asked, Some(waiter), now_us);
                let waits = waits.expect("few who wait");
                if waits {
                    process.waiting.push(waiting);
                    outgoing = process.table.message(fingerprint, Reason::Usual, now_us);
                }
                !waits
            }
        };
        drop(keys);
        if is_exact {
            self.calls += 1;
            let at_us = START_US + now_us;
            let (_, _, admitted) = self.store.check(self.limit, Cost::ONE, 1, at_us);
            if admitted == 1 {
                self.admitted.push(at_us);
            }
        }
        if let Some(outgoing) = outgoing {
            self.send(which, outgoing);
        }
    }

    fn holds(&self) -> bool {
        let records = self.admitted.iter();
        let records = records.map(|at_us| Record::admitted("a", *at_us, Cost::ONE));
        Audit::new(self.limit).judge(records).held()
    }
}

impl Process {
    fn new(memory: LeaseTable, start: u64) -> Self {
        Self {
            table: Table::new("tg", Some(memory)),
            start,
            stopped_until_us: 0,
            waiting: Vec::new(),
        }
    }
}

/// Calls of the store and admitted requests in ten seconds, after one to begin with.
fn measure(limit: &str, processes: usize, every_us: u64) -> (u64, u64) {
    let mut instance = Instance::new(limit, processes, Trouble::None, 7);
    instance.run(1_000_000 / every_us, every_us);
    let before = (instance.calls, instance.admitted.len() as u64);
    instance.run(10_000_000 / every_us, every_us);
    assert!(instance.holds(), "{limit}, {processes} processes");
    let admitted = instance.admitted.len() as u64;
    (instance.calls - before.0, admitted - before.1)
}

#[test]
fn processes_ask_less_often_than_as_many_nodes() {
    // Half, nine tenths and twice of the limit; a window; small bursts.
    for (limit, every_us, least, processes) in [
        ("1000r/s", 2_000, 4_900, 4),
        ("1000r/s", 1_111, 8_900, 4),
        ("1000r/s", 500, 9_900, 4),
        ("1000r/s fixed_window", 500, 9_900, 4),
        ("1000r/s burst=200", 500, 9_900, 2),
        ("1000r/s burst=100", 500, 9_900, 2),
    ] {
        let (one, admitted) = measure(limit, 1, every_us);
        assert!(admitted >= least, "{limit}: {admitted} admitted");
        for processes in 2..=processes {
            let (calls, admitted) = measure(limit, processes, every_us);
            let setting = format!("{limit}, one per {every_us} us, {processes} processes");
            assert!(admitted >= least, "{setting}: {admitted} admitted");
            // Each for itself would take as many times the calls as there are processes.
            assert!(calls <= one * 3 / 2, "{setting}: {calls} calls, not {one}");
        }
    }
}

#[test]
fn limit_holds_whatever_happens_to_processes() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let limit = random.one_of(&["1000r/s", "200r/s burst=50", "100r/s fixed_window"]);
        let processes = random.one_of(&[2, 3, 4]);
        let mut instance = Instance::new(limit, processes, Trouble::All, seed);
        instance.run(5_000, 1_000);
        let setting = format!("{limit}, {processes} processes, seed {seed}");
        assert!(instance.holds(), "{setting}");
        assert!(instance.admitted.len() > 300, "{setting}");
    }
}
