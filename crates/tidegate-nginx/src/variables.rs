//! `$tidegate_status`, `$tidegate_zone`, `$tidegate_remaining`, `$tidegate_retry_after`,
//! `$tidegate_source` and `$tidegate_decided_at`.

use ngx::ffi::{
    NGX_HTTP_VAR_NOCACHEABLE, ngx_conf_t, ngx_http_add_variable, ngx_http_request_t,
    ngx_http_variable_value_t, ngx_int_t, ngx_str_t, ngx_uint_t,
};

use crate::answer::Outcome;
use crate::code;
use crate::request::{Request, State};

const NAMES: [&str; 6] = [
    "tidegate_status",
    "tidegate_zone",
    "tidegate_remaining",
    "tidegate_retry_after",
    "tidegate_source",
    "tidegate_decided_at",
];

/// Called by nginx before it reads the directives.
pub(crate) unsafe extern "C" fn add(cf: *mut ngx_conf_t) -> ngx_int_t {
    for (number, name) in NAMES.into_iter().enumerate() {
        let mut name = ngx_str_t {
            len: name.len(),
            data: name.as_ptr().cast_mut(),
        };
        let flags = NGX_HTTP_VAR_NOCACHEABLE as ngx_uint_t;
        // SAFETY: nginx copies the name, and the variable lives as long as the config.
        unsafe {
            let variable = ngx_http_add_variable(cf, &raw mut name, flags);
            let Some(variable) = variable.as_mut() else {
                return code::ERROR;
            };
            variable.get_handler = Some(get);
            variable.data = number;
        }
    }
    code::OK
}

unsafe extern "C" fn get(
    raw: *mut ngx_http_request_t,
    value: *mut ngx_http_variable_value_t,
    number: usize,
) -> ngx_int_t {
    // SAFETY: nginx hands over a request that lives during the call.
    let request = unsafe { Request::from_raw(raw) };
    // SAFETY: nginx hands over a value to fill in.
    let value = unsafe { &mut *value };
    // nginx may ask while the handler, which has the state too, sends a response.
    let state: Option<&State> = request.state();
    let outcome = state.and_then(|state| state.outcome.get());
    let text = outcome.and_then(|outcome| text(&outcome, number, &request));
    let Some(text) = text else {
        value.set_not_found(1);
        return code::OK;
    };
    let Some(text) = request.copy(&text) else {
        return code::ERROR;
    };
    value.set_valid(1);
    value.set_no_cacheable(0);
    value.set_not_found(0);
    value.set_len(u32::try_from(text.len).unwrap_or(0));
    value.data = text.data;
    code::OK
}

fn text(outcome: &Outcome, number: usize, request: &Request<'_>) -> Option<String> {
    match number {
        0 => Some(outcome.status.as_str().into()),
        1 => Some(request.config().zone(outcome.zone?)?.spec.name.clone()),
        2 => Some(outcome.remaining?.to_string()),
        3 => Some(outcome.retry_after?.to_string()),
        4 => Some(outcome.decided?.0.as_str().into()),
        _ => Some(outcome.decided?.1.to_string()),
    }
}
