//! The binary: parses the command line, runs the command, exits with its code.

use std::process::ExitCode;

use tidegate_server::cli::Arguments;
use tidegate_server::commands;

fn main() -> ExitCode {
    match Arguments::read() {
        Ok(arguments) => commands::run(arguments),
        Err(error) => commands::misunderstood(&error),
    }
}
