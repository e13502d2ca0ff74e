//! `cargo xtask fuzz`: random input for everything that reads text, for as long as one
//! likes. What it finds becomes a test.

use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::command::{find, program, root, run as execute};

/// The files of fuzz/fuzz_targets, each with its seeds in fuzz/seeds.
const TARGETS: &[&str] = &["config", "limit", "resp", "server"];

/// How long each target runs unless said otherwise.
pub(crate) const SECONDS: &str = "60";

/// Runs every target for the given number of seconds, and stops at the first finding.
pub(crate) fn run(seconds: &str) -> Result<()> {
    let seconds: u32 = seconds
        .parse()
        .with_context(|| format!("{seconds:?}: expected a number of seconds"))?;
    tools()?;
    for target in TARGETS {
        println!("\n=== {target}: {seconds} s");
        let corpus = root().join("fuzz/corpus").join(target);
        std::fs::create_dir_all(&corpus)
            .with_context(|| format!("cannot make {}", corpus.display()))?;
        execute(
            program("cargo")
                .args(["+nightly", "fuzz", "run", target])
                .arg(corpus)
                .arg(root().join("fuzz/seeds").join(target))
                .args(["--", "-timeout=5", "-max_len=8192"])
                .arg(format!("-max_total_time={seconds}"))
                // The toolchain that runs this is another one.
                .env_remove("RUSTUP_TOOLCHAIN"),
        )
        .with_context(|| {
            format!("{target}: an input that fails, if it found one, is in fuzz/artifacts/{target}")
        })?;
    }
    Ok(())
}

/// A nightly toolchain and cargo-fuzz.
fn tools() -> Result<()> {
    let nightly = program("rustup")
        .args(["run", "nightly", "rustc", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !nightly.is_ok_and(|status| status.success()) {
        bail!("fuzzing needs a nightly toolchain; run: rustup toolchain install nightly");
    }
    if find("cargo-fuzz").is_none() {
        execute(program("cargo").args(["install", "cargo-fuzz", "--locked"]))?;
    }
    Ok(())
}
