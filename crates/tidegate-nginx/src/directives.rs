//! The directives: from nginx's words to `spec.rs`, and errors with their file and line.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::rc::Rc;

use ngx::ffi::{
    NGX_CONF_2MORE, NGX_CONF_TAKE1, NGX_CONF_TAKE2, NGX_CONF_TAKE3, NGX_CONF_TAKE4,
    NGX_CONF_TAKE12, NGX_HTTP_LOC_CONF, NGX_HTTP_LOC_CONF_OFFSET, NGX_HTTP_MAIN_CONF,
    NGX_HTTP_MAIN_CONF_OFFSET, NGX_HTTP_SRV_CONF, NGX_LOG_EMERG, ngx_command_t, ngx_conf_log_error,
    ngx_conf_t, ngx_shared_memory_add, ngx_str_t, ngx_uint_t,
};

use crate::conf::{Location, Main, Origin, REFUSED, Rule, main_of};
use crate::expression::Expression;
use crate::log::Severity;
use crate::memory;
use crate::request::bytes;
use crate::spec::{Counting, DEFAULT_STORE, Headers, StoreSpec, ZoneSpec, flag, status, wrong};

const EVERYWHERE: u32 = NGX_HTTP_MAIN_CONF | NGX_HTTP_SRV_CONF | NGX_HTTP_LOC_CONF;

type Set = unsafe extern "C" fn(*mut ngx_conf_t, *mut ngx_command_t, *mut c_void) -> *mut c_char;

/// nginx compares names as C does, by their final zero.
const fn command(name: &'static CStr, kind: u32, offset: usize, set: Set) -> ngx_command_t {
    ngx_command_t {
        name: ngx_str_t {
            len: name.count_bytes(),
            data: name.as_ptr().cast_mut().cast(),
        },
        type_: kind as ngx_uint_t,
        set: Some(set),
        conf: offset,
        offset: 0,
        post: ptr::null_mut(),
    }
}

/// The table that nginx looks directives up in.
pub(crate) static mut COMMANDS: [ngx_command_t; 8] = [
    command(
        c"tidegate_store",
        NGX_HTTP_MAIN_CONF | NGX_CONF_TAKE2 | NGX_CONF_TAKE3 | NGX_CONF_TAKE4,
        NGX_HTTP_MAIN_CONF_OFFSET,
        set_store,
    ),
    command(
        c"tidegate_zone",
        NGX_HTTP_MAIN_CONF | NGX_CONF_2MORE,
        NGX_HTTP_MAIN_CONF_OFFSET,
        set_zone,
    ),
    command(
        c"tidegate",
        EVERYWHERE | NGX_CONF_TAKE12,
        NGX_HTTP_LOC_CONF_OFFSET,
        set_rule,
    ),
    command(
        c"tidegate_status",
        EVERYWHERE | NGX_CONF_TAKE1,
        NGX_HTTP_LOC_CONF_OFFSET,
        set_status,
    ),
    command(
        c"tidegate_headers",
        EVERYWHERE | NGX_CONF_TAKE1,
        NGX_HTTP_LOC_CONF_OFFSET,
        set_headers,
    ),
    command(
        c"tidegate_dry_run",
        EVERYWHERE | NGX_CONF_TAKE1,
        NGX_HTTP_LOC_CONF_OFFSET,
        set_dry_run,
    ),
    command(
        c"tidegate_log_level",
        EVERYWHERE | NGX_CONF_TAKE1,
        NGX_HTTP_LOC_CONF_OFFSET,
        set_log_level,
    ),
    ngx_command_t::empty(),
];

/// Why a directive is not accepted.
enum Refusal {
    /// For the log.
    Wrong(String),
    /// nginx has logged it.
    Logged,
}

impl From<String> for Refusal {
    fn from(wrong: String) -> Self {
        Self::Wrong(wrong)
    }
}

/// A directive that nginx has read.
struct Directive {
    cf: *mut ngx_conf_t,
}

impl Directive {
    fn name(&self) -> ngx_str_t {
        // SAFETY: as above: the first word is the name.
        unsafe { (&(*(*self.cf).args)).as_slice()[0] }
    }

    fn arguments(&self) -> &[ngx_str_t] {
        // SAFETY: nginx hands over a config with the words of the directive, the first of
        // which is its name.
        unsafe { &(*(*self.cf).args).as_slice()[1..] }
    }

    /// Its words after the name.
    fn words<'a>(&self) -> Result<Vec<&'a str>, String> {
        let words = self.arguments().iter().map(|word| {
            // SAFETY: nginx keeps the words as long as the config.
            let word = unsafe { bytes(*word) };
            std::str::from_utf8(word)
                .map_err(|_| wrong(&String::from_utf8_lossy(word), "expected UTF-8 text"))
        });
        words.collect()
    }

    fn origin(&self) -> Origin {
        // SAFETY: nginx hands over a config with the file that it reads.
        unsafe {
            let file = (*self.cf).conf_file;
            Origin {
                file: String::from_utf8_lossy(bytes((*file).file.name)).into_owned(),
                line: (*file).line,
            }
        }
    }

    fn expression(&self, text: &str) -> Result<Expression, Refusal> {
        // SAFETY: nginx hands over the config that it reads, and keeps its words.
        unsafe { Expression::compile(self.cf, text) }.ok_or(Refusal::Logged)
    }
}

/// Sets something, or logs what is wrong with its file and line.
///
/// # Safety
/// nginx has called with these, for a directive whose value is of this type.
unsafe fn set<T>(
    cf: *mut ngx_conf_t,
    value: *mut c_void,
    set: impl FnOnce(&Directive, &mut T) -> Result<(), Refusal>,
) -> *mut c_char {
    let directive = Directive { cf };
    // SAFETY: the caller vouches for its type, and nginx uses it in one place at a time.
    let value = unsafe { &mut *value.cast::<T>() };
    match set(&directive, value) {
        Ok(()) => ptr::null_mut(),
        Err(Refusal::Logged) => REFUSED,
        Err(Refusal::Wrong(wrong)) => {
            // SAFETY: nginx hands over its config; the words begin with the directive's name;
            // the format takes lengths and bytes.
            unsafe {
                let name = directive.name();
                ngx_conf_log_error(
                    NGX_LOG_EMERG as ngx_uint_t,
                    cf,
                    0,
                    c"%V: %*s".as_ptr(),
                    &raw const name,
                    wrong.len(),
                    wrong.as_ptr(),
                );
            }
            REFUSED
        }
    }
}

/// Sets what may be said once per block.
fn once<T>(place: &mut Option<T>, value: Result<T, String>) -> Result<(), Refusal> {
    if place.is_some() {
        return Err(String::from("is given twice: expected it once").into());
    }
    *place = Some(value?);
    Ok(())
}

/// The only word of a directive.
fn word<'a>(directive: &Directive) -> Result<&'a str, String> {
    Ok(directive.words()?.first().copied().unwrap_or_default())
}

unsafe extern "C" fn set_store(
    cf: *mut ngx_conf_t,
    _: *mut ngx_command_t,
    main: *mut c_void,
) -> *mut c_char {
    // SAFETY: nginx calls this for `tidegate_store`, which is allowed in `http` only.
    unsafe {
        set(cf, main, |directive, main: &mut Main| {
            let store = StoreSpec::parse(&directive.words()?)?;
            if main.stores.iter().any(|other| other.name == store.name) {
                return Err(
                    wrong(&store.name, "a store of this name exists: expected another").into(),
                );
            }
            let undecided = main.zones().find(|(_, zone)| zone.spec.is_undecided);
            if let Some((_, zone)) = undecided.filter(|_| store.name == DEFAULT_STORE) {
                let name = &zone.spec.name;
                let expected = format!(
                    "zone \"{name}\" comes before this store: expected the store first, or mode=local in the zone"
                );
                return Err(wrong(&store.name, &expected).into());
            }
            main.stores.push(store);
            Ok(())
        })
    }
}

unsafe extern "C" fn set_zone(
    cf: *mut ngx_conf_t,
    _: *mut ngx_command_t,
    main: *mut c_void,
) -> *mut c_char {
    // SAFETY: nginx calls this for `tidegate_zone`, which is allowed in `http` only.
    unsafe {
        set(cf, main, |directive, main: &mut Main| {
            let has_default = main.stores.iter().any(|it| it.name == DEFAULT_STORE);
            let (spec, key) = ZoneSpec::parse(&directive.words()?, has_default)?;
            let key = directive.expression(key)?;
            let (size, counting, name) = (spec.size, spec.counting, spec.name.clone());
            let zone = main.define(spec, key, directive.origin());
            let zone =
                zone.ok_or_else(|| wrong(&name, "a zone of this name exists: expected another"))?;
            if counting != Counting::Local {
                return Ok(());
            }
            let mut name = directive.arguments()[0];
            let memory = ngx_shared_memory_add(cf, &raw mut name, size, crate::tag());
            let memory = memory.as_mut().ok_or(Refusal::Logged)?;
            memory.init = Some(memory::init);
            memory.data = zone.cast();
            Ok(())
        })
    }
}

unsafe extern "C" fn set_rule(
    cf: *mut ngx_conf_t,
    _: *mut ngx_command_t,
    location: *mut c_void,
) -> *mut c_char {
    // SAFETY: nginx calls this for `tidegate`, whose value is a location's.
    unsafe {
        set(cf, location, |directive, location: &mut Location| {
            let words = directive.words()?;
            let is_off = words == ["off"];
            if let Some(rules) = &location.rules
                && (is_off || rules.is_empty())
            {
                return Err(
                    String::from("\"off\": expected no other \"tidegate\" beside it").into(),
                );
            }
            if is_off {
                location.rules = Some(Vec::new());
                return Ok(());
            }
            let [zone, options @ ..] = &*words else {
                return Err(String::from("expected the name of a zone, or off").into());
            };
            let mut cost = None;
            if let [option] = options {
                let text = option.strip_prefix("cost=").filter(|text| !text.is_empty());
                let text = text.ok_or_else(|| wrong(option, "expected cost=EXPRESSION"))?;
                let expression = directive.expression(text)?;
                if let Some(constant) = expression.constant() {
                    let is_cost = crate::handler::cost(constant).is_some();
                    let expected = "expected a number from 1 to 4294967295";
                    is_cost
                        .then_some(())
                        .ok_or_else(|| wrong(option, expected))?;
                }
                cost = Some(Rc::new(expression));
            }
            let number = main_of(cf).mention(zone, &directive.origin());
            let rules = location.rules.get_or_insert_default();
            if rules.iter().any(|rule| rule.zone == number) {
                return Err(wrong(zone, "this zone is here already: expected it once").into());
            }
            rules.push(Rule { zone: number, cost });
            Ok(())
        })
    }
}

unsafe extern "C" fn set_status(
    cf: *mut ngx_conf_t,
    _: *mut ngx_command_t,
    location: *mut c_void,
) -> *mut c_char {
    // SAFETY: nginx calls this for `tidegate_status`, whose value is a location's.
    unsafe {
        set(cf, location, |directive, location: &mut Location| {
            once(&mut location.status, status(word(directive)?))
        })
    }
}

unsafe extern "C" fn set_headers(
    cf: *mut ngx_conf_t,
    _: *mut ngx_command_t,
    location: *mut c_void,
) -> *mut c_char {
    // SAFETY: nginx calls this for `tidegate_headers`, whose value is a location's.
    unsafe {
        set(cf, location, |directive, location: &mut Location| {
            once(&mut location.headers, Headers::parse(word(directive)?))
        })
    }
}

unsafe extern "C" fn set_dry_run(
    cf: *mut ngx_conf_t,
    _: *mut ngx_command_t,
    location: *mut c_void,
) -> *mut c_char {
    // SAFETY: nginx calls this for `tidegate_dry_run`, whose value is a location's.
    unsafe {
        set(cf, location, |directive, location: &mut Location| {
            once(&mut location.dry_run, flag(word(directive)?))
        })
    }
}

unsafe extern "C" fn set_log_level(
    cf: *mut ngx_conf_t,
    _: *mut ngx_command_t,
    location: *mut c_void,
) -> *mut c_char {
    // SAFETY: nginx calls this for `tidegate_log_level`, whose value is a location's.
    unsafe {
        set(cf, location, |directive, location: &mut Location| {
            once(&mut location.log_level, Severity::parse(word(directive)?))
        })
    }
}
