//! `cargo xtask test mutations`: mistakes made on purpose, each of which a test has to notice.
//!
//! A mistake is a patch in `crates/tidegate-testkit/mutations`. Above the diff, a line `# TITLE`
//! says what is broken, and a line `test: ARGUMENTS` which `cargo test` has to fail. This applies
//! the patches one by one to a copy of the workspace, which keeps its build from run to run.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::command::{output, program, root, run, target};

/// Where the patches lie.
const PATCHES: &str = "crates/tidegate-testkit/mutations";

struct Mutation {
    file: PathBuf,
    title: String,
    /// Arguments of `cargo test`.
    test: String,
}

impl Mutation {
    fn read(file: PathBuf) -> Result<Self> {
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        let line = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
        let (Some(title), Some(test)) = (line("# "), line("test: ")) else {
            bail!(
                "{}: expected a line `# TITLE` and a line `test: ARGUMENTS`",
                file.display()
            );
        };
        let (title, test) = (title.to_owned(), test.to_owned());
        Ok(Self { file, title, test })
    }

    fn name(&self) -> String {
        let stem = self.file.file_stem().unwrap_or_default();
        stem.to_string_lossy().into_owned()
    }
}

/// Applies the mutations whose names contain the filter, and fails if a test passes in spite
/// of one.
pub(crate) fn run_all(filter: &str) -> Result<()> {
    let mutations = read(filter)?;
    let copy = Copy::new()?;
    let tests: BTreeSet<&str> = mutations.iter().map(|it| it.test.as_str()).collect();
    for test in tests {
        println!("=== Without a mutation: cargo test {test}");
        ensure!(
            copy.passes(test)?,
            "`cargo test {test}` fails without a mutation"
        );
    }
    let mut unnoticed = Vec::new();
    for mutation in &mutations {
        let start = Instant::now();
        copy.apply(&mutation.file, &[])?;
        let is_noticed = copy.builds(&mutation.test).and_then(|()| {
            let passes = copy.passes(&mutation.test)?;
            Ok(!passes)
        });
        copy.apply(&mutation.file, &["--reverse"])?;
        let is_noticed = is_noticed.with_context(|| mutation.name())?;
        let verdict = if is_noticed { "noticed" } else { "NOT NOTICED" };
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{verdict} ({seconds:.0} s)  {}: {}",
            mutation.name(),
            mutation.title
        );
        if !is_noticed {
            unnoticed.push(mutation.name());
        }
    }
    ensure!(
        unnoticed.is_empty(),
        "no test noticed {}",
        unnoticed.join(", ")
    );
    println!("\nThe tests noticed all {} mutations.", mutations.len());
    Ok(())
}

fn read(filter: &str) -> Result<Vec<Mutation>> {
    let folder = root().join(PATCHES);
    let entries =
        std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.file_stem().is_some_and(|name| contains(name, filter)));
    files.sort();
    ensure!(!files.is_empty(), "no mutation's name contains {filter:?}");
    files.into_iter().map(Mutation::read).collect()
}

/// Removes files of an earlier copy that are no longer in the workspace.
fn remove_others(folder: &Path, wanted: &BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            remove_others(&path, wanted);
        } else if !wanted.contains(&path) {
            drop(std::fs::remove_file(&path));
        }
    }
}

fn contains(name: &std::ffi::OsStr, filter: &str) -> bool {
    name.to_string_lossy().contains(filter)
}

/// A copy of the workspace, with a build of its own.
struct Copy {
    folder: PathBuf,
    target: PathBuf,
}

impl Copy {
    /// Copies what git does not ignore, as it is in the working tree. Files that are the same
    /// already stay as they are, so that cargo builds only what has changed.
    fn new() -> Result<Self> {
        let base = target()?.join("mutations");
        let copy = Self {
            folder: base.join("workspace"),
            target: base.join("target"),
        };
        let list = ["ls-files", "--cached", "--others", "--exclude-standard"];
        let listed = output(program("git").args(list))?;
        let wanted = listed.lines().map(|name| copy.folder.join(name)).collect();
        remove_others(&copy.folder, &wanted);
        for name in listed.lines() {
            let (from, to) = (root().join(name), copy.folder.join(name));
            let Ok(bytes) = std::fs::read(&from) else {
                continue;
            };
            if std::fs::read(&to).is_ok_and(|old| old == bytes) {
                continue;
            }
            let parent = to.parent().context("a file lies in a folder")?;
            std::fs::create_dir_all(parent)
                .and_then(|()| std::fs::copy(&from, &to))
                .with_context(|| format!("cannot write {}", to.display()))?;
        }
        Ok(copy)
    }

    /// Applies a patch. Git must not find the repository around the copy, or it would pass over
    /// files outside of the folder that it runs in.
    fn apply(&self, patch: &Path, options: &[&str]) -> Result<()> {
        let above = self.folder.parent().context("the copy has a parent")?;
        run(Command::new("git")
            .current_dir(&self.folder)
            .env("GIT_CEILING_DIRECTORIES", above)
            .arg("apply")
            .args(options)
            .arg(patch))
    }

    fn cargo(&self, test: &str) -> Command {
        let mut cargo = crate::command::cargo();
        cargo
            .current_dir(&self.folder)
            .env("CARGO_TARGET_DIR", &self.target)
            .args(["test", "--quiet"])
            .args(test.split_whitespace());
        cargo
    }

    fn builds(&self, test: &str) -> Result<()> {
        let (package, _) = test.split_once(" -- ").unwrap_or((test, ""));
        run(self.cargo(package).arg("--no-run"))
    }

    /// Whether the test passes. What a failing test prints is not of interest.
    fn passes(&self, test: &str) -> Result<bool> {
        let mut cargo = self.cargo(test);
        cargo.stdout(Stdio::null()).stderr(Stdio::null());
        let status = cargo.status().context("cannot start cargo")?;
        Ok(status.success())
    }
}
