//! What `docs/nginx.md` and `README.md` show of the module is accepted by nginx.

use crate::nginx::check;

const MANUAL: &str = include_str!("../../../../docs/nginx.md");
const README: &str = include_str!("../../../../README.md");

/// The configs of a page.
fn configs(page: &str) -> Vec<String> {
    let blocks = page.split("```nginx module\n").skip(1);
    let ends = blocks.map(|block| block.split("\n```").next().unwrap().to_owned());
    ends.collect()
}

#[test]
fn configs_of_the_manual_are_accepted() {
    let (manual, readme) = (configs(MANUAL), configs(README));
    assert!(manual.len() >= 8 && !readme.is_empty());
    for block in manual.iter().chain(&readme) {
        let (accepted, said) = check(block);
        assert!(accepted, "{block}\n{said}");
    }
}

#[test]
fn error_of_the_manual_is_what_nginx_says() {
    let (_, said) = check("tidegate_zone z key=$uri rate=1r/s mode=fast;");
    let shown = MANUAL
        .lines()
        .find(|line| line.starts_with("nginx: [emerg] "));
    let (shown, _) = shown.unwrap().split_once(" in /").unwrap();
    assert!(said.contains(shown), "{said}");
}

#[test]
fn manual_names_every_directive_option_and_variable() {
    let sources = [
        include_str!("../../src/directives.rs"),
        include_str!("../../src/variables.rs"),
    ];
    let names = sources.iter().flat_map(|source| source.split('"'));
    let names = names.filter(|name| name.starts_with("tidegate_") && !name.contains([' ', ':']));
    for name in names {
        assert!(MANUAL.contains(name), "{name}");
    }
    for option in [
        "key",
        "rate",
        "burst",
        "algorithm",
        "mode",
        "store",
        "size",
        "on_error",
    ] {
        assert!(MANUAL.contains(&format!("\n| `{option}` |")), "{option}");
    }
}
