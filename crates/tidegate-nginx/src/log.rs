//! nginx's error log. Only nginx's thread writes to it; lines of other threads come by the
//! queue of the worker.

use std::io::{self, Write};
use std::sync::Arc;

use ngx::ffi::{
    NGX_LOG_ALERT, NGX_LOG_EMERG, NGX_LOG_ERR, NGX_LOG_INFO, NGX_LOG_NOTICE, NGX_LOG_WARN,
    ngx_cycle, ngx_log_error_core, ngx_log_t, ngx_uint_t,
};
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use crate::spec::wrong;
use crate::worker::{Message, Queue};

/// How grave a line is, as nginx counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Severity(u32);

impl Severity {
    pub(crate) const EMERGENCY: Self = Self(NGX_LOG_EMERG);
    pub(crate) const ALERT: Self = Self(NGX_LOG_ALERT);
    pub(crate) const ERROR: Self = Self(NGX_LOG_ERR);
    pub(crate) const WARN: Self = Self(NGX_LOG_WARN);

    pub(crate) fn parse(word: &str) -> Result<Self, String> {
        Ok(Self(match word {
            "info" => NGX_LOG_INFO,
            "notice" => NGX_LOG_NOTICE,
            "warn" => NGX_LOG_WARN,
            "error" => NGX_LOG_ERR,
            _ => return Err(wrong(word, "expected info, notice, warn or error")),
        }))
    }

    /// By default nginx logs errors and nothing below them, so the end of an outage is one as
    /// its begin is.
    fn of(metadata: &Metadata<'_>) -> Self {
        let ends_an_outage = metadata.fields().field("outage").is_some();
        Self(match *metadata.level() {
            Level::ERROR => NGX_LOG_ERR,
            _ if ends_an_outage => NGX_LOG_ERR,
            Level::WARN => NGX_LOG_WARN,
            _ => NGX_LOG_NOTICE,
        })
    }
}

/// Writes a line to this log.
///
/// # Safety
/// `log` is a log of nginx, and this is nginx's thread.
pub(crate) unsafe fn write(log: *mut ngx_log_t, severity: Severity, line: &str) {
    let level = severity.0 as ngx_uint_t;
    // SAFETY: the caller vouches for the log. The format takes a length and bytes.
    unsafe {
        if (*log).log_level >= level {
            let format = c"%*s".as_ptr();
            ngx_log_error_core(level, log, 0, format, line.len(), line.as_ptr());
        }
    }
}

/// Writes a line that belongs to no request.
///
/// # Safety
/// This is nginx's thread.
pub(crate) unsafe fn write_cycle(severity: Severity, line: &str) {
    // SAFETY: nginx always has a cycle with a log.
    unsafe { write((*ngx_cycle).log, severity, line) }
}

/// Has the lines of the Redis crate written to nginx's log.
pub(crate) fn forward(queue: Arc<Queue>) {
    let lines = tracing_subscriber::fmt()
        .with_max_level(Level::INFO)
        .without_time()
        .with_level(false)
        .with_target(false)
        .with_ansi(false)
        .with_writer(Lines(queue))
        .finish();
    // One subscriber per process; a worker sets it once.
    drop(tracing::subscriber::set_global_default(lines));
}

struct Lines(Arc<Queue>);

/// One line on its way to nginx's thread.
struct Line {
    queue: Arc<Queue>,
    severity: Severity,
    text: Vec<u8>,
}

impl<'w> MakeWriter<'w> for Lines {
    type Writer = Line;

    fn make_writer(&'w self) -> Line {
        self.line(Severity::WARN)
    }

    fn make_writer_for(&'w self, metadata: &Metadata<'_>) -> Line {
        self.line(Severity::of(metadata))
    }
}

impl Lines {
    fn line(&self, severity: Severity) -> Line {
        Line {
            queue: Arc::clone(&self.0),
            severity,
            text: Vec::new(),
        }
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let text = String::from_utf8_lossy(&self.text);
        let text = text.trim();
        if !text.is_empty() {
            let line = format!("tidegate: {text}");
            self.queue.push(Message::Line(self.severity, line));
        }
    }
}
