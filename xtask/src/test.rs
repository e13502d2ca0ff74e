//! `cargo xtask test`: everything a change has to pass, one step after another.

use std::time::Instant;

use anyhow::{Context, Result};

use crate::command::{cargo, root, run as execute, run_beside};
use crate::{dist, dockerfile, install, nginx, readme, suites};

/// A heading, and what to do.
type Step = (&'static str, fn() -> Result<()>);

const STEPS: &[Step] = &[
    ("What the tests need", install::run_all),
    ("Format", format),
    ("Dockerfile", dockerfile::lint),
    (
        "Tests: unit, property, integration and doc tests",
        suites::run_others,
    ),
    (
        "Tests that need real time, beside Clippy, the nginx module's build, documentation, loom and the Debian package",
        timing,
    ),
    ("Tests of the nginx module", nginx::test_built),
    ("The commands of README.md", readme::run_commands),
];

/// Runs all steps; the first that fails ends it.
pub(crate) fn run() -> Result<()> {
    let start = Instant::now();
    let mut times = Vec::new();
    for (heading, step) in STEPS {
        let start = Instant::now();
        println!("\n=== {heading}");
        step().with_context(|| format!("step failed: {heading}"))?;
        let time = format!("{:7.1} s  {heading}", start.elapsed().as_secs_f64());
        println!("--- {}", time.trim_start());
        times.push(time);
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("\n{}", times.join("\n"));
    println!("{seconds:7.1} s  in all\n\nAll steps passed.");
    Ok(())
}

fn format() -> Result<()> {
    execute(cargo().args(["fmt", "--all", "--check"]))
}

fn clippy() -> Result<()> {
    let warnings = ["--", "-D", "warnings"];
    run_beside(
        cargo()
            .args(["clippy", "--workspace", "--all-targets"])
            .args(warnings),
    )
}

/// The tests that need real time mostly wait, and have to hold on a busy machine. What needs
/// the processor runs beside them.
fn timing() -> Result<()> {
    std::thread::scope(|scope| {
        let built = scope.spawn(|| {
            // First what has a target folder of its own: cargo locks the folder that it
            // builds in, and the tests should not wait for that.
            beside("Check and build of the nginx module", nginx::check)?;
            beside("Clippy", clippy)?;
            beside("Documentation", documentation)?;
            beside("Loom", loom)?;
            beside("Debian package on a clean root", dist::test_built)
        });
        let tested = suites::run_timing();
        let built = built.join().expect("steps return errors");
        tested.and(built)
    })
}

fn beside(heading: &str, step: fn() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    step().with_context(|| format!("step failed: {heading}"))?;
    println!("--- {:.1} s  {heading}", start.elapsed().as_secs_f64());
    Ok(())
}

/// With the examples, which need what the tests need: otherwise the dependencies would be
/// checked once more, with the features that they have without tests.
fn documentation() -> Result<()> {
    run_beside(
        cargo()
            .args(["doc", "--no-deps", "--workspace"])
            .args(["--lib", "--examples"])
            .args(["--bin", "tidegate-bench", "--bin", "xtask"])
            .env("RUSTDOCFLAGS", "-D warnings"),
    )
}

/// The hand-made atomics under every order of steps. Its flags would rebuild
/// everything else, so it has a target folder of its own. It needs an optimised build, but
/// not the best one.
fn loom() -> Result<()> {
    run_beside(
        cargo()
            .args(["test", "-p", "tidegate", "--lib", "--release", "loom"])
            .env("RUSTFLAGS", "--cfg loom")
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
            .env("CARGO_TARGET_DIR", root().join("target/loom")),
    )
}
