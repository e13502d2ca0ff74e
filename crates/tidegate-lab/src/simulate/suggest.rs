//! The smallest limit and burst that refuse fewer than a share.
//!
//! Requests of the log are kept on disk ([`Spool`]) and decided again under one limit after
//! another, by the same limiter. A pass ends as soon as it has refused too many, and as many
//! passes run at once as there are processors.
//!
//! A limit has two numbers, and a smaller one of them can be paid for with more of the other.
//! So the policy's own numbers say what is wanted: first the smallest limit is found while
//! the burst stays in proportion to it; then the smallest burst for that limit; then it is
//! seen whether the limit can still do with less. In the end one less of either refuses too
//! many. Each search halves (or thirds) a range of which one end refuses too many and the
//! other does not, so that holds for every algorithm, also for those under which a larger
//! limit may refuse more.

use std::collections::{HashMap, HashSet};
use std::num::NonZero;

use anyhow::{Context, anyhow};
use indicatif::ProgressBar;
use tidegate::{Algorithm, Limit, LimitSpec, Policy, Rate};

use super::arguments::{Of, Share};
use super::decide::Decider;
use super::spool::Spool;
use super::summary::TOP;
use super::tally::{Client, Counts, Prints, Same, Tally};

/// What is asked for.
#[derive(Clone, Copy)]
pub(super) struct Question<'a> {
    pub(super) policy: &'a Policy,
    pub(super) share: Share,
    pub(super) of: Of,
    /// The requests, the clients, and the most requests of one client.
    pub(super) requests: u64,
    pub(super) clients: u64,
    pub(super) most: u64,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Suggestion {
    pub(super) best: Point,
    /// Limits around it, smallest first, the best among them.
    pub(super) curve: Vec<Point>,
    /// The clients that it refuses, the most refused first.
    pub(super) clients: Vec<Client>,
    /// The smallest limit that refuses none of them either, if there are any.
    pub(super) with_them: Option<Limit>,
}

/// A limit, and what it refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) limit: Limit,
    pub(super) refused: Refused,
}

/// Requests that were refused, and clients of which at least one was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Refused {
    pub(super) requests: u64,
    pub(super) clients: u64,
}

/// The numbers of a limit that are searched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Numbers {
    requests: u64,
    burst: Option<u64>,
}

/// A search, and what it has found out so far.
struct Search<'a> {
    question: &'a Question<'a>,
    spool: &'a Spool,
    names: &'a [String],
    spec: LimitSpec,
    /// Whether a limit refuses few enough.
    known: HashMap<Numbers, bool>,
    bar: &'a ProgressBar,
}

/// Looks for the smallest limit. `Err` says why there is none to suggest.
pub(super) fn suggest(
    question: &Question<'_>,
    spool: &Spool,
    names: &[String],
    bar: &ProgressBar,
) -> anyhow::Result<Result<Suggestion, String>> {
    let [level] = question.policy.levels() else {
        let why = "it has several levels, and --suggest looks for one limit: give each level a policy of its own";
        return Ok(Err(why.into()));
    };
    let Some(spec) = level.limit().spec() else {
        return Ok(Err("it blocks everything".into()));
    };
    if !question.policy.enabled() {
        return Ok(Err("it is not enabled".into()));
    }
    if question.requests == 0 {
        return Ok(Err("it has no requests".into()));
    }
    let mut search = Search {
        question,
        spool,
        names,
        spec,
        known: HashMap::new(),
        bar,
    };
    let Some(best) = search.best()? else {
        return Ok(Err(
            "no limit refuses so few: overrides and the algorithm's own maximum refuse more".into(),
        ));
    };
    let curve = search.curve(best)?;
    let limit = search.limit(best).context("a limit that was tried")?;
    let best = curve.iter().copied().find(|point| point.limit == limit);
    let best = best.context("the curve goes through the best")?;
    let (mut clients, mut with_them) = (Vec::new(), None);
    if best.refused.clients > 0 {
        clients = search.refused(limit)?;
        let nobody = Question {
            share: Share::ZERO,
            ..*question
        };
        let mut search = Search {
            question: &nobody,
            known: HashMap::new(),
            ..search
        };
        let numbers = search.best()?;
        with_them = numbers.and_then(|numbers| search.limit(numbers));
    }
    Ok(Ok(Suggestion {
        best,
        curve,
        clients,
        with_them,
    }))
}

impl Search<'_> {
    fn best(&mut self) -> anyhow::Result<Option<Numbers>> {
        let Some(mut best) = self.in_proportion()? else {
            return Ok(None);
        };
        if self.spec.algorithm != Algorithm::TokenBucket || self.spec.strict {
            return Ok(Some(best));
        }
        loop {
            let with_burst = |burst| Numbers {
                burst: Some(burst),
                ..best
            };
            let burst = self.capacity(best.requests);
            let burst = self.least(best.burst.unwrap_or(burst), with_burst)?;
            let with_requests = |requests| Numbers {
                requests,
                burst: Some(burst),
            };
            let requests = self.least(best.requests, with_requests)?;
            let next = with_requests(requests);
            // With as many requests as before, the burst is the smallest for them.
            if next.requests == best.requests {
                return Ok(Some(next));
            }
            best = next;
        }
    }

    /// The smallest limit whose burst is in proportion to it, as in the policy.
    fn in_proportion(&mut self) -> anyhow::Result<Option<Numbers>> {
        let spec = self.spec;
        let in_proportion = |requests| Numbers {
            requests,
            burst: match (spec.burst, spec.strict) {
                (Some(burst), true) => Some(burst),
                (Some(_), false) => Some(capacity(&spec, requests)),
                (None, _) => None,
            },
        };
        let highest = u64::from(spec.algorithm.profile().max_requests);
        // A client with no more requests than the burst is never refused.
        let mut enough = self.question.most.clamp(1, highest);
        if spec.strict {
            enough = enough.saturating_add(spec.burst.unwrap_or(0)).min(highest);
        }
        while capacity(&spec, enough) < self.question.most && !spec.strict && enough < highest {
            enough = (enough * 2).min(highest);
        }
        if !self.passes(&[in_proportion(enough)])?[0] {
            return Ok(None);
        }
        let least = self.least(enough, in_proportion)?;
        Ok(Some(in_proportion(least)))
    }

    fn capacity(&self, requests: u64) -> u64 {
        capacity(&self.spec, requests)
    }

    /// The smallest number from 1 up to one that passes, such that one less does not.
    fn least(&mut self, passing: u64, numbers: impl Fn(u64) -> Numbers) -> anyhow::Result<u64> {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let threads = u64::try_from(threads.min(8))?;
        let (mut failing, mut passing) = (0, passing);
        // Often it is the smallest already.
        if passing > 1 && !self.passes(&[numbers(passing - 1)])?[0] {
            return Ok(passing);
        }
        while passing - failing > 1 {
            let gap = passing - failing;
            let inner = threads.min(gap - 1);
            let tried: Vec<u64> = (1..=inner)
                .map(|number| failing + (gap * number).div_ceil(inner + 1).min(gap - 1))
                .collect();
            let all: Vec<Numbers> = tried.iter().map(|tried| numbers(*tried)).collect();
            for (tried, passes) in tried.iter().zip(self.passes(&all)?) {
                match passes {
                    true => {
                        passing = *tried;
                        break;
                    }
                    false => failing = *tried,
                }
            }
        }
        Ok(passing)
    }

    /// Whether these limits refuse few enough.
    fn passes(&mut self, all: &[Numbers]) -> anyhow::Result<Vec<bool>> {
        let unknown = |numbers: &&Numbers| !self.known.contains_key(numbers);
        let unknown: Vec<Numbers> = all.iter().filter(unknown).copied().collect();
        let tried = self.try_all(&unknown, true)?;
        for (numbers, refused) in unknown.iter().zip(tried) {
            let passes = refused.is_some_and(|refused| self.is_few(refused));
            self.known.insert(*numbers, passes);
        }
        Ok(all.iter().map(|numbers| self.known[numbers]).collect())
    }

    fn is_few(&self, refused: Refused) -> bool {
        let Question {
            share,
            of,
            requests,
            clients,
            ..
        } = self.question;
        match of {
            Of::Requests => share.is_above(refused.requests, *requests),
            // Of few clients, a small share is nobody, and the busiest alone would set the
            // limit of all.
            Of::Clients => {
                let may_be_one = refused.clients == 1 && *clients > 2 && !share.is_zero();
                may_be_one || share.is_above(refused.clients, *clients)
            }
        }
    }

    /// What limits around the best refuse.
    fn curve(&self, best: Numbers) -> anyhow::Result<Vec<Point>> {
        const PERCENT: [u64; 11] = [25, 50, 75, 90, 95, 100, 105, 110, 125, 150, 200];
        let scaled = |number: u64, percent: u64| (number * percent).div_ceil(100).max(1);
        let mut all: Vec<Numbers> = PERCENT
            .iter()
            .map(|percent| Numbers {
                requests: scaled(best.requests, *percent),
                burst: best.burst.map(|burst| match self.spec.strict {
                    true => burst,
                    false => scaled(burst, *percent),
                }),
            })
            .collect();
        // Where numbers are small, several of them are the same.
        all.dedup();
        let tried = self.try_all(&all, false)?;
        let points = all.iter().zip(tried).filter_map(|(numbers, refused)| {
            let limit = self.limit(*numbers)?;
            Some(Point {
                limit,
                refused: refused?,
            })
        });
        Ok(points.collect())
    }

    /// What each of these limits refuses; `None` for one that cannot be. A pass that is only
    /// to say whether it is few enough ends when it is not.
    fn try_all(&self, all: &[Numbers], ends_early: bool) -> anyhow::Result<Vec<Option<Refused>>> {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let mut refused = Vec::new();
        for some in all.chunks(threads) {
            let some = std::thread::scope(|scope| {
                let passes = some.iter().map(|numbers| {
                    let limit = self.limit(*numbers);
                    scope.spawn(move || limit.map(|limit| self.pass(limit, ends_early)).transpose())
                });
                let passes: Vec<_> = passes.collect();
                let results = passes.into_iter().map(|pass| {
                    let ended = pass.join();
                    ended.map_err(|_| anyhow!("a pass has panicked"))?
                });
                results.collect::<anyhow::Result<Vec<_>>>()
            })?;
            refused.extend(some);
        }
        Ok(refused)
    }

    /// Decides all requests under a limit.
    fn pass(&self, limit: Limit, ends_early: bool) -> anyhow::Result<Refused> {
        let decider = self.decider(limit)?;
        let prints = Prints::default();
        let mut clients: HashSet<_, Same> = HashSet::default();
        let mut requests = 0;
        self.spool.replay(|batch| {
            batch.each(self.names.len(), |at_us, values| {
                let Some(key) = decider.key(values) else {
                    return;
                };
                if decider.refused_by(at_us, self.names, values).is_some() {
                    requests += 1;
                    clients.insert(prints.of(key));
                }
            });
            let refused = Refused {
                requests,
                clients: clients.len() as u64,
            };
            !ends_early || self.is_few(refused)
        })?;
        Ok(Refused {
            requests,
            clients: clients.len() as u64,
        })
    }

    /// The clients that a limit refuses, the most refused first.
    fn refused(&self, limit: Limit) -> anyhow::Result<Vec<Client>> {
        let decider = self.decider(limit)?;
        let mut tally = Tally::default();
        self.spool.replay(|batch| {
            batch.each(self.names.len(), |at_us, values| {
                if let Some(key) = decider.key(values) {
                    let refused_by = decider.refused_by(at_us, self.names, values);
                    tally.add(at_us, key, refused_by.is_some());
                }
            });
            true
        })?;
        Ok(tally.top(TOP))
    }

    /// The policy under another limit.
    fn decider(&self, limit: Limit) -> anyhow::Result<Decider> {
        self.bar.set_message(format!("trying {limit}"));
        self.bar.tick();
        let policy = self.question.policy;
        let own = *policy.levels()[0].limit();
        let changed = policy.with_limits(policy.store(), |other| match *other == own {
            true => limit,
            false => *other,
        });
        Decider::unbounded(&changed, self.names)
    }

    fn limit(&self, numbers: Numbers) -> Option<Limit> {
        let spec = LimitSpec {
            rate: Rate::new(numbers.requests, self.spec.rate.window()).ok()?,
            burst: numbers.burst,
            ..self.spec
        };
        spec.build().ok()
    }
}

/// How many may pass at once under so many requests, in proportion.
fn capacity(spec: &LimitSpec, requests: u64) -> u64 {
    let own = u64::from(spec.rate.requests());
    let burst = spec.burst.unwrap_or(own);
    let scaled = u128::from(requests) * u128::from(burst);
    let scaled = scaled.div_ceil(u128::from(own));
    u64::try_from(scaled).map_or(u32::MAX.into(), |it| it.clamp(1, u32::MAX.into()))
}

impl Refused {
    /// As counts of what is asked for.
    pub(super) fn of(self, question: &Question<'_>) -> Counts {
        match question.of {
            Of::Requests => Counts {
                requests: question.requests,
                marked: self.requests,
            },
            Of::Clients => Counts {
                requests: question.clients,
                marked: self.clients,
            },
        }
    }
}
