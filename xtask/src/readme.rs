//! Runs the commands of README.md: what the first page promises has to work.
//!
//! `cargo run --release` would build everything once more. In its place runs the program
//! that the tests have built, with the same arguments.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::command::{program, root, run, target};

/// Lines that are not run, by how they begin, and why.
const SKIPPED: &[(&str, &str)] = &[
    ("git clone ", "the repository is here"),
    ("cd ", "every command starts at the root"),
    ("cargo xtask test", "this is what is running"),
    ("docker ", "the image is built from the same commands"),
];

/// Runs every command in the `sh` blocks of README.md.
pub(crate) fn run_commands() -> Result<()> {
    let text = std::fs::read_to_string(root().join("README.md")).context("README.md")?;
    let commands = commands(&text);
    ensure!(!commands.is_empty(), "README.md shows no command to run");
    let mut server = None;
    for command in commands {
        if let Some(reason) = skip_reason(&command) {
            println!("Skipping `{command}`: {reason}.");
            continue;
        }
        println!("Running `{command}`.");
        let command = runnable(&command, &built()?)?;
        let mut shell = program("sh");
        if command.contains(" serve") {
            // It goes on while the commands after it ask it, as in another terminal.
            drop(server.take());
            shell.args(["-c", &format!("exec {command}")]);
            server = Some(Server::start(&mut shell)?);
        } else {
            run(shell.args(["-c", &command]))?;
        }
    }
    Ok(())
}

/// The commands of README.md that ask a server at its usual address, and nothing else.
pub(crate) fn questions() -> Result<Vec<String>> {
    let text = std::fs::read_to_string(root().join("README.md")).context("README.md")?;
    let mut commands = commands(&text);
    commands.retain(|command| command.contains("curl ") && command.contains(Server::ADDRESS));
    ensure!(!commands.is_empty(), "README.md shows no curl to try");
    Ok(commands)
}

/// A server from a command of the README.
struct Server(Child);

impl Server {
    /// Where the README's server listens.
    const ADDRESS: &str = "127.0.0.1:8080";

    /// How long it may take to start.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn start(command: &mut Command) -> Result<Self> {
        let is_there = || TcpStream::connect(Self::ADDRESS).is_ok();
        ensure!(!is_there(), "somebody listens at {} already", Self::ADDRESS);
        let mut server = Self(command.spawn().context("the server")?);
        let start = Instant::now();
        while !is_there() {
            if let Some(status) = server.0.try_wait()? {
                bail!("the server has ended with {status}");
            }
            ensure!(
                start.elapsed() < Self::PATIENCE,
                "the server does not start"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The shell becomes the server, so this is its process.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Where the programs are that the tests have built.
fn built() -> Result<PathBuf> {
    Ok(target()?.join("debug"))
}

/// A command of the README without cargo: `built` is where the programs are.
fn runnable(command: &str, built: &Path) -> Result<String> {
    let Some(asked) = command.strip_prefix("cargo run ") else {
        ensure!(
            !command.starts_with("cargo "),
            "README.md: `{command}`: expected `cargo run`"
        );
        return Ok(command.to_owned());
    };
    let (options, arguments) = match asked.split_once("-- ") {
        Some((options, arguments)) => (options, arguments),
        None => (asked, ""),
    };
    let words: Vec<&str> = options.split_whitespace().collect();
    let file = match words[..] {
        ["--release"] => "tidegate".to_owned(),
        ["--release", "-p", package, "--example", name] => {
            let source = root().join(format!("crates/{package}/examples/{name}"));
            ensure!(
                source.is_dir() || source.with_extension("rs").is_file(),
                "README.md: `{command}`: {package} has no example {name}"
            );
            format!("examples/{name}")
        }
        _ => bail!(
            "README.md: `{command}`: expected `cargo run --release` for the server or \
             `cargo run --release -p PACKAGE --example NAME`"
        ),
    };
    let file = built.join(file);
    Ok(format!("'{}' {arguments}", file.display())
        .trim_end()
        .to_owned())
}

fn skip_reason(command: &str) -> Option<&'static str> {
    let matching = SKIPPED.iter().find(|(start, _)| command.starts_with(start));
    matching.map(|(_, reason)| *reason)
}

/// The commands in blocks fenced as `sh`, one per line, except a line that ends
/// with a backslash; comments and empty lines are not commands.
fn commands(markdown: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut inside = false;
    let mut unfinished = String::new();
    for line in markdown.lines().map(str::trim) {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            _ if !inside => {}
            _ => match line.strip_suffix('\\') {
                Some(start) => unfinished.push_str(start),
                None => commands.push(std::mem::take(&mut unfinished) + line),
            },
        }
    }
    commands.retain(|command| !command.is_empty() && !command.starts_with('#'));
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_run_is_the_program_that_the_tests_have_built() {
        let run = |command: &str| runnable(command, Path::new("/built"));
        let example = "cargo run --release -p tidegate-tower --example axum -- --try";
        assert_eq!(run(example).unwrap(), "'/built/examples/axum' --try");
        assert!(run("cargo run --release -p tidegate --example no-such").is_err());
        // What `cargo run` without a package runs.
        let serve = run("cargo run --release -- serve").unwrap();
        assert_eq!(serve, "'/built/tidegate' serve");
        let has = |file: &str, line: &str| {
            let text = std::fs::read_to_string(root().join(file)).unwrap();
            assert!(text.lines().any(|it| it == line), "{file}: {line}");
        };
        has(
            "Cargo.toml",
            "default-members = [\"crates/tidegate-server\"]",
        );
        has(
            "crates/tidegate-server/Cargo.toml",
            "default-run = \"tidegate\"",
        );
    }
}
