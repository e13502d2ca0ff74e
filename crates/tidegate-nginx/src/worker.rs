//! A worker process: its I/O thread, the requests that wait for it, and the queue by which
//! that thread speaks to nginx's.
//!
//! The queue has a bell, an eventfd that nginx watches like any connection. No other thread
//! ever calls nginx.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::c_void;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ngx::ffi::{
    NGX_PROCESS_SINGLE, NGX_PROCESS_WORKER, ngx_add_timer, ngx_connection_t, ngx_core_conf_t,
    ngx_core_module, ngx_cycle_t, ngx_del_timer, ngx_event_t, ngx_free_connection,
    ngx_get_connection, ngx_handle_read_event, ngx_http_module, ngx_int_t, ngx_msec_t, ngx_process,
    ngx_uint_t,
};
use ngx::http::HttpModuleConfExt;
use rustix::event::{EventfdFlags, eventfd};
use tidegate::{Decision, OnError, PolicyError, Source};

use crate::answer::Decided;
use crate::code;
use crate::conf::Main;
use crate::handler::{Check, Kept};
use crate::lock;
use crate::log::{self, Severity};
use crate::remote::{Question, Remote, RemoteZone};
use crate::request::Request;
use crate::spec::Counting;

/// What the I/O thread has to say.
pub(crate) enum Message {
    /// The answers to the questions of a request.
    Answers(Ticket, Decided),
    /// A line for the log.
    Line(Severity, String),
}

/// A request that waits: where it is, and a number that no other has, because another request
/// may come to lie in the same place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    place: usize,
    number: u64,
}

/// Messages for nginx's thread, and the bell that wakes it.
pub(crate) struct Queue {
    messages: Mutex<Vec<Message>>,
    bell: OwnedFd,
}

impl Queue {
    pub(crate) fn push(&self, message: Message) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.push(message);
        let is_first = messages.len() == 1;
        drop(messages);
        if is_first {
            // It cannot fail but for a bell that rings already.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    fn take(&self) -> Vec<Message> {
        // First the bell: who comes in between rings it again.
        let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        mem::take(&mut *messages)
    }
}

/// What a worker has, on nginx's thread.
struct Worker {
    remote: Remote,
    queue: Arc<Queue>,
    bell: *mut ngx_connection_t,
    waiting: HashMap<usize, Waiting>,
    /// How long a request waits before it is decided without an answer. The I/O thread keeps
    /// the deadline of a store; this is for when it cannot.
    patience: Duration,
}

/// A request that waits for its answers.
struct Waiting {
    ticket: Ticket,
    /// What it asked, for when there is no answer.
    zones: Vec<usize>,
    kept: Vec<Kept>,
    answers: Option<Decided>,
    /// Deleted when this is dropped.
    _timer: Box<Timer>,
}

/// A timer of nginx, which knows whom it is for. Without one, a worker that is told to quit
/// would not wait for the request.
#[repr(C)]
struct Timer {
    event: ngx_event_t,
    ticket: Ticket,
}

thread_local! {
    static WORKER: RefCell<Option<Worker>> = const { RefCell::new(None) };
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

/// Whether the stores have answered the questions of a request.
pub(crate) enum Asked {
    /// It has asked nothing.
    No,
    Waits,
    Answered(Vec<Kept>, Decided),
}

/// The answers to the questions of a request.
pub(crate) enum Answer {
    Now(Decided),
    Later(Later),
}

/// A question whose answer is on its way.
pub(crate) struct Later {
    ticket: Ticket,
    zones: Vec<usize>,
}

/// The decision of a zone in Redis, if this worker can make it alone.
#[inline]
pub(crate) fn decide(check: &Check<'_>) -> Option<Decision> {
    WORKER.with_borrow(|worker| {
        let remote = &worker.as_ref()?.remote;
        remote.decide(check.zone, check.key, check.cost)
    })
}

/// Puts the questions of a request.
pub(crate) fn ask(request: &Request<'_>, questions: Vec<Question>) -> Answer {
    let ticket = Ticket {
        place: request.as_ptr() as usize,
        number: NEXT.replace(NEXT.get() + 1),
    };
    let zones: Vec<usize> = questions.iter().map(|question| question.zone).collect();
    WORKER.with_borrow(|worker| {
        let Some(worker) = worker else {
            return Answer::Now(unanswered(request.config(), &zones));
        };
        let queue = Arc::clone(&worker.queue);
        let done = move |answers| queue.push(Message::Answers(ticket, answers));
        match worker.remote.ask(questions, done) {
            Some(answers) => Answer::Now(answers),
            None => Answer::Later(Later { ticket, zones }),
        }
    })
}

/// Leaves a request waiting for its answers. Says no when nginx cannot.
pub(crate) fn suspend(request: &Request<'_>, later: Later, kept: Vec<Kept>) -> bool {
    let Later { ticket, zones } = later;
    let place = ptr::without_provenance_mut(ticket.place);
    if !request.on_end(forget, place) || !request.suspend() {
        return false;
    }
    // SAFETY: an event may be zero.
    let mut event: ngx_event_t = unsafe { mem::zeroed() };
    event.handler = Some(time_out);
    // SAFETY: a request has a connection with a log. nginx's debug log looks at the
    // connection of an event.
    unsafe {
        let connection = (*request.as_ptr()).connection;
        event.data = connection.cast();
        event.log = (*connection).log;
    }
    let mut timer = Box::new(Timer { event, ticket });
    WORKER.with_borrow_mut(|worker| {
        let Some(worker) = worker else {
            return false;
        };
        let patience = ngx_msec_t::try_from(worker.patience.as_millis()).unwrap_or(ngx_msec_t::MAX);
        // SAFETY: the event stays in its box until the timer is deleted.
        unsafe { ngx_add_timer(&raw mut timer.event, patience) };
        let waiting = Waiting {
            ticket,
            zones,
            kept,
            answers: None,
            _timer: timer,
        };
        worker.waiting.insert(ticket.place, waiting);
        true
    })
}

/// Whether the questions of a request are answered.
pub(crate) fn asked(request: &Request<'_>) -> Asked {
    let place = request.as_ptr() as usize;
    WORKER.with_borrow_mut(|worker| {
        let Some(worker) = worker else {
            return Asked::No;
        };
        match worker.waiting.get(&place) {
            None => Asked::No,
            Some(Waiting { answers: None, .. }) => Asked::Waits,
            Some(_) => match worker.waiting.remove(&place) {
                Some(Waiting { kept, answers, .. }) => {
                    Asked::Answered(kept, answers.unwrap_or_default())
                }
                None => Asked::No,
            },
        }
    })
}

impl Drop for Timer {
    fn drop(&mut self) {
        if self.event.timer_set() != 0 {
            // SAFETY: it is set, and this is nginx's thread.
            unsafe { ngx_del_timer(&raw mut self.event) };
        }
    }
}

/// Called by nginx when a request ends that has waited, or still does.
unsafe extern "C" fn forget(place: *mut c_void) {
    let waiting = WORKER.with_borrow_mut(|worker| {
        let worker = worker.as_mut()?;
        worker.waiting.remove(&place.addr())
    });
    drop(waiting);
}

/// Called by nginx when the bell rings.
unsafe extern "C" fn ring(_: *mut ngx_event_t) {
    let queue = WORKER.with_borrow(|worker| Some(Arc::clone(&worker.as_ref()?.queue)));
    for message in queue.map(|queue| queue.take()).unwrap_or_default() {
        match message {
            Message::Answers(ticket, answers) => resume(ticket, |_| answers),
            // SAFETY: this is nginx's thread.
            Message::Line(severity, line) => unsafe { log::write_cycle(severity, &line) },
        }
    }
}

/// Called by nginx when a request has waited for too long.
unsafe extern "C" fn time_out(event: *mut ngx_event_t) {
    // SAFETY: the event is the first field of a timer.
    let ticket = unsafe { (*event.cast::<Timer>()).ticket };
    // SAFETY: this is nginx's thread.
    unsafe { log::write_cycle(Severity::ALERT, "tidegate: the I/O thread does not answer") };
    resume(ticket, |zones| {
        // SAFETY: the request waits, so it is alive.
        let request = unsafe { Request::from_raw(ptr::with_exposed_provenance_mut(ticket.place)) };
        unanswered(request.config(), zones)
    });
}

/// Lets a request go on with these answers, if it still waits for them.
fn resume(ticket: Ticket, answers: impl FnOnce(&[usize]) -> Decided) {
    let found = WORKER.with_borrow_mut(|worker| {
        let worker = worker.as_mut()?;
        let waiting = worker.waiting.get_mut(&ticket.place)?;
        if waiting.ticket != ticket || waiting.answers.is_some() {
            return None;
        }
        waiting.answers = Some(answers(&waiting.zones));
        Some(())
    });
    if found.is_some() {
        // SAFETY: a request that ends is taken off the list first, so this one is alive.
        let request = unsafe { Request::from_raw(ptr::with_exposed_provenance_mut(ticket.place)) };
        request.resume();
    }
}

/// What `on_error` says when nobody can be asked.
fn unanswered(main: &Main, zones: &[usize]) -> Decided {
    let now_us = 0;
    let mut decided = Decided::new();
    for zone in zones {
        let denies = main
            .zone(*zone)
            .is_some_and(|zone| zone.spec.on_error == OnError::Deny);
        let decision = match denies {
            true => Decision::unavailable(Duration::from_secs(1), now_us),
            false => Decision::from_store([], now_us, None, Source::ErrorPolicy, None),
        };
        decided.push((*zone, decision));
        if denies {
            break;
        }
    }
    decided
}

/// Called by nginx at the start of each process.
pub(crate) unsafe extern "C" fn init_process(cycle: *mut ngx_cycle_t) -> ngx_int_t {
    lock::identify();
    // SAFETY: nginx sets it before it starts a process.
    let process = unsafe { ngx_process };
    let works = [NGX_PROCESS_SINGLE, NGX_PROCESS_WORKER].map(|it| it as ngx_uint_t);
    if !works.contains(&process) {
        return code::OK;
    }
    // SAFETY: nginx hands over its cycle; without `http` there is nothing of ours in it.
    let main = unsafe {
        let module = &*crate::tag().cast();
        match (*cycle)
            .conf_ctx
            .add(ngx_http_module.index)
            .read()
            .is_null()
        {
            true => None,
            false => (*cycle).http_main_conf_unchecked::<Main>(module),
        }
    };
    // SAFETY: nginx keeps it for as long as the cycle.
    let Some(main) = main.map(|main| unsafe { main.as_ref() }) else {
        return code::OK;
    };
    // SAFETY: the core module's part of a cycle is of this type.
    let workers = unsafe {
        let core = (*cycle).conf_ctx.add(ngx_core_module.index).read();
        (*core.cast::<ngx_core_conf_t>()).worker_processes
    };
    let shared = main
        .zones()
        .filter(|(_, zone)| matches!(zone.spec.counting, Counting::Shared(_)));
    let workers = u32::try_from(workers).unwrap_or(1);
    let zones = shared.map(|(number, zone)| {
        let policy = zone.spec.policy(workers)?;
        Ok(RemoteZone { number, policy })
    });
    let zones: Result<Vec<RemoteZone>, PolicyError> = zones.collect();
    if zones.as_ref().is_ok_and(Vec::is_empty) {
        return code::OK;
    }
    let zones = zones.map_err(|error| error.to_string());
    // SAFETY: nginx hands over its cycle, on its thread.
    match zones.and_then(|zones| unsafe { Worker::start(cycle, main, &zones) }) {
        Ok(worker) => {
            WORKER.set(Some(worker));
            code::OK
        }
        Err(error) => {
            // SAFETY: this is nginx's thread.
            unsafe { log::write((*cycle).log, Severity::EMERGENCY, &error) };
            code::ERROR
        }
    }
}

impl Worker {
    /// # Safety
    /// nginx has called with this cycle, on its thread.
    unsafe fn start(
        cycle: *mut ngx_cycle_t,
        main: &Main,
        zones: &[RemoteZone],
    ) -> Result<Self, String> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = bell.map_err(|error| format!("cannot make an eventfd: {error}"))?;
        // SAFETY: the cycle has a log; the connection is one of nginx's own, which it never
        // frees. Its event is marked as nginx's own channel is, so that nginx does not take it
        // for a client that was forgotten.
        let connection = unsafe {
            let connection = ngx_get_connection(bell.as_raw_fd(), (*cycle).log);
            if connection.is_null() {
                return Err("not enough worker_connections".into());
            }
            let read = (*connection).read;
            (*read).handler = Some(ring);
            (*read).log = (*cycle).log;
            (*read).set_channel(1);
            (*(*connection).write).set_channel(1);
            if ngx_handle_read_event(read, 0) != code::OK {
                ngx_free_connection(connection);
                return Err("cannot watch an eventfd".into());
            }
            connection
        };
        let queue = Arc::new(Queue {
            messages: Mutex::default(),
            bell,
        });
        log::forward(Arc::clone(&queue));
        let timeouts = main.stores.iter().map(|store| store.timeout);
        let patience = timeouts.sum::<Duration>() + Duration::from_secs(2);
        let remote = without_signals(|| Remote::start(&main.stores, zones))?;
        Ok(Self {
            remote,
            queue,
            bell: connection,
            waiting: HashMap::new(),
            patience,
        })
    }
}

/// Does something with all signals blocked: threads that it starts leave them to nginx.
fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: both sets are written before they are read.
    unsafe {
        let mut all: libc::sigset_t = mem::zeroed();
        let mut before: libc::sigset_t = mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let done = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        done
    }
}

/// Called by nginx at the end of each process.
pub(crate) unsafe extern "C" fn exit_process(_: *mut ngx_cycle_t) {
    let Some(worker) = WORKER.take() else {
        return;
    };
    worker.remote.stop();
    for message in worker.queue.take() {
        if let Message::Line(severity, line) = message {
            // SAFETY: this is nginx's thread.
            unsafe { log::write_cycle(severity, &line) };
        }
    }
    // SAFETY: it is the connection that `start` got; the queue closes its descriptor.
    unsafe { ngx_free_connection(worker.bell) };
}
