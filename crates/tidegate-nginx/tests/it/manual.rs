//! What `docs/nginx.md` and `README.md` show of the module is accepted by nginx.

use crate::nginx::check;

const MANUAL: &str = include_str!("../../../../docs/nginx.md");
const README: &str = include_str!("../../../../README.md");

/// The configs of a page.
fn configs(page: &str) -> impl Iterator<Item = &str> {
    let blocks = page.split("```nginx module\n").skip(1);
    blocks.map(|block| block.split("\n```").next().unwrap())
}

#[test]
fn configs_of_the_manual_are_accepted() {
    assert!(configs(MANUAL).count() >= 7 && configs(README).count() > 0);
    for block in configs(MANUAL).chain(configs(README)) {
        assert_eq!(check(block), "accepted", "{block}");
    }
}

#[test]
fn error_of_the_manual_is_what_nginx_says() {
    let said = check("tidegate_zone z key=$uri rate=1r/s mode=fast;");
    let (_, error) = said.split_once(": ").unwrap();
    assert!(
        MANUAL.contains(&format!("\nnginx: [emerg] {error} in /")),
        "{said}"
    );
}

/// An unknown option makes nginx list those that there are.
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
    let said = check("tidegate_zone z key=$uri rate=1r/s nodelay;");
    let options = said
        .split('"')
        .filter_map(|option| option.strip_suffix('='));
    let missing = options.filter(|option| !MANUAL.contains(&format!("\n| `{option}` |")));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&str>::new(), "{said}");
}
