//! The clock of leases: it never steps, and where the system has such a clock, it counts
//! the time that the machine was suspended.

/// Microseconds since some moment in the past.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[inline]
pub(super) fn now_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanos) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    seconds * 1_000_000 + nanos / 1_000
}

/// Microseconds since the first reading.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn now_us() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;

    static START: OnceLock<Instant> = OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed();
    u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
}
