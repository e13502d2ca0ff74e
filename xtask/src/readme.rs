//! Runs the commands of README.md: what the first page promises has to work.

use std::net::TcpStream;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::command::{program, root, run};

/// Lines that are not run, by how they begin, and why.
const SKIPPED: &[(&str, &str)] = &[
    ("git clone ", "the repository is here"),
    ("cd ", "every command starts at the root"),
    ("cargo xtask test", "this is what is running"),
    ("docker ", "the image is built from the same commands"),
];

/// Runs every command in the `sh` blocks of README.md, as written there.
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

/// A server from a command of the README.
struct Server(Child);

impl Server {
    /// Where the README's server listens.
    const ADDRESS: &str = "127.0.0.1:8080";

    /// How long it may take to be built and to start.
    const PATIENCE: Duration = Duration::from_secs(900);

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
        // `cargo run` becomes the server it has built, so this is its process.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn skip_reason(command: &str) -> Option<&'static str> {
    let matching = SKIPPED.iter().find(|(start, _)| command.starts_with(start));
    matching.map(|(_, reason)| *reason)
}

/// The commands in blocks fenced as `sh`, one a line but for a line that ends
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
    fn commands_come_from_sh_blocks_only() {
        let markdown = "text\n```sh\n# a comment\ncargo run\n\ncargo test \\\n  --all\n```\n\
                        ```toml\nnot = 1\n```\n```sh\nls\n```\n";
        assert_eq!(commands(markdown), ["cargo run", "cargo test --all", "ls"]);
    }

    #[test]
    fn only_what_is_already_done_is_skipped() {
        assert!(skip_reason("git clone https://example.org/x").is_some());
        assert!(skip_reason("cd tidegate").is_some());
        assert!(skip_reason("cargo xtask test").is_some());
        assert!(skip_reason("cargo run --release --example tide").is_none());
    }
}
