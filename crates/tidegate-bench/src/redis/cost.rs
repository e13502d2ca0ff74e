//! What a check costs the server: microseconds a call, as it counts them itself.

use std::time::Duration;

use tidegate::{Limit, Policy};
use tokio::runtime::Runtime;

use super::askers::{ADMITS, Plain, Tidegate};
use super::load::{self, KEYS};
use super::sent::Sent;
use crate::keys::Random;
use crate::rounds::{Series, interleave};
use tidegate_testkit::redis::Server;

/// Calls of one script in one round.
const CALLS: usize = 20_000;

/// Commands in one write: enough that the server does not wait for them.
const BATCH: usize = 100;

/// The keys of long logs, and how long these are.
const LONG_LOGS: usize = 1_000;
const LENGTH: usize = 100;

/// One row: a script, and what it costs beside the one it replaces.
pub(super) struct Cost {
    pub(super) label: &'static str,
    pub(super) microseconds: f64,
    /// Times the tutorial's script.
    pub(super) ratio: Option<f64>,
}

/// Makes the command for a key.
type Make = Box<dyn Fn(&str) -> redis::Cmd>;

/// All of them in turns.
pub(super) fn measure(server: &Server, runtime: &Runtime) -> Vec<Cost> {
    let send = |tidegate| -> Make {
        let sent = Sent::by(tidegate, server, runtime);
        Box::new(move |key| sent.command(key))
    };
    let tidegate = |prefix, limit| send(Tidegate::new(server, prefix, limit));
    let plain = |plain: Plain| -> Make { Box::new(move |key| plain.command(key)) };
    // Never reached; a log has no higher one.
    let minute = Limit::per(1_000_000, Duration::from_secs(60));
    let two = Policy::builder("api")
        .level("service", "{service}", ADMITS)
        .level("user", "{service}:{user}", ADMITS);
    let scripts: [(&'static str, Make); 9] = [
        ("token bucket", tidegate("tg-bucket", ADMITS)),
        (
            "token bucket, two levels",
            send(Tidegate::of(server, "tg-two", two)),
        ),
        ("fixed window", tidegate("tg-fixed", minute.fixed_window())),
        (
            "sliding window",
            tidegate("tg-sliding", minute.sliding_window()),
        ),
        (
            "sliding log, short",
            tidegate("tg-log", minute.sliding_log()),
        ),
        (
            "sliding log, 100 and more",
            tidegate("tg-log", minute.sliding_log()),
        ),
        (
            "the tutorial's token bucket",
            plain(runtime.block_on(Plain::token_bucket(server))),
        ),
        (
            "the tutorial's log, short",
            plain(runtime.block_on(Plain::log(server))),
        ),
        (
            "the tutorial's log, 100 and more",
            plain(runtime.block_on(Plain::log(server))),
        ),
    ];
    let mut connection = server.connect();
    redis::cmd("FLUSHALL")
        .exec(&mut connection)
        .expect("a server");
    let labels = scripts.each_ref().map(|(label, _)| *label);
    let lanes = scripts.map(|(label, make)| {
        let long = label.ends_with("more");
        let mut connection = server.connect();
        let mut random = Random::new(7);
        // Long logs have keys of their own, beyond the others.
        let (first, keys) = if long { (KEYS, LONG_LOGS) } else { (0, KEYS) };
        let batch = move |connection: &mut redis::Connection, key: &mut dyn FnMut() -> usize| {
            let mut pipeline = redis::Pipeline::with_capacity(BATCH);
            for _ in 0..BATCH {
                pipeline
                    .add_command(make(&load::name(first + key())))
                    .ignore();
            }
            pipeline.exec(connection).expect("scripts that do not fail");
        };
        let mut next = 0;
        let mut in_turn = move || {
            next += 1;
            next % keys
        };
        let fill = if long { LONG_LOGS * LENGTH } else { KEYS };
        for _ in 0..fill / BATCH {
            batch(&mut connection, &mut in_turn);
        }
        Box::new(move || {
            redis::cmd("CONFIG")
                .arg("RESETSTAT")
                .exec(&mut connection)
                .expect("a server");
            for _ in 0..CALLS / BATCH {
                batch(&mut connection, &mut || random.index(keys));
            }
            microseconds_a_call(&mut connection)
        }) as Box<dyn FnMut() -> f64>
    });
    let series = interleave(lanes);
    table(labels, &series)
}

/// Of `EVALSHA`, since the figures were reset.
fn microseconds_a_call(connection: &mut redis::Connection) -> f64 {
    let (microseconds, calls) = evalsha(connection);
    microseconds / calls
}

/// Microseconds and calls of `EVALSHA`, since the figures were reset.
pub(super) fn evalsha(connection: &mut redis::Connection) -> (f64, f64) {
    let mut ask = redis::cmd("INFO");
    let text: String = ask
        .arg("commandstats")
        .query(connection)
        .expect("figures of commands");
    read(&text).expect("figures of EVALSHA")
}

fn read(text: &str) -> Option<(f64, f64)> {
    let line = |line: &str| line.strip_prefix("cmdstat_evalsha:").map(str::to_owned);
    let line = text.lines().find_map(line)?;
    let field = |name: &str| -> Option<f64> {
        let field = |field: &str| field.strip_prefix(name)?.strip_prefix('=')?.parse().ok();
        line.split(',').find_map(field)
    };
    Some((field("usec")?, field("calls")?))
}

fn table(labels: [&'static str; 9], series: &[Series; 9]) -> Vec<Cost> {
    let rows = labels.into_iter().zip(series).enumerate();
    rows.map(|(index, (label, own))| Cost {
        label,
        microseconds: own.median(),
        ratio: match index {
            0..=3 => Some(own.ratio_to(&series[6])),
            4 => Some(own.ratio_to(&series[7])),
            5 => Some(own.ratio_to(&series[8])),
            _ => None,
        },
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_are_read_from_the_servers_own_figures() {
        let text = "# Commandstats\r\n\
            cmdstat_time:calls=4,usec=8,usec_per_call=2.00\r\n\
            cmdstat_evalsha:calls=4,usec=50,usec_per_call=12.50,rejected_calls=0\r\n";
        assert_eq!(read(text), Some((50.0, 4.0)));
        assert_eq!(read("# Commandstats\r\n"), None);
    }
}
