//! Counts the bytes a limiter asks the allocator for.
//!
//! What is counted is the size of each layout, as asked for: what the allocator
//! rounds up or keeps for itself depends on the allocator and is left out. It
//! counts only while [`live_bytes`] runs, so that the timed measurements
//! pay one load an allocation and nothing else.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

static COUNTING: AtomicBool = AtomicBool::new(false);
static TAKEN: AtomicUsize = AtomicUsize::new(0);
static GIVEN_BACK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, and a count.
pub(crate) struct Counting;

#[expect(
    unsafe_code,
    reason = "a global allocator is an unsafe trait; this one only passes on"
)]
// SAFETY: every method hands its arguments unchanged to the system's allocator,
// which keeps the promises, and counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(&TAKEN, layout.size());
        // SAFETY: the caller's promises are the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(&TAKEN, layout.size());
        // SAFETY: the caller's promises are the system's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(&GIVEN_BACK, layout.size());
        count(&TAKEN, new_size);
        // SAFETY: the caller's promises are the system's.
        unsafe { System.realloc(memory, layout, new_size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(&GIVEN_BACK, layout.size());
        // SAFETY: the caller's promises are the system's.
        unsafe { System.dealloc(memory, layout) }
    }
}

fn count(counter: &AtomicUsize, bytes: usize) {
    if COUNTING.load(Relaxed) {
        counter.fetch_add(bytes, Relaxed);
    }
}

/// Runs `make`, and says how many of the bytes it asked for are still held by
/// what it made. No other thread may allocate meanwhile.
pub(crate) fn live_bytes<T>(make: impl FnOnce() -> T) -> (T, usize) {
    TAKEN.store(0, Relaxed);
    GIVEN_BACK.store(0, Relaxed);
    COUNTING.store(true, Relaxed);
    let made = make();
    COUNTING.store(false, Relaxed);
    (made, TAKEN.load(Relaxed) - GIVEN_BACK.load(Relaxed))
}
