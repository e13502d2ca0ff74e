//! Measures tidegate next to other keyed rate limiters, in one process and in
//! turns.
//!
//! `tidegate-bench core` prints the tables of `docs/benchmarks.md` about the limiter in
//! memory, `tidegate-bench redis` those about checks through Redis, `tidegate-bench
//! cluster` those about clusters, `tidegate-bench modes` those about the modes,
//! `tidegate-bench server` those about the server, `tidegate-bench resp` those about the
//! server over the Redis protocol, `tidegate-bench envoy` those about Envoy's rate limit
//! service, `tidegate-bench tower` those about the layer for tower, `tidegate-bench nginx`
//! those about the module for nginx.
//! `tidegate-bench instructions N [LIMITER]` makes N checks of known keys and
//! prints nothing, and so does `tidegate-bench requests N LANE` with requests through
//! tower: they are there to be counted by callgrind. `cargo xtask bench
//! core` does both. `tidegate-bench pictures DIR` draws the pictures of
//! `docs/algorithms.md`, and `tidegate-bench scale LINES PICTURE` that of `docs/scale.md`,
//! for `cargo xtask pictures`.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a report is what this program is for"
)]

mod allocator;
mod callgrind;
mod cpu;
mod envoy;
mod keys;
mod limiters;
mod longest;
mod measure;
mod modes;
mod nginx;
mod pictures;
mod redis;
mod report;
mod resp;
mod rounds;
mod server;
mod tower;
mod waits;

use std::path::Path;
use std::process::ExitCode;

use limiters::{
    Aerorate, Governor, Keyed, Load, OneLevel, StoreLevels, ThreeLevels, Tidegate, TwoLevels,
};

#[global_allocator]
static ALLOCATOR: allocator::Counting = allocator::Counting;

const HELP: &str = "usage: tidegate-bench core
       tidegate-bench redis [CALLERS]
       tidegate-bench cluster
       tidegate-bench modes PICTURE
       tidegate-bench server THROTTLECRAB [--quick]
       tidegate-bench resp THROTTLECRAB [--quick]
       tidegate-bench nginx MODULE [--quick]
       tidegate-bench envoy [--quick]
       tidegate-bench policies
       tidegate-bench levels
       tidegate-bench longest [--quick]
       tidegate-bench tower
       tidegate-bench instructions N [LIMITER]
       tidegate-bench requests N LANE
       tidegate-bench pictures DIR
       tidegate-bench scale LINES PICTURE";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["core"] => core(),
        ["redis"] => {
            redis::run();
            Some(())
        }
        ["cluster"] => {
            redis::run_clusters();
            Some(())
        }
        ["redis", callers] => callers.parse().ok().map(redis::run_callers),
        ["server", throttlecrab] => server(throttlecrab, false),
        ["server", throttlecrab, "--quick"] => server(throttlecrab, true),
        ["resp", throttlecrab] => resp(throttlecrab, false),
        ["resp", throttlecrab, "--quick"] => resp(throttlecrab, true),
        ["nginx", module] => nginx(module, false),
        ["nginx", module, "--quick"] => nginx(module, true),
        ["envoy"] => envoy(false),
        ["envoy", "--quick"] => envoy(true),
        ["modes", picture] => modes::measure(Path::new(picture)).ok(),
        ["policies"] => policies(),
        ["levels"] => levels(),
        ["longest"] => longest(false),
        ["longest", "--quick"] => longest(true),
        ["tower"] => {
            tower::run();
            Some(())
        }
        ["requests", requests, lane] => tower::requests(requests, lane),
        ["instructions", checks] => instructions(checks, "tidegate"),
        ["instructions", checks, limiter] => instructions(checks, limiter),
        ["pictures", folder] => return pictures(folder),
        ["scale", lines, picture] => modes::draw_scale(lines.as_ref(), picture.as_ref()).ok(),
        _ => None,
    };
    if done.is_none() {
        eprintln!("{HELP}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Everything that takes time or memory, as the tables of `docs/benchmarks.md`.
fn core() -> Option<()> {
    println!("{}\n", report::machine());
    let mut comparisons = measure::random_keys();
    comparisons.extend(measure::hot_key());
    comparisons.push(measure::new_keys());
    comparisons.push(measure::memory());
    println!("{}", report::comparison(&comparisons));
    let growth = measure::growth();
    let through = measure::through_policies();
    println!("{}", report::through(&through));
    let besides = measured_levels();
    let longest = longest::measure(false);
    report::print_core_goals(&comparisons, &besides, &through, &longest);
    let [own, governors] = measure::clocks();
    println!(
        "Reading the clock alone: {own:.0} ns for tidegate's, {governors:.0} ns for governor's.\n"
    );
    println!("{}", report::growth(&growth));
    println!("{}", report::beside(&besides));
    println!("{}", report::longest(&longest));
    Some(())
}

/// Times that are handed in, batches, and several levels.
fn measured_levels() -> Vec<report::Beside> {
    let mut rows = measure::handed_the_time();
    rows.push(measure::batches());
    rows.extend(measure::levels());
    rows
}

fn levels() -> Option<()> {
    println!("{}", report::beside(&measured_levels()));
    Some(())
}

/// The longest calls. A quick run only shows that all works.
fn longest(quick: bool) -> Option<()> {
    println!("{}", report::longest(&longest::measure(quick)));
    Some(())
}

/// The server beside others, of which throttlecrab is this program.
fn server(throttlecrab: &str, quick: bool) -> Option<()> {
    server::run(throttlecrab.as_ref(), quick);
    Some(())
}

/// The server over the Redis protocol, beside others.
fn resp(throttlecrab: &str, quick: bool) -> Option<()> {
    resp::run(throttlecrab.as_ref(), quick);
    Some(())
}

/// nginx with this module, beside other ways to limit.
fn nginx(module: &str, quick: bool) -> Option<()> {
    nginx::run(module.as_ref(), quick);
    Some(())
}

/// The server over gRPC, as Envoy asks it.
fn envoy(quick: bool) -> Option<()> {
    envoy::run(quick);
    Some(())
}

/// What policies add, alone.
fn policies() -> Option<()> {
    println!("{}", report::through(&measure::through_policies()));
    Some(())
}

/// Makes checks of a thousand known keys, always admitted.
fn instructions(checks: &str, limiter: &str) -> Option<()> {
    let checks = checks.parse().ok()?;
    match limiter {
        "tidegate" => check_known::<Tidegate>(checks),
        "governor" => check_known::<Governor>(checks),
        "aerorate" => check_known::<Aerorate>(checks),
        "policy" => check_known::<OneLevel>(checks),
        "two-levels" => check_known::<TwoLevels>(checks),
        "three-levels" => check_known::<ThreeLevels>(checks),
        "store-1" => check_known::<StoreLevels<1>>(checks),
        "store-2" => check_known::<StoreLevels<2>>(checks),
        "store-3" => check_known::<StoreLevels<3>>(checks),
        hot => return modes::check_hot_key(checks, hot),
    }
    Some(())
}

fn pictures(folder: &str) -> ExitCode {
    if let Err(error) = pictures::write(folder.as_ref()) {
        eprintln!("error: cannot draw into {folder}: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn check_known<L: Keyed>(checks: usize) {
    const KEYS: usize = 1_000;
    let limiter = measure::filled::<L>(Load::Admitted, KEYS);
    let order = keys::shuffled(KEYS, KEYS, 1);
    for key in order.iter().cycle().take(checks) {
        std::hint::black_box(limiter.check(std::hint::black_box(key)));
    }
}
