//! Logging: level and format.

use std::io::IsTerminal;

use clap::ValueEnum;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

/// How much to log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Level {
    /// Nothing.
    Off,
    /// Errors.
    Error,
    /// Plus warnings.
    Warn,
    /// Plus state changes.
    #[default]
    Info,
    /// Plus every decision.
    Debug,
    /// Everything.
    Trace,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For machines: one JSON object per line.
    Json,
}

/// Changes the log level.
pub struct Control(reload::Handle<LevelFilter, Registry>);

impl Level {
    /// All of them, by the words of a config.
    pub(crate) const ALL: [(&str, Self); 6] = [
        ("off", Self::Off),
        ("error", Self::Error),
        ("warn", Self::Warn),
        ("info", Self::Info),
        ("debug", Self::Debug),
        ("trace", Self::Trace),
    ];

    /// The word for it in a config.
    pub(crate) fn word(self) -> &'static str {
        let mut all = Self::ALL.iter();
        let found = all.find(|(_, level)| *level == self);
        found.map_or("info", |(word, _)| word)
    }

    fn filter(self) -> LevelFilter {
        match self {
            Self::Off => LevelFilter::OFF,
            Self::Error => LevelFilter::ERROR,
            Self::Warn => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
            Self::Trace => LevelFilter::TRACE,
        }
    }
}

impl Control {
    /// A control without a log.
    #[cfg(test)]
    pub(crate) fn of_nothing() -> Self {
        let (_, handle) = reload::Layer::new(LevelFilter::OFF);
        Self(handle)
    }

    /// Sets the level from now on.
    pub(crate) fn set(&self, level: Level) {
        // Fails if the subscriber is gone.
        drop(self.0.reload(level.filter()));
    }
}

/// Sends log lines to standard error from now on.
pub(crate) fn start(level: Level, format: Format) -> Control {
    let (filter, handle) = reload::Layer::new(level.filter());
    let color = std::io::stderr().is_terminal() && !is_set("NO_COLOR");
    let lines = fmt::layer()
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(color);
    let lines = match format {
        Format::Text => lines.boxed(),
        Format::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .init();
    Control(handle)
}

/// Whether a variable has any value but an empty one (no-color.org).
fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty())
}
