//! `redis-benchmark` itself, with a script whose arguments it can pass: it says whether
//! the ceiling of [`super::ceiling`] is as high as its own.

use std::process::Command;

use super::askers::Plain;
use super::callers::LENGTH;
use super::ceiling::{self, Travel};
use super::load::{DIGITS, KEYS};
use crate::rounds::interleave;
use tidegate_testkit::redis::Server;

/// Our requests per second with the tutorial's token bucket, as a share of those of
/// `redis-benchmark`.
pub(super) fn measure(server: &Server, bucket: &Plain, travel: Travel) -> f64 {
    let own = || ceiling::measure(server, &bucket.command(DIGITS), travel).a_second;
    let mut pace = own();
    let theirs = || {
        pace = redis_benchmark(server, &bucket.words("__rand_int__"), travel, pace);
        pace
    };
    let lanes: [Box<dyn FnMut() -> f64 + '_>; 2] = [Box::new(own), Box::new(theirs)];
    let [own, theirs] = interleave(lanes);
    own.ratio_to(&theirs)
}

/// For about as long as other measurements take, if it gets through so often a second.
fn redis_benchmark(server: &Server, words: &[String], travel: Travel, a_second: f64) -> f64 {
    run(server, words, travel, a_second, &[])
}

/// The same with more options.
pub(super) fn run(
    server: &Server,
    words: &[String],
    travel: Travel,
    a_second: f64,
    options: &[&str],
) -> f64 {
    let requests = (a_second * LENGTH.as_secs_f64()).max(1_000.0);
    let output = Command::new("redis-benchmark")
        .args(["-p", &server.port().to_string(), "--csv"])
        .args(["-n", &format!("{requests:.0}"), "-r", &KEYS.to_string()])
        .args(["-c", &travel.connections.to_string()])
        .args(["-P", &travel.pipelined.to_string()])
        .args(options)
        .args(words)
        .output()
        .expect("redis-benchmark is installed by `cargo xtask bench redis`");
    let text = String::from_utf8_lossy(&output.stdout);
    read(&text).unwrap_or_else(|| panic!("redis-benchmark says: {text}"))
}

/// The last line: the name of the test, requests per second, and six more figures.
fn read(csv: &str) -> Option<f64> {
    let figure = csv.lines().last()?.rsplit(',').nth(6)?;
    figure.trim_matches('"').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_the_end_of_the_last_line() {
        let csv = "\"test\",\"rps\",\"avg\",\"min\",\"p50\",\"p95\",\"p99\",\"max\"\n\
                   \"EVALSHA a,b\",\"52000.50\",\"0.9\",\"0.1\",\"0.5\",\"0.6\",\"0.7\",\"0.8\"\n";
        assert_eq!(read(csv), Some(52_000.5));
        assert!(read("ERR").is_none());
    }
}
