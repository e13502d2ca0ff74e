//! What the directives say, as nginx keeps it: once for all of `http`, and for each location.

use std::cell::OnceCell;
use std::ffi::{c_char, c_void};
use std::ptr;

use ngx::core::NGX_CONF_ERROR;
use ngx::ffi::{
    ngx_array_push, ngx_conf_t, ngx_http_conf_ctx_t, ngx_http_core_main_conf_t,
    ngx_http_core_module, ngx_http_handler_pt, ngx_http_phases_NGX_HTTP_PREACCESS_PHASE, ngx_int_t,
    ngx_pool_cleanup_add, ngx_pool_t,
};

use crate::answer::REFUSALS;
use crate::code;
use crate::expression::Expression;
use crate::handler;
use crate::log::Severity;
use crate::memory::SharedZone;
use crate::spec::{Counting, Headers, StoreSpec, ZoneSpec};

/// What the directives say for all.
#[derive(Default)]
pub(crate) struct Main {
    pub(crate) stores: Vec<StoreSpec>,
    zones: Vec<Slot>,
}

/// A zone by its number. It may be mentioned before it is defined.
struct Slot {
    name: String,
    /// Where it was mentioned first.
    mentioned: Option<Origin>,
    /// On the heap, because nginx keeps its address.
    zone: Option<Box<Zone>>,
}

/// A place in a file of the config.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    pub(crate) file: String,
    pub(crate) line: usize,
}

/// A zone.
pub(crate) struct Zone {
    pub(crate) spec: ZoneSpec,
    pub(crate) key: Expression,
    origin: Origin,
    /// Its counts, where they are in memory.
    pub(crate) counts: OnceCell<SharedZone>,
}

/// What the directives say for a location: `None` where they say nothing.
#[derive(Default)]
pub(crate) struct Location {
    /// Empty when limits are off.
    pub(crate) rules: Option<Vec<Rule>>,
    pub(crate) status: Option<u16>,
    pub(crate) headers: Option<Headers>,
    pub(crate) dry_run: Option<bool>,
    pub(crate) log_level: Option<Severity>,
}

/// `tidegate ZONE [cost=EXPR]`.
pub(crate) struct Rule {
    pub(crate) zone: usize,
    pub(crate) cost: Option<std::rc::Rc<Expression>>,
}

impl Main {
    /// The zone with this number.
    pub(crate) fn zone(&self, number: usize) -> Option<&Zone> {
        self.zones.get(number)?.zone.as_deref()
    }

    pub(crate) fn zones(&self) -> impl Iterator<Item = (usize, &Zone)> {
        let zones = self.zones.iter().enumerate();
        zones.filter_map(|(number, slot)| Some((number, slot.zone.as_deref()?)))
    }

    /// The number of a zone that is mentioned here.
    pub(crate) fn mention(&mut self, name: &str, origin: &Origin) -> usize {
        let number = self.number(name);
        let mentioned = &mut self.zones[number].mentioned;
        mentioned.get_or_insert_with(|| origin.clone());
        number
    }

    /// Defines a zone, and says where it lives; `None` when there is one already.
    pub(crate) fn define(
        &mut self,
        spec: ZoneSpec,
        key: Expression,
        origin: Origin,
    ) -> Option<*mut Zone> {
        let number = self.number(&spec.name);
        let slot = &mut self.zones[number];
        if slot.zone.is_some() {
            return None;
        }
        let zone = Zone {
            spec,
            key,
            origin,
            counts: OnceCell::new(),
        };
        Some(&raw mut **slot.zone.insert(Box::new(zone)))
    }

    fn number(&mut self, name: &str) -> usize {
        let known = self.zones.iter().position(|slot| slot.name == name);
        known.unwrap_or_else(|| {
            self.zones.push(Slot {
                name: name.into(),
                mentioned: None,
                zone: None,
            });
            self.zones.len() - 1
        })
    }

    /// What is wrong with the directives together, and where.
    fn check(&self) -> Result<(), (String, Option<&Origin>)> {
        for slot in &self.zones {
            let name = &slot.name;
            let Some(zone) = &slot.zone else {
                let wrong =
                    format!("zone \"{name}\" is unknown: expected a tidegate_zone of this name");
                return Err((wrong, slot.mentioned.as_ref()));
            };
            let is_known = |store: &str| self.stores.iter().any(|it| it.name == store);
            if matches!(zone.spec.counting, Counting::Shared(_)) && !is_known(&zone.spec.store) {
                let store = &zone.spec.store;
                let wrong = format!(
                    "store \"{store}\" of zone \"{name}\" is unknown: expected a tidegate_store of this name"
                );
                return Err((wrong, Some(&zone.origin)));
            }
        }
        Ok(())
    }
}

impl Location {
    pub(crate) fn rules(&self) -> &[Rule] {
        self.rules.as_deref().unwrap_or_default()
    }

    pub(crate) fn status(&self) -> u16 {
        self.status.unwrap_or(429)
    }

    pub(crate) fn headers(&self) -> Headers {
        self.headers.unwrap_or(Headers::Ietf)
    }

    pub(crate) fn dry_run(&self) -> bool {
        self.dry_run.unwrap_or(false)
    }

    pub(crate) fn log_level(&self) -> Severity {
        self.log_level.unwrap_or(REFUSALS)
    }

    /// Settings that are missing here come from the outer block.
    fn inherit(&mut self, outer: &Self) {
        if self.rules.is_none() {
            let rules = outer.rules.as_ref();
            self.rules = rules.map(|rules| rules.iter().map(Rule::again).collect());
        }
        self.status = self.status.or(outer.status);
        self.headers = self.headers.or(outer.headers);
        self.dry_run = self.dry_run.or(outer.dry_run);
        self.log_level = self.log_level.or(outer.log_level);
    }
}

impl Rule {
    fn again(&self) -> Self {
        Self {
            zone: self.zone,
            cost: self.cost.clone(),
        }
    }
}

/// A value that nginx keeps, and that is dropped with the config.
///
/// # Safety
/// `pool` is the memory of a config.
unsafe fn keep<T: Default>(pool: *mut ngx_pool_t) -> *mut c_void {
    unsafe extern "C" fn drop_value<T>(data: *mut c_void) {
        // SAFETY: it was made by `keep`, and nginx calls this once.
        drop(unsafe { Box::from_raw(data.cast::<T>()) });
    }
    // SAFETY: nginx allocates an entry in its list of cleanups.
    unsafe {
        let Some(cleanup) = ngx_pool_cleanup_add(pool, 0).as_mut() else {
            return ptr::null_mut();
        };
        let value = Box::into_raw(Box::<T>::default()).cast();
        cleanup.handler = Some(drop_value::<T>);
        cleanup.data = value;
        value
    }
}

/// Called by nginx for `http`.
pub(crate) unsafe extern "C" fn create_main(cf: *mut ngx_conf_t) -> *mut c_void {
    // SAFETY: nginx hands over the config that it reads.
    unsafe { keep::<Main>((*cf).pool) }
}

/// Called by nginx for `http`, each server and each location.
pub(crate) unsafe extern "C" fn create_location(cf: *mut ngx_conf_t) -> *mut c_void {
    // SAFETY: nginx hands over the config that it reads.
    unsafe { keep::<Location>((*cf).pool) }
}

/// Called by nginx for each location, from the outside to the inside.
pub(crate) unsafe extern "C" fn merge_location(
    _: *mut ngx_conf_t,
    outer: *mut c_void,
    inner: *mut c_void,
) -> *mut c_char {
    // SAFETY: both were made by `create_location`, and nobody else uses them now.
    unsafe { (*inner.cast::<Location>()).inherit(&*outer.cast::<Location>()) };
    ptr::null_mut()
}

/// What the directives say for all, while nginx reads them.
///
/// # Safety
/// `cf` is the config that nginx reads, in `http`, and nobody else uses the result.
pub(crate) unsafe fn main_of<'a>(cf: *mut ngx_conf_t) -> &'a mut Main {
    // SAFETY: in `http`, the context is this list, and holds what `create_main` returned.
    unsafe {
        let context = (*cf).ctx.cast::<ngx_http_conf_ctx_t>();
        &mut *(*(*context).main_conf.add(crate::index())).cast::<Main>()
    }
}

/// Called by nginx when it has read all directives.
pub(crate) unsafe extern "C" fn postconfiguration(cf: *mut ngx_conf_t) -> ngx_int_t {
    // SAFETY: nginx has read `http`.
    if let Err((wrong, origin)) = unsafe { main_of(cf) }.check() {
        let place = origin.map_or(String::new(), |Origin { file, line }| {
            format!(" in {file}:{line}")
        });
        // SAFETY: nginx hands over the config with its log.
        unsafe { crate::log::write((*cf).log, Severity::EMERGENCY, &format!("{wrong}{place}")) };
        return code::ERROR;
    }
    // SAFETY: the core module's part has an array of handlers for each phase.
    unsafe {
        let context = (*cf).ctx.cast::<ngx_http_conf_ctx_t>();
        let core = *(*context).main_conf.add(ngx_http_core_module.ctx_index);
        let core = core.cast::<ngx_http_core_main_conf_t>();
        let phase = ngx_http_phases_NGX_HTTP_PREACCESS_PHASE as usize;
        let handlers = &raw mut (*core).phases[phase].handlers;
        let place = ngx_array_push(handlers).cast::<ngx_http_handler_pt>();
        if place.is_null() {
            return code::ERROR;
        }
        place.write(Some(handler::handle));
    }
    code::OK
}

/// What a directive returns when it is wrong, and the log says why.
pub(crate) const REFUSED: *mut c_char = NGX_CONF_ERROR as *mut c_char;
