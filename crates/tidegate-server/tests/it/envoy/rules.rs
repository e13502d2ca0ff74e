//! Files in the form of envoyproxy/ratelimit: good ones, and bad ones with their errors.

use std::path::Path;

use tidegate_server::envoy::rules::{Defaults, Domains, files, read_all, read_text};
use tidegate_testkit::{cases, console::is_like};

use crate::process::Folder;

fn build(text: &str, name: &str, defaults: &Defaults) -> Result<Domains, String> {
    let draft = read_text(text, name).map_err(|errors| errors.to_string())?;
    Domains::build(vec![draft], defaults).map_err(|errors| errors.to_string())
}

#[test]
fn good_files_are_read() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/envoy/good");
    let files = files(&root).expect("files");
    assert!(files.len() >= 9, "{}", files.len());
    for path in files {
        let text = std::fs::read_to_string(&path).expect("text");
        let domains = build(&text, "good.yaml", &Defaults::default());
        let domains = domains.unwrap_or_else(|errors| panic!("{}: {errors}", path.display()));
        let expected = text.lines().next().expect("a first line");
        let (domain, limits) = expected[2..].rsplit_once(": ").expect("# domain: N limits");
        assert!(domains.has(domain.trim_matches('"')), "{domain}");
        assert_eq!(
            format!("{} limits", domains.rules().len()),
            limits,
            "{domain}"
        );
    }
}

#[test]
fn bad_files_are_refused_with_line_value_and_expectation() {
    cases::check(include_str!("bad.txt"), 57, |text| {
        let errors = build(text, "limits.yaml", &Defaults::default()).err();
        errors.unwrap_or("no error".into())
    });
}

#[test]
fn one_bad_file_refuses_all_and_names_every_error() {
    let folder = Folder::new();
    folder.write("good.yaml", "domain: good\n");
    folder.write(
        "unit.yaml",
        "domain: a\ndescriptors:\n- key: a\n  rate_limit: {unit: eon}\n",
    );
    folder.write(
        "flag.yaml",
        "domain: b\ndescriptors:\n- key: a\n  shadow_mode: 1\n",
    );
    let paths = ["good", "unit", "flag", "nowhere"];
    let paths = paths.map(|name| folder.path(&format!("{name}.yaml")));
    let errors = read_all(&paths).expect_err("errors").to_string();
    let expected = "\
…unit.yaml:4: rate_limit.unit…
…flag.yaml:4: shadow_mode…
…nowhere.yaml: No such file…";
    assert!(is_like(&errors, expected), "{errors}");
}

#[test]
fn same_domain_twice_is_an_error_unless_domains_merge() {
    let draft = |key: &str, file: &str| {
        let text = format!(
            "domain: shop\ndescriptors: [{{key: {key}, rate_limit: {{unit: day, requests_per_unit: 1}}}}]"
        );
        read_text(&text, file).expect("a draft")
    };
    let error = Domains::build(
        vec![draft("a", "one.yaml"), draft("b", "two.yaml")],
        &Defaults::default(),
    );
    let expected =
        "two.yaml:1: domain \"shop\" is also in one.yaml:1: expected each domain in one file";
    assert_eq!(error.expect_err("twice").to_string(), expected);
    let merging = Defaults {
        merge_domains: true,
        ..Defaults::default()
    };
    let both = vec![draft("a", "one.yaml"), draft("b", "two.yaml")];
    let domains = Domains::build(both, &merging).expect("one domain");
    assert_eq!((domains.len(), domains.rules().len()), (1, 2));
    let same = vec![draft("a", "one.yaml"), draft("a", "two.yaml")];
    let error = Domains::build(same, &merging).expect_err("the same descriptor");
    let expected =
        "two.yaml:2: descriptor \"shop.a\" occurs twice: expected each key and value once";
    assert_eq!(error.to_string(), expected);
}
