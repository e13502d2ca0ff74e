//! Files in the form of envoyproxy/ratelimit: good ones, and bad ones with their errors.

use std::path::{Path, PathBuf};

use tidegate_server::envoy::rules::{Defaults, Domains, files, read_all, read_text};
use tidegate_testkit::console::is_like;

fn corpus(folder: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/envoy");
    files(&root.join(folder)).expect("a corpus")
}

/// The name of a file, and its text.
fn named(path: &Path) -> (String, String) {
    let name = path.file_name().expect("a name").to_string_lossy();
    let text = std::fs::read_to_string(path).expect("text");
    (name.into_owned(), text)
}

fn build(text: &str, name: &str, defaults: &Defaults) -> Result<Domains, String> {
    let draft = read_text(text, name).map_err(|errors| errors.to_string())?;
    Domains::build(vec![draft], defaults).map_err(|errors| errors.to_string())
}

#[test]
fn good_files_are_read() {
    let files = corpus("good");
    assert!(files.len() >= 9, "{}", files.len());
    for path in files {
        let (name, text) = named(&path);
        let domains = build(&text, &name, &Defaults::default());
        let domains = domains.unwrap_or_else(|errors| panic!("{errors}"));
        let expected = text.lines().next().expect("a first line");
        let (domain, limits) = expected[2..].rsplit_once(": ").expect("# domain: N limits");
        assert!(domains.has(domain.trim_matches('"')), "{name}: {domain}");
        assert_eq!(
            format!("{} limits", domains.rules().len()),
            limits,
            "{name}"
        );
    }
}

#[test]
fn bad_files_are_refused_with_line_value_and_expectation() {
    let files = corpus("bad");
    assert!(files.len() >= 50, "{}", files.len());
    let mut wrong = Vec::new();
    for path in files {
        let (name, text) = named(&path);
        let (_, expected) = named(&path.with_extension("txt"));
        let errors = build(&text, &name, &Defaults::default()).err();
        let errors = errors.unwrap_or("no error".into());
        if errors != expected.trim_end() {
            wrong.push(format!("{errors}\n  instead of\n{expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn one_bad_file_refuses_all_and_names_every_error() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/envoy");
    let paths = ["good/basic", "bad/unit", "bad/flag", "bad/nowhere"];
    let paths = paths.map(|path| folder.join(format!("{path}.yaml")));
    let errors = read_all(&paths).expect_err("errors").to_string();
    let expected = "\
…bad/unit.yaml:5: rate_limit.unit…
…bad/flag.yaml:4: shadow_mode…
…bad/nowhere.yaml: No such file…";
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
