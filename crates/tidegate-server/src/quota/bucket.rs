//! One bucket: the Envoys that report it, what each may admit, and the account with the store.
//!
//! **The account.** `credit` is what was charged to the store, less all that the Envoys could
//! have admitted so far. A token bucket of size `m` and rate `r`, assigned `t` ago, could have
//! admitted `m + r*t`, and counts as that until a report says how much it really was. Every
//! tick charges what can be admitted until the next one. If the store refuses, the credit
//! becomes negative: that is owed. It is charged later, and until then the bucket assigns
//! less: nothing at all once it owes what the rate gives in [`Bucket::patience_s`].
//!
//! **The rate.** All assignments that may be in force add up to the limit's rate at most. A
//! smaller rate counts as the larger one for [`SETTLE_S`](super::SETTLE_S) after it was sent. A
//! stream that ends leaves its assignments behind until they expire, or until the next Envoy
//! that reports the bucket takes them over: usually the same one on a new stream.
//!
//! **The size.** Envoy fills a token bucket whenever it changes, so a change costs `m` tokens.
//! Rates that differ by less than a fifth from what they should be are left alone. A larger
//! rate is assigned only when the account can pay for it.

use std::collections::BTreeMap;

use super::shares::divide;
use super::{
    Action, Assignment, CAUTION_S, DELIVERY_S, HolderId, IDLE_REPORTS, LIFETIME_S, REPORT_S,
    SETTLE_S, whole_32,
};

/// What the policy says about a bucket.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Terms {
    /// At most `rate` tokens per second, `burst` at once.
    Limited {
        /// Tokens per second.
        rate: f64,
        /// The most that can be charged at once.
        burst: f64,
    },
    /// All requests are admitted, and charged if the policy measures them.
    Open {
        /// The most that can be charged at once; `None` where nothing is charged.
        burst: Option<f64>,
    },
    /// All requests are refused.
    Closed,
}

/// How much a rate may be off before it is assigned anew: every change costs a full bucket.
const SLACK: f64 = 0.2;

/// Everything about one key of a policy.
#[derive(Debug)]
pub(super) struct Bucket {
    terms: Terms,
    holders: BTreeMap<HolderId, Holder>,
    /// What ended streams have left behind.
    left: Vec<Given>,
    /// What is charged and not yet admitted; negative: what is owed.
    credit: f64,
    /// The rate that the store has been able to give lately, and when that was noted.
    payable: f64,
    payable_at_s: f64,
    /// What was charged since.
    paid: f64,
    /// Until when the books are up to date, in seconds.
    at_s: f64,
    /// A charge is on its way.
    charging: bool,
    /// Until when others are known to compete for the limit.
    contended_until_s: f64,
    /// How long to believe that next time.
    contended_for_s: f64,
    /// Until when Envoys may hold assignments of an earlier process.
    cautious_until_s: f64,
}

/// An Envoy that reports the bucket.
#[derive(Debug)]
struct Holder {
    /// Requests per second, admitted or not, if it is known.
    demand: Option<f64>,
    /// What it says it has admitted per second before it came here.
    used: f64,
    reported_at_s: f64,
    /// Requests reported since, if that was too short ago for a rate.
    uncounted: f64,
    /// Reports in a row without a request.
    zeros: u32,
    given: Option<Given>,
    /// What it may have admitted and has not reported.
    may: f64,
}

/// An assignment that may be in force.
#[derive(Debug, Clone, Copy)]
struct Given {
    assignment: Assignment,
    changed_at_s: f64,
    expires_s: f64,
    /// The larger rate before it, which may be in force still.
    before: f64,
}

impl Given {
    /// The rate that may be in force.
    fn rate(&self, now_s: f64) -> f64 {
        match now_s < self.changed_at_s + SETTLE_S {
            true => self.assignment.rate().max(self.before),
            false => self.assignment.rate(),
        }
    }
}

impl Holder {
    fn held(&self, now_s: f64) -> f64 {
        self.given.as_ref().map_or(0.0, |given| given.rate(now_s))
    }

    fn changed_within(&self, now_s: f64, time_s: f64) -> bool {
        let given = self.given.as_ref();
        given.is_some_and(|given| now_s < given.changed_at_s + time_s)
    }

    /// The rate that was last assigned to it.
    fn told(&self) -> f64 {
        let given = self.given.as_ref();
        given.map_or(0.0, |given| given.assignment.rate())
    }
}

impl Bucket {
    pub(super) fn new(terms: Terms, now_s: f64, started_s: f64) -> Self {
        Self {
            terms,
            holders: BTreeMap::new(),
            left: Vec::new(),
            credit: 0.0,
            payable: f64::INFINITY,
            payable_at_s: now_s,
            paid: 0.0,
            at_s: now_s,
            charging: false,
            contended_until_s: 0.0,
            contended_for_s: 0.0,
            cautious_until_s: started_s + CAUTION_S,
        }
    }

    /// Whether nothing would be lost with it.
    pub(super) fn is_over(&self) -> bool {
        self.holders.is_empty() && self.left.is_empty() && !self.charging && self.credit > -1.0
    }

    /// Tokens per second that the limit gives; none where there is no limit.
    fn rate(&self) -> f64 {
        match self.terms {
            Terms::Limited { rate, .. } => rate,
            Terms::Open { .. } | Terms::Closed => 0.0,
        }
    }

    /// The most that can be charged at once.
    fn burst(&self) -> f64 {
        match self.terms {
            Terms::Limited { burst, .. } => burst,
            Terms::Open { burst } => burst.unwrap_or(0.0),
            Terms::Closed => 0.0,
        }
    }

    /// How often it is charged: four times while the limit's bucket fills.
    pub(super) fn period_s(&self) -> f64 {
        match self.terms {
            Terms::Limited { rate, burst } => (burst / rate / 4.0).clamp(0.1, REPORT_S / 2.0),
            Terms::Open { .. } | Terms::Closed => REPORT_S / 2.0,
        }
    }

    /// It assigns nothing once it owes what the limit gives in this time.
    pub(super) fn patience_s(&self) -> f64 {
        (self.period_s() * 4.0).max(1.0)
    }

    /// The size of the token bucket of an Envoy with this rate. All together come to half of
    /// the limit's own at most, unless there are more Envoys than tokens.
    fn size(&self, rate: f64) -> f64 {
        let all = (self.rate() / 4.0).max(10.0).min(self.burst() / 2.0);
        (all * rate / self.rate()).floor().max(1.0)
    }

    fn owed(&self) -> f64 {
        (-self.credit).max(0.0)
    }

    /// The rate that may be assigned to all together: what the store can give, and less than
    /// that, the more is owed. A tenth of what is tolerated makes no difference, so that
    /// rates keep still.
    fn budget(&self) -> f64 {
        let tolerated = self.rate() * self.patience_s();
        let share = (self.owed() / tolerated - 0.1) / 0.9;
        self.rate().min(self.payable) * (1.0 - share.clamp(0.0, 1.0))
    }

    /// The rate that Envoys may be admitting at.
    fn held(&self, now_s: f64) -> f64 {
        let holders = self.holders.values().map(|holder| holder.held(now_s));
        holders.sum::<f64>() + self.left_behind(now_s)
    }

    fn left_behind(&self, now_s: f64) -> f64 {
        self.left.iter().map(|given| given.rate(now_s)).sum()
    }

    /// Brings the books to now.
    fn accrue(&mut self, now_s: f64) {
        let passed = (now_s - self.at_s).max(0.0);
        let mut admitted = 0.0;
        for holder in self.holders.values_mut() {
            let more = holder.held(self.at_s) * passed;
            holder.may += more;
            admitted += more;
            holder.given = holder.given.filter(|given| given.expires_s > now_s);
        }
        for given in &self.left {
            let lasts = (given.expires_s - self.at_s).clamp(0.0, passed);
            admitted += given.rate(self.at_s) * lasts;
        }
        self.left.retain(|given| given.expires_s > now_s);
        self.credit -= admitted;
        self.at_s = self.at_s.max(now_s);
    }

    /// An Envoy reports the bucket for the first time on its stream. It has admitted `used`
    /// requests per second before.
    pub(super) fn join(&mut self, now_s: f64, id: HolderId, used: f64, out: &mut Vec<Action>) {
        self.accrue(now_s);
        let mut holder = Holder {
            demand: None,
            used,
            reported_at_s: now_s,
            uncounted: 0.0,
            zeros: 0,
            given: None,
            may: 0.0,
        };
        let largest = |(_, one): &(usize, &Given), (_, other): &(usize, &Given)| {
            one.rate(now_s).total_cmp(&other.rate(now_s))
        };
        let left = self.left.iter().enumerate().max_by(largest);
        if let Some(index) = left.map(|(index, _)| index) {
            let taken = self.left.swap_remove(index);
            self.give(now_s, id, &mut holder, taken.assignment, taken.before, out);
        }
        self.holders.insert(id, holder);
    }

    /// Tells an Envoy its assignment. A changed one starts full.
    fn give(
        &mut self,
        now_s: f64,
        id: HolderId,
        holder: &mut Holder,
        assignment: Assignment,
        before: f64,
        out: &mut Vec<Action>,
    ) {
        let expires_s = now_s + f64::from(LIFETIME_S) + DELIVERY_S;
        let old = holder.given.filter(|old| old.assignment == assignment);
        holder.given = Some(match old {
            Some(old) => Given { expires_s, ..old },
            None => {
                holder.may += assignment.size();
                self.credit -= assignment.size();
                Given {
                    assignment,
                    changed_at_s: now_s,
                    expires_s,
                    before,
                }
            }
        });
        out.push(Action::Assign(id, assignment));
    }

    /// Tells an Envoy that it has another rate.
    fn give_rate(&mut self, now_s: f64, id: HolderId, rate: f64, out: &mut Vec<Action>) {
        let Some(mut holder) = self.holders.remove(&id) else {
            return;
        };
        let before = holder.given.as_ref().map(|given| given.assignment);
        let made = Assignment::of(rate, self.size(rate), before.as_ref());
        let held = holder.held(now_s);
        self.give(now_s, id, &mut holder, made, held, out);
        self.holders.insert(id, holder);
    }

    /// What an Envoy has admitted and refused since its last report. Its assignment is
    /// renewed.
    pub(super) fn report(
        &mut self,
        now_s: f64,
        id: HolderId,
        terms: Terms,
        (allowed, denied): (f64, f64),
        out: &mut Vec<Action>,
    ) {
        self.accrue(now_s);
        self.terms = terms;
        let Some(mut holder) = self.holders.remove(&id) else {
            return;
        };
        self.settle(now_s, &mut holder, allowed);
        holder.uncounted += allowed + denied;
        let passed = now_s - holder.reported_at_s;
        if passed >= REPORT_S / 5.0 {
            let demand = holder.uncounted / passed;
            // Up at once, down by half per report.
            holder.demand = Some(demand.max(holder.demand.unwrap_or(0.0) / 2.0));
            holder.zeros = match holder.uncounted > 0.0 {
                true => 0,
                false => holder.zeros + 1,
            };
            (holder.reported_at_s, holder.uncounted) = (now_s, 0.0);
        }
        if holder.zeros >= IDLE_REPORTS {
            out.push(Action::Abandon(id));
            self.leave_behind(now_s, holder, now_s + SETTLE_S);
            return;
        }
        if let Some(given) = holder.given {
            self.give(now_s, id, &mut holder, given.assignment, given.before, out);
        }
        self.holders.insert(id, holder);
    }

    /// Puts into the books what an Envoy has really admitted.
    fn settle(&mut self, now_s: f64, holder: &mut Holder, allowed: f64) {
        // Admitted without an assignment, before the first one or after the last: charged,
        // but not so much of it that nothing can be assigned for long.
        let unforeseen = (allowed - holder.may).max(0.0);
        let tolerated = self.rate() * self.patience_s();
        match self.terms {
            Terms::Limited { .. } => {
                self.credit -= unforeseen.min((self.credit + tolerated).max(0.0));
            }
            Terms::Open { burst: Some(_) } => self.credit -= allowed,
            Terms::Open { burst: None } | Terms::Closed => {}
        }
        // What is neither admitted nor left in the Envoy's bucket has run over.
        let rest = (holder.may - allowed).max(0.0);
        let level = match &holder.given {
            Some(given) if given.changed_at_s + DELIVERY_S > now_s => rest,
            Some(given) => rest.min(given.assignment.size() + given.assignment.rate() * DELIVERY_S),
            None => 0.0,
        };
        holder.may = level;
        let most = (self.held(now_s) + holder.held(now_s)) * self.period_s() + 1.0;
        self.credit = (self.credit + rest - level).min(most.max(self.credit));
    }

    /// The stream of an Envoy has ended.
    pub(super) fn leave(&mut self, now_s: f64, id: HolderId) {
        self.accrue(now_s);
        if let Some(holder) = self.holders.remove(&id) {
            self.leave_behind(now_s, holder, f64::INFINITY);
        }
    }

    fn leave_behind(&mut self, now_s: f64, holder: Holder, until_s: f64) {
        // A smaller rate that was sent just before may not have arrived.
        let is_unsure = holder.changed_within(now_s, DELIVERY_S);
        let left = holder.given.map(|given| Given {
            expires_s: given.expires_s.min(until_s),
            changed_at_s: match is_unsure {
                true => given.expires_s,
                false => given.changed_at_s,
            },
            ..given
        });
        self.left
            .extend(left.filter(|given| given.rate(now_s) > 0.0));
    }

    /// The rate that each Envoy should have.
    fn targets(&self, now_s: f64) -> Vec<(HolderId, f64)> {
        let rate = (self.budget() - self.left_behind(now_s)).max(0.0);
        let holders = self.holders.iter();
        let demands: Vec<_> = holders.map(|(_, holder)| holder.demand).collect();
        let mut shares = divide(rate, &demands, now_s < self.contended_until_s);
        if now_s < self.cautious_until_s {
            let floor = rate / demands.len().max(1) as f64 / 10.0;
            let used = self.holders.values().map(|holder| holder.used);
            for (share, used) in shares.iter_mut().zip(used) {
                *share = share.min(used.max(floor));
            }
        }
        self.holders.keys().copied().zip(shares).collect()
    }

    /// Assigns smaller rates where they are due, and renews assignments without recent reports.
    fn shrink(&mut self, now_s: f64, targets: &[(HolderId, f64)], out: &mut Vec<Action>) {
        let total: f64 = self.holders.values().map(Holder::told).sum();
        let is_starved = |(id, target): &(HolderId, f64)| {
            let holder = &self.holders[id];
            holder.told() < target / 2.0
        };
        let limit = (self.rate() - self.left_behind(now_s)).max(0.0);
        let starved: f64 = targets
            .iter()
            .filter(|it| is_starved(it))
            .map(|it| it.1)
            .sum();
        let is_full = total > limit * 1.000_001 || (starved > 0.0 && total + starved > limit);
        for (id, target) in targets {
            let holder = &self.holders[id];
            let told = holder.told();
            let is_recent = holder.changed_within(now_s, 1.0);
            let is_late =
                (told > target * (1.0 + SLACK) && !is_recent) || (is_full && told > target * 1.001);
            let is_old = holder.given.as_ref().is_some_and(|given| {
                given.expires_s < now_s + f64::from(LIFETIME_S) + DELIVERY_S - REPORT_S * 1.2
            });
            if is_late {
                self.give_rate(now_s, *id, *target, out);
            } else if let (true, Some(given)) = (is_old, holder.given) {
                let mut holder = self.holders.remove(id).expect("it was there");
                self.give(now_s, *id, &mut holder, given.assignment, given.before, out);
                self.holders.insert(*id, holder);
            }
        }
    }

    /// Who should have a larger rate, and which they can have now.
    fn growth(&self, now_s: f64, targets: &[(HolderId, f64)]) -> Vec<(HolderId, f64)> {
        let mut room = (self.budget().min(self.rate()) - self.held(now_s)).max(0.0);
        let mut hungry: Vec<_> = targets.to_vec();
        let told = |id: &HolderId| self.holders[id].told();
        hungry.retain(|(id, target)| {
            let holder = &self.holders[id];
            let is_recent = holder.changed_within(now_s, 2.0) && told(id) > target / 2.0;
            (*target > told(id) * (1.0 + SLACK) && !is_recent) || holder.given.is_none()
        });
        // Those that have the least of what they should have come first.
        hungry.sort_by(|one, other| (told(&one.0) / one.1).total_cmp(&(told(&other.0) / other.1)));
        let mut growth = Vec::new();
        for (id, target) in hungry {
            let (has, held) = (told(&id), self.holders[&id].held(now_s));
            let rate = target.min(held + room);
            let is_new = self.holders[&id].given.is_none();
            if rate > has * (1.0 + SLACK) || is_new {
                room = (room - (rate - held).max(0.0)).max(0.0);
                growth.push((id, rate));
            }
        }
        growth
    }

    /// Assigns larger rates, as far as they are paid for. Those without any assignment are
    /// refused until then.
    fn grow(&mut self, now_s: f64, out: &mut Vec<Action>) {
        let targets = self.targets(now_s);
        for (id, rate) in self.growth(now_s, &targets) {
            let is_paid = rate > 0.0 && self.credit >= self.size(rate);
            if is_paid {
                self.give_rate(now_s, id, rate, out);
            } else if self.holders[&id].given.is_none() {
                self.give_rate(now_s, id, 0.0, out);
            }
        }
    }

    /// What comes next: smaller rates at once, then a charge, if one is needed. Larger
    /// rates follow when it has been [charged](Self::charged).
    pub(super) fn tick(&mut self, now_s: f64, out: &mut Vec<Action>) -> Option<u32> {
        self.accrue(now_s);
        let blanket = match self.terms {
            Terms::Limited { .. } => None,
            Terms::Open { .. } => Some(Assignment::Allow),
            Terms::Closed => Some(Assignment::Deny),
        };
        if let Some(assignment) = blanket {
            self.give_all(now_s, assignment, out);
        } else {
            let targets = self.targets(now_s);
            self.shrink(now_s, &targets, out);
        }
        if self.charging {
            return None;
        }
        let needed = self.needed(now_s).ceil().min(self.burst().floor());
        if needed >= 1.0 {
            self.charging = true;
            return Some(whole_32(needed));
        }
        if blanket.is_none() {
            self.grow(now_s, out);
        }
        None
    }

    fn give_all(&mut self, now_s: f64, assignment: Assignment, out: &mut Vec<Action>) {
        let others = self.holders.iter().filter(|(_, holder)| {
            let given = holder.given.as_ref();
            given.is_none_or(|given| given.assignment != assignment)
        });
        let others: Vec<_> = others.map(|(id, _)| *id).collect();
        for id in others {
            let mut holder = self.holders.remove(&id).expect("it was there");
            self.give(now_s, id, &mut holder, assignment, 0.0, out);
            self.holders.insert(id, holder);
        }
    }

    /// What should be charged now: all that can be admitted until after the next tick, and
    /// the larger rates that are due.
    fn needed(&self, now_s: f64) -> f64 {
        let ahead_s = self.period_s() * 1.25;
        let mut needed = self.held(now_s) * ahead_s - self.credit;
        if let Terms::Limited { .. } = self.terms {
            for (id, rate) in self.growth(now_s, &self.targets(now_s)) {
                if rate > 0.0 {
                    let more = (rate - self.holders[&id].held(now_s)).max(0.0);
                    needed += self.size(rate) + more * ahead_s;
                }
            }
        }
        needed
    }

    /// The store has been charged this much.
    pub(super) fn charged(&mut self, now_s: f64, paid: u32, out: &mut Vec<Action>) {
        self.accrue(now_s);
        self.charging = false;
        self.credit += f64::from(paid);
        match self.terms {
            Terms::Limited { .. } => {
                self.learn(now_s, f64::from(paid));
                self.grow(now_s, out);
            }
            // What only watches does not wait for its charges.
            Terms::Open { .. } | Terms::Closed => self.credit = 0.0,
        }
    }

    /// Learns from charges what the store can give. What falls short lowers it by as much
    /// within a second; what does not raises it by a tenth of the limit per second. So
    /// Tidegates that compete for a limit come to equal parts of it.
    ///
    /// A store that cannot give what is assigned means that others compete. That is
    /// believed for ten seconds, and twice as long each time it turns out to be so still.
    fn learn(&mut self, now_s: f64, paid: f64) {
        self.paid += paid;
        let passed = now_s - self.payable_at_s;
        if passed < self.period_s() / 2.0 {
            return;
        }
        // A window that is used up is short for a moment only: what counts is how much is owed.
        let missing = 1.0 - self.paid / (self.held(now_s) * passed);
        let weight = (self.owed() / (self.rate() * self.patience_s()) * 2.0).min(1.0);
        let short = match missing.is_finite() {
            true => missing.clamp(0.0, 1.0) * weight,
            false => 0.0,
        };
        let (rate, passed) = (self.rate(), passed.min(1.0));
        let payable = self.payable.min(rate) * (1.0 - short * passed);
        self.payable = (payable + (1.0 - short) * rate * passed / 10.0).min(rate);
        (self.payable_at_s, self.paid) = (now_s, 0.0);
        if self.owed() < rate * self.patience_s() / 4.0 && self.payable > rate * 0.8 {
            return;
        }
        if now_s > self.contended_until_s {
            let is_again = now_s < self.contended_until_s + self.contended_for_s.min(60.0);
            self.contended_for_s = match is_again {
                true => (self.contended_for_s * 2.0).min(160.0),
                false => 10.0,
            };
        }
        self.contended_until_s = now_s + self.contended_for_s;
    }

    /// Whether a stream waits for a rate that others give up.
    pub(super) fn is_hungry(&self, now_s: f64) -> bool {
        let targets = self.targets(now_s);
        targets
            .iter()
            .any(|(id, target)| self.holders[id].told() < target / 2.0)
    }
}
