//! One limiter under the traffic of the pictures, and what it answered.

use tidegate::{Cost, Limit, Limiter, ManualClock, MemoryStore};

use super::traffic::{END_MS, PHASES, WINDOW_MS};

/// How often the limiter is looked at. All requests lie on this grid, and so does
/// all that happens one window after them.
const STEP_MS: u32 = 10;

/// Where the clock starts: at the edge of a window, as every ten seconds.
const START_US: u64 = 1_800_000_000_000_000;

/// What a limiter did.
pub(crate) struct Run {
    pub(crate) requests: Vec<Request>,
    /// Only those that differ from the one before.
    pub(crate) samples: Vec<Sample>,
}

/// A request, and its answer.
pub(crate) struct Request {
    pub(crate) at_ms: u32,
    /// Which of [`PHASES`] it belongs to.
    pub(crate) phase: usize,
    pub(crate) admitted: bool,
}

/// How things stand after the requests of an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) at_ms: u32,
    /// What the limiter says would still be admitted.
    pub(crate) remaining: u32,
    /// What was admitted less than a window ago, counted from the answers.
    pub(crate) admitted_in_window: u32,
}

impl Run {
    /// Sends the traffic through a new limiter.
    pub(crate) fn of(limit: Limit) -> Self {
        const KEY: &str = "key";
        let clock = ManualClock::at_us(START_US);
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let limiter = Limiter::over(&store, limit).expect("one limit");
        let mut run = Self {
            requests: Vec::new(),
            samples: Vec::new(),
        };
        for at_ms in (0..=END_MS).step_by(STEP_MS as usize) {
            clock.set_us(START_US + u64::from(at_ms) * 1_000);
            for (phase, traffic) in PHASES.iter().enumerate() {
                if traffic.has_request_at(at_ms) {
                    let admitted = limiter.check(KEY).allowed();
                    run.requests.push(Request {
                        at_ms,
                        phase,
                        admitted,
                    });
                }
            }
            run.note(Sample {
                at_ms,
                remaining: limiter.peek(KEY, Cost::ONE).remaining(),
                admitted_in_window: run.admitted_in_window(at_ms),
            });
        }
        run
    }

    /// How many were admitted of each phase.
    pub(crate) fn admitted(&self) -> [usize; PHASES.len()] {
        std::array::from_fn(|phase| {
            let of_phase = self
                .requests
                .iter()
                .filter(|request| request.phase == phase);
            of_phase.filter(|request| request.admitted).count()
        })
    }

    /// The first instant at which the most had been admitted within a window.
    pub(crate) fn most(&self) -> Sample {
        let mut samples = self.samples.iter().copied();
        let first = samples.next().expect("a run starts with a sample");
        samples.fold(first, |most, sample| {
            if sample.admitted_in_window > most.admitted_in_window {
                sample
            } else {
                most
            }
        })
    }

    /// An event of age `W` is gone.
    fn admitted_in_window(&self, at_ms: u32) -> u32 {
        let recent = self.requests.iter().rev();
        let recent = recent.take_while(|request| at_ms - request.at_ms < WINDOW_MS);
        recent.map(|request| u32::from(request.admitted)).sum()
    }

    fn note(&mut self, sample: Sample) {
        let same = |last: &Sample| {
            Sample {
                at_ms: sample.at_ms,
                ..*last
            } == sample
        };
        if !self.samples.last().is_some_and(same) {
            self.samples.push(sample);
        }
    }
}
