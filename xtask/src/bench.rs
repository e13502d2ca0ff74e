//! `cargo xtask bench core`: the tables of docs/benchmarks.md.
//!
//! Times come from the program `tidegate-bench`, instruction counts from the same
//! program under callgrind, which does not care what else the machine does.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::command::{cargo, find, output, program, root, run};

/// Checks of the shorter of the two counted runs.
const CHECKS: u64 = 200_000;

const LIMITERS: [(&str, &str); 5] = [
    ("tidegate", "tidegate"),
    ("policy", "tidegate, through a policy of 1 level"),
    ("two-levels", "tidegate, through a policy of 2 levels"),
    ("governor", "governor 0.10"),
    ("aerorate", "aerorate 0.1"),
];

/// The heading in docs/benchmarks.md under which the tables stand, to the end of
/// the file.
const HEADING: &str = "\n## Figures\n\n";

/// Measures, prints, and with `save` also keeps.
pub(crate) fn core(save: bool) -> Result<()> {
    run(cargo().args(["build", "--release", "--package", "tidegate-bench"]))?;
    let bench = binary()?;
    let mut figures = output(program(&bench).arg("core"))?;
    figures.push_str(&instructions(&bench)?);
    println!("{figures}");
    if save {
        let path = root().join("docs/benchmarks.md");
        let page = std::fs::read_to_string(&path).context("docs/benchmarks.md")?;
        std::fs::write(&path, replace_figures(&page, &figures)?).context("docs/benchmarks.md")?;
        println!("Saved in docs/benchmarks.md.");
    }
    Ok(())
}

/// Where cargo has put the program: next to the folder that this one is in.
fn binary() -> Result<PathBuf> {
    let own = std::env::current_exe().context("where am I?")?;
    let target = own.ancestors().nth(2).context("not run by cargo")?;
    Ok(target.join("release/tidegate-bench"))
}

fn instructions(bench: &Path) -> Result<String> {
    if find("valgrind").is_none() {
        return Ok("Instructions were not counted: valgrind is not installed.\n".into());
    }
    let width = 38;
    let mut table = format!("| {:<width$} | instructions a check |\n", "limiter");
    writeln!(table, "| {} | -------------------: |", "-".repeat(width))?;
    for (argument, name) in LIMITERS {
        eprintln!("counting instructions: {name}");
        let short = count(bench, argument, CHECKS)?;
        let long = count(bench, argument, 2 * CHECKS)?;
        // Starting and filling the limiter is in both.
        let each = long.saturating_sub(short) / CHECKS;
        writeln!(table, "| {name:<width$} | {each:>20} |")?;
    }
    Ok(table)
}

/// The instructions of a whole run.
fn count(bench: &Path, limiter: &str, checks: u64) -> Result<u64> {
    let file = std::env::temp_dir().join(format!("tidegate-callgrind-{}", std::process::id()));
    let mut out = std::ffi::OsString::from("--callgrind-out-file=");
    out.push(&file);
    run(program("valgrind")
        .args(["--quiet", "--tool=callgrind"])
        .arg(out)
        .arg(bench)
        .args(["instructions", &checks.to_string(), limiter]))?;
    let profile = std::fs::read_to_string(&file).context("callgrind's profile")?;
    std::fs::remove_file(&file).context("callgrind's profile")?;
    total(&profile).context("callgrind's profile has no total")
}

/// The total of a callgrind profile.
fn total(profile: &str) -> Option<u64> {
    let line = |start| profile.lines().find_map(|line| line.strip_prefix(start));
    line("totals: ")
        .or_else(|| line("summary: "))?
        .trim()
        .parse()
        .ok()
}

fn replace_figures(page: &str, figures: &str) -> Result<String> {
    let end = page
        .find(HEADING)
        .context("docs/benchmarks.md has no heading `## Figures`")?;
    Ok(format!("{}{HEADING}{}\n", &page[..end], figures.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read_from_a_profile() {
        assert_eq!(
            total("events: Ir\nsummary: 123\n\ntotals: 123\n"),
            Some(123)
        );
        assert_eq!(total("nothing"), None);
    }

    #[test]
    fn figures_replace_what_stood_under_the_heading() {
        let page = "# Benchmarks\n\nwords\n\n## Figures\n\nold\n";
        let replaced = replace_figures(page, "new\n\n").unwrap();
        assert_eq!(replaced, "# Benchmarks\n\nwords\n\n## Figures\n\nnew\n");
        assert!(replace_figures("no heading", "new").is_err());
    }
}
