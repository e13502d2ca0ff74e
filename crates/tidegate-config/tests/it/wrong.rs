//! Files that are wrong: `wrong.txt` has each with the lines it is refused with. What is not
//! a matter of one text follows.

use std::time::Duration;

use tidegate::Limit;

use super::{config, errors, limit_of};

#[test]
fn every_mistake_of_a_file_is_reported_with_its_place() {
    tidegate_testkit::cases::check(include_str!("wrong.txt"), 200, errors);
}

#[test]
fn limits_mean_what_they_say() {
    let year = Duration::from_hours(366 * 24);
    for (fields, limit) in [
        ("limit = \"10r/h\"", Limit::per_hour(10)),
        ("limit = \"10/1h\"", Limit::per_hour(10)),
        ("limit = \"10r/d\"", Limit::per_day(10)),
        (
            "limit = \"3/500ms\"",
            Limit::per(3, Duration::from_millis(500)),
        ),
        ("block = true", Limit::block()),
        ("block = true\nlimit = \"10r/s\"", Limit::block()),
        (
            "limit = \"10r/s\"\nburst = 11",
            Limit::per_second(10).burst(11),
        ),
        (
            "limit = \"4294967295/366d\"\nburst = 0xffff_ffff",
            Limit::per(u32::MAX, year).burst(u32::MAX),
        ),
    ] {
        assert_eq!(limit_of(fields), limit, "{fields}");
    }
}

#[test]
fn scripts_have_at_most_64_arguments() {
    let file = |count: usize| {
        format!(
            "[stores.default]\nurl = \"redis://127.0.0.1\"\n\
             [[policies]]\nname = \"custom\"\nalgorithm = \"script\"\nscript = \"mine.lua\"\n\
             args = [{}]\n",
            "1, ".repeat(count)
        )
    };
    let config = config(&file(64));
    let script = config.policies[0].script().expect("a script");
    assert_eq!(script.arguments().len(), 64);
    assert_eq!(
        errors(&file(65)),
        "tidegate.toml:7:8: policies.custom.args: 65 of them: expected at most 64"
    );
}

/// What every message about a wrong URL ends with.
const EXPECTED: &str = r#"expected "memory:", "redis://host:port/database", "rediss://user:password@host:port/database", "redis-sentinel://host:port,host:port/master", "redis-cluster://host:port,host:port", or "env:NAME""#;

/// The error message of a URL, without that end.
fn said(url: &str) -> String {
    let errors = errors(&format!("[stores.default]\nurl = {url}\nmax_keys = 5"));
    let start = "tidegate.toml:2:7: stores.default.url: ";
    let said = errors.strip_prefix(start).expect(&errors);
    said.strip_suffix(EXPECTED).expect(&errors).to_owned()
}

#[test]
fn what_is_wrong_with_a_url() {
    for (url, expected) in [
        // Not a text, and so not repeated.
        ("6379", "not a string: "),
        (r#"["redis://127.0.0.1"]"#, "not a string: "),
        // Other kinds.
        (r#""""#, r#""": "#),
        (r#""memory""#, r#""memory": "#),
        (r#""memory:1""#, r#""memory:…": "#),
        (r#""127.0.0.1:6379""#, r#""127.0.0.1:…": "#),
        (r#""postgres://db""#, r#""postgres:…": "#),
        (r#""Redis://127.0.0.1""#, r#""Redis:…": "#),
        (r#"" redis://127.0.0.1""#, r#"" redis:…": "#),
        (r#""redis:127.0.0.1""#, r#""redis:…": "#),
        (r#""env:""#, r#""env:": "#),
        // No cluster: it has one database, and every host a name.
        (r#""redis-cluster://""#, r#""redis-cluster://…": "#),
        (r#""redis-cluster://h1:1,""#, r#""redis-cluster://…": "#),
        (r#""redis-cluster://h1:1,h2:0""#, r#""redis-cluster://…": "#),
        (r#""redis-cluster://h1:1/1""#, r#""redis-cluster://…": "#),
        // No master.
        (r#""redis-sentinel://h1:1""#, r#""redis-sentinel://…": "#),
        (r#""redis-sentinel://h1:1/""#, r#""redis-sentinel://…": "#),
        (
            r#""redis-sentinel://h1:1/ma in""#,
            r#""redis-sentinel://…": "#,
        ),
        (
            r#""redis-sentinel://h1:1/main/x""#,
            r#""redis-sentinel://…": "#,
        ),
        (r#""rediss-sentinel:///main""#, r#""rediss-sentinel://…": "#),
        // No host.
        (r#""redis://""#, r#""redis://…": "#),
        (r#""redis:///0""#, r#""redis://…": "#),
        (r#""redis://:6379""#, r#""redis://…": "#),
        (r#""rediss://user:password@""#, r#""rediss://…": "#),
        (r#""redis://ho st""#, r#""redis://…": "#),
        (r#""redis://host\n""#, r#""redis://…": "#),
        (r#""redis://h1:1,h2:2""#, r#""redis://…": "#),
        (r#""redis://::1""#, r#""redis://…": "#),
        (r#""redis://[::1""#, r#""redis://…": "#),
        (r#""redis://[one]:6379""#, r#""redis://…": "#),
        // No port.
        (r#""redis://host:""#, r#""redis://…": "#),
        (r#""redis://host:0""#, r#""redis://…": "#),
        (r#""redis://host:65536""#, r#""redis://…": "#),
        (r#""redis://host:+1""#, r#""redis://…": "#),
        (r#""redis://host:port""#, r#""redis://…": "#),
        // No database.
        (r#""redis://host/one""#, r#""redis://…": "#),
        (r#""redis://host/-1""#, r#""redis://…": "#),
        (r#""redis://host/0/1""#, r#""redis://…": "#),
        (r#""redis://host/99999999999""#, r#""redis://…": "#),
        (r#""redis://host?db=1""#, r#""redis://…": "#),
        (r#""redis://host#0""#, r#""redis://…": "#),
        // In a password these are written as %2F, %3F and %23.
        (r#""redis://:pass/word@host""#, r#""redis://…": "#),
        (r#""redis://:pass?word@host""#, r#""redis://…": "#),
        (r#""redis://:pass#word@host""#, r#""redis://…": "#),
        (r#""redis://host/0@other""#, r#""redis://…": "#),
    ] {
        assert_eq!(said(url), expected, "{url}");
    }
}
