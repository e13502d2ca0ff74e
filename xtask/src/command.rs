//! Running other programs from the root of the workspace.

use std::io::{BufRead, BufReader, PipeReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// The root of the workspace: every program runs there.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace")
}

/// The same cargo that runs this.
pub(crate) fn cargo() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    program(cargo)
}

/// A program that will run in the root of the workspace.
pub(crate) fn program(name: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(name);
    command.current_dir(root());
    command
}

/// Runs it to its end, its output shown; fails when it does.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !status.success() {
        bail!("`{}` ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs it to its end and returns what it wrote to its standard output; fails
/// when it does.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !output.status.success() {
        bail!("`{}` ended with {}", shown(command), output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{}` wrote no text", shown(command)))
}

/// How long it may be silent after its end: what it has started and left behind may have
/// its output open for ever.
const SILENCE: Duration = Duration::from_secs(2);

/// Runs it to its end, its output and its errors shown line by line. Says whether it has
/// succeeded, and what it has written to both.
pub(crate) fn run_shown(command: &mut Command) -> Result<(bool, String)> {
    let (reader, writer) = std::io::pipe().context("a pipe")?;
    command.stdout(writer.try_clone()?).stderr(writer);
    let child = command.spawn();
    // Or the pipe would have us as a writer, and never end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = child.with_context(|| format!("cannot start `{}`", shown(command)))?;
    let (sender, lines) = channel();
    std::thread::spawn(move || read_lines(reader, &sender));
    let mut output = String::new();
    loop {
        match lines.recv_timeout(SILENCE) {
            Ok(line) => {
                let line = String::from_utf8_lossy(&line);
                print!("{line}");
                std::io::stdout().flush()?;
                output.push_str(&line);
            }
            Err(RecvTimeoutError::Timeout) if child.try_wait()?.is_none() => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    Ok((child.wait()?.success(), output))
}

fn read_lines(reader: PipeReader, lines: &Sender<Vec<u8>>) {
    let mut reader = BufReader::new(reader);
    loop {
        let mut line = Vec::new();
        match reader.read_until(b'\n', &mut line) {
            Ok(1..) if lines.send(line).is_ok() => {}
            _ => return,
        }
    }
}

/// A command as one would type it, but for quotes.
fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let words = std::iter::once(name).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// Where a program lies, if it is installed.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_the_path() {
        assert!(find("sh").is_some());
        assert!(find("no-program-has-this-name").is_none());
    }

    #[test]
    fn a_program_that_fails_is_an_error_that_names_it() {
        assert!(run(&mut program("true")).is_ok());
        let error = run(&mut program("false")).unwrap_err().to_string();
        assert_eq!(error, "`false` ended with exit status: 1");
        assert_eq!(output(program("echo").arg("tide")).unwrap(), "tide\n");
    }

    #[test]
    fn what_is_shown_is_kept_in_order_and_nobody_left_behind_is_waited_for() {
        let script = "echo one; echo two >&2; sleep 60 & echo three; exit 1";
        let start = std::time::Instant::now();
        let (passed, output) = run_shown(program("sh").args(["-c", script])).unwrap();
        assert!(!passed && start.elapsed() < Duration::from_secs(50));
        assert_eq!(output, "one\ntwo\nthree\n");
    }
}
