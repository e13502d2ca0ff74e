//! `cargo xtask bench NAME`: the tables of docs/benchmarks.md, one set per name, and
//! `cargo xtask bench all`, which measures every set.
//!
//! Times come from the program `tidegate-bench`, instruction counts from the same
//! program under callgrind, which does not care what else the machine does.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::command::{cargo, find, output, program, root, run as execute, target};
use crate::{figures, install, nginx as module, simulate as simulation};

/// One set of figures.
struct Set {
    /// What to say on the command line.
    name: &'static str,
    /// The heading in docs/benchmarks.md under which its tables stand, up to the next
    /// heading.
    heading: &'static str,
    /// Whether `--quick` works: everything in seconds, with figures that mean nothing.
    can_be_quick: bool,
    measure: fn(Run) -> Result<String>,
}

/// How to measure.
#[derive(Clone, Copy, Default)]
struct Run {
    save: bool,
    quick: bool,
}

/// Every set there is, in the order of the page: `bench all` goes through this list.
const SETS: [Set; 10] = [
    Set {
        name: "core",
        heading: figures::CORE,
        can_be_quick: false,
        measure: core,
    },
    Set {
        name: "redis",
        heading: "### Redis figures",
        can_be_quick: false,
        measure: redis,
    },
    Set {
        name: "cluster",
        heading: "### Cluster figures",
        can_be_quick: false,
        measure: cluster,
    },
    Set {
        name: "modes",
        heading: "### Mode figures",
        can_be_quick: false,
        measure: modes,
    },
    Set {
        name: "server",
        heading: "### Server figures",
        can_be_quick: true,
        measure: server,
    },
    Set {
        name: "resp",
        heading: "### RESP figures",
        can_be_quick: true,
        measure: resp,
    },
    Set {
        name: "envoy",
        heading: "### Envoy figures",
        can_be_quick: true,
        measure: envoy,
    },
    Set {
        name: "tower",
        heading: "### Tower figures",
        can_be_quick: false,
        measure: tower,
    },
    Set {
        name: "nginx",
        heading: "### nginx figures",
        can_be_quick: true,
        measure: nginx,
    },
    Set {
        name: "simulate",
        heading: "### Simulation figures",
        can_be_quick: true,
        measure: simulate,
    },
];

/// The heading in docs/algorithms.md under which the sliding window is compared with the log.
const RIGHT: &str = "### How right it is";

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

/// Checks of one hot key, in memory and from a lease.
const HOT: [(&str, &str); 4] = [
    ("hot-limiter", "in memory"),
    ("hot-policy", "in memory, through a policy of 1 level"),
    ("hot-lease", "from a lease"),
    ("hot-lease-at-once", "from a lease, by `now`"),
];

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

/// Measures one set, or all; prints the tables and, with `--save`, puts them into the page.
pub(crate) fn run(name: &str, options: &[&str]) -> Result<()> {
    let run = Run::parse(options)?;
    if name == "all" {
        return run_all(run);
    }
    let names = || SETS.map(|set| set.name).join(", ");
    let set = SETS.iter().find(|set| set.name == name);
    let set = set.with_context(|| format!("bench {name}: expected all, {}", names()))?;
    ensure!(
        set.can_be_quick || !run.quick,
        "bench {name} has no --quick"
    );
    set.run(run)
}

impl Run {
    fn parse(options: &[&str]) -> Result<Self> {
        let mut run = Self::default();
        for option in options {
            match *option {
                "--save" => run.save = true,
                "--quick" => run.quick = true,
                other => bail!("{other}: expected --save or --quick"),
            }
        }
        ensure!(
            !(run.save && run.quick),
            "--quick --save: figures of a quick run mean nothing, so they are not saved"
        );
        Ok(run)
    }
}

impl Set {
    fn run(&self, run: Run) -> Result<()> {
        let tables = (self.measure)(run)?;
        println!("{tables}");
        if run.save {
            figures::save(self.heading, &tables)?;
        }
        Ok(())
    }
}

/// All sets, one after the other. A set that fails does not keep the others from being
/// saved, but fails the run.
fn run_all(run: Run) -> Result<()> {
    ensure!(!run.quick, "bench all has no --quick");
    // Compiling between two sets would heat the machine up.
    build_server()?;
    build()?;
    if let Ok(load) = std::fs::read_to_string("/proc/loadavg") {
        let load = load.split(' ').next().unwrap_or_default().to_owned();
        println!("Load of this machine at the start: {load}. Figures need a quiet one.");
    }
    let mut failed = Vec::new();
    for set in &SETS {
        println!("\n=== bench {}", set.name);
        let start = Instant::now();
        if let Err(error) = set.run(run) {
            println!("*** bench {} failed: {error:#} ***", set.name);
            failed.push(set.name);
        }
        println!("--- {:.0} s", start.elapsed().as_secs_f64());
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// The limiter in memory beside others.
fn core(_: Run) -> Result<String> {
    let bench = build()?;
    let mut figures = output(program(&bench).arg("core"))?;
    let counted = |limiter: &str, checks| count(&bench, "instructions", limiter, checks);
    figures.push_str(&instructions(
        ["limiter", "check"],
        &LIMITERS,
        CHECKS,
        counted,
    )?);
    Ok(figures)
}

/// What a layer adds to a request.
fn tower(_: Run) -> Result<String> {
    let bench = build()?;
    let mut figures = output(program(&bench).arg("tower"))?;
    let counted = |layer: &str, requests| count(&bench, "requests", layer, requests);
    figures.push_str(&instructions(
        ["layer", "request"],
        &LAYERS,
        REQUESTS,
        counted,
    )?);
    Ok(figures)
}

/// Checks through a Redis server of its own, which is installed if it has to be.
fn redis(_: Run) -> Result<String> {
    install::redis()?;
    output(program(build()?).arg("redis"))
}

/// Checks through clusters of its own.
fn cluster(_: Run) -> Result<String> {
    install::redis()?;
    output(program(build()?).arg("cluster"))
}

/// The modes under the same load, and the picture of them.
fn modes(run: Run) -> Result<String> {
    install::redis()?;
    build_server()?;
    let bench = build()?;
    let picture = match run.save {
        true => root().join("docs/pictures/modes.svg"),
        false => bench.with_file_name("modes.svg"),
    };
    let mut figures = output(program(&bench).arg("modes").arg(&picture))?;
    let counted = |limiter: &str, checks| count(&bench, "instructions", limiter, checks);
    figures.push('\n');
    figures.push_str(&instructions(
        ["a hot key", "check"],
        &HOT,
        CHECKS,
        counted,
    )?);
    Ok(figures)
}

/// The server over HTTP, beside one that is built if it has to be. A quick run only shows
/// that all works.
fn server(run: Run) -> Result<String> {
    let throttlecrab = install::throttlecrab()?;
    build_server()?;
    let mut bench = program(build()?);
    bench.arg("server").arg(throttlecrab);
    if run.quick {
        bench.arg("--quick");
    }
    output(&mut bench)
}

/// The server over the Redis protocol, beside throttlecrab-server and Redis. A quick run
/// only shows that all works.
fn resp(run: Run) -> Result<String> {
    let throttlecrab = install::resp()?;
    build_server()?;
    let mut bench = program(build()?);
    bench.arg("resp").arg(throttlecrab);
    if run.quick {
        bench.arg("--quick");
    }
    output(&mut bench)
}

/// nginx with the module, beside `limit_req`, `auth_request` and a limiter in Lua. A quick
/// run only shows that all works.
fn nginx(run: Run) -> Result<String> {
    install::nginx_bench()?;
    let module = module::built()?;
    build_server()?;
    let mut bench = program(build()?);
    bench.arg("nginx").arg(module);
    if run.quick {
        bench.arg("--quick");
    }
    output(&mut bench)
}

/// Envoy's rate limit service over gRPC, beside a bare handler of tonic. A quick run only
/// shows that all works.
fn envoy(run: Run) -> Result<String> {
    install::redis()?;
    build_server()?;
    let mut bench = program(build()?);
    bench.arg("envoy");
    if run.quick {
        bench.arg("--quick");
    }
    output(&mut bench)
}

/// `tidegate simulate` on generated logs. Two algorithms are compared on the same logs, for
/// docs/algorithms.md.
fn simulate(run: Run) -> Result<String> {
    build_server()?;
    let [speed, right] = simulation::measure(run.quick)?;
    println!("{right}");
    if run.save {
        figures::save_in("docs/algorithms.md", RIGHT, &right)?;
    }
    Ok(speed)
}

fn build_server() -> Result<()> {
    execute(cargo().args(["build", "--release", "--package", "tidegate-server"]))
}

fn build() -> Result<PathBuf> {
    execute(cargo().args(["build", "--release", "--package", "tidegate-bench"]))?;
    Ok(target()?.join("release/tidegate-bench"))
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
    let heading = format!("instructions per {each}");
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
    execute(
        program("valgrind")
            .args(["--quiet", "--tool=callgrind"])
            .arg(out)
            .arg(bench)
            .args([what, &number.to_string(), name]),
    )?;
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
    fn pages_and_help_have_a_place_for_each_set() {
        let page = include_str!("../../docs/benchmarks.md");
        for set in &SETS {
            let replaced = figures::replace(page, set.heading, "new").unwrap();
            assert!(replaced.contains(&format!("\n{}\n\nnew\n", set.heading)));
            for other in &SETS {
                let (one, other) = (set.heading, other.heading);
                assert!(replaced.contains(other), "{one} replaces {other}");
            }
            let line = format!("\n  bench {} ", set.name);
            assert!(crate::HELP.contains(&line), "bench {}", set.name);
        }
        let page = include_str!("../../docs/algorithms.md");
        assert!(figures::replace(page, RIGHT, "new").is_ok());
    }

    #[test]
    fn wrong_names_and_options_are_refused() {
        for (name, options, said) in [
            ("all", &["--quick"][..], "bench all has no --quick"),
            ("core", &["--quick"], "bench core has no --quick"),
            ("core", &["--sav"], "--sav: expected --save or --quick"),
            ("server", &["--save", "--quick"], "--quick --save: figures"),
            ("cores", &[], "bench cores: expected all, core, redis, "),
        ] {
            let error = run(name, options).unwrap_err().to_string();
            assert!(error.starts_with(said), "{error}");
        }
    }
}
