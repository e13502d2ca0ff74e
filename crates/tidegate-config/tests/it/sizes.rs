//! Files that are far too large, too deep or too wrong: each is answered, and soon.

use std::time::{Duration, Instant};

use tidegate_config::Config;
use tidegate_testkit::cases::controls;

/// A megabyte in an optimised build, and less in one that is slow.
const SIZE: usize = if cfg!(debug_assertions) {
    100_000
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
    read.map_err(|errors| {
        assert!(errors.as_slice().len() <= 100, "{what}");
        let errors = errors.to_string();
        assert!(errors.len() < 100_000, "{what}: {}", errors.len());
        errors
    })
}

/// A part as often as it takes, with numbers for `#`.
fn much(part: &str) -> String {
    let parts = 0..SIZE / part.len();
    parts
        .map(|number| part.replace('#', &number.to_string()))
        .collect()
}

#[test]
fn deep_nesting_does_not_overflow_the_stack() {
    for (open, close) in [("[", "]"), ("{ a = ", "}"), ("[{ a = ", "}]")] {
        for depth in [100, 10_000, 100_000] {
            let open = format!("x = {}", open.repeat(depth));
            assert!(answered_soon("open", &open).is_err());
            let closed = open + &close.repeat(depth);
            assert!(answered_soon("closed", &closed).is_err());
        }
    }
    let dots = "a.".repeat(10_000);
    assert!(answered_soon("dotted", &format!("{dots}x = 1")).is_err());
    assert!(answered_soon("a header", &format!("[{dots}x]")).is_err());
}

#[test]
fn much_garbage_is_answered_soon() {
    let parts = "[ ] { \" '''␊ = ␊ a a␊ a␠=␠␊ é= ␀ ␍ ␣ [[ a. \u{feff} [a]␊ a␠=␠1␊ x␠=␠' \
        [[policies]]␊ [[policies]]␊name␠=␠'a'␊";
    for part in parts.split(' ').map(controls) {
        // Some are a config, such as newlines. A number sign would be replaced.
        let text = much(&part.replace('␣', "\u{1}")).replace('\u{1}', "#");
        let _ = answered_soon(&part, &text);
    }
}

#[test]
fn many_tables_are_answered_soon() {
    let stores = much("[stores.s#]\n");
    let missing = "[[policies]]\nname = 'p'\nlimit = '1r/s'\nstore = 'none'\n".repeat(100);
    let levels = much("[[policies.levels]]\nname = 'l#'\nlimit = 1\n");
    let levels = format!("[[policies]]\nname = 'p'\n{levels}");
    let overrides = much("[[policies.overrides]]\nmatch.key = 'a'\nburst = 0\n");
    let known = "expected one of \"default\", \"s0\", ";
    let rate = "expected a rate in quotes";
    for (text, error) in [
        (much("[[policies]]\nname = 'p#'\nlimit = '1r/s'\n"), ""),
        (much("u# = 1\n"), "unknown field"),
        (stores.clone(), ""),
        (stores + &missing, known),
        (levels.clone(), rate),
        (levels + &overrides, rate),
    ] {
        let what = &text[..20];
        let errors = answered_soon(what, &text).err().unwrap_or_default();
        assert_eq!(errors.is_empty(), error.is_empty(), "{what}: {errors}");
        assert!(errors.contains(error), "{what}: {errors}");
    }
}

#[test]
fn so_many_overrides_are_read_and_no_more() {
    let overrides = |count: usize, field: &str| {
        let overrides = (0..count)
            .map(|index| format!("[[policies.overrides]]\nmatch.key = 'k{index}'\n{field}\n"));
        let overrides: String = overrides.collect();
        format!("[[policies]]\nname = 'p'\nlimit = '1r/s'\n{overrides}")
    };
    let read = answered_soon("all", &overrides(10_000, "burst = 2")).unwrap();
    assert_eq!(read.policies[0].levels()[0].overrides().len(), 10_000);
    assert_eq!(
        answered_soon("one more", &overrides(10_001, "burst = 2")).unwrap_err(),
        "tidegate.toml:4:1: policies.p.overrides: 10001: expected at most 10000 for a level"
    );
    assert!(answered_soon("wrong", &overrides(20_000, "strict = true")).is_err());
}

#[test]
fn long_texts_are_cut_in_messages() {
    const POLICY: &str = "[[policies]]\nname = 'p'\nlimit = '1r/s'\n";
    let quoted = format!("\"\"\"{}\"\"\"", "é\n".repeat(100_000));
    let escaped = "é\\n".repeat(100_000);
    for text in [
        format!("x = {quoted}"),
        format!("\"{escaped}\" = 1"),
        format!("[stores.\"{escaped}\"]"),
        format!("[stores.default]\nurl = {quoted}\nprefix = {quoted}"),
        format!(
            "[[policies]]\nname = {quoted}\nlimit = {quoted}\nkey = {quoted}\nstore = {quoted}"
        ),
        format!(
            "{POLICY}[[policies.overrides]]\nmatch.\"{escaped}\" = 'a'\nlevel = {quoted}\nblock = true"
        ),
        format!("{POLICY}burst = 1{}", "0".repeat(999_999)),
    ] {
        let errors = answered_soon("long", &text).expect_err("nothing of it is right");
        for line in errors.lines() {
            assert!(line.starts_with("tidegate.toml:"), "{line}");
            assert!(line.len() < 1_000, "{line}");
        }
    }
}
