//! Log lines: how much of them, and how they look.

use std::io::IsTerminal;

use tracing::level_filters::LevelFilter;

use crate::cli::{Format, Level};

/// Sends log lines to standard error from now on.
pub(crate) fn start(level: Level, format: Format) {
    let level = match level {
        Level::Off => LevelFilter::OFF,
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    };
    let color = std::io::stderr().is_terminal() && !is_set("NO_COLOR");
    let lines = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(color);
    match format {
        Format::Text => lines.init(),
        Format::Json => lines.json().flatten_event(true).init(),
    }
}

/// Whether a variable has any value but an empty one (no-color.org).
fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty())
}
