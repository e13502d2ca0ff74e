//! `cargo xtask test`: everything a change has to pass, one step after another.

use std::time::Instant;

use anyhow::{Context, Result};

use crate::command::{cargo, root, run as execute};
use crate::{install, pictures, readme, second_try};

/// What to do, and what has to be said about it at the end.
type Step = (&'static str, fn() -> Result<Vec<String>>);

const STEPS: &[Step] = &[
    ("What the tests need", || quietly(install::run_all)),
    ("Format", || quietly(format)),
    ("Clippy", || quietly(clippy)),
    (
        "Tests: unit, property, integration and doc tests",
        second_try::run_tests,
    ),
    ("Documentation", || quietly(documentation)),
    ("The pictures of docs/algorithms.md", || {
        quietly(pictures::check)
    }),
    ("Loom", || quietly(loom)),
    ("The commands of README.md", || {
        quietly(readme::run_commands)
    }),
];

/// A step of which nothing has to be said at the end.
fn quietly(step: fn() -> Result<()>) -> Result<Vec<String>> {
    step().map(|()| Vec::new())
}

/// Runs all steps; the first that fails ends it.
pub(crate) fn run() -> Result<()> {
    let start = Instant::now();
    let mut remarks = Vec::new();
    for (heading, step) in STEPS {
        let start = Instant::now();
        println!("\n=== {heading}");
        remarks.extend(step().with_context(|| format!("step failed: {heading}"))?);
        println!("--- {heading}: {:.1} s", start.elapsed().as_secs_f64());
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("\nAll steps passed in {seconds:.1} s.");
    for remark in remarks {
        println!("\n*** {remark} ***");
    }
    Ok(())
}

fn format() -> Result<()> {
    execute(cargo().args(["fmt", "--all", "--check"]))
}

fn clippy() -> Result<()> {
    let warnings = ["--", "-D", "warnings"];
    execute(
        cargo()
            .args(["clippy", "--workspace", "--all-targets"])
            .args(warnings),
    )
}

fn documentation() -> Result<()> {
    execute(
        cargo()
            .args(["doc", "--no-deps", "--workspace"])
            .env("RUSTDOCFLAGS", "-D warnings"),
    )
}

/// The hand-made atomics under every order of steps. Its flags would rebuild
/// everything else, so it has a target folder of its own.
fn loom() -> Result<()> {
    execute(
        cargo()
            .args(["test", "-p", "tidegate", "--lib", "--release", "loom"])
            .env("RUSTFLAGS", "--cfg loom")
            .env("CARGO_TARGET_DIR", root().join("target/loom")),
    )
}
