//! The binary: reads the command line, runs the command, ends with its exit code.

use std::process::ExitCode;

use clap::Parser;
use tidegate_server::cli::Arguments;
use tidegate_server::commands;

fn main() -> ExitCode {
    commands::run(Arguments::parse())
}
