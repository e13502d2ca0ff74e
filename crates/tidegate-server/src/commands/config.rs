//! `tidegate config check FILE` and `tidegate config print [FILE]`.

use std::path::Path;
use std::process::ExitCode;

use crate::cli::{Config, Print, Source};
use crate::engine::Engine;
use crate::settings::{Listen, Loaded, Settings};

use tidegate_lab::{FAILED, say};

pub(super) fn run(command: &Config) -> ExitCode {
    match command {
        Config::Check { file, offline } => check(file, *offline),
        Config::Print(arguments) => print(arguments),
    }
}

#[expect(clippy::print_stderr, reason = "errors are lines of their own")]
fn check(file: &Path, offline: bool) -> ExitCode {
    let source = Source {
        config: Some(file.to_owned()),
        store: None,
    };
    let loaded = Settings::new(&source, Listen::default()).and_then(|settings| settings.load());
    match loaded {
        Ok(loaded) => {
            let count = loaded.config.policies.len();
            for warning in loaded.config.warnings() {
                eprintln!("{}: warning: {warning}", file.display());
            }
            // All of it, as a start would: secrets, scripts and certificates are read, too.
            let used = match offline {
                true => Ok(()),
                false => Engine::new(loaded).map(drop),
            };
            match used {
                Ok(()) => {
                    let policies = if count == 1 { "policy" } else { "policies" };
                    say(&format!("{}: ok, {count} {policies}", file.display()));
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

/// Prints what would be in force. Secrets need not be there for that.
#[expect(clippy::print_stderr, reason = "errors are lines of their own")]
fn print(arguments: &Print) -> ExitCode {
    let source = Source {
        config: arguments.file.clone(),
        store: arguments.store.clone(),
    };
    let loaded = Settings::new(&source, arguments.listen()).and_then(|settings| settings.load());
    match loaded {
        Ok(loaded) => {
            let Loaded { server, config, .. } = loaded;
            let envoy = match server.grpc.is_empty() {
                true => server.envoy.to_string(),
                false => format!("{:#}", server.envoy),
            };
            say(&match config.policies.is_empty() {
                // `policies = []` must come before any table.
                true => format!("{config:#}{server:#}{envoy}"),
                false => format!("{server:#}{envoy}{config:#}"),
            });
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(FAILED)
        }
    }
}
