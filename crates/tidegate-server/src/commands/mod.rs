//! What each command does, and the exit codes: 0 for yes, 1 for no, 2 for an error.

mod ask;
mod config;
mod ratelimit;
mod serve;
mod top;

use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;
use clap::error::ErrorKind;
use tidegate_lab::{FAILED, bench, say, simulate, verify};

use crate::cli::{Arguments, Command, arguments};

/// Runs a command.
#[must_use]
pub fn run(arguments: Arguments) -> ExitCode {
    let done = match arguments.command {
        Command::Serve(serve) => block_on(serve::run(&serve)),
        Command::Ratelimit => block_on(ratelimit::run()),
        Command::Check(check) => block_on(ask::check(&check)),
        Command::Reset(reset) => block_on(ask::reset(&reset)),
        Command::Top(top) => block_on(top::run(&top)),
        Command::Verify(verify) => verify::run(&verify),
        Command::Simulate(simulate) => simulate::run(&simulate),
        Command::Bench(bench) => block_on(bench::run(&bench)),
        Command::BenchWorker => block_on(bench::worker()),
        Command::Config(command) => Ok(config::run(&command)),
        Command::Completions { shell } => {
            let (mut command, mut script) = (Arguments::command(), Vec::new());
            clap_complete::generate(shell, &mut command, "tidegate", &mut script);
            say(&String::from_utf8_lossy(&script));
            Ok(ExitCode::SUCCESS)
        }
        Command::Man { folder } => clap_mangen::generate_to(Arguments::command(), &folder)
            .with_context(|| format!("cannot write manual pages into {}", folder.display()))
            .map(|()| ExitCode::SUCCESS),
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
    for line in format!("{error:#}").lines() {
        eprintln!("tidegate: {line}");
    }
    ExitCode::from(FAILED)
}

/// Reports a wrong command line in one line. Help and version are printed as they are.
#[must_use]
pub fn misunderstood(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // If standard error is closed, there is nowhere to report to.
        drop(error.print());
        return ExitCode::from(u8::from(error.use_stderr()) * FAILED);
    }
    let text = error.render().to_string();
    let lines = text.lines().map(str::trim);
    let lines =
        lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    let text = lines.join(" ");
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    fail(&anyhow::anyhow!("{text}; see `{} --help`", subcommand()))
}

/// The command that this process was started with, as far as there is such a one.
fn subcommand() -> String {
    let (mut command, mut name) = (Arguments::command(), "tidegate".to_owned());
    for argument in arguments().iter().skip(1) {
        let Some(next) = command.find_subcommand(argument) else {
            break;
        };
        name = format!("{name} {}", argument.display());
        command = next.clone();
    }
    name
}
