//! A key as the store keeps it, and what messages, checks, refunds and parcels do to it: the
//! scripts in Rust, with leases number for number. Only tests run it: conformance tests hold
//! it to the scripts, and the simulator and the explorer have it for their store.

use tidegate::algorithm::{
    Counter, FULL_KEPT, FixedWindowState, Log, LogView, SlidingLog, Span, State,
};
use tidegate::{Align, Cost, Kind, LevelOutcome, Limit};

use super::message::{MOST_TOKENS, Message, Reply, TERM_US, size};
use super::out::Out;
use crate::mode::background::{Parcel, give_back};

/// The shortest lease, and the most of them.
const SHORTEST_US: u64 = 50_000;
const MOST_LEASES: usize = 256;

/// What a log may have to hold: nodes in the mode `background` pass the limit.
const MOST_EVENTS: u32 = 16_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Record {
    nonce: u64,
    tokens: u32,
    ends_us: u64,
}

/// One key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    limit: Limit,
    used: State,
    era_us: u64,
    /// In the order of their ends.
    records: Vec<Record>,
    /// The events of a log.
    log: Log,
    pub(crate) expires_ms: u64,
}

/// A key at an instant, brought up to it.
struct Current {
    key: Kept,
    is_outdated: bool,
    is_changed: bool,
}

/// What a store has of one key: nothing, once it has expired.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Store {
    pub(crate) kept: Option<Kept>,
}

impl Store {
    /// Does what a message says.
    pub(crate) fn message(&mut self, message: &Message, now_us: u64) -> Reply {
        let limit = message.limit;
        let mut current = self.current(limit, now_us);
        for settle in &message.settles {
            current.settle(settle.nonce, settle.spent);
        }
        let asks = message.asks.iter();
        let admitted = asks.map(|run| current.ask(run.cost, run.count));
        let admitted = admitted.collect();
        let grant = message.grant.map(|grant| match current.find(grant.nonce) {
            Some(at) => {
                let record = current.key.records[at];
                (record.tokens, record.ends_us - now_us)
            }
            None => current.grant(grant.nonce, grant.want, now_us),
        });
        let (given, lease_us) = grant.unwrap_or((0, 0));
        let reply = Reply {
            now_us,
            given,
            lease_us,
            used: current.key.used,
            era_us: current.key.era_us,
            out: current.out(now_us),
            admitted,
        };
        if current.is_changed || current.is_outdated {
            self.keep(current, now_us);
        }
        reply
    }

    /// Decides this many identical checks, as a node in the mode `exact` asks for them: what
    /// was used before them, what is out, and how many are admitted.
    pub(crate) fn check(
        &mut self,
        limit: Limit,
        cost: Cost,
        count: u32,
        now_us: u64,
    ) -> (State, Out, u32) {
        let mut current = self.current(limit, now_us);
        let before = (current.key.used, current.out(now_us));
        let admitted = current.ask(cost, count);
        if current.is_changed || current.is_outdated && count > 0 {
            self.keep(current, now_us);
        }
        (before.0, before.1, admitted)
    }

    /// Counts a check that was refused: nothing is left but what is out.
    pub(crate) fn saturate(&mut self, limit: Limit, now_us: u64) {
        let mut current = self.current(limit, now_us);
        let (before, out) = (current.key.used, tokens(&current.key.records));
        match (&mut current.key.used, limit.kind()) {
            (State::TokenBucket(state), Kind::TokenBucket(bucket)) => {
                let per_us = u128::from(bucket.parts_per_us());
                let parts = |span: Span| u128::from(span.us) * per_us + u128::from(span.parts);
                let out = u128::from(out) * u128::from(bucket.token_parts());
                let most = parts(bucket.capacity()).saturating_sub(out);
                let most = most.max(parts(state.debt));
                state.debt.us = u64::try_from(most / per_us).expect("a time");
                state.debt.parts = u32::try_from(most % per_us).expect("a part");
            }
            // A refusal opens no window.
            (State::FixedWindow(state), Kind::FixedWindow(window)) if state.count > 0 => {
                let most = window.rate().requests().saturating_sub(out);
                state.count = state.count.max(most);
            }
            _ => {}
        }
        if current.key.used != before {
            self.keep(current, now_us);
        }
    }

    /// Decides one check, and says what a caller is told and whether it is admitted.
    pub(crate) fn decide(&mut self, limit: Limit, cost: Cost, now_us: u64) -> (LevelOutcome, bool) {
        let (_, out, admitted) = self.check(limit, cost, 1, now_us);
        let current = self.current(limit, now_us);
        let (used, mark) = match limit.kind() {
            Kind::SlidingLog(it) => {
                let view = it.view(&current.key.log, now_us);
                let state = it.read(&current.key.log, &view, cost);
                (State::SlidingLog(state), view.raw_us())
            }
            _ => (current.key.used, current.key.era_us),
        };
        let is_admitted = admitted == 1;
        let outcome = out.outcome(&limit, &used, cost, is_admitted);
        let level = LevelOutcome {
            outcome,
            cost,
            mark,
        };
        (level, is_admitted)
    }

    /// Counts what a node in the mode `background` has charged, and says what it comes to.
    pub(crate) fn parcel(&mut self, parcel: &Parcel, now_us: u64) -> State {
        let limit = parcel.limit;
        let mut current = self.current(limit, now_us);
        let before = self.kept.as_ref().map(|kept| match kept.used {
            State::SlidingLog(_) => current.key.used,
            used => used,
        });
        let after = parcel.arrive(before, now_us);
        // A look writes nothing, unless the clock has stepped back.
        let kept = self.kept.as_ref();
        let is_back = kept.is_some_and(|kept| kept.used.last_us() > now_us);
        if parcel.unsent.is_none() && !is_back {
            return after;
        }
        if let (State::SlidingLog(old), State::SlidingLog(new)) = (current.key.used, after) {
            current.log_event(new.used - old.used);
        }
        current.key.used = after;
        self.keep(current, now_us);
        if let (Some(kept), State::TokenBucket(_)) = (&mut self.kept, after) {
            kept.expires_ms += u64::try_from(FULL_KEPT.as_millis()).unwrap_or(0);
        }
        after
    }

    /// Forgets the key once it has expired.
    pub(crate) fn expire(&mut self, now_us: u64) {
        let kept = self.kept.as_ref();
        if kept.is_some_and(|kept| kept.expires_ms * 1_000 <= now_us) {
            self.kept = None;
        }
    }

    /// Gives back a charge that was made then, in that era; of a log, with that mark.
    pub(crate) fn refund(
        &mut self,
        limit: Limit,
        cost: Cost,
        charged_at_us: u64,
        era_us: u64,
        now_us: u64,
    ) {
        let mut current = self.current(limit, now_us);
        if let Kind::SlidingLog(it) = limit.kind() {
            let view = it.view(&current.key.log, now_us);
            if current.key.log.refund(&view, cost, era_us) {
                current.read_log(it, now_us);
                self.keep(current, now_us);
            }
            return;
        }
        if current.is_outdated || current.key.era_us != era_us || charged_at_us > now_us {
            return;
        }
        let before = current.key.used;
        current.key.used = match (current.key.used, limit.kind()) {
            (State::FixedWindow(state), _) => State::FixedWindow(FixedWindowState {
                count: state.count.saturating_sub(cost.get()),
                ..state
            }),
            (used, _) => give_back(&limit, used, cost, charged_at_us),
        };
        if current.key.used != before {
            self.keep(current, now_us);
        }
    }

    fn keep(&mut self, current: Current, now_us: u64) {
        let Kept { limit, used, .. } = current.key;
        let records = &current.key.records;
        let last_us = records.last().map_or(0, |record| record.ends_us);
        let out = tokens(records);
        let fresh_at_us = match (used, limit.kind()) {
            (State::TokenBucket(state), Kind::TokenBucket(bucket)) => {
                let out = bucket.with_leased(bucket.new_state(now_us), out).debt;
                let ceil_us = |parts: u64| parts.div_ceil(bucket.parts_per_us().into());
                let parts = u64::from(state.debt.parts) + u64::from(out.parts);
                last_us.max(now_us) + state.debt.us + out.us + ceil_us(parts)
            }
            (State::FixedWindow(state), _) if state.count == 0 && records.is_empty() => {
                self.kept = None;
                return;
            }
            (State::FixedWindow(state), _) => last_us.max(now_us + state.left_us),
            _ => now_us + limit.reset_after_us(&used),
        };
        self.kept = Some(Kept {
            expires_ms: fresh_at_us.div_ceil(1_000),
            ..current.key
        });
    }

    fn current(&self, limit: Limit, now_us: u64) -> Current {
        let mut current = Current {
            key: Kept {
                limit,
                used: limit.new_state(now_us),
                era_us: now_us,
                records: Vec::new(),
                log: Log::default(),
                expires_ms: 0,
            },
            is_outdated: false,
            is_changed: false,
        };
        let Some(kept) = self.kept.clone() else {
            return current;
        };
        if let Kind::SlidingLog(it) = limit.kind() {
            current.key.log = kept.log;
            current.read_log(it, now_us);
            return current;
        }
        let last_us = kept.used.last_us();
        let has_leases = !kept.records.is_empty();
        let mut used = kept.used;
        let is_over = !has_leases && is_over(&used, now_us);
        if is_over {
            return current;
        }
        current.key.records = kept.records;
        if now_us < last_us {
            current.is_outdated = true;
            for record in &mut current.key.records {
                record.ends_us -= last_us - now_us;
            }
            used = used.moved_to(now_us);
        }
        if !kept.limit.counts_like(&limit) {
            used = limit.adopt(&kept.limit, used, now_us);
            current.is_outdated = true;
        }
        let mut era_us = kept.era_us;
        while let Some(record) = current.key.records.first().copied() {
            if record.ends_us > now_us {
                break;
            }
            current.key.records.remove(0);
            used = lapsed(&limit, used, record, &mut era_us);
        }
        current.key.used = limit.at(used, now_us);
        let is_new = current.key.used == limit.new_state(now_us);
        let counts = match current.key.used {
            State::FixedWindow(_) => !is_new,
            _ => !is_new || !current.key.records.is_empty(),
        };
        if counts {
            current.key.era_us = if current.is_outdated { now_us } else { era_us };
        }
        current
    }
}

/// Without leases, a key whose quota is full is not read.
fn is_over(used: &State, now_us: u64) -> bool {
    match used {
        State::TokenBucket(state) => {
            state.last_us + state.debt.us + u64::from(state.debt.parts > 0) <= now_us
        }
        State::FixedWindow(state) => state.last_us + state.left_us <= now_us,
        _ => false,
    }
}

/// A lease has ended: all of it counts.
fn lapsed(limit: &Limit, used: State, record: Record, era_us: &mut u64) -> State {
    match (used, limit.kind()) {
        (State::TokenBucket(state), Kind::TokenBucket(bucket)) => {
            let state = bucket.at(state, record.ends_us);
            State::TokenBucket(bucket.with_leased(state, record.tokens))
        }
        (State::FixedWindow(mut state), Kind::FixedWindow(window)) => {
            let elapsed_us = record.ends_us.saturating_sub(state.last_us);
            if elapsed_us > state.left_us {
                state.count = 0;
                state.left_us = opened(window.align(), window.rate().window_us(), record.ends_us);
                *era_us = record.ends_us;
            } else {
                state.left_us -= elapsed_us;
            }
            state.last_us = record.ends_us;
            state.count = state.count.saturating_add(record.tokens);
            State::FixedWindow(state)
        }
        _ => used,
    }
}

/// How long a window runs that opens now.
fn opened(align: Align, window_us: u64, now_us: u64) -> u64 {
    match align {
        Align::Epoch => window_us - now_us % window_us,
        Align::First => window_us,
    }
}

fn tokens(records: &[Record]) -> u32 {
    records.iter().map(|record| record.tokens).sum()
}

impl Current {
    fn read_log(&mut self, limit: &SlidingLog, now_us: u64) {
        let view: LogView = limit.view(&self.key.log, now_us);
        self.key.used = State::SlidingLog(limit.read(&self.key.log, &view, Cost::ONE));
    }

    /// Another event of a log, if it has cost anything.
    fn log_event(&mut self, cost: u32) {
        if let Kind::SlidingLog(it) = self.key.limit.kind() {
            let view = it.view(&self.key.log, self.key.used.last_us());
            match cost {
                0 => self.key.log.trim(&view),
                _ => self.key.log.write(&view, cost, MOST_EVENTS),
            }
        }
    }

    fn out(&self, now_us: u64) -> Out {
        Out {
            tokens: tokens(&self.key.records),
            leases: u32::try_from(self.key.records.len()).unwrap_or(u32::MAX),
            last_us: self.key.records.last().map_or(0, |it| it.ends_us - now_us),
        }
    }

    fn find(&self, nonce: u64) -> Option<usize> {
        self.key.records.iter().position(|it| it.nonce == nonce)
    }

    fn settle(&mut self, nonce: u64, spent: u32) {
        let Some(at) = self.find(nonce) else {
            return;
        };
        let record = self.key.records.remove(at);
        self.is_changed = true;
        self.charge(spent.min(record.tokens));
    }

    /// So many tokens are used, whether they fit or not.
    fn charge(&mut self, tokens: u32) {
        match (&mut self.key.used, self.key.limit.kind()) {
            (State::TokenBucket(state), Kind::TokenBucket(bucket)) => {
                *state = bucket.with_leased(*state, tokens);
            }
            (State::FixedWindow(state), Kind::FixedWindow(window)) => {
                if tokens > 0 && state.left_us == 0 {
                    let window_us = window.rate().window_us();
                    state.left_us = opened(window.align(), window_us, state.last_us);
                }
                state.count = state.count.saturating_add(tokens);
            }
            (used, _) => {
                *used = self.key.limit.charge(*used, Cost::of(tokens));
                self.log_event(tokens);
            }
        }
    }

    /// Whether so much more fits.
    fn fits(&self, cost: u128) -> bool {
        let wanted = cost + u128::from(tokens(&self.key.records));
        match (self.key.used, self.key.limit.kind()) {
            (State::TokenBucket(state), Kind::TokenBucket(bucket)) => {
                let per_us = u128::from(bucket.parts_per_us());
                let parts = |span: Span| u128::from(span.us) * per_us + u128::from(span.parts);
                let token = u128::from(bucket.token_parts());
                parts(state.debt) + wanted * token <= parts(bucket.capacity())
            }
            (State::FixedWindow(state), Kind::FixedWindow(window)) => {
                u128::from(state.count) + wanted <= u128::from(window.rate().requests())
            }
            (used, _) => {
                let cost = u64::try_from(cost).ok().and_then(|it| Cost::new(it).ok());
                cost.is_some_and(|cost| self.key.limit.admits(&used, cost))
            }
        }
    }

    fn ask(&mut self, cost: Cost, count: u32) -> u32 {
        let mut admitted = 0;
        while admitted < count && self.fits(cost.get().into()) {
            self.charge(cost.get());
            self.is_changed = true;
            admitted += 1;
        }
        admitted
    }

    fn grant(&mut self, nonce: u64, want: u32, now_us: u64) -> (u32, u64) {
        let out = tokens(&self.key.records);
        let half = size(&self.key.limit) / 2;
        let mut give = want
            .min(half.saturating_sub(out))
            .min(MOST_TOKENS.saturating_sub(out));
        // The most that fits, by halves.
        let (mut fits, mut most) = (0, give);
        while fits < most {
            let middle = fits + (most - fits).div_ceil(2);
            match self.fits(middle.into()) {
                true => fits = middle,
                false => most = middle - 1,
            }
        }
        give = fits;
        let mut lease_us = TERM_US;
        let mut left_us = 0;
        if let (State::FixedWindow(state), Kind::FixedWindow(window)) =
            (self.key.used, self.key.limit.kind())
        {
            left_us = match state.left_us {
                0 => opened(window.align(), window.rate().window_us(), now_us),
                left_us => left_us,
            };
            lease_us = lease_us.min(left_us);
        }
        if give == 0 || lease_us < SHORTEST_US || self.key.records.len() >= MOST_LEASES {
            return (0, 0);
        }
        if let State::FixedWindow(state) = &mut self.key.used {
            state.left_us = left_us;
        }
        let record = Record {
            nonce,
            tokens: give,
            ends_us: now_us + lease_us,
        };
        let behind = self
            .key
            .records
            .iter()
            .rposition(|it| it.ends_us <= record.ends_us);
        self.key
            .records
            .insert(behind.map_or(0, |at| at + 1), record);
        self.is_changed = true;
        (give, lease_us)
    }
}
