//! Text with variables, such as `"$binary_remote_addr $uri"`: nginx compiles it once and
//! works it out for each request.

use std::mem::MaybeUninit;
use std::ptr;

use ngx::ffi::{
    ngx_conf_t, ngx_http_compile_complex_value, ngx_http_compile_complex_value_t,
    ngx_http_complex_value, ngx_http_complex_value_t, ngx_str_t,
};

use crate::code;
use crate::request::{Request, bytes};

/// A compiled expression. It lives in the memory of the config it was read from.
pub(crate) struct Expression(ngx_http_complex_value_t);

impl Expression {
    /// Compiles an expression; `None` when nginx has logged what is wrong with it.
    ///
    /// # Safety
    /// `cf` is the config that nginx is reading, and `text` lives as long as it.
    pub(crate) unsafe fn compile(cf: *mut ngx_conf_t, text: &str) -> Option<Self> {
        let mut value = MaybeUninit::<ngx_http_complex_value_t>::zeroed();
        let mut text = ngx_str_t {
            len: text.len(),
            data: text.as_ptr().cast_mut(),
        };
        // SAFETY: all of its fields may be zero.
        let mut compile: ngx_http_compile_complex_value_t = unsafe { std::mem::zeroed() };
        compile.cf = cf;
        compile.value = &raw mut text;
        compile.complex_value = value.as_mut_ptr();
        // SAFETY: all pointers are valid during the call; nginx reads the text and fills the
        // value in, which may point to the text.
        let done = unsafe { ngx_http_compile_complex_value(&raw mut compile) };
        // SAFETY: nginx has filled it in.
        (done == code::OK).then(|| Self(unsafe { value.assume_init() }))
    }

    /// Its text, if it has no variables.
    pub(crate) fn constant(&self) -> Option<&[u8]> {
        // SAFETY: nginx has set it to the text that was compiled.
        self.0
            .lengths
            .is_null()
            .then(|| unsafe { bytes(self.0.value) })
    }

    /// Its value for a request; it lives as long as the request. `None` when nginx is out of
    /// memory.
    pub(crate) fn value<'r>(&self, request: &Request<'r>) -> Option<&'r [u8]> {
        let mut value = ngx_str_t {
            len: 0,
            data: ptr::null_mut(),
        };
        let expression = ptr::addr_of!(self.0).cast_mut();
        // SAFETY: nginx only reads the expression, and allocates the value from the request.
        let done = unsafe { ngx_http_complex_value(request.as_ptr(), expression, &raw mut value) };
        // SAFETY: nginx has set it.
        (done == code::OK).then(|| unsafe { bytes(value) })
    }
}
