//! What the processes of one machine share about the keys of a policy, such as the workers
//! of an nginx: leases, refusals, and which process asks for leases of a key.
//!
//! The process that was granted a lease is its owner, and accounts for it. All processes
//! spend it, by its word in the memory that they share. If the owner is killed, the others
//! spend the lease until its time is up, and the store then counts all of its tokens.
//!
//! The memory is a table of places, found by key, each with one record. The word of a place
//! has a generation, which changes before a new record is written there. A reader compares
//! the generation before and after it reads, and spending is a compare-and-swap of the whole
//! word, so a record that is replaced meanwhile is neither read nor spent. Nobody waits for
//! anybody. A process that is killed while it writes a record leaves that place unused for
//! good; that takes a few nanoseconds per lease.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use foldhash::fast::FixedState;
use smallvec::SmallVec;
use tidegate::algorithm::{FixedWindowState, Span, State, TokenBucketState};
use tidegate::{Cost, Kind, Limit};

use super::held::{CLOSED, Lease, NUMBERS, Spent, halves, joined};
use super::key::{HORIZON_US, Refusal, Refused, horizon_us};
use super::out::Out;
use crate::fingerprint::Fingerprint;

/// Places of a bucket: all that are looked at for a key. A busy key has up to four records.
const PLACES: usize = 8;

/// The bit of a word that says that its record is being written.
const WRITING: u64 = 1 << 30;

/// How long after its end the place of a lease is free, if its owner has not closed it: time
/// for an owner that is late.
const LATE_US: u64 = 1_000_000;

/// How long a process that has asked for a lease of a key is the only one to do so.
const KEEP_US: u64 = 2 * HORIZON_US;

/// The least time by which others honour a refusal for longer than the process that heard
/// it: that one asks first.
const GRACE_US: u64 = 2_000;

/// A part of the memory that processes share: a record's bucket. All zeros are an empty one.
#[repr(C)]
#[derive(Debug, Default)]
pub struct LeaseBucket([Place; PLACES]);

/// Memory that the processes of one machine share, so that the leases of a policy belong to
/// all of them: each process spends leases that any of them was granted.
///
/// Use one table for one policy in one store.
#[derive(Debug, Clone, Copy)]
pub struct LeaseTable {
    buckets: &'static [LeaseBucket],
    seed: [u64; 2],
}

impl LeaseTable {
    /// A table in this memory. All processes have the same seed, which should be random and
    /// unknown to clients. Tables that have other seeds find nothing of each other, even in
    /// the same memory.
    #[must_use]
    pub fn new(buckets: &'static [LeaseBucket], seed: [u64; 2]) -> Self {
        Self { buckets, seed }
    }

    pub(super) fn seed(&self) -> [u64; 2] {
        self.seed
    }
}

/// A place for one record.
#[repr(C, align(64))]
#[derive(Debug, Default)]
struct Place {
    /// The generation, and for a lease, what was spent and whether it is closed.
    word: AtomicU64,
    fingerprint: [AtomicU64; 2],
    /// What it is, and the process that wrote it.
    kind: AtomicU64,
    until_us: AtomicU64,
    numbers: [AtomicU64; NUMBERS],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Lease = 1,
    Refusal = 2,
    /// Who asks for leases.
    Keeper = 3,
}

/// What is written in a place.
#[derive(Debug, Clone, Copy)]
struct Record {
    owner: u32,
    until_us: u64,
    numbers: [u64; NUMBERS],
}

/// A record, and where it was found.
struct Found {
    place: &'static Place,
    word: u64,
    record: Record,
}

/// A table, as one process has it.
#[derive(Debug)]
pub(super) struct Common {
    buckets: &'static [LeaseBucket],
    /// This process: a number that no other has.
    owner: u32,
}

/// What other processes have for a check.
#[derive(Debug)]
pub(super) enum Others {
    Spent(Spent, Arc<Lease>),
    Refused(Refused),
    Nothing,
}

impl Common {
    /// `None` for a table without room for anything.
    pub(super) fn new(table: LeaseTable, owner: u32) -> Option<Self> {
        let buckets = table.buckets;
        (!buckets.is_empty()).then_some(Self { buckets, owner })
    }

    /// Takes tokens of a lease of another process, or refuses by what another was refused.
    pub(super) fn take(
        &self,
        fingerprint: Fingerprint,
        limit: &Limit,
        cost: Cost,
        now_us: u64,
    ) -> Others {
        let others = self.find(fingerprint, Subject::Lease);
        let others = others.filter(|it| it.record.owner != self.owner);
        let mut others: SmallVec<[Found; 2]> = others.collect();
        // The oldest first, as each process does with its own.
        others.sort_by_key(|it| it.record.until_us);
        let mut is_empty = true;
        for found in others {
            let lease = found.lease();
            if let Some(spent) = lease.spend(cost, now_us) {
                return Others::Spent(spent, Arc::new(lease));
            }
            is_empty &= lease.left() == 0 || now_us >= lease.valid_until_us();
        }
        let refusals = self.find(fingerprint, Subject::Refusal);
        let mut refusals = refusals.filter(|it| it.record.owner != self.owner);
        let refused = refusals.find_map(|it| {
            let refusal = it.record.refusal(limit)?;
            refusal.refuses(limit, cost, now_us)
        });
        match refused.filter(|_| is_empty) {
            Some(refused) => Others::Refused(refused),
            None => Others::Nothing,
        }
    }

    /// Has other processes spend a lease of this one, of which so much is spent. Returns its
    /// word and what that starts from; `None` where there is no room.
    pub(super) fn publish(
        &self,
        fingerprint: Fingerprint,
        (lease, spent): (&Lease, u32),
        now_us: u64,
    ) -> Option<(&'static AtomicU64, u64)> {
        let record = self.record(lease.valid_until_us(), lease.numbers());
        let subject = Subject::Lease;
        let (place, base) = self.claim(fingerprint, subject, |_| false, now_us)?;
        place.write(fingerprint, subject, &record, base + u64::from(spent));
        Some((&place.word, base))
    }

    /// Tells the others what the store has refused. They honour it for a moment longer than
    /// this process, which then asks for all of them. If it has not by then, any of them may.
    pub(super) fn publish_refusal(
        &self,
        fingerprint: Fingerprint,
        limit: &Limit,
        refusal: &Refusal,
        now_us: u64,
    ) {
        let Some(numbers) = refusal_numbers(limit, refusal) else {
            return;
        };
        let grace_us = (horizon_us(limit) / 8).max(GRACE_US);
        let until_us = refusal.until_us + grace_us;
        let record = self.record(until_us, numbers);
        self.replace(fingerprint, Subject::Refusal, &record, |_| true, now_us);
        if self.kept_until(fingerprint, now_us).is_none() {
            self.keep_until(fingerprint, until_us, now_us);
        }
    }

    /// Until when another process asks for leases of this key, if one does.
    pub(super) fn kept_until(&self, fingerprint: Fingerprint, now_us: u64) -> Option<u64> {
        let (mut is_mine, mut other) = (false, None);
        for Found { record, .. } in self.find(fingerprint, Subject::Keeper) {
            if now_us >= record.until_us {
                continue;
            }
            match record.owner == self.owner {
                true => is_mine = true,
                false => other = other.max(Some((record.owner, record.until_us))),
            }
        }
        // Of two that began at the same time, one goes on.
        let other = other.filter(|(owner, _)| !is_mine || *owner > self.owner);
        other.map(|(_, until_us)| until_us)
    }

    /// This process asks for leases of the key from now on.
    pub(super) fn keep(&self, fingerprint: Fingerprint, now_us: u64) {
        self.keep_until(fingerprint, now_us + KEEP_US, now_us);
    }

    fn keep_until(&self, fingerprint: Fingerprint, until_us: u64, now_us: u64) {
        let record = self.record(until_us, [0; NUMBERS]);
        let is_mine = |record: &Record| record.owner == self.owner;
        self.replace(fingerprint, Subject::Keeper, &record, is_mine, now_us);
    }

    /// The key was reset, or a charge given back: refusals of it no longer hold.
    pub(super) fn forget(&self, fingerprint: Fingerprint) {
        let record = self.record(0, [0; NUMBERS]);
        if self.find(fingerprint, Subject::Refusal).next().is_some() {
            self.replace(fingerprint, Subject::Refusal, &record, |_| true, 0);
        }
    }

    /// Puts tokens back into a lease of another process, unless it was closed.
    pub(super) fn put_back(&self, fingerprint: Fingerprint, nonce: u64, cost: Cost) -> bool {
        let mut leases = self.find(fingerprint, Subject::Lease);
        let found = leases.find(|it| it.nonce() == nonce);
        found.is_some_and(|found| found.lease().put_back(cost))
    }

    /// The open lease that a receipt is of.
    pub(super) fn open_lease(
        &self,
        fingerprint: Fingerprint,
        is_meant: impl Fn(&Lease) -> bool,
    ) -> Option<u64> {
        let leases = self.find(fingerprint, Subject::Lease);
        let mut leases = leases.map(|it| it.lease());
        leases.find(|lease| is_meant(lease)).map(|it| it.nonce)
    }

    fn record(&self, until_us: u64, numbers: [u64; NUMBERS]) -> Record {
        Record {
            owner: self.owner,
            until_us,
            numbers,
        }
    }

    fn bucket(&self, fingerprint: Fingerprint) -> &'static [Place] {
        let buckets = self.buckets.len().max(1) as u64;
        let number = usize::try_from((fingerprint[1] >> 8) % buckets).unwrap_or(0);
        self.buckets.get(number).map_or(&[], |bucket| &bucket.0)
    }

    /// The open records of a key.
    fn find(
        &self,
        fingerprint: Fingerprint,
        subject: Subject,
    ) -> impl Iterator<Item = Found> + use<> {
        let places = self.bucket(fingerprint).iter();
        places.filter_map(move |place| place.read(fingerprint, subject))
    }

    /// A place to write to: that of a record which is replaced, or a free one.
    fn claim(
        &self,
        fingerprint: Fingerprint,
        subject: Subject,
        is_replaced: impl Fn(&Record) -> bool,
        now_us: u64,
    ) -> Option<(&'static Place, u64)> {
        let mut old = self.find(fingerprint, subject);
        if let Some(old) = old.find(|old| is_replaced(&old.record)) {
            return Some((old.place, old.place.claim(old.word)?));
        }
        self.bucket(fingerprint).iter().find_map(|place| {
            let word = place.free(now_us)?;
            Some((place, place.claim(word)?))
        })
    }

    /// Writes a record, unless another process does that at the same time.
    fn replace(
        &self,
        fingerprint: Fingerprint,
        subject: Subject,
        record: &Record,
        is_replaced: impl Fn(&Record) -> bool,
        now_us: u64,
    ) {
        if let Some((place, base)) = self.claim(fingerprint, subject, is_replaced, now_us) {
            place.write(fingerprint, subject, record, base);
        }
    }
}

impl Place {
    /// The record, if it is an open one of this key.
    fn read(&'static self, fingerprint: Fingerprint, subject: Subject) -> Option<Found> {
        let word = self.word.load(Acquire);
        let print = self.fingerprint.each_ref().map(|it| it.load(Acquire));
        let (kind, owner) = halves(self.kind.load(Acquire));
        if word & (CLOSED | WRITING) != 0 || print != fingerprint || kind != subject as u32 {
            return None;
        }
        let record = Record {
            owner,
            until_us: self.until_us.load(Acquire),
            numbers: self.numbers.each_ref().map(|it| it.load(Acquire)),
        };
        let found = Found {
            place: self,
            word,
            record,
        };
        // A value of a later record was stored after the generation had changed.
        (generation(self.word.load(Relaxed)) == generation(word)).then_some(found)
    }

    /// Its word, if nobody needs what is written here.
    fn free(&self, now_us: u64) -> Option<u64> {
        let word = self.word.load(Acquire);
        if word & WRITING != 0 {
            return None;
        }
        let (kind, _) = halves(self.kind.load(Acquire));
        let late_us = match kind == Subject::Lease as u32 {
            true => LATE_US,
            false => 0,
        };
        let until_us = self.until_us.load(Acquire);
        let is_over = now_us >= until_us.saturating_add(late_us);
        (word & CLOSED != 0 || is_over).then_some(word)
    }

    /// Takes the place, if its word is still this one: returns the next generation's.
    fn claim(&self, word: u64) -> Option<u64> {
        let base = generation(word).wrapping_add(1) << 32;
        let claimed = base | CLOSED | WRITING;
        let taken = self.word.compare_exchange(word, claimed, AcqRel, Relaxed);
        taken.is_ok().then_some(base)
    }

    /// Writes a record into a place that was claimed, and opens it.
    fn write(&self, fingerprint: Fingerprint, subject: Subject, record: &Record, word: u64) {
        let pairs = self.fingerprint.iter().zip(fingerprint);
        pairs.for_each(|(place, number)| place.store(number, Release));
        let kind = joined(subject as u32, record.owner);
        self.kind.store(kind, Release);
        self.until_us.store(record.until_us, Release);
        let pairs = self.numbers.iter().zip(record.numbers);
        pairs.for_each(|(place, number)| place.store(number, Release));
        self.word.store(word, Release);
    }
}

impl Found {
    fn nonce(&self) -> u64 {
        self.record.numbers[0]
    }

    fn lease(&self) -> Lease {
        let base = generation(self.word) << 32;
        let Record {
            until_us, numbers, ..
        } = self.record;
        Lease::of_another(&self.place.word, base, until_us, numbers)
    }
}

impl Record {
    /// The refusal, if it is one under this limit.
    fn refusal(&self, limit: &Limit) -> Option<Refusal> {
        let [of, cost, first, second, last_us, sizes, out_us, offset] = self.numbers;
        if of != hash(limit) {
            return None;
        }
        let (_, small) = halves(second);
        let used = match limit.kind() {
            Kind::TokenBucket(_) => State::TokenBucket(TokenBucketState {
                debt: Span {
                    us: first,
                    parts: small,
                },
                last_us,
            }),
            Kind::FixedWindow(_) => State::FixedWindow(FixedWindowState {
                count: small,
                left_us: first,
                last_us,
            }),
            Kind::SlidingWindow(_) | Kind::SlidingLog(_) | Kind::Block(_) => return None,
        };
        let (tokens, leases) = halves(sizes);
        Some(Refusal {
            cost: halves(cost).1,
            until_us: self.until_us,
            used,
            out: Out {
                tokens,
                leases,
                last_us: out_us,
            },
            offset_us: offset.cast_signed(),
        })
    }
}

/// A refusal under a limit that can lease.
fn refusal_numbers(limit: &Limit, refusal: &Refusal) -> Option<[u64; NUMBERS]> {
    let (first, small, last_us) = match refusal.used {
        State::TokenBucket(it) => (it.debt.us, it.debt.parts, it.last_us),
        State::FixedWindow(it) => (it.left_us, it.count, it.last_us),
        _ => return None,
    };
    let out = &refusal.out;
    Some([
        hash(limit),
        refusal.cost.into(),
        first,
        small.into(),
        last_us,
        joined(out.tokens, out.leases),
        out.last_us,
        refusal.offset_us.cast_unsigned(),
    ])
}

/// The same in every process.
fn hash(limit: &Limit) -> u64 {
    FixedState::default().hash_one(limit)
}

fn generation(word: u64) -> u64 {
    word >> 32
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Mutex;
    use std::thread;

    use super::super::held::{Facts, Held};
    use super::*;

    const FACTS: Facts = Facts {
        offset_us: -5,
        era_us: 7,
        limit: 100,
        used: 20,
        drains_us: 1_000,
        token_us: 10,
        ends_at_us: None,
    };

    fn memory(buckets: usize) -> LeaseTable {
        let buckets = (0..buckets).map(|_| LeaseBucket::default());
        let buckets: Box<[LeaseBucket]> = buckets.collect();
        LeaseTable::new(Box::leak(buckets), [1, 2])
    }

    /// Processes that share memory.
    fn processes<const COUNT: usize>(buckets: usize) -> [Common; COUNT] {
        let memory = memory(buckets);
        std::array::from_fn(|number| {
            let owner = u32::try_from(number).expect("a few");
            Common::new(memory, owner).expect("a table")
        })
    }

    fn limit() -> Limit {
        Limit::per_second(100)
    }

    /// A lease of a process, with other processes if there is room: whether there is.
    fn grant(
        process: &Common,
        fingerprint: Fingerprint,
        (nonce, tokens): (u64, u32),
        valid_until_us: u64,
    ) -> (Held, bool) {
        let mut held = Held::new((nonce, tokens), 0, valid_until_us, FACTS, 0);
        let mut is_shared = false;
        held.share(|lease, spent| {
            let place = process.publish(fingerprint, (lease, spent), 0);
            is_shared = place.is_some();
            place
        });
        (held, is_shared)
    }

    fn spends(process: &Common, fingerprint: Fingerprint, now_us: u64) -> Option<Spent> {
        match process.take(fingerprint, &limit(), Cost::ONE, now_us) {
            Others::Spent(spent, _) => Some(spent),
            Others::Refused(_) | Others::Nothing => None,
        }
    }

    #[test]
    fn lease_is_spent_by_every_process_up_to_its_tokens() {
        let [owner, other, third] = processes(1);
        let (key, another) = ([1, 2], [1, 3]);
        let (held, is_shared) = grant(&owner, key, (9, 4), 100);
        assert!(is_shared);
        let own = held.lease().spend(Cost::ONE, 10).expect("a token");
        let spent = spends(&other, key, 10).expect("a token");
        assert_eq!((spent.nonce, spent.at_us, spent.era_us), (9, 5, 7));
        assert_eq!(spent.outcome.remaining() + 1, own.outcome.remaining());
        assert!(spends(&other, another, 10).is_none());
        assert!(spends(&owner, key, 10).is_none(), "its own are elsewhere");
        assert!(spends(&third, key, 99).is_some());
        assert!(spends(&third, key, 100).is_none(), "its time is up");
        assert!(other.put_back(key, 9, Cost::ONE));
        assert!(!other.put_back(key, 8, Cost::ONE), "another lease");
        assert!(spends(&third, key, 20).is_some());
        assert!(spends(&third, key, 20).is_some());
        assert!(spends(&third, key, 20).is_none(), "all four are spent");
        assert_eq!(held.close(), 4);
        assert!(!other.put_back(key, 9, Cost::ONE), "it is closed");
        assert_eq!(held.close(), 4);
    }

    #[test]
    fn closed_lease_is_spent_by_nobody_and_its_place_is_free() {
        let [owner, other] = processes(1);
        let key = [1, 2];
        let (held, _) = grant(&owner, key, (1, 10), 1_000);
        let Others::Spent(_, known) = other.take(key, &limit(), Cost::ONE, 0) else {
            panic!("a lease");
        };
        assert_eq!(held.close(), 1);
        assert!(known.spend(Cost::ONE, 0).is_none());
        let others: Vec<_> = (0..PLACES)
            .map(|number| grant(&other, [5, 6], (2 + number as u64, 10), 1_000))
            .collect();
        assert!(others.iter().all(|(_, is_shared)| *is_shared));
        // The lease in its place is another one.
        assert!(known.spend(Cost::ONE, 0).is_none());
        assert!(!known.put_back(Cost::ONE));
        let (alone, is_shared) = grant(&other, [5, 6], (99, 10), 1_000);
        assert!(!is_shared, "no room");
        assert!(alone.lease().spend(Cost::ONE, 0).is_some());
    }

    #[test]
    fn lease_of_a_dead_process_is_spent_to_its_end_and_its_place_used_again() {
        let [dead, other] = processes(1);
        let key = [1, 2];
        let leases: Vec<_> = (0..PLACES as u64)
            .map(|nonce| grant(&dead, key, (nonce, 10), 1_000).0)
            .collect();
        assert!(spends(&other, key, 999).is_some());
        assert!(spends(&other, key, 1_000).is_none());
        let publish = |now_us: u64| {
            let mut held = Held::new((77, 10), 0, 5_000_000, FACTS, 0);
            let mut is_shared = false;
            held.share(|lease, spent| {
                let place = other.publish(key, (lease, spent), now_us);
                is_shared = place.is_some();
                place
            });
            is_shared
        };
        assert!(!publish(1_000 + LATE_US - 1), "its owner may be late");
        assert!(publish(1_000 + LATE_US));
        // An owner that comes even later has to take all tokens for spent.
        let closed: Vec<u32> = leases.iter().map(Held::close).collect();
        assert_eq!(closed.iter().filter(|spent| **spent == 10).count(), 1);
    }

    #[test]
    fn one_process_asks_for_leases_until_it_is_silent() {
        let [first, second, third] = processes(1);
        let key = [1, 2];
        assert_eq!(second.kept_until(key, 0), None);
        first.keep(key, 0);
        assert_eq!(first.kept_until(key, 10), None);
        assert_eq!(second.kept_until(key, 10), Some(KEEP_US));
        assert_eq!(second.kept_until([1, 3], 10), None);
        first.keep(key, 10);
        assert_eq!(second.kept_until(key, KEEP_US), Some(KEEP_US + 10));
        assert_eq!(second.kept_until(key, KEEP_US + 10), None);
        // Two that begin at the same time.
        let now_us = 2 * KEEP_US;
        second.keep(key, now_us);
        first.keep(key, now_us);
        assert!(first.kept_until(key, now_us).is_some());
        assert_eq!(second.kept_until(key, now_us), None);
        assert!(third.kept_until(key, now_us).is_some());
    }

    #[test]
    fn refusal_holds_for_others_a_moment_longer_and_under_its_limit_alone() {
        let [first, second] = processes(1);
        let key = [1, 2];
        let refusal = Refusal {
            cost: 3,
            until_us: 50_000,
            used: State::TokenBucket(TokenBucketState {
                debt: Span {
                    us: 990_000,
                    parts: 0,
                },
                last_us: 1_000,
            }),
            out: Out {
                tokens: 1,
                leases: 1,
                last_us: 900_000,
            },
            offset_us: 1_000,
        };
        first.publish_refusal(key, &limit(), &refusal, 0);
        let refuses = |process: &Common, limit: &Limit, cost, now_us| match process.take(
            key,
            limit,
            Cost::of(cost),
            now_us,
        ) {
            Others::Refused(refused) => Some(refused),
            Others::Spent(..) | Others::Nothing => None,
        };
        let same = refusal.refuses(&limit(), Cost::of(3), 10);
        assert_eq!(refuses(&second, &limit(), 3, 10), same);
        assert!(refuses(&second, &limit(), 2, 10).is_none(), "it may fit");
        assert!(refuses(&second, &Limit::per_second(99), 3, 10).is_none());
        assert!(refuses(&first, &limit(), 3, 10).is_none(), "it knows");
        assert!(refuses(&second, &limit(), 3, 50_000).is_some());
        assert!(refuses(&second, &limit(), 3, 63_000).is_none());
        // Tokens of a lease come first, and a larger cost than its rest asks the store.
        let (held, _) = grant(&first, key, (1, 3), 1_000);
        assert!(refuses(&second, &limit(), 4, 10).is_none());
        assert!(spends(&second, key, 10).is_some());
        held.close();
        assert!(refuses(&second, &limit(), 4, 10).is_some());
        second.forget(key);
        assert!(refuses(&second, &limit(), 4, 10).is_none());
    }

    /// Owners grant and close leases of a few keys in little room while others spend them and
    /// put tokens back: each owner accounts for exactly what the others have spent.
    #[test]
    fn owner_accounts_for_what_all_processes_spend() {
        const TOKENS: u32 = 20;
        let [first, second, third, fourth] = processes(2);
        let keys: [Fingerprint; 3] = [[1, 0], [2, 0], [3, 1 << 8]];
        let spent: Mutex<HashMap<u64, i64>> = Mutex::default();
        let closed: Mutex<HashMap<u64, (u32, usize)>> = Mutex::default();
        let owns = |process: &Common| {
            let mut closes = HashMap::new();
            for round in 0..20_000_u64 {
                let key = usize::try_from(round % 3).unwrap_or(0);
                let nonce = u64::from(process.owner) << 32 | round << 2 | key as u64;
                let (held, _) = grant(process, keys[key], (nonce, TOKENS), 1_000);
                for _ in 0..round % 64 {
                    std::hint::spin_loop();
                }
                closes.insert(nonce, (held.close(), key));
            }
            closed.lock().expect("no panic").extend(closes);
        };
        let spends = |process: &Common| {
            let mut counts: HashMap<u64, i64> = HashMap::new();
            let mut known: Option<Arc<Lease>> = None;
            for round in 0..200_000_usize {
                let key = round % 3;
                let taken = process.take(keys[key], &limit(), Cost::ONE, 0);
                if let Others::Spent(spent, lease) = taken {
                    assert_eq!(spent.nonce & 3, key as u64, "a lease of another key");
                    *counts.entry(spent.nonce).or_default() += 1;
                    if round % 5 == 0 && process.put_back(keys[key], spent.nonce, Cost::ONE) {
                        *counts.entry(spent.nonce).or_default() -= 1;
                    }
                    known = Some(lease);
                }
                // One that it knows from before, and whose place may have another by now.
                if let Some(spent) = known.as_ref().and_then(|it| it.spend(Cost::ONE, 0)) {
                    *counts.entry(spent.nonce).or_default() += 1;
                }
            }
            let mut spent = spent.lock().expect("no panic");
            for (nonce, count) in counts {
                *spent.entry(nonce).or_default() += count;
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| owns(&first));
            scope.spawn(|| owns(&second));
            scope.spawn(|| spends(&third));
            scope.spawn(|| spends(&fourth));
        });
        let (spent, closed) = (spent.into_inner(), closed.into_inner());
        let (spent, closed) = (spent.expect("no panic"), closed.expect("no panic"));
        let all: i64 = spent.values().sum();
        assert!(all > 100, "{all} tokens were spent");
        for (nonce, (told, _)) in closed {
            let spent = spent.get(&nonce).copied().unwrap_or(0);
            assert!(told <= TOKENS);
            assert_eq!(i64::from(told), spent, "lease {nonce:x}");
        }
    }
}
