//! Mistakes in the numbers of a limit: the pitfalls first, each under its id.

use std::time::Duration;

use tidegate::Limit;

use super::{check, limit_of};

#[test]
fn b4_ten_an_hour_is_ten_an_hour_and_a_bare_number_is_refused() {
    check(&[
        (
            "a rate a fortnight",
            r#"[[policies]]
name = "login"
limit = "10r/fortnight""#,
            r#"tidegate.toml:3:9: policies.login.limit: "10r/fortnight": expected a rate such as 100r/s, 100r/m, 100r/h or 100r/d, or a count per window such as 5/10s or 3/500ms"#,
        ),
        (
            "a rate without a window",
            r#"[[policies]]
name = "login"
limit = "100""#,
            r#"tidegate.toml:3:9: policies.login.limit: "100": expected a rate such as 100r/s, 100r/m, 100r/h or 100r/d, or a count per window such as 5/10s or 3/500ms"#,
        ),
        (
            "a rate without quotes",
            r#"[[policies]]
name = "login"
limit = 100"#,
            r#"tidegate.toml:3:9: policies.login.limit: 100: expected a rate in quotes, such as "100r/s" or "5/10s""#,
        ),
        (
            "a rate that is true",
            r#"[[policies]]
name = "login"
limit = true"#,
            r#"tidegate.toml:3:9: policies.login.limit: true: expected a rate in quotes, such as "100r/s" or "5/10s""#,
        ),
        (
            "a rate that is a date",
            r#"[[policies]]
name = "login"
limit = 2024-01-01"#,
            r#"tidegate.toml:3:9: policies.login.limit: 2024-01-01: expected a rate in quotes, such as "100r/s" or "5/10s""#,
        ),
        (
            "a rate that is a list",
            r#"[[policies]]
name = "login"
limit = ["10r/s", "100r/m"]"#,
            r#"tidegate.toml:3:9: policies.login.limit: a list: expected a rate in quotes, such as "100r/s" or "5/10s""#,
        ),
        (
            "a rate that is a table",
            r#"[[policies]]
name = "login"
limit = { requests = 10, window = "1s" }"#,
            r#"tidegate.toml:3:9: policies.login.limit: a table: expected a rate in quotes, such as "100r/s" or "5/10s""#,
        ),
        (
            "options beside the rate",
            r#"[[policies]]
name = "login"
limit = "10r/s burst=20""#,
            r#"tidegate.toml:3:9: policies.login.limit: "10r/s burst=20": expected a rate such as 100r/s, 100r/m, 100r/h or 100r/d, or a count per window such as 5/10s or 3/500ms"#,
        ),
        (
            "a rate with a newline in it",
            r#"[[policies]]
name = "login"
limit = "10r/s\n20r/s""#,
            r#"tidegate.toml:3:9: policies.login.limit: "10r/s\n20r/s": expected a rate such as 100r/s, 100r/m, 100r/h or 100r/d, or a count per window such as 5/10s or 3/500ms"#,
        ),
    ]);
    for (text, limit) in [
        ("10r/h", Limit::per_hour(10)),
        ("10/1h", Limit::per_hour(10)),
        ("10r/d", Limit::per_day(10)),
        ("3/500ms", Limit::per(3, Duration::from_millis(500))),
    ] {
        assert_eq!(limit_of(&format!("limit = {text:?}")), limit, "{text}");
    }
}

#[test]
fn c5_a_size_of_a_half_or_below_zero_is_refused() {
    check(&[
        (
            "a rate that is a fraction",
            r#"[[policies]]
name = "login"
limit = 0.5"#,
            r#"tidegate.toml:3:9: policies.login.limit: 0.5: expected a rate in quotes, such as "100r/s" or "5/10s""#,
        ),
        (
            "a negative rate",
            r#"[[policies]]
name = "login"
limit = -1"#,
            r#"tidegate.toml:3:9: policies.login.limit: -1: expected a rate in quotes, such as "100r/s" or "5/10s""#,
        ),
        (
            "half a burst",
            r#"[[policies]]
name = "login"
limit = "10r/s"
burst = 0.5"#,
            r#"tidegate.toml:4:9: policies.login.burst: 0.5: expected a whole number from 1 to 4294967295"#,
        ),
        (
            "a negative burst",
            r#"[[policies]]
name = "login"
limit = "10r/s"
burst = -1"#,
            r#"tidegate.toml:4:9: policies.login.burst: -1: expected a whole number from 1 to 4294967295"#,
        ),
    ]);
}

#[test]
fn e2_a_window_of_nothing_is_refused() {
    check(&[(
        "a window of nothing",
        r#"[[policies]]
name = "login"
limit = "5/0s""#,
        r#"tidegate.toml:3:9: policies.login.limit: "5/0s": a window of 0ns: expected 1ms to 366d, in whole microseconds"#,
    )]);
}

#[test]
fn e3_a_limit_of_nothing_is_refused_and_block_refuses_everything() {
    check(&[
        (
            "a rate of nothing",
            r#"[[policies]]
name = "login"
limit = "0r/s""#,
            r#"tidegate.toml:3:9: policies.login.limit: "0r/s": 0 requests: expected 1 to 4294967295 (to refuse everything, use `block`)"#,
        ),
        (
            "no burst",
            r#"[[policies]]
name = "login"
limit = "10r/s"
burst = 0"#,
            r#"tidegate.toml:4:9: policies.login.burst: 0: expected a whole number from 1 to 4294967295"#,
        ),
    ]);
    assert_eq!(limit_of("block = true"), Limit::block());
    assert_eq!(limit_of("block = true\nlimit = \"10r/s\""), Limit::block());
}

#[test]
fn e10_a_burst_above_the_limit_is_refused_where_it_cannot_be_meant() {
    check(&[
        (
            "strict without a burst",
            r#"[[policies]]
name = "login"
limit = "10r/s"
strict = true"#,
            r#"tidegate.toml:4:10: policies.login.strict: true without a burst: expected a burst below 10"#,
        ),
        (
            "strict with the burst of the limit",
            r#"[[policies]]
name = "login"
limit = "10r/s"
strict = true
burst = 10"#,
            r#"tidegate.toml:4:10: policies.login.strict: strict with burst 10 of 10 requests: expected a burst below 10"#,
        ),
        (
            "strict with a burst above the limit",
            r#"[[policies]]
name = "login"
limit = "10r/s"
strict = true
burst = 11"#,
            r#"tidegate.toml:4:10: policies.login.strict: strict with burst 11 of 10 requests: expected a burst below 10"#,
        ),
        (
            "strict with one request",
            r#"[[policies]]
name = "login"
limit = "1r/s"
strict = true
burst = 1"#,
            r#"tidegate.toml:4:10: policies.login.strict: true with 1 request: expected a limit of at least 2 requests, and a burst below it"#,
        ),
    ]);
    let limit = limit_of("limit = \"10r/s\"\nburst = 11");
    assert_eq!(limit, Limit::per_second(10).burst(11));
}

#[test]
fn p4_huge_numbers_are_refused() {
    check(&[
        (
            "too many requests",
            r#"[[policies]]
name = "login"
limit = "4294967296r/s""#,
            r#"tidegate.toml:3:9: policies.login.limit: "4294967296r/s": 4294967296 requests: expected 1 to 4294967295 (to refuse everything, use `block`)"#,
        ),
        (
            "far too many requests",
            r#"[[policies]]
name = "login"
limit = "99999999999999999999r/s""#,
            r#"tidegate.toml:3:9: policies.login.limit: "99999999999999999999r/s": 18446744073709551615 requests: expected 1 to 4294967295 (to refuse everything, use `block`)"#,
        ),
        (
            "a window that is too long",
            r#"[[policies]]
name = "login"
limit = "5/367d""#,
            r#"tidegate.toml:3:9: policies.login.limit: "5/367d": a window of 31708800s: expected 1ms to 366d, in whole microseconds"#,
        ),
        (
            "an integer above all integers",
            r#"[[policies]]
name = "login"
limit = "10r/s"
burst = 99999999999999999999"#,
            r#"tidegate.toml:4:9: policies.login.burst: 99999999999999999999: expected a whole number from 1 to 4294967295"#,
        ),
        (
            "a burst out of range",
            r#"[[policies]]
name = "login"
limit = "10r/s"
burst = 4294967296"#,
            r#"tidegate.toml:4:9: policies.login.burst: 4294967296: expected a whole number from 1 to 4294967295"#,
        ),
        (
            "a burst that takes centuries to refill",
            r#"[[policies]]
name = "login"
limit = "1r/d"
burst = 1_000_000"#,
            r#"tidegate.toml:4:9: policies.login.burst: burst 1000000 takes more than 100 years to refill: expected at most 36525"#,
        ),
        (
            "too much for a log",
            r#"[[policies]]
name = "login"
limit = "1000001r/s"
algorithm = "sliding_log""#,
            r#"tidegate.toml:3:9: policies.login.limit: 1000001 requests with sliding_log: expected at most 1000000"#,
        ),
        (
            "too much for a sliding window",
            r#"[[policies]]
name = "login"
limit = "268435457r/s"
algorithm = "sliding_window""#,
            r#"tidegate.toml:3:9: policies.login.limit: 268435457 requests with sliding_window: expected at most 268435456"#,
        ),
    ]);
    let limit = limit_of("limit = \"4294967295/366d\"\nburst = 0xffff_ffff");
    let year = Duration::from_hours(366 * 24);
    assert_eq!(limit, Limit::per(u32::MAX, year).burst(u32::MAX));
}

#[test]
fn what_else_is_wrong_with_a_limit() {
    check(&[
        (
            "a burst in quotes",
            r#"[[policies]]
name = "login"
limit = "10r/s"
burst = "20""#,
            r#"tidegate.toml:4:9: policies.login.burst: "20": expected a whole number from 1 to 4294967295"#,
        ),
        (
            "a burst with a log",
            r#"[[policies]]
name = "login"
limit = "10r/s"
algorithm = "sliding_log"
burst = 5"#,
            r#"tidegate.toml:5:9: policies.login.burst: burst 5 with sliding_log: only token_bucket has a burst"#,
        ),
        (
            "a burst with windows",
            r#"[[policies]]
name = "login"
limit = "10r/s"
algorithm = "fixed_window"
burst = 5
[[policies]]
name = "api"
limit = "10r/s"
algorithm = "sliding_window"
burst = 5"#,
            r#"tidegate.toml:5:9: policies.login.burst: burst 5 with fixed_window: only token_bucket has a burst
tidegate.toml:10:9: policies.api.burst: burst 5 with sliding_window: only token_bucket has a burst"#,
        ),
        (
            "strict with a window",
            r#"[[policies]]
name = "login"
limit = "10r/s"
strict = true
algorithm = "fixed_window""#,
            r#"tidegate.toml:4:10: policies.login.strict: strict with fixed_window: only token_bucket can be strict"#,
        ),
        (
            "strict that is a text",
            r#"[[policies]]
name = "login"
limit = "10r/s"
strict = "yes""#,
            r#"tidegate.toml:4:10: policies.login.strict: "yes": expected true or false"#,
        ),
        (
            "aligned to the epoch with a bucket",
            r#"[[policies]]
name = "login"
limit = "10r/s"
align = "epoch""#,
            r#"tidegate.toml:4:9: policies.login.align: align = "epoch" with token_bucket: only fixed_window can be aligned"#,
        ),
        (
            "aligned to something else",
            r#"[[policies]]
name = "login"
limit = "10r/s"
algorithm = "fixed_window"
align = "hour""#,
            r#"tidegate.toml:5:9: policies.login.align: "hour": expected one of "first", "epoch""#,
        ),
        (
            "an unknown algorithm",
            r#"[[policies]]
name = "login"
limit = "10r/s"
algorithm = "leaky_bucket""#,
            r#"tidegate.toml:4:13: policies.login.algorithm: "leaky_bucket": expected one of "token_bucket", "fixed_window", "sliding_window", "sliding_log", "script""#,
        ),
        (
            "an algorithm that is a number",
            r#"[[policies]]
name = "login"
limit = "10r/s"
algorithm = 5"#,
            r#"tidegate.toml:4:13: policies.login.algorithm: 5: expected one of "token_bucket", "fixed_window", "sliding_window", "sliding_log", "script""#,
        ),
    ]);
}

#[test]
fn long_values_are_cut_and_odd_ones_escaped() {
    check(&[
        (
            "a long wrong rate",
            r#"[[policies]]
name = "login"
limit = "ääääääääääääääääääääääääääääääääääääääääääääääääääääääääääääääääääääää""#,
            r#"tidegate.toml:3:9: policies.login.limit: "ääääääääääääääääääääääääääääääääääääääääääääääääääääääääääääääää…": expected a rate such as 100r/s, 100r/m, 100r/h or 100r/d, or a count per window such as 5/10s or 3/500ms"#,
        ),
        (
            "a long wrong number",
            r#"[[policies]]
name = "login"
limit = "10r/s"
burst = 11111111111111111111111111111111111111111111111111"#,
            r#"tidegate.toml:4:9: policies.login.burst: 1111111111111111111111111111111111111111…: expected a whole number from 1 to 4294967295"#,
        ),
        (
            "a long wrong name",
            r#"[[policies]]
name = "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"
limit = "10r/s""#,
            r#"tidegate.toml:2:8: policies[0].name: "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn…": expected 1 to 64 of the characters A-Z a-z 0-9 _ -"#,
        ),
        (
            "a number with control characters, which belong into no log",
            "[stores.default]\nmax_keys = 1_00\u{1e}\u{1b}0",
            r#"tidegate.toml:2:12: stores.default.max_keys: 1_00\u{1e}\u{1b}0: expected a whole number from 1 to 1000000000"#,
        ),
    ]);
}
