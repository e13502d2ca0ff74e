//! The counts of a zone in memory that the workers share: nginx maps it, keeps it over
//! reloads, and the core counts in it.

use std::ffi::c_void;
use std::mem::align_of;

use ngx::ffi::{ngx_int_t, ngx_pagesize, ngx_shm_zone_t, ngx_slab_alloc, ngx_slab_pool_t};
use rustix::time::{ClockId, clock_gettime};
use tidegate::Clock;
use tidegate::zone::{Head, Zone, ZoneShard};

use crate::code;
use crate::conf;
use crate::lock::{self, OwnedLock};
use crate::log::{Severity, write};

/// A zone that the workers share.
pub(crate) struct SharedZone {
    pub(crate) zone: Zone<'static, OwnedLock>,
    region: Region,
}

type Shard = ZoneShard<OwnedLock>;

/// The beginning of the memory of a zone, which its shards follow.
#[repr(C)]
struct Preface {
    /// How many shards follow.
    shards: usize,
    clock: SharedClock,
    head: Head,
}

/// Where the memory is, in every process.
#[derive(Clone, Copy)]
struct Region(*mut Preface);

/// The wall clock when the zone was made, plus the monotonic clock since, which all
/// processes of a machine read alike.
#[derive(Clone, Copy)]
#[repr(C)]
struct SharedClock {
    wall_us: u64,
    monotonic_us: u64,
}

fn read_us(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds * 1_000_000 + nanos / 1_000
}

impl SharedClock {
    fn start() -> Self {
        Self {
            wall_us: read_us(ClockId::Realtime),
            monotonic_us: read_us(ClockId::Monotonic),
        }
    }
}

impl Clock for SharedClock {
    fn now_us(&self) -> u64 {
        let since_us = read_us(ClockId::Monotonic).saturating_sub(self.monotonic_us);
        self.wall_us + since_us
    }
}

/// Where the shards begin, in bytes from the preface.
const SHARDS_AT: usize = size_of::<Preface>().next_multiple_of(align_of::<Shard>());

impl Region {
    /// Takes all the memory of a zone, and writes an empty zone there. `None` when it is too
    /// small.
    ///
    /// # Safety
    /// The pool is that of a zone which nginx has just made.
    unsafe fn make(pool: *mut ngx_slab_pool_t) -> Option<Self> {
        // SAFETY: nobody else knows the zone. nginx has just formatted it, so that all free
        // pages lie in one piece, which it aligns to a page: more than any of our types needs.
        unsafe {
            let bytes = (*pool).pfree * ngx_pagesize;
            let shards = bytes.checked_sub(SHARDS_AT)? / size_of::<Shard>();
            if shards == 0 {
                return None;
            }
            let start = ngx_slab_alloc(pool, SHARDS_AT + shards * size_of::<Shard>());
            if start.is_null() {
                return None;
            }
            let region = Self(start.cast());
            region.0.write(Preface {
                shards,
                clock: SharedClock::start(),
                head: Head::new(shards),
            });
            for number in 0..shards {
                region.first_shard().add(number).write(Shard::default());
            }
            Some(region)
        }
    }

    fn first_shard(self) -> *mut Shard {
        self.0.wrapping_byte_add(SHARDS_AT).cast()
    }

    /// What is in it.
    ///
    /// # Safety
    /// It was [made](Self::make), and nginx keeps it for as long as the config that uses it.
    unsafe fn open(self) -> (&'static Preface, &'static [Shard]) {
        // SAFETY: both were written by `make`, are never moved, and change only through locks
        // and atomics.
        unsafe {
            let preface = &*self.0;
            let shards = std::slice::from_raw_parts(self.first_shard(), preface.shards);
            (preface, shards)
        }
    }
}

/// Called by nginx in the master when the memory of a zone is there: new, or, with `former`,
/// that of the config before.
pub(crate) unsafe extern "C" fn init(
    memory: *mut ngx_shm_zone_t,
    former: *mut c_void,
) -> ngx_int_t {
    lock::identify();
    // SAFETY: `data` is the zone that its directive has defined, and `former` the one of the
    // config before, which nginx still keeps.
    let (zone, former) = unsafe {
        let zone = &*(*memory).data.cast::<conf::Zone>();
        (zone, former.cast::<conf::Zone>().as_ref())
    };
    let region = match former.and_then(|former| former.counts.get()) {
        Some(counts) => Some(counts.region),
        // SAFETY: the memory of a zone begins with its pool.
        None => unsafe { Region::make((*memory).shm.addr.cast()) },
    };
    let Some(region) = region else {
        let name = &zone.spec.name;
        let line = format!("zone \"{name}\" is too small: expected a larger size");
        // SAFETY: nginx calls this on its thread.
        unsafe { write((*memory).shm.log, Severity::EMERGENCY, &line) };
        return code::ERROR;
    };
    // SAFETY: nginx keeps the memory for as long as the config.
    let (preface, shards) = unsafe { region.open() };
    let spec = &zone.spec;
    match Zone::open(&preface.head, shards, &spec.name, spec.limit, preface.clock) {
        Ok(opened) => {
            let zone = zone.counts.set(SharedZone {
                zone: opened,
                region,
            });
            drop(zone);
            code::OK
        }
        Err(error) => {
            let line = format!("zone \"{}\": {error}", spec.name);
            // SAFETY: nginx calls this on its thread.
            unsafe { write((*memory).shm.log, Severity::EMERGENCY, &line) };
            code::ERROR
        }
    }
}

// Memory that nginx hands out is aligned to a page.
const _: () = assert!(align_of::<Shard>() <= 4096 && align_of::<Preface>() <= 4096);
