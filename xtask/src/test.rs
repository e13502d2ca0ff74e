//! `cargo xtask test`: what a newcomer runs, with Redis its only server.
//! `cargo xtask test --all`: everything a change has to pass.

use std::time::Instant;

use anyhow::{Context, Result};

use crate::command::{cargo, root, run as execute, run_beside};
use crate::{dist, dockerfile, install, nginx, readme, suites};

/// A heading, and what to do.
type Step = (&'static str, fn() -> Result<()>);

const QUICK: &[Step] = &[
    ("What the tests need", install::quick),
    ("Format", format),
    ("Clippy", clippy),
    (
        "Tests on memory and one Redis: unit, property, conformance, integration and doc tests",
        suites::run_quick,
    ),
];

const REST: &[Step] = &[
    ("What the other tests need", install::run_all),
    ("Dockerfile", dockerfile::lint),
    (
        "Tests on clusters, sentinels, other Redis versions, proxies, browsers and foreign clients",
        suites::run_rest,
    ),
    (
        "Tests that need real time, beside the nginx module's build, documentation, loom and the Debian package",
        timing,
    ),
    ("Tests of the nginx module", nginx::test_built),
    ("The commands of README.md", readme::run_commands),
];

/// Runs the quick tier.
pub(crate) fn run_quick() -> Result<()> {
    run(QUICK.iter())?;
    println!(
        "`cargo xtask test --all` also runs what needs other programs, clusters and real time."
    );
    Ok(())
}

/// Runs both tiers.
pub(crate) fn run_all() -> Result<()> {
    run(QUICK.iter().chain(REST))
}

/// Runs steps; the first that fails ends it.
fn run<'s>(steps: impl Iterator<Item = &'s Step>) -> Result<()> {
    let start = Instant::now();
    let mut times = Vec::new();
    for (heading, step) in steps {
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
    // A macro declares the modules of the algorithms, and rustfmt does not look into macros.
    let folder = root().join("crates/tidegate/src/algorithm");
    let files = std::fs::read_dir(folder)?.filter_map(|file| Some(file.ok()?.path()));
    let files = files.filter(|path| path.extension().is_some_and(|it| it == "rs"));
    execute(cargo().args(["fmt", "--all", "--check", "--"]).args(files))
}

fn clippy() -> Result<()> {
    let warnings = ["--", "-D", "warnings"];
    execute(
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
