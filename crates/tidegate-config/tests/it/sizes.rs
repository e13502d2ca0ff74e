//! Files that are far too large, too deep or too wrong: each is answered, and soon.

use std::fmt::Write;
use std::time::{Duration, Instant};

use tidegate_config::Config;

/// A megabyte in an optimised build, and less in one that is slow.
const SIZE: usize = if cfg!(debug_assertions) {
    200_000
} else {
    1_000_000
};

/// Far more than it takes, even on a busy machine.
const SOON: Duration = Duration::from_secs(30);

fn answered_soon(what: &str, text: &str) -> Result<Config, String> {
    let start = Instant::now();
    let read = text.parse::<Config>();
    let took = start.elapsed();
    assert!(took < SOON, "{what}: {took:?} for {} bytes", text.len());
    let errors = read.map_err(|errors| {
        assert!(errors.as_slice().len() <= 100, "{what}");
        errors.to_string()
    });
    if let Err(errors) = &errors {
        assert!(errors.len() < 100_000, "{what}: {}", errors.len());
    }
    errors
}

/// So much of it.
fn much(part: &str) -> String {
    part.repeat(SIZE / part.len())
}

fn numbered(part: impl Fn(usize) -> String) -> String {
    let mut text = String::new();
    for index in 0.. {
        if text.len() > SIZE {
            break;
        }
        text += &part(index);
    }
    text
}

#[test]
fn deep_nesting_does_not_overflow_the_stack() {
    for (open, close) in [("[", "]"), ("{ a = ", "}"), ("[{ a = ", "}]")] {
        for depth in [100, 10_000, 100_000] {
            let text = format!("x = {}{}", open.repeat(depth), close.repeat(depth));
            assert!(answered_soon("closed", &text).is_err());
            let text = format!("x = {}", open.repeat(depth));
            assert!(answered_soon("open", &text).is_err());
        }
    }
    let text = format!("{}x = 1", "a.".repeat(10_000));
    assert!(answered_soon("dotted", &text).is_err());
    let text = format!("[{}x]", "a.".repeat(10_000));
    assert!(answered_soon("a header", &text).is_err());
}

#[test]
fn much_garbage_is_answered_soon() {
    for part in [
        "[",
        "]",
        "{",
        "\"",
        "'''\n",
        "=",
        "\n",
        "a",
        "a\n",
        "a = \n",
        "é=",
        "\0",
        "\r",
        "#",
        "[[",
        "a.",
        "\u{feff}",
        "[a]\n",
        "a = 1\n",
        "x = '",
        "[[policies]]\n",
        "[[policies]]\nname = 'a'\n",
    ] {
        // Some are a config, such as newlines.
        let _ = answered_soon(part, &much(part));
    }
}

#[test]
fn many_tables_are_answered_soon() {
    let policies = numbered(|index| format!("[[policies]]\nname = 'p{index}'\nlimit = '1r/s'\n"));
    assert!(answered_soon("policies", &policies).is_ok());
    let unknown = numbered(|index| format!("u{index} = 1\n"));
    assert!(answered_soon("unknown fields", &unknown).is_err());
    let stores = numbered(|index| format!("[stores.s{index}]\n"));
    assert!(answered_soon("stores", &stores).is_ok());
    let missing = "[[policies]]\nname = 'p'\nlimit = '1r/s'\nstore = 'none'\n".repeat(100);
    let errors = answered_soon("no such store", &(stores + &missing)).unwrap_err();
    assert!(
        errors.contains("expected one of \"default\", \"s0\", "),
        "{errors}"
    );
    let levels = numbered(|index| format!("[[policies.levels]]\nname = 'l{index}'\nlimit = 1\n"));
    let levels = format!("[[policies]]\nname = 'p'\n{levels}");
    assert!(answered_soon("levels", &levels).is_err());
    let mut both = levels[..levels.len() / 2]
        .rsplit_once("[[")
        .unwrap()
        .0
        .to_owned();
    for _ in 0..SIZE / 100 {
        writeln!(both, "[[policies.overrides]]\nmatch.key = 'a'\nburst = 0").unwrap();
    }
    assert!(answered_soon("levels and overrides", &both).is_err());
}

#[test]
fn so_many_overrides_are_read_and_no_more() {
    let overrides = |count: usize| {
        let mut text = "[[policies]]\nname = 'p'\nlimit = '1r/s'\n".to_owned();
        for index in 0..count {
            writeln!(
                text,
                "[[policies.overrides]]\nmatch.key = 'k{index}'\nburst = 2"
            )
            .unwrap();
        }
        text
    };
    let read = answered_soon("all", &overrides(10_000)).unwrap();
    assert_eq!(read.policies[0].levels()[0].overrides().len(), 10_000);
    assert_eq!(
        answered_soon("one more", &overrides(10_001)).unwrap_err(),
        "tidegate.toml:4:1: policies.p.overrides: 10001: expected at most 10000 for a level"
    );
    let wrong = overrides(20_000).replace("burst = 2", "strict = true");
    assert!(answered_soon("wrong", &wrong).is_err());
}

#[test]
fn long_texts_are_cut_in_messages() {
    let long = "é\n".repeat(500_000);
    let quoted = format!("\"\"\"{long}\"\"\"");
    for text in [
        format!("x = {quoted}"),
        format!("\"{}\" = 1", "é".repeat(500_000)),
        format!("[stores.\"{}\"]", "é\\n".repeat(300_000)),
        format!("[stores.default]\nurl = {quoted}\nprefix = {quoted}"),
        format!(
            "[[policies]]\nname = {quoted}\nlimit = {quoted}\nkey = {quoted}\nstore = {quoted}"
        ),
        format!(
            "[[policies]]\nname = 'p'\nlimit = '1r/s'\n[[policies.overrides]]\nmatch.\"{}\" = 'a'\nlevel = {quoted}\nblock = true",
            "é\\n".repeat(99_999)
        ),
        format!(
            "[[policies]]\nname = 'p'\nlimit = '1r/s'\nburst = 1{}",
            "0".repeat(999_999)
        ),
    ] {
        if let Err(errors) = answered_soon("long", &text) {
            for line in errors.lines() {
                assert!(line.starts_with("tidegate.toml:"), "{line}");
                assert!(line.len() < 1_000, "{line}");
            }
        }
    }
}
