//! What each command does, and the exit codes: 0 for yes, 1 for no, 2 for an error.

mod ask;
mod config;
mod serve;

use std::process::ExitCode;

use clap::CommandFactory;

use crate::cli::{Arguments, Command};

/// The exit code of whatever could not be done.
const FAILED: u8 = 2;

/// Runs a command.
#[must_use]
pub fn run(arguments: Arguments) -> ExitCode {
    let done = match arguments.command {
        Command::Serve(serve) => block_on(serve::run(&serve)),
        Command::Check(check) => block_on(ask::check(&check)),
        Command::Reset(reset) => block_on(ask::reset(&reset)),
        Command::Config(command) => Ok(config::run(&command)),
        Command::Completions { shell } => {
            let mut command = Arguments::command();
            clap_complete::generate(shell, &mut command, "tidegate", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
    };
    done.unwrap_or_else(|error| fail(&error))
}

fn block_on(command: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let done = runtime.block_on(command);
    runtime.shutdown_background();
    done
}

/// Says what went wrong, on one line each.
#[expect(
    clippy::print_stderr,
    reason = "this is what a command says to its user"
)]
fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("tidegate: {error:#}");
    ExitCode::from(FAILED)
}

/// What a command says to its user.
#[expect(
    clippy::print_stdout,
    reason = "this is what a command says to its user"
)]
fn say(text: &str) {
    println!("{text}");
}
