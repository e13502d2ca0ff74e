//! `tidegate simulate`: hand-made logs whose right answer is worked out here, without the
//! limiter.

mod algorithms;
mod order;
mod page;
mod suggest;
mod wrong;

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use crate::process::{Folder, run};

/// Midnight of 16 November 2026, in UTC.
const MIDNIGHT: u64 = 20_773 * 86_400;

/// Runs it, and returns what `--json` prints.
fn simulate(folder: &Folder, arguments: &[&str]) -> Value {
    let (code, said, error) = run(folder, &[&["simulate", "--json"], arguments].concat());
    assert_eq!((code, error.as_str()), (0, ""), "{arguments:?}");
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// A folder with a config of these policies.
fn folder(policies: &str) -> Folder {
    let folder = Folder::new();
    folder.write("tidegate.toml", policies);
    folder
}

/// One policy named `p` by address.
fn by_address(limit: &str) -> String {
    format!("[[policies]]\nname = \"p\"\nkey = \"{{ip}}\"\n{limit}\n")
}

/// A line as nginx writes it.
fn nginx(second: u64, ip: &str) -> String {
    format!(
        "{ip} - - [{}] \"GET /a?b=c HTTP/1.1\" 200 612 \"-\" \"curl/8.5\"\n",
        common_time(second)
    )
}

/// A line of JSON with a time in milliseconds.
fn json(at_ms: u64, ip: &str) -> String {
    format!("{{\"time\":{at_ms},\"ip\":\"{ip}\",\"path\":\"/a\"}}\n")
}

/// `16/Nov/2026:00:00:00 +0000`, for seconds of that day.
fn common_time(second: u64) -> String {
    let of_day = second.checked_sub(MIDNIGHT).expect("that day or later");
    assert!(of_day < 86_400, "that day");
    format!(
        "16/Nov/2026:{:02}:{:02}:{:02} +0000",
        of_day / 3_600,
        of_day / 60 % 60,
        of_day % 60
    )
}

fn lines<T>(events: &[T], line: impl Fn(&T) -> String) -> String {
    events.iter().fold(String::new(), |mut text, event| {
        write!(text, "{}", line(event)).expect("a string takes everything");
        text
    })
}

fn policy(result: &Value) -> &Value {
    &result["policies"][0]
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value}: a number"))
}

/// Requests, refused, clients and clients refused.
fn counts(policy: &Value) -> [u64; 4] {
    ["requests", "denied", "keys", "keys_denied"].map(|field| number(&policy[field]))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of our own")
}

/// The same numbers each time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
