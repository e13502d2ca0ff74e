//! `cargo xtask bench core`, `redis`, `cluster`, `modes`, `server`, `resp` and `tower`: the tables of
//! docs/benchmarks.md.
//!
//! Times come from the program `tidegate-bench`, instruction counts from the same
//! program under callgrind, which does not care what else the machine does.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::command::{cargo, find, output, program, root, run, target};
use crate::install;

/// Checks of the shorter of the two counted runs.
const CHECKS: u64 = 200_000;

const LIMITERS: [(&str, &str); 9] = [
    ("tidegate", "tidegate"),
    ("store-1", "tidegate, 1 level of a store"),
    ("store-2", "tidegate, 2 levels of a store"),
    ("store-3", "tidegate, 3 levels of a store"),
    ("policy", "tidegate, through a policy of 1 level"),
    ("two-levels", "tidegate, through a policy of 2 levels"),
    ("three-levels", "tidegate, through a policy of 3 levels"),
    ("governor", "governor 0.10"),
    ("aerorate", "aerorate 0.1"),
];

/// The headings in docs/benchmarks.md under which the tables stand, each to the next
/// heading.
const CORE: &str = "## Figures";
const REDIS: &str = "### Redis figures";
const CLUSTER: &str = "### Cluster figures";
const MODES: &str = "### Mode figures";
const SERVER: &str = "### Server figures";
const RESP: &str = "### RESP figures";
const TOWER: &str = "### Tower figures";

/// Requests of the shorter of the two counted runs through tower.
const REQUESTS: u64 = 10_000;

const LAYERS: [(&str, &str); 6] = [
    ("bare", "bare"),
    ("tidegate", "tidegate-tower, no headers"),
    ("tidegate-numbers", "tidegate-tower, `x-ratelimit` headers"),
    ("tidegate-ietf", "tidegate-tower, `ietf` headers"),
    ("governor", "tower_governor 0.8, no headers"),
    ("governor-headers", "tower_governor 0.8, headers"),
];

/// Measures, prints, and with `save` also keeps.
pub(crate) fn core(save: bool) -> Result<()> {
    let bench = build()?;
    let mut figures = output(program(&bench).arg("core"))?;
    let counted = |limiter: &str, checks| count(&bench, "instructions", limiter, checks);
    figures.push_str(&instructions(
        ["limiter", "check"],
        &LIMITERS,
        CHECKS,
        counted,
    )?);
    finish(CORE, &figures, save)
}

/// What a layer adds to a request.
pub(crate) fn tower(save: bool) -> Result<()> {
    let bench = build()?;
    let mut figures = output(program(&bench).arg("tower"))?;
    let counted = |layer: &str, requests| count(&bench, "requests", layer, requests);
    figures.push_str(&instructions(
        ["layer", "request"],
        &LAYERS,
        REQUESTS,
        counted,
    )?);
    finish(TOWER, &figures, save)
}

/// Checks through a Redis server of its own, which is installed if it has to be.
pub(crate) fn redis(save: bool) -> Result<()> {
    install::redis()?;
    let figures = output(program(build()?).arg("redis"))?;
    finish(REDIS, &figures, save)
}

/// Checks through clusters of its own.
pub(crate) fn cluster(save: bool) -> Result<()> {
    install::redis()?;
    let figures = output(program(build()?).arg("cluster"))?;
    finish(CLUSTER, &figures, save)
}

/// The modes under the same load, and the picture of them.
pub(crate) fn modes(save: bool) -> Result<()> {
    install::redis()?;
    run(cargo().args(["build", "--release", "--package", "tidegate-server"]))?;
    let bench = build()?;
    let picture = match save {
        true => root().join("docs/pictures/modes.svg"),
        false => bench.with_file_name("modes.svg"),
    };
    let figures = output(program(&bench).arg("modes").arg(&picture))?;
    finish(MODES, &figures, save)
}

/// The server over HTTP, beside one that is built if it has to be. A quick run only shows
/// that all works.
pub(crate) fn server(save: bool, quick: bool) -> Result<()> {
    let throttlecrab = install::throttlecrab()?;
    run(cargo().args(["build", "--release", "--package", "tidegate-server"]))?;
    let mut bench = program(build()?);
    bench.arg("server").arg(throttlecrab);
    if quick {
        bench.arg("--quick");
    }
    finish(SERVER, &output(&mut bench)?, save)
}

/// The server over the Redis protocol, beside throttlecrab-server and Redis. A quick run
/// only shows that all works.
pub(crate) fn resp(save: bool, quick: bool) -> Result<()> {
    let throttlecrab = install::resp()?;
    run(cargo().args(["build", "--release", "--package", "tidegate-server"]))?;
    let mut bench = program(build()?);
    bench.arg("resp").arg(throttlecrab);
    if quick {
        bench.arg("--quick");
    }
    finish(RESP, &output(&mut bench)?, save)
}

fn build() -> Result<PathBuf> {
    run(cargo().args(["build", "--release", "--package", "tidegate-bench"]))?;
    Ok(target()?.join("release/tidegate-bench"))
}

fn finish(heading: &str, figures: &str, save: bool) -> Result<()> {
    println!("{figures}");
    if save {
        let path = root().join("docs/benchmarks.md");
        let page = std::fs::read_to_string(&path).context("docs/benchmarks.md")?;
        let page = replace_figures(&page, heading, figures)?;
        std::fs::write(&path, page).context("docs/benchmarks.md")?;
        println!("Saved in docs/benchmarks.md.");
    }
    Ok(())
}

/// A table of what each of those named takes for one of so many.
fn instructions(
    [named, each]: [&str; 2],
    names: &[(&str, &str)],
    shorter: u64,
    count: impl Fn(&str, u64) -> Result<u64>,
) -> Result<String> {
    if find("valgrind").is_none() {
        return Ok("Instructions were not counted: valgrind is not installed.\n".into());
    }
    let width = 38;
    let heading = format!("instructions a {each}");
    let mut table = format!("| {named:<width$} | {heading} |\n");
    let rule = "-".repeat(heading.len() - 1);
    writeln!(table, "| {} | {rule}: |", "-".repeat(width))?;
    for (argument, name) in names {
        eprintln!("counting instructions: {name}");
        // Starting and filling the limiter is in both.
        let more = count(argument, 2 * shorter)?.saturating_sub(count(argument, shorter)?);
        let column = heading.len();
        writeln!(table, "| {name:<width$} | {:>column$} |", more / shorter)?;
    }
    Ok(table)
}

/// The instructions of a whole run of so many checks or requests.
fn count(bench: &Path, what: &str, name: &str, number: u64) -> Result<u64> {
    let file = std::env::temp_dir().join(format!("tidegate-callgrind-{}", std::process::id()));
    let mut out = std::ffi::OsString::from("--callgrind-out-file=");
    out.push(&file);
    run(program("valgrind")
        .args(["--quiet", "--tool=callgrind"])
        .arg(out)
        .arg(bench)
        .args([what, &number.to_string(), name]))?;
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

/// The page with other figures under a heading; what stands under others stays.
fn replace_figures(page: &str, heading: &str, figures: &str) -> Result<String> {
    let line = format!("\n{heading}\n");
    let start = page
        .find(&line)
        .with_context(|| format!("docs/benchmarks.md has no heading `{heading}`"))?;
    let (before, old) = page.split_at(start + line.len());
    let rest = old.find("\n#").map_or("", |next| &old[next..]);
    Ok(format!("{before}\n{}\n{rest}", figures.trim_end()))
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
    fn figures_replace_what_stood_under_their_heading_and_nothing_else() {
        let page = "# Benchmarks\n\nwords\n\n## Figures\n\nold\n\n\
                    ## Redis\n\nmore words\n\n### Redis figures\n\nolder\n";
        let core = replace_figures(page, CORE, "new\n\n").unwrap();
        assert_eq!(core, page.replace("old\n\n", "new\n\n"));
        let both = replace_figures(&core, REDIS, "newer\n").unwrap();
        assert_eq!(both, core.replace("older", "newer"));
        assert_eq!(replace_figures(&both, CORE, "new").unwrap(), both);
        assert!(replace_figures("no heading", CORE, "new").is_err());
    }

    #[test]
    fn the_page_has_a_place_for_each() {
        let page = include_str!("../../docs/benchmarks.md");
        for heading in [CORE, REDIS, CLUSTER, SERVER, RESP, TOWER] {
            let replaced = replace_figures(page, heading, "new").unwrap();
            assert!(replaced.contains(&format!("\n{heading}\n\nnew\n")));
            for other in [CORE, REDIS, CLUSTER, SERVER, RESP, TOWER] {
                assert!(replaced.contains(other), "{heading} replaces {other}");
            }
        }
    }
}
