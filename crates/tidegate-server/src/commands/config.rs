//! `tidegate config check FILE`.

use std::process::ExitCode;

use crate::cli::{Config, Source};
use crate::engine::Engine;
use crate::settings::Settings;

use super::{FAILED, say};

#[expect(clippy::print_stderr, reason = "errors are lines of their own")]
pub(super) fn run(command: &Config) -> ExitCode {
    let Config::Check { file } = command;
    let source = Source {
        config: Some(file.clone()),
        store: None,
    };
    // All of it, as a start would: scripts and certificates are read, too.
    let loaded = Settings::new(&source, &[]).and_then(|settings| settings.load());
    match loaded {
        Ok(loaded) => {
            let count = loaded.config.policies.len();
            for warning in loaded.config.warnings() {
                eprintln!("{}: warning: {warning}", file.display());
            }
            match Engine::new(loaded) {
                Ok(_) => {
                    let policies = if count == 1 { "policy" } else { "policies" };
                    say(&format!("{}: right, {count} {policies}", file.display()));
                    ExitCode::SUCCESS
                }
                Err(error) => {
                    eprintln!("{}: {error}", file.display());
                    ExitCode::from(FAILED)
                }
            }
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(FAILED)
        }
    }
}
