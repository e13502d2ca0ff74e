//! The tests, in two tiers, told apart by the names of their modules. Each test runs once: a
//! test that fails fails the run.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::command::{cargo, run};
use crate::servers;

/// Modules of the second tier that need other programs than one Redis: clusters and
/// sentinels, proxies, browsers, terminals, clients in other languages.
const OTHER_PROGRAMS: &[&str] = &[
    "cluster::",
    "commands::pages_with_other_programs",
    "commands::top_in_a_terminal",
    "dashboard::",
    "envoy::gateway::",
    "envoy::manual::",
    "envoy::ratelimit::envoy_asks_",
    "nginx::",
    "proxies::",
    "resp::clients::",
    "resp::module::",
    "simulate::page::",
    "spread::",
];

/// What the full names of tests that need real time contain.
const TIMING: &str = "timing::";

/// How many busy loops `cargo xtask test --timing` runs beside the tests.
const BUSY_LOOPS: usize = 2;

/// Runs the first tier: what needs no other server than Redis, and the doctests.
pub(crate) fn run_quick() -> Result<()> {
    run(quick(&mut cargo()))
}

/// Runs the second tier but for the tests that need real time.
pub(crate) fn run_rest() -> Result<()> {
    run(rest(&mut cargo()))?;
    // On other versions of Redis, as far as they can be had. No simulation asks one.
    let mut others = with_servers()?;
    others.args(["test", "--tests", "--no-fail-fast"]);
    others.args(["-p", "tidegate-redis", "-p", "tidegate-tower", "--"]);
    for module in [TIMING, "cluster::", "spread::", "simulator::"] {
        others.args(["--skip", module]);
    }
    run(&mut others)
}

/// Runs the tests that need real time, one after the other.
pub(crate) fn run_timing() -> Result<()> {
    run(timing(&mut with_servers()?))
}

/// Runs the tests that need real time several times in a row beside busy loops, and stops
/// at the first failure.
pub(crate) fn repeat_timing(times: &str) -> Result<()> {
    let parsed = times.parse().ok().filter(|times: &u32| *times > 0);
    let expected = || format!("--timing {times}: expected how many times to run, such as 10");
    let times = parsed.with_context(expected)?;
    // Building is not what should happen beside busy loops.
    run(cargo().args(["test", "--workspace", "--tests", "--no-run"]))?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..BUSY_LOOPS {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let done = repeat(times);
        stop.store(true, Relaxed);
        done
    })
}

fn repeat(times: u32) -> Result<()> {
    for number in 1..=times {
        let start = Instant::now();
        run_timing().with_context(|| format!("run {number} of {times} failed"))?;
        let seconds = start.elapsed().as_secs_f64();
        println!("\n--- Run {number} of {times} passed in {seconds:.1} s.\n");
    }
    println!("{times} runs beside {BUSY_LOOPS} busy loops passed, without retries.");
    Ok(())
}

/// `cargo test`, told which other Redis servers are there.
fn with_servers() -> Result<Command> {
    let mut command = cargo();
    command.env(servers::VARIABLE, servers::others()?);
    Ok(command)
}

fn quick(cargo: &mut Command) -> &mut Command {
    cargo.args(["test", "--workspace", "--no-fail-fast", "--"]);
    for module in OTHER_PROGRAMS.iter().chain([&TIMING]) {
        cargo.args(["--skip", module]);
    }
    cargo
}

fn rest(cargo: &mut Command) -> &mut Command {
    let arguments = ["test", "--workspace", "--tests", "--no-fail-fast", "--"];
    cargo.args(arguments).args(OTHER_PROGRAMS);
    cargo.args(["--skip", TIMING])
}

fn timing(cargo: &mut Command) -> &mut Command {
    let arguments = ["test", "--workspace", "--tests", "--no-fail-fast"];
    let one_by_one = ["--", "--test-threads=1", TIMING];
    cargo.args(arguments).args(one_by_one)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In place of cargo, a program that notes how it is run, and fails.
    #[test]
    fn g8_a_failed_test_fails_the_run_and_is_not_run_again() {
        let name = format!("tidegate-xtask-{}", std::process::id());
        let notes = std::env::temp_dir().join(name);
        for (pass, own) in [
            (quick as fn(&mut Command) -> &mut Command, "--skip timing::"),
            (rest, "--skip timing::"),
            (timing, "--test-threads=1 timing::"),
        ] {
            let mut failing = Command::new("sh");
            failing.args(["-c", "echo $* >>$0; false"]).arg(&notes);
            run(pass(&mut failing)).unwrap_err();
            let noted = std::fs::read_to_string(&notes).unwrap();
            std::fs::remove_file(&notes).unwrap();
            assert_eq!(noted.matches("test --workspace").count(), 1, "{noted}");
            assert!(noted.lines().count() == 1 && noted.contains(own), "{noted}");
        }
    }

    #[test]
    fn number_of_runs_is_a_positive_number() {
        for wrong in ["0", "-1", "ten", ""] {
            let error = repeat_timing(wrong).unwrap_err().to_string();
            let expected = format!("--timing {wrong}: expected how many times to run, such as 10");
            assert_eq!(error, expected);
        }
    }
}
