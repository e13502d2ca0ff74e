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
    "commands::top_in_a_terminal",
    "dashboard::",
    "envoy::gateway::",
    "envoy::manual::",
    "envoy::ratelimit::envoy_asks_",
    "nginx::",
    "commands::pages_with_other_programs",
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
    // On other versions of Redis, as far as they can be had.
    let mut others = with_servers()?;
    let packages = ["-p", "tidegate-redis", "-p", "tidegate-tower"];
    others
        .args(["test", "--tests", "--no-fail-fast"])
        .args(packages);
    run(others.args([
        "--",
        "--skip",
        TIMING,
        "--skip",
        "cluster::",
        "--skip",
        "spread::",
    ]))
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
    use std::path::PathBuf;
    use std::process::Stdio;

    use super::*;

    /// A package with one test that needs real time and one that does not. Both note that
    /// they ran and fail the first time: a second run would pass.
    const TESTS: &str = r#"
        fn fails_once(name: &str) {
            use std::io::Write;
            let ran = std::path::Path::new(name).exists();
            let file = std::fs::OpenOptions::new().create(true).append(true).open(name);
            file.unwrap().write_all(b"ran\n").unwrap();
            assert!(ran, "this was the first run");
        }

        #[test]
        fn plain() {
            fails_once("plain.txt");
        }

        mod timing {
            #[test]
            fn timed() {
                super::fails_once("timed.txt");
            }
        }
    "#;

    struct Package(PathBuf);

    impl Package {
        fn new() -> Self {
            let name = format!("tidegate-xtask-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            let manifest = "[package]\nname = \"flaky\"\nedition = \"2024\"\n[workspace]\n";
            std::fs::create_dir_all(folder.join("src")).unwrap();
            std::fs::write(folder.join("Cargo.toml"), manifest).unwrap();
            std::fs::write(folder.join("src/lib.rs"), TESTS).unwrap();
            Self(folder)
        }

        fn cargo(&self) -> Command {
            let mut command = cargo();
            command.current_dir(&self.0).arg("--offline");
            command.env("CARGO_TARGET_DIR", self.0.join("target"));
            // A failure that is meant should not look like one in the output of CI.
            command.stdout(Stdio::null()).stderr(Stdio::null());
            command
        }

        /// How often a test ran.
        fn ran(&self, file: &str) -> usize {
            let noted = std::fs::read_to_string(self.0.join(file)).unwrap_or_default();
            noted.lines().count()
        }
    }

    impl Drop for Package {
        fn drop(&mut self) {
            drop(std::fs::remove_dir_all(&self.0));
        }
    }

    #[test]
    fn g8_a_failed_test_fails_the_run_and_is_not_run_again() {
        let package = Package::new();
        let failed = run(quick(&mut package.cargo())).unwrap_err().to_string();
        assert!(failed.contains("test --workspace"), "{failed}");
        assert_eq!((package.ran("plain.txt"), package.ran("timed.txt")), (1, 0));
        let failed = run(timing(&mut package.cargo())).unwrap_err().to_string();
        assert!(failed.contains("--test-threads=1"), "{failed}");
        assert_eq!((package.ran("plain.txt"), package.ran("timed.txt")), (1, 1));
        // The package is as it should be: each pass runs its own test, once.
        run(quick(&mut package.cargo())).unwrap();
        run(timing(&mut package.cargo())).unwrap();
        assert_eq!((package.ran("plain.txt"), package.ran("timed.txt")), (2, 2));
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
