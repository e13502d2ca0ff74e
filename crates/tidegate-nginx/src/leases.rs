//! The leases of a zone, in memory that the workers share: nginx maps it and keeps it over
//! reloads. A worker spends what any worker was granted.

use std::ffi::c_void;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::mem::align_of;
use std::ptr;

use ngx::ffi::{ngx_int_t, ngx_pagesize, ngx_shm_zone_t, ngx_slab_alloc, ngx_slab_pool_t};
use tidegate_redis::{LeaseBucket, LeaseTable};

use crate::code;
use crate::conf;
use crate::log::{Severity, write};
use crate::spec::StoreSpec;

/// The beginning of the memory, which the buckets follow.
#[repr(C)]
struct Preface {
    buckets: usize,
    /// Random, so that no client can choose keys that collide.
    seed: [u64; 2],
}

/// Where the memory is, in every process.
#[derive(Clone, Copy)]
pub(crate) struct SharedLeases(*mut Preface);

/// Where the buckets begin, in bytes from the preface.
const BUCKETS_AT: usize = size_of::<Preface>().next_multiple_of(align_of::<LeaseBucket>());

/// What nginx knows this memory by. Counts have another tag, so that a zone which changes its
/// mode in a reload gets other memory.
pub(crate) fn tag() -> *mut c_void {
    static TAG: u8 = 0;
    ptr::from_ref(&TAG).cast_mut().cast()
}

impl SharedLeases {
    /// Takes all the memory of a zone, and writes an empty table there. `None` when it is too
    /// small.
    ///
    /// # Safety
    /// The pool is that of a zone which nginx has just made.
    unsafe fn make(pool: *mut ngx_slab_pool_t) -> Option<Self> {
        // SAFETY: nobody else knows the zone. nginx has just formatted it, so that all free
        // pages lie in one piece, which it aligns to a page: more than any of our types needs.
        unsafe {
            let bytes = (*pool).pfree * ngx_pagesize;
            let buckets = bytes.checked_sub(BUCKETS_AT)? / size_of::<LeaseBucket>();
            if buckets == 0 {
                return None;
            }
            let start = ngx_slab_alloc(pool, BUCKETS_AT + buckets * size_of::<LeaseBucket>());
            if start.is_null() {
                return None;
            }
            let leases = Self(start.cast());
            let random = RandomState::new();
            leases.0.write(Preface {
                buckets,
                seed: [random.hash_one(0), random.hash_one(1)],
            });
            for number in 0..buckets {
                let bucket = leases.first_bucket().add(number);
                bucket.write(LeaseBucket::default());
            }
            Some(leases)
        }
    }

    fn first_bucket(self) -> *mut LeaseBucket {
        self.0.wrapping_byte_add(BUCKETS_AT).cast()
    }

    /// The table for leases of this store. After a reload that changes the store, nobody
    /// finds the leases of the former one.
    ///
    /// # Safety
    /// This is a worker, which keeps all memory of its zones until it ends.
    pub(crate) unsafe fn table(self, store: &StoreSpec) -> LeaseTable {
        // SAFETY: both were written by `make`, are never moved, and change only by atomics.
        let (preface, buckets) = unsafe {
            let preface = &*self.0;
            let buckets = std::slice::from_raw_parts(self.first_bucket(), preface.buckets);
            (preface, buckets)
        };
        let seed = preface.seed.map(|number| {
            // The same in every process, unlike that of a random state.
            let mut hasher = DefaultHasher::new();
            (number, store.place()).hash(&mut hasher);
            hasher.finish()
        });
        LeaseTable::new(buckets, seed)
    }
}

/// Called by nginx in the master when the memory of a zone is there: new, or, with `former`,
/// that of the config before.
pub(crate) unsafe extern "C" fn init(
    memory: *mut ngx_shm_zone_t,
    former: *mut c_void,
) -> ngx_int_t {
    // SAFETY: `data` is the zone that its directive has defined, and `former` the one of the
    // config before, which nginx still keeps.
    let (zone, former) = unsafe {
        let zone = &*(*memory).data.cast::<conf::Zone>();
        (zone, former.cast::<conf::Zone>().as_ref())
    };
    let leases = match former.and_then(|former| former.leases.get()) {
        Some(leases) => Some(*leases),
        // SAFETY: the memory of a zone begins with its pool.
        None => unsafe { SharedLeases::make((*memory).shm.addr.cast()) },
    };
    let Some(leases) = leases else {
        let name = &zone.spec.name;
        let line = format!("zone \"{name}\" is too small: expected a larger size");
        // SAFETY: nginx calls this on its thread.
        unsafe { write((*memory).shm.log, Severity::EMERGENCY, &line) };
        return code::ERROR;
    };
    // It is set once per config.
    let _ = zone.leases.set(leases);
    code::OK
}

// Memory that nginx hands out is aligned to a page.
const _: () = assert!(align_of::<LeaseBucket>() <= 4096 && align_of::<Preface>() <= 4096);
