//! One budget for all bytes that wait for clients: requests that have not arrived completely,
//! and responses that have not been read.
//!
//! Nothing waits for room. What does not fit is refused at once, so a server that is under
//! attack answers short requests as before.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::connection::Connection;

/// The most bytes of all connections together, beyond what each of them has free.
const TOTAL: usize = 256 << 20;

/// Bytes that each connection has free, so that it always makes progress.
const FREE: usize = 16 << 10;

/// The most bytes of one connection.
const MOST: usize = 16 << 20;

/// The most endless streams of all connections together.
const STREAMS: usize = 1_024;

/// What all connections of a process share.
#[derive(Debug, Default)]
pub(super) struct Budget {
    bytes: AtomicUsize,
    streams: AtomicUsize,
}

/// The budget has no room for so many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many requests and responses are in flight")]
pub struct NoRoom;

/// Bytes on the budget, until this is dropped.
#[derive(Debug)]
pub struct Reserved {
    connection: Arc<Connection>,
    bytes: AtomicUsize,
}

/// The seat of an endless stream, until this is dropped.
#[derive(Debug)]
pub struct StreamSeat(Arc<Budget>);

impl Budget {
    /// Adds bytes to those that a connection holds.
    fn take(&self, held: &AtomicUsize, bytes: usize) -> Result<(), NoRoom> {
        if bytes > MOST {
            return Err(NoRoom);
        }
        let after = held.fetch_add(bytes, Relaxed) + bytes;
        let more = beyond_free(after) - beyond_free(after - bytes);
        let all = match more {
            0 => 0,
            more => self.bytes.fetch_add(more, Relaxed) + more,
        };
        if after <= MOST && all <= TOTAL {
            return Ok(());
        }
        self.give_back(held, bytes);
        Err(NoRoom)
    }

    fn give_back(&self, held: &AtomicUsize, bytes: usize) {
        let before = held.fetch_sub(bytes, Relaxed);
        let less = beyond_free(before) - beyond_free(before - bytes);
        if less > 0 {
            self.bytes.fetch_sub(less, Relaxed);
        }
    }

    /// A seat for a stream, if there is one.
    pub(super) fn seat(self: &Arc<Self>) -> Option<StreamSeat> {
        let seat = StreamSeat(Arc::clone(self));
        (self.streams.fetch_add(1, Relaxed) < STREAMS).then_some(seat)
    }
}

/// What of the bytes that a connection holds counts for all connections.
fn beyond_free(held: usize) -> usize {
    held.saturating_sub(FREE)
}

impl Reserved {
    pub(super) fn new(connection: &Arc<Connection>, bytes: usize) -> Result<Self, NoRoom> {
        connection.budget.take(&connection.waiting, bytes)?;
        Ok(Self {
            connection: Arc::clone(connection),
            bytes: AtomicUsize::new(bytes),
        })
    }

    /// Reserves more bytes.
    pub fn grow(&self, more: usize) -> Result<(), NoRoom> {
        let connection = &self.connection;
        connection.budget.take(&connection.waiting, more)?;
        self.bytes.fetch_add(more, Relaxed);
        Ok(())
    }

    /// Reserves as many bytes as this, or stays as it is. One caller at a time.
    pub fn resize(&self, bytes: usize) -> Result<(), NoRoom> {
        let before = self.bytes.load(Relaxed);
        match bytes.checked_sub(before) {
            Some(0) => {}
            Some(more) => self.grow(more)?,
            None => self.shrink_to(bytes),
        }
        Ok(())
    }

    /// Gives back what is not needed for so many bytes. One caller at a time.
    pub fn shrink_to(&self, bytes: usize) {
        let before = self.bytes.fetch_min(bytes, Relaxed);
        let connection = &self.connection;
        let less = before.saturating_sub(bytes);
        connection.budget.give_back(&connection.waiting, less);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

impl Drop for StreamSeat {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_connection_has_a_little_free_and_all_of_them_share_the_rest() {
        let budget = Arc::new(Budget::default());
        let open = || Arc::new(Connection::of(&budget));
        let used = || budget.bytes.load(Relaxed);
        let small: Vec<_> = (0..100).map(|_| open().reserve(FREE).unwrap()).collect();
        assert_eq!(used(), 0);
        let large = open();
        let first = large.reserve(MOST - 1).unwrap();
        assert_eq!(used(), MOST - 1 - FREE);
        assert_eq!(large.reserve(2).err(), Some(NoRoom));
        assert_eq!(used(), MOST - 1 - FREE);
        let others: Vec<_> = (0..15).map(|_| open().reserve(MOST).unwrap()).collect();
        // What each of them has free is not in the sum.
        let rest = TOTAL - used();
        assert_eq!(rest, 1 + 16 * FREE);
        assert_eq!(open().reserve(rest + FREE + 1).err(), Some(NoRoom));
        let last = open().reserve(rest + FREE).unwrap();
        assert_eq!(open().reserve(FREE + 1).err(), Some(NoRoom));
        assert!(open().reserve(FREE).is_ok());
        last.resize(FREE + 1).unwrap();
        assert_eq!(used(), TOTAL - rest + 1);
        drop((small, first, others, last));
        assert_eq!(used(), 0);
        assert_eq!(large.waiting.load(Relaxed), 0);
    }

    #[test]
    fn seat_that_is_left_is_free_again() {
        let budget = Arc::new(Budget::default());
        let mut seats: Vec<_> = (0..STREAMS).map(|_| budget.seat().unwrap()).collect();
        assert!(budget.seat().is_none());
        assert!(budget.seat().is_none());
        seats.pop();
        assert!(budget.seat().is_some());
    }
}
