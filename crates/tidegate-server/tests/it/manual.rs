//! What the pages say, held against the library: files are read, wrong files are
//! refused with the text shown, headers are those of the scenario named, and tables
//! of fields are complete and right.

use tidegate::{
    Cost, Limit, ManualClock, MemoryStore, Policy, PolicyDecision, PolicyLimiter, Rate,
};
use tidegate_config::Config;
use tidegate_server::section::Server;
use tidegate_server::settings;

use crate::process::{Folder, Tidegate, run};

/// When the checks of the pages are asked.
const START: u64 = 1_700_000_040_000_000;

const POLICIES: &str = include_str!("../../../../docs/policies.md");
const ALGORITHMS: &str = include_str!("../../../../docs/algorithms.md");
const README: &str = include_str!("../../../../README.md");

/// A fenced block, the paragraph and the file before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block<'p> {
    /// What stands behind the fence.
    pub(crate) kind: &'p str,
    pub(crate) text: &'p str,
    pub(crate) lead: &'p str,
    pub(crate) file: &'p str,
}

pub(crate) fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let (mut lead, mut file) = ("", "");
    let mut rest = page;
    while let Some((line, after)) = rest.split_once('\n') {
        rest = after;
        if let Some(kind) = line.strip_prefix("```") {
            let length = match after.starts_with("```\n") {
                true => 0,
                false => after.find("\n```\n").expect("every block ends") + 1,
            };
            let (text, end) = after.split_at(length);
            if kind == "toml" {
                file = text;
            }
            blocks.push(Block {
                kind,
                text,
                lead,
                file,
            });
            rest = end.split_once('\n').expect("the end of a block").1;
        } else if !line.is_empty() {
            lead = line;
        }
    }
    blocks
}

fn blocks_of<'p>(page: &'p str, kind: &str) -> Vec<Block<'p>> {
    let mut blocks = blocks(page);
    blocks.retain(|block| block.kind == kind);
    assert!(!blocks.is_empty(), "no block of the kind {kind}");
    blocks
}

/// What stands under a heading, up to the next one that is not below it.
pub(crate) fn section<'p>(page: &'p str, heading: &str) -> &'p str {
    let start = page.find(&format!("\n{heading}\n")).expect(heading);
    let text = &page[start + heading.len() + 2..];
    let depth = heading.find(' ').expect("a heading begins with its depth");
    let ends = (2..=depth).filter_map(|depth| text.find(&format!("\n{} ", "#".repeat(depth))));
    &text[..ends.min().unwrap_or(text.len())]
}

/// The rows of a table, by the beginning of its first line.
pub(crate) fn rows<'p>(text: &'p str, header: &str) -> Vec<Vec<&'p str>> {
    let table = &text[text.find(header).expect(header)..];
    let lines = table.lines().skip(2);
    let rows = lines.map_while(|line| line.strip_prefix("| ")?.strip_suffix('|'));
    rows.map(|row| row.split(" | ").map(str::trim).collect())
        .collect()
}

/// The pieces of code in a text.
pub(crate) fn code(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

pub(crate) fn read(text: &str) -> Config {
    read_all(text).1
}

fn read_all(text: &str) -> (Server, Config) {
    let read = settings::parse(text, "tidegate.toml", None);
    read.unwrap_or_else(|errors| panic!("{errors}\n\nin:\n{text}"))
}

#[test]
fn an_empty_file_has_the_policy_that_the_page_names() {
    let config = read("");
    let [policy] = &config.policies[..] else {
        panic!("one policy")
    };
    let level = &policy.levels()[0];
    let said = (policy.name(), level.key().as_str(), *level.limit());
    assert_eq!(said, ("default", "{key}", Limit::per_second(10)));
}

#[test]
fn the_first_file_is_the_same_everywhere() {
    let example = include_str!("../../../tidegate-config/examples/login.toml");
    assert_eq!(blocks_of(POLICIES, "toml")[0].text, example);
    let readme = blocks_of(README, "toml");
    assert!(readme.iter().any(|block| block.text == example));
}

#[test]
fn lines_of_the_page_on_algorithms_are_those_of_a_policy() {
    let blocks = blocks(ALGORITHMS);
    let lines: Vec<_> = blocks
        .windows(2)
        .filter(|two| two[0].kind == "toml")
        .collect();
    assert_eq!(lines.len(), 5);
    for two in lines {
        let config = read(&format!("[[policies]]\nname = \"p\"\n{}", two[0].text));
        let (_, rust) = two[1].text.split_once("Limit::parse(\"").expect("as text");
        let (limit, _) = rust.split_once('"').expect("a text ends");
        let expected = Limit::parse(limit).expect(limit);
        assert_eq!(*config.policies[0].levels()[0].limit(), expected);
    }
}

/// The checks that a paragraph names, such as "The 6th check of `login`", of the file
/// before it; the last one goes to `judge`.
pub(crate) fn after_checks(block: Block<'_>, judge: impl Fn(&PolicyDecision<'_>)) {
    let config = read(block.file);
    let store = MemoryStore::builder().clock(ManualClock::at_us(START));
    let limiter = PolicyLimiter::with_stores([("default", store.build())], config.policies);
    let limiter = limiter.expect("the file is right");

    let (count, named) = block.lead.split_once(" check of ").expect(block.lead);
    let count = count.rsplit(' ').next().expect("a word");
    let count: usize = count[..count.len() - 2].parse().expect(block.lead);
    let cost = match named.split_once("at a cost of ") {
        Some((_, cost)) => cost.split([',', ':']).next().expect("a word").parse(),
        None => Ok(1),
    };
    let cost = Cost::of(cost.expect(block.lead));
    let check = || limiter.check(code(named)[0], &[("ip", "203.0.113.7")], cost);
    for _ in 1..count {
        assert!(check().expect("a policy").allowed(), "{}", block.lead);
    }
    let decision = check().expect("a policy");
    let refused = block.lead.contains("refused");
    assert_eq!(decision.allowed(), !refused, "{}", block.lead);
    judge(&decision);
}

/// The tables of the file: the heading on the page, and a file with one more line in
/// such a table.
const TABLES: [(&str, &str); 6] = [
    ("### `[server]`", "[server]\n"),
    ("### `[envoy]`", "[envoy]\n"),
    ("### `[stores.NAME]`", "[stores.default]\n"),
    (
        "### `[[policies]]`",
        "[[policies]]\nname = \"p\"\nlimit = \"10r/s\"\n",
    ),
    (
        "### `[[policies.levels]]`",
        "[[policies]]\nname = \"p\"\n[[policies.levels]]\nname = \"l\"\nlimit = \"10r/s\"\n",
    ),
    (
        "### `[[policies.overrides]]`",
        "[[policies]]\nname = \"p\"\nlimit = \"10r/s\"\n[[policies.overrides]]\nmatch = { key = \"x\" }\nlimit = \"5r/s\"\n",
    ),
];

/// The errors of a file with one more line: none if it is right.
fn said(start: &str, line: &str) -> Vec<String> {
    let (field, _) = line.split_once(' ').expect("a field and its value");
    let errors = settings::parse(&format!("{start}{line}\n"), "tidegate.toml", None).err();
    let errors = errors.iter().flat_map(|errors| errors.as_slice());
    let about = errors.filter(|error| error.field().ends_with(&format!(".{field}")));
    about.map(|error| error.message().to_owned()).collect()
}

#[test]
fn tables_have_every_field_and_examples_of_it() {
    for (heading, start) in TABLES {
        let text = section(POLICIES, heading);
        let rows = rows(text, "| field |");
        let fields: Vec<&str> = rows.iter().flat_map(|row| code(row[0])).collect();

        // The reader tells which fields it knows.
        let said = said(start, "zzzzzz = 1");
        let (_, known) = said[0].split_once("expected one of ").expect("a list");
        let mut known: Vec<&str> = known.split(", ").collect();
        let mut listed = fields.clone();
        known.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, known, "{heading}");

        let files = blocks_of(text, "toml");
        for field in fields {
            let uses = |line: &str| {
                line.starts_with(&format!("{field} = ")) || line == format!("[[policies.{field}]]")
            };
            let shown = files.iter().any(|file| file.text.lines().any(uses));
            assert!(shown, "{heading}: {field}");
        }
    }
}

#[test]
fn defaults_in_the_tables_are_what_holds() {
    for (heading, start) in TABLES {
        for row in rows(section(POLICIES, heading), "| field |") {
            let (field, default) = (code(row[0])[0], row[2]);
            if let [value] = code(default)[..]
                && default.starts_with('`')
            {
                let explicit = read_all(&format!("{start}{field} = {value}\n"));
                assert_eq!(explicit, read_all(start), "{heading}: {field} = {value}");
            }
        }
    }
}

#[test]
fn values_in_the_tables_are_accepted_and_those_beyond_are_not() {
    for (heading, start) in TABLES {
        for row in rows(section(POLICIES, heading), "| field |") {
            let (field, values) = (code(row[0])[0], row[3]);
            if !values.starts_with('`') {
                continue;
            }
            let refused = |value: &str| {
                let said = said(start, &format!("{field} = {value}"));
                said.iter()
                    .any(|said| said.starts_with(&format!("{value}: expected")))
            };
            for value in code(values) {
                assert!(!refused(value), "{heading}: {field} = {value}");
            }
            let beyond: Vec<String> = match code(values)[..] {
                [from, to] if values.contains("` to `") => [moved(from, -1), moved(to, 1)]
                    .into_iter()
                    .flatten()
                    .collect(),
                _ => vec!["\"something else\"".into()],
            };
            for value in beyond {
                assert!(refused(&value), "{heading}: {field} = {value}");
            }
        }
    }
}

/// A value with another number in it, unless that is below zero.
fn moved(value: &str, by: i64) -> Option<String> {
    let digits = value.trim_matches(|c: char| !c.is_ascii_digit());
    let number: i64 = digits.parse().expect(value);
    (number + by >= 0).then(|| value.replace(digits, &(number + by).to_string()))
}

#[test]
fn a_blocked_level_stays_blocked() {
    let config = read(
        "[[policies]]\nname = \"p\"\nblock = true\n\
         [[policies.overrides]]\nmatch = { key = \"x\" }\nenabled = false\n",
    );
    let limiter = config.limiter().expect("the file is right");
    let decision = limiter.check("p", &[("key", "x")], Cost::ONE);
    assert!(!decision.expect("a policy").allowed());
}

#[test]
fn rates_are_read() {
    let rows = rows(section(POLICIES, "#### `limit`"), "| written |");
    assert_eq!(rows.len(), 5);
    for row in rows {
        let rate = code(row[0])[0].parse::<Rate>();
        assert_eq!(rate.expect(row[0]).to_string(), code(row[0])[0]);
    }
}

#[test]
fn urls_are_read() {
    let rows = rows(section(POLICIES, "#### `url`"), "| written |");
    assert_eq!(rows.len(), 8);
    for row in rows {
        let url = code(row[0])[0];
        let config = read(&format!("[stores.default]\nurl = \"{url}\"\n"));
        let in_memory = config.stores["default"].in_memory().is_some();
        assert_eq!(in_memory, row[1].contains("this process"), "{url}");
    }
}

#[test]
fn values_are_encoded_as_the_table_says() {
    let policy = Policy::builder("p").limit(Limit::per_second(1)).build();
    let policy = policy.expect("a policy");
    let encoded = |value: &str| {
        let attributes = [("key", value)];
        let keys = policy.keys(&attributes).expect("it has the key");
        let stored = keys.iter().next().expect("a level").stored("");
        let inside = stored.strip_prefix(":{").expect("a tag");
        inside.split('}').next().expect("a tag ends").to_owned()
    };
    for row in rows(section(POLICIES, "## Keys"), "| value |") {
        let expected = code(row[1])[0];
        match row[0] {
            "(empty)" => assert_eq!(encoded(""), expected),
            "(more than 1,024 bytes)" => {
                let long = "x".repeat(1_025);
                assert!(encoded(&long).starts_with(expected));
                assert_eq!(encoded(&long).len(), expected.len() + 64);
                assert_eq!(encoded(&long[1..]), long[1..]);
            }
            value => assert_eq!(encoded(code(value)[0]), expected),
        }
    }
}

#[test]
fn fields_are_those_of_a_decision() {
    let server = Tidegate::start("");
    let decision = server.check(r#"{"policy":"default","key":"k"}"#).json();
    let decision = decision.as_object().expect("fields");
    let table = rows(include_str!("../../../../docs/http.md"), "| field |");
    let listed: Vec<&str> = table.iter().map(|row| code(row[0])[0]).collect();
    for field in decision.keys() {
        assert!(
            listed.contains(&field.as_str()),
            "{field} is not in the table"
        );
    }
    for field in listed {
        assert!(decision.contains_key(field) || field == "answer", "{field}");
    }
}

#[test]
fn formats_of_simulate_are_those_of_the_table() {
    let (_, help, _) = run(&Folder::new(), &["simulate", "--help"]);
    let formats = help.split("Possible values:").nth(1).expect("a list");
    let formats = formats.split("\n\n").next().expect("its end").lines();
    let formats = formats.filter_map(|line| line.trim().strip_prefix("- "));
    let formats: Vec<&str> = formats.filter_map(|line| line.split(':').next()).collect();
    assert!(formats.len() >= 7, "{help}");
    let page = include_str!("../../../../docs/simulate.md");
    for format in formats {
        assert!(page.contains(&format!("| `--format {format}`")), "{format}");
    }
}
