//! Tidegate's limits as a module of nginx: directives like those of `limit_req`, counts in
//! memory that the workers share, or in Redis for all nginx together.
//!
//! ```nginx
//! load_module modules/ngx_http_tidegate_module.so;
//!
//! http {
//!     tidegate_zone login key=$binary_remote_addr rate=100r/s;
//!     server {
//!         location /login { tidegate login; }
//!     }
//! }
//! ```
//!
//! The way of a request: `handler.rs` is called by nginx before the access phase. It works
//! out the keys (`expression.rs`), asks the zones in shared memory (`memory.rs`), then those
//! in Redis (`remote.rs`). A request that has to wait for Redis is suspended (`worker.rs`),
//! not the worker. `answer.rs` says what the client gets.
//!
//! All decisions are made by the crates `tidegate` and `tidegate-redis`. Everything unsafe
//! in here is a call of nginx, or a pointer that nginx handed over.
//!
//! A panic does not unwind into nginx: in a request it is caught and answered with 500; in
//! other places it ends the process, and the master starts another worker.

mod spec;

mod conf;
mod directives;
mod expression;

mod lock;
mod memory;

mod answer;
mod handler;
mod request;
mod variables;

mod log;
mod remote;
mod worker;

use std::ffi::{c_char, c_void};
use std::ptr;

use ngx::ffi::{NGX_HTTP_MODULE, ngx_http_module_t, ngx_module_t, ngx_uint_t};

use crate::directives::COMMANDS;

/// What nginx calls while it reads its config.
static CONTEXT: ngx_http_module_t = ngx_http_module_t {
    preconfiguration: Some(variables::add),
    postconfiguration: Some(conf::postconfiguration),
    create_main_conf: Some(conf::create_main),
    init_main_conf: None,
    create_srv_conf: None,
    merge_srv_conf: None,
    create_loc_conf: Some(conf::create_location),
    merge_loc_conf: Some(conf::merge_location),
};

/// The module. nginx writes its numbers into it before anything else happens.
#[expect(
    non_upper_case_globals,
    reason = "nginx and its users know it by this name"
)]
pub static mut ngx_http_tidegate_module: ngx_module_t = ngx_module_t {
    ctx: ptr::addr_of!(CONTEXT) as *mut c_void,
    commands: ptr::addr_of_mut!(COMMANDS).cast(),
    type_: NGX_HTTP_MODULE as ngx_uint_t,
    init_process: Some(worker::init_process),
    exit_process: Some(worker::exit_process),
    ..ngx_module_t::default()
};

/// Where nginx keeps what belongs to this module, in lists of all HTTP modules.
fn index() -> usize {
    // SAFETY: nginx writes it once, before it calls anything of the module.
    unsafe { ngx_http_tidegate_module.ctx_index }
}

/// What nginx knows the module by.
fn tag() -> *mut c_void {
    ptr::addr_of_mut!(ngx_http_tidegate_module).cast()
}

/// What functions of nginx return.
#[expect(clippy::cast_possible_wrap, reason = "small numbers")]
mod code {
    use ngx::ffi::{NGX_AGAIN, NGX_DECLINED, NGX_DONE, NGX_ERROR, NGX_OK, ngx_int_t};

    pub(crate) const OK: ngx_int_t = NGX_OK as ngx_int_t;
    pub(crate) const ERROR: ngx_int_t = NGX_ERROR as ngx_int_t;
    pub(crate) const AGAIN: ngx_int_t = NGX_AGAIN as ngx_int_t;
    pub(crate) const DONE: ngx_int_t = NGX_DONE as ngx_int_t;
    pub(crate) const DECLINED: ngx_int_t = NGX_DECLINED as ngx_int_t;

    pub(crate) const fn status(status: u16) -> ngx_int_t {
        status as ngx_int_t
    }
}

/// The lists that nginx looks for in a dynamic module.
mod exports {
    use super::{c_char, ngx_module_t, ptr};

    #[repr(transparent)]
    pub(super) struct Pointers<T, const COUNT: usize>([*const T; COUNT]);

    // SAFETY: nginx reads them on its only thread, and nobody writes them.
    unsafe impl<T, const COUNT: usize> Sync for Pointers<T, COUNT> {}

    #[unsafe(no_mangle)]
    static ngx_modules: Pointers<ngx_module_t, 2> =
        Pointers([ptr::addr_of!(super::ngx_http_tidegate_module), ptr::null()]);

    #[unsafe(no_mangle)]
    static ngx_module_names: Pointers<c_char, 2> =
        Pointers([c"ngx_http_tidegate_module".as_ptr(), ptr::null()]);

    #[unsafe(no_mangle)]
    static ngx_module_order: Pointers<c_char, 1> = Pointers([ptr::null()]);
}
