//! The workspace's commands: tests, benchmarks, packages, fuzzing and pictures.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool speaks through its output"
)]

mod bench;
mod command;
mod dist;
mod dockerfile;
mod figures;
mod fuzz;
mod install;
mod mutations;
mod nginx;
mod pictures;
#[cfg(test)]
mod pitfalls;
mod publish;
mod readme;
mod screenshots;
mod servers;
mod simulate;
mod suites;
mod test;
mod trial;
mod wheel;

use std::process::ExitCode;

const HELP: &str = "usage: cargo xtask COMMAND

  test                 check the format, run clippy, and run the tests that need no
                       other server than Redis
  test --all           the same, then everything else a change has to pass: clusters,
                       nginx, Envoy, browsers, real time, the docs, the packages
  test --timing        run only the tests that need real time
  test --timing N      the same N times in a row, beside two busy loops
  test mutations [NAME]
                       make the mistakes of crates/tidegate-testkit/mutations, or those
                       whose names contain NAME, and check that the tests notice each
  trial                do the jobs of a first day with real programs, and print the
                       minutes that each takes
  bench all            measure every set below, one after the other, on a quiet machine
  bench core           the in-memory limiter beside others
  bench redis          checks through Redis, beside redis-benchmark and plain scripts
  bench cluster        checks through clusters of one, two and three masters
  bench modes          the modes under the same load on one Redis
  bench server         the server over HTTP, beside a bare handler and
                       throttlecrab-server, which is built once
  bench resp           the server over the Redis protocol, beside throttlecrab-server
                       and INCR of Redis
  bench envoy          Envoy's rate limit service over gRPC, in memory and on Redis,
                       beside a bare handler of tonic
  bench tower          what the layer for tower adds to a request, beside
                       tower_governor
  bench nginx          nginx with the module in each mode, beside limit_req,
                       auth_request and a limiter in Lua
  bench simulate       `tidegate simulate` on ten million generated lines, and how
                       right the sliding window is, for docs/algorithms.md
  bench NAME --save    the same, and put the tables into docs/benchmarks.md; core also
                       refreshes the figures of README.md
  bench NAME --quick   server, resp, nginx and simulate: the same in seconds, to see that it
                       works; the figures mean nothing
  dist                 build the release and package it: a tarball, a Debian package
                       and their checksums in target/dist
  dist --test          the same, then install, start, reload, upgrade, remove and
                       purge the Debian package on a clean root; needs root
  dist --test --debug  the same with the debug build that the tests use
  docker               lint the Dockerfile, and build the image if a daemon runs
  publish --dry-run    package every crate, and build each from its package
  nginx build          build the module for the installed nginx, and say where it is
  nginx build --nginx-source DIR
                       the same for the nginx whose configured source is in DIR
  nginx test           check and test the module with the installed nginx
  nginx test --newest  the same with a newer nginx, which is built from its source
  nginx test --valgrind
                       the same with nginx under valgrind; takes many minutes
  nginx test --soak [SECONDS]
                       load every mode for ten minutes, or for SECONDS, and check
                       that neither memory nor descriptors grow
  fuzz [SECONDS]       try random input on everything that reads text, each for
                       SECONDS (default 60); needs a nightly toolchain
  pictures             draw the pictures of docs/algorithms.md and docs/scale.md
  screenshots [NAME]   take pictures of the pages that README.md shows";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["test"] => test::run_quick(),
        ["test", "--all"] => test::run_all(),
        ["test", "--timing"] => suites::run_timing(),
        ["test", "--timing", times] => suites::repeat_timing(times),
        ["bench", name, ref options @ ..] => bench::run(name, options),
        ["dist"] => dist::make().map(drop),
        ["dist", "--test"] => dist::make_and_test(),
        ["dist", "--test", "--debug"] => dist::test_built(),
        ["docker"] => dockerfile::build(),
        ["publish", "--dry-run"] => publish::dry_run(),
        ["test", "mutations"] => mutations::run_all(""),
        ["test", "mutations", name] => mutations::run_all(name),
        ["trial"] => trial::run_all(),
        ["nginx", "build"] => nginx::build(None),
        ["nginx", "build", "--nginx-source", source] => nginx::build(Some(source)),
        ["nginx", "test", ref options @ ..] => nginx::test(options),
        ["fuzz"] => fuzz::run(fuzz::SECONDS),
        ["fuzz", seconds] => fuzz::run(seconds),
        ["pictures"] => pictures::write(),
        ["screenshots"] => screenshots::take(None),
        ["screenshots", name] => screenshots::take(Some(name)),
        ["help" | "--help" | "-h"] => {
            println!("{HELP}");
            Ok(())
        }
        _ => {
            eprintln!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nerror: {error:#}");
            ExitCode::FAILURE
        }
    }
}
