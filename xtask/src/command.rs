//! Running other programs from the root of the workspace.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The root of the workspace: every program runs there.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace")
}

/// Cargo's target folder: this program lies in a folder of it.
pub(crate) fn target() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let target = own.ancestors().nth(2).context("not run by cargo")?;
    Ok(target.to_owned())
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

/// Runs it to its end and shows its output then, in one piece: other programs run at the
/// same time. Fails when it does.
pub(crate) fn run_beside(command: &mut Command) -> Result<()> {
    let output = command
        .output()
        .with_context(|| format!("cannot start `{}`", shown(command)))?;
    let said = [output.stdout, output.stderr].concat();
    println!("\n{}\n{}", shown(command), String::from_utf8_lossy(&said));
    if !output.status.success() {
        bail!("`{}` ended with {}", shown(command), output.status);
    }
    Ok(())
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
        assert!(run_beside(&mut program("true")).is_ok());
        let error = run_beside(&mut program("false")).unwrap_err().to_string();
        assert_eq!(error, "`false` ended with exit status: 1");
    }
}
