//! How much is asked for keys that this node keeps nothing of: most keys, most of the time.
//! A key takes no place of its own until it is worth a lease.
//!
//! Keys are counted in slots by their fingerprints. Keys that share a slot are counted
//! together, so one of them may be taken for busier than it is. It then asks for a lease of
//! a few tokens that it does not need, which is harmless, and rare: there are more slots
//! than a node asks for keys within a horizon.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tidegate::Cost;

use super::key::horizons;
use crate::fingerprint::Fingerprint;

const SLOTS: usize = 1 << 16;

/// Microseconds of a unit of time, as a power of two: a slot has 32 bits for it.
const UNIT: u32 = 7;

/// For each slot the demand as the bits of an `f32`, and when it was counted.
#[derive(Debug)]
pub(super) struct DemandSketch(Box<[AtomicU64]>);

impl DemandSketch {
    pub(super) fn new() -> Self {
        Self((0..SLOTS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Notes that this cost is asked for, and returns what that comes to, older cost being
    /// worth less. What two threads note at the same time may be counted once.
    pub(super) fn note(
        &self,
        fingerprint: Fingerprint,
        cost: Cost,
        horizon_us: u64,
        now_us: u64,
    ) -> f64 {
        let slot = usize::try_from(fingerprint[0] >> 16).unwrap_or(0) % SLOTS;
        let Some(slot) = self.0.get(slot) else {
            return 0.0;
        };
        #[expect(clippy::cast_possible_truncation, reason = "a clock that wraps")]
        let now = (now_us >> UNIT) as u32;
        let word = slot.load(Relaxed);
        #[expect(clippy::cast_possible_truncation, reason = "one half of it")]
        let (demand, then) = (f32::from_bits((word >> 32) as u32), word as u32);
        let elapsed_us = u64::from(now.wrapping_sub(then)) << UNIT;
        let kept = (-horizons(elapsed_us, horizon_us)).exp();
        let demand = f64::from(demand) * kept + f64::from(cost.get());
        #[expect(clippy::cast_possible_truncation, reason = "an estimate")]
        let bits = (demand as f32).to_bits();
        slot.store(u64::from(bits) << 32 | u64::from(now), Relaxed);
        demand
    }
}
