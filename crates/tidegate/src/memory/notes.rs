//! What a shard has to remember about receipts: which were refunded, and which are void.
//!
//! A refund must happen once, and never for a charge that no longer counts: after a
//! reset, a conversion to another limit or a step back of the clock, nobody knows what
//! an earlier charge of that key is still worth. Both are remembered for as long as
//! they matter, in bounded lists. When there is no room for one more refund, it is
//! refused; when there is none for one more key with void receipts, all earlier
//! receipts of the shard are void.

use super::bounds::Quota;

/// Lists of refunds per shard, so that each of them is short.
const LISTS: usize = 64;

/// The most refunds of a list, and the most keys with void receipts.
const MOST: usize = 1024;

/// The notes of one shard.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Refunded receipts, in lists by their ids.
    spent: Box<[Vec<Spent>]>,
    void: Vec<Void>,
    /// How often receipts have become void: a receipt knows how often it was then.
    era: u32,
    /// Receipts of all keys from before this era are void.
    all_void_before: u32,
}

/// A receipt that was refunded.
#[derive(Debug, Clone, Copy)]
struct Spent {
    id: u64,
    /// From then on it is worth nothing anyway.
    forget_at_us: u64,
}

/// A key whose receipts are void.
#[derive(Debug, Clone, Copy)]
struct Void {
    key: u64,
    /// Those from before this era.
    before: u32,
    forget_at_us: u64,
}

impl Notes {
    #[inline]
    pub(super) fn era(&self) -> u32 {
        self.era
    }

    /// Remembers a refund. Says no when it has happened already, or when there is no
    /// room to remember it: all shards together remember at most `most`.
    pub(super) fn spend(
        &mut self,
        id: u64,
        forget_at_us: u64,
        now_us: u64,
        (held, most): (&Quota, usize),
    ) -> bool {
        if self.spent.is_empty() {
            self.spent = (0..LISTS).map(|_| Vec::new()).collect();
        }
        let list = usize::try_from(id % LISTS as u64).unwrap_or(0);
        let list = &mut self.spent[list];
        if list.iter().any(|spent| spent.id == id) {
            return false;
        }
        if list.len() == list.capacity() {
            let before = list.len();
            list.retain(|spent| spent.forget_at_us > now_us);
            held.give_back(before - list.len());
        }
        let has_room = list.len() < MOST && held.take(1, most);
        if has_room {
            list.push(Spent { id, forget_at_us });
        }
        has_room
    }

    /// Makes the receipts of a key void that were given out so far.
    pub(super) fn void(&mut self, key: u64, forget_at_us: u64, now_us: u64) {
        self.era = self.era.saturating_add(1);
        if let Some(void) = self.void.iter_mut().find(|void| void.key == key) {
            void.before = self.era;
            void.forget_at_us = void.forget_at_us.max(forget_at_us);
            return;
        }
        if self.void.len() == self.void.capacity() {
            self.void.retain(|void| void.forget_at_us > now_us);
        }
        if self.void.len() < MOST {
            self.void.push(Void {
                key,
                before: self.era,
                forget_at_us,
            });
        } else {
            self.all_void_before = self.era;
        }
    }

    /// Whether a receipt of this key from this era is void.
    pub(super) fn is_void(&self, key: u64, era: u32) -> bool {
        let of_key = self.void.iter().find(|void| void.key == key);
        let before = of_key.map_or(0, |void| void.before);
        // Eras that can no longer be told apart are void, too.
        era < before.max(self.all_void_before) || era == u32::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refund_is_remembered_once_and_refused_without_room() {
        let (mut notes, held) = (Notes::default(), Quota::default());
        let mut spend =
            |id, forget_at_us, now_us| notes.spend(id, forget_at_us, now_us, (&held, 100_000));
        assert!(spend(64, 100, 0));
        assert!(!spend(64, 100, 0));
        for id in 2..=MOST as u64 {
            assert!(spend(id * 64, 100, 0));
        }
        assert!(!spend(0, 100, 99), "no room in the list");
        assert!(spend(1, 100, 99), "another list");
        assert!(spend(0, 200, 100), "the others no longer matter");
        assert_eq!(held.held(), 2);
    }

    #[test]
    fn refunds_of_all_shards_are_bounded_together() {
        let (mut first, mut second) = (Notes::default(), Notes::default());
        let held = Quota::default();
        assert!(first.spend(1, 100, 0, (&held, 2)));
        assert!(second.spend(2, 100, 0, (&held, 2)));
        assert!(!second.spend(3, 100, 0, (&held, 2)));
    }

    #[test]
    fn voiding_is_per_key_until_the_list_is_full() {
        let mut notes = Notes::default();
        notes.void(7, 100, 10);
        assert_eq!(notes.era(), 1);
        assert!(notes.is_void(7, 0) && !notes.is_void(7, 1) && !notes.is_void(8, 0));
        for key in 100..100 + MOST as u64 {
            notes.void(key, 100, 20);
        }
        assert!(notes.is_void(8, 1_024) && !notes.is_void(8, 1_025));
    }
}
