//! A request of nginx, and what is remembered about it.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::iter;
use std::marker::PhantomData;
use std::ptr;

use ngx::ffi::{
    ngx_array_t, ngx_handle_read_event, ngx_http_block_reading, ngx_http_cleanup_add,
    ngx_http_complex_value_t, ngx_http_core_loc_conf_t, ngx_http_core_module,
    ngx_http_core_run_phases, ngx_http_err_page_t, ngx_http_finalize_request,
    ngx_http_request_empty_handler, ngx_http_request_t, ngx_http_run_posted_requests,
    ngx_http_send_response, ngx_http_test_reading, ngx_list_push, ngx_pnalloc,
    ngx_pool_cleanup_add, ngx_post_event, ngx_posted_events, ngx_str_t, ngx_table_elt_t,
};
use smallvec::SmallVec;

use crate::answer::Outcome;
use crate::code;
use crate::conf::{Location, Main};
use crate::log::{self, Severity};

/// A request, while nginx works on it.
#[derive(Clone, Copy)]
pub(crate) struct Request<'r> {
    raw: *mut ngx_http_request_t,
    lives: PhantomData<&'r ()>,
}

/// What is remembered about a request and its subrequests, across internal redirects. nginx
/// may call the module while the module calls nginx, so nobody has it to themselves.
#[derive(Default)]
pub(crate) struct State {
    /// The zones that it was counted in: each once.
    pub(crate) counted: RefCell<SmallVec<[usize; 4]>>,
    pub(crate) outcome: Cell<Option<Outcome>>,
    /// Those of the request and its subrequests that were refused, and are on their way to
    /// the page that says so.
    refused: RefCell<SmallVec<[*mut ngx_http_request_t; 1]>>,
    /// How many of the request and its subrequests wait for a store.
    pub(crate) suspended: Cell<u32>,
}

impl State {
    /// Remembers that this request was refused.
    pub(crate) fn refuse(&self, request: &Request<'_>) {
        self.refused.borrow_mut().push(request.raw);
    }

    /// Whether this request was refused, or one that it is a part of.
    pub(crate) fn is_refused(&self, request: &Request<'_>) -> bool {
        let refused = self.refused.borrow();
        let mut requests = iter::successors(Some(*request), Request::parent);
        requests.any(|request| refused.contains(&request.raw))
    }
}

/// Bytes of nginx.
///
/// # Safety
/// The text is one of nginx's, and lives for as long as the result is used.
pub(crate) unsafe fn bytes<'a>(text: ngx_str_t) -> &'a [u8] {
    if text.len == 0 {
        return &[];
    }
    // SAFETY: the caller vouches for it.
    unsafe { std::slice::from_raw_parts(text.data, text.len) }
}

impl<'r> Request<'r> {
    /// # Safety
    /// It is a request that lives for `'r`, and this is nginx's thread.
    pub(crate) unsafe fn from_raw(raw: *mut ngx_http_request_t) -> Self {
        let lives = PhantomData;
        Self { raw, lives }
    }

    pub(crate) fn as_ptr(&self) -> *mut ngx_http_request_t {
        self.raw
    }

    /// The request that the client sent, of which this may be a part.
    pub(crate) fn main(&self) -> Self {
        // SAFETY: a request's main request lives longer than it.
        unsafe { Self::from_raw((*self.raw).main) }
    }

    /// The request that this one is a part of.
    fn parent(&self) -> Option<Self> {
        // SAFETY: a request's parent is null, or lives longer than it.
        unsafe {
            let parent = (*self.raw).parent;
            (!parent.is_null()).then(|| Self::from_raw(parent))
        }
    }

    pub(crate) fn is_main(&self) -> bool {
        self.main().raw == self.raw
    }

    /// What the directives say for all.
    pub(crate) fn config(&self) -> &'r Main {
        // SAFETY: nginx keeps what `create_main` returned, for longer than any request.
        unsafe { &*(*(*self.raw).main_conf.add(crate::index())).cast::<Main>() }
    }

    /// What the directives say for the location of the request.
    pub(crate) fn location(&self) -> &'r Location {
        // SAFETY: nginx keeps what `create_location` returned, for longer than any request.
        unsafe { &*(*(*self.raw).loc_conf.add(crate::index())).cast::<Location>() }
    }

    /// What is remembered, if anything is.
    pub(crate) fn state(&self) -> Option<&'r State> {
        let main = self.main();
        // SAFETY: the context of this module is a `State` made by `remember`, or null.
        unsafe {
            let place = (*main.raw).ctx.add(crate::index());
            if (*place).is_null() && (*main.raw).internal() != 0 {
                // An internal redirect has cleared the contexts, but not the cleanups.
                let mut cleanup = (*(*main.raw).pool).cleanup;
                while let Some(entry) = cleanup.as_ref() {
                    if entry.handler.map(|it| it as usize) == Some(drop_state as *const () as usize)
                    {
                        *place = entry.data;
                        break;
                    }
                    cleanup = entry.next;
                }
            }
            (*place).cast::<State>().as_ref()
        }
    }

    /// What is remembered, from now on. `None` when nginx is out of memory.
    pub(crate) fn remember(&self) -> Option<&'r State> {
        if let Some(state) = self.state() {
            return Some(state);
        }
        let main = self.main();
        // SAFETY: nginx allocates the size of a state, aligned for any type, and calls
        // `drop_state` once, when the request has ended.
        unsafe {
            let cleanup = ngx_pool_cleanup_add((*main.raw).pool, size_of::<State>());
            let cleanup = cleanup.as_mut()?;
            let state = cleanup.data.cast::<State>();
            state.write(State::default());
            cleanup.handler = Some(drop_state);
            *(*main.raw).ctx.add(crate::index()) = state.cast();
            state.as_ref()
        }
    }

    /// Sends a header with the response. Says no when nginx is out of memory.
    pub(crate) fn add_header(&self, name: &str, value: &str) -> bool {
        let raw = self.main().raw;
        let (Some(name), Some(value)) = (self.copy(name), self.copy(value)) else {
            return false;
        };
        // SAFETY: the list is that of the response, which is not sent yet; its elements are
        // headers, which may be zero.
        unsafe {
            let header = ngx_list_push(&raw mut (*raw).headers_out.headers);
            let header = header.cast::<ngx_table_elt_t>();
            if header.is_null() {
                return false;
            }
            ptr::write_bytes(header, 0, 1);
            (*header).hash = 1;
            (*header).key = name;
            (*header).value = value;
        }
        true
    }

    /// Text in memory that lives as long as the request.
    pub(crate) fn copy(&self, text: &str) -> Option<ngx_str_t> {
        // SAFETY: nginx allocates so many bytes from the request's memory.
        unsafe {
            let data = ngx_pnalloc((*self.raw).pool, text.len().max(1)).cast::<u8>();
            if data.is_null() {
                return None;
            }
            ptr::copy_nonoverlapping(text.as_ptr(), data, text.len());
            let len = text.len();
            Some(ngx_str_t { len, data })
        }
    }

    /// Writes a line to the error log, with what nginx adds about the request.
    pub(crate) fn log(&self, severity: Severity, line: &str) {
        // SAFETY: a request has a connection with a log, and this is nginx's thread.
        unsafe { log::write((*(*self.raw).connection).log, severity, line) }
    }

    /// Whether the config has a page for this status.
    pub(crate) fn has_error_page(&self, status: u16) -> bool {
        // SAFETY: nginx keeps the core module's part of a location there; its error pages are
        // null or an array of those.
        unsafe {
            let core = *(*self.raw).loc_conf.add(ngx_http_core_module.ctx_index);
            let pages: *mut ngx_array_t = (*core.cast::<ngx_http_core_loc_conf_t>()).error_pages;
            let Some(pages) = pages.as_ref() else {
                return false;
            };
            let pages = pages.as_slice::<ngx_http_err_page_t>();
            pages.iter().any(|page| page.status == code::status(status))
        }
    }

    /// Answers with a body, and ends the request. `None` when nginx is out of memory.
    pub(crate) fn answer(&self, status: u16, kind: &str, body: &str) -> Option<()> {
        let mut kind = self.copy(kind)?;
        // SAFETY: a value without variables needs nothing but its text. nginx copies the type,
        // and the body lives as long as the request.
        unsafe {
            let mut value: ngx_http_complex_value_t = std::mem::zeroed();
            value.value = self.copy(body)?;
            let sent = ngx_http_send_response(
                self.raw,
                usize::from(status),
                &raw mut kind,
                &raw mut value,
            );
            ngx_http_finalize_request(self.raw, sent);
        }
        Some(())
    }

    /// Leaves the request waiting: it goes on by [`resume`](Self::resume), or ends when the
    /// client is gone. Says no when nginx cannot watch the connection.
    pub(crate) fn suspend(&self) -> bool {
        // SAFETY: a request has a connection with a read event.
        unsafe {
            let read = (*(*self.raw).connection).read;
            if (*read).ready() != 0 {
                // It may have been closed already, which nginx says only once.
                ngx_post_event(read, &raw mut ngx_posted_events);
            } else if ngx_handle_read_event(read, 0) != code::OK {
                return false;
            }
            (*self.raw).read_event_handler = Some(ngx_http_test_reading);
            (*self.raw).write_event_handler = Some(ngx_http_request_empty_handler);
        }
        true
    }

    /// Lets a request go on that was suspended. It may have ended afterwards.
    pub(crate) fn resume(self) {
        // SAFETY: the request is alive and was suspended in a phase, which is run again. Its
        // connection is memory that nginx never frees.
        unsafe {
            let connection = (*self.raw).connection;
            (*self.raw).read_event_handler = Some(ngx_http_block_reading);
            (*self.raw).write_event_handler = Some(ngx_http_core_run_phases);
            ngx_http_core_run_phases(self.raw);
            ngx_http_run_posted_requests(connection);
        }
    }

    /// Has nginx call this when the request ends. Says no when it is out of memory.
    pub(crate) fn on_end(
        &self,
        call: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
    ) -> bool {
        // SAFETY: nginx adds an entry without memory of its own.
        unsafe {
            let Some(cleanup) = ngx_http_cleanup_add(self.raw, 0).as_mut() else {
                return false;
            };
            cleanup.handler = Some(call);
            cleanup.data = data;
        }
        true
    }
}

/// Called by nginx when the memory of a request is freed.
unsafe extern "C" fn drop_state(data: *mut c_void) {
    // SAFETY: `remember` has written a state there, and nginx calls this once.
    unsafe { ptr::drop_in_place(data.cast::<State>()) };
}
