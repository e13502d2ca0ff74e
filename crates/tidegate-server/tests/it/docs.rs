//! All pages of the repository. The fence of a block says what becomes of it: `toml` is read,
//! `toml,wrong` is refused with the `text` below it, `toml,dependencies` names what exists, `sh`
//! is run, `console` is run and says what stands below each command, in this order and with
//! `…` for what varies, `http` and `json` are the answer to the checks that the paragraph
//! before them names, `rust` is compiled by a crate that includes the page. `in ` and a file
//! behind the kind says that the file has the block, too; `skip: ` and a reason, why
//! nothing becomes of it. No link is dead, the map reaches every page, and tables are held
//! against the program here and by tests/cmd/pages.txt.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use tidegate::{Cost, Limit, ManualClock, MemoryStore, Policies, Policy, PolicyDecision, Rate};
use tidegate_config::Config;
use tidegate_server::section::Server;
use tidegate_server::settings;
use tidegate_testkit::console;
use tidegate_testkit::page::{Block, blocks, code, prose, rows, section};

use crate::process::Start;
use crate::resp::Served;

/// Blocks that another test runs: the page, the kind, and where.
const ELSEWHERE: &str = "
README.md: sh: xtask/src/readme.rs
README.md: nginx module: tidegate-nginx, tests/it/manual.rs
docs/algorithms.md: rust: `limits_in_rust_are_those_of_the_file`
docs/envoy.md: sh: tests/it/envoy/manual.rs, tests/cmd/pages.txt
docs/envoy.md: yaml: tests/it/envoy/manual.rs, tests/cmd/pages.txt
docs/migrating.md: js: tests/cmd/programs.txt
docs/nginx.md: nginx: tests/it/nginx/readme.rs
docs/nginx.md: nginx module: tidegate-nginx, tests/it/manual.rs
docs/operations.md: log: tests/it/operations.rs
docs/operations.md: yaml: tests/cmd/pages.txt
docs/proxies.md: caddy: tests/it/proxies.rs
docs/proxies.md: yaml: tests/it/proxies.rs
docs/redis.md: acl: tidegate-redis, tests/it/docs.rs
docs/resp.md: js: tests/it/resp/clients.rs
docs/resp.md: python: tests/it/resp/clients.rs
docs/scripts.md: http: tidegate-redis, tests/it/docs.rs
docs/scripts.md: lua: tidegate-redis, tests/it/docs.rs
docs/tower.md: sh: tidegate-tower, tests/it/example.rs
examples/nginx/README.md: sh: tests/cmd/programs.txt
";

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the workspace")
}

/// A file of the repository.
fn file(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).expect(name)
}

/// Files below a folder whose names end so, but for what is built or downloaded.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(files(&path, ending));
        } else if path.is_file() && name.ends_with(ending) {
            found.push(path);
        }
    }
    found
}

/// Every page by its path from the root, with its text.
fn pages() -> Vec<(String, String)> {
    let root = root();
    let pages = files(&root, ".md").into_iter().map(|path| {
        let name = path.strip_prefix(&root).expect("below the root");
        let name = name.display().to_string();
        (name.clone(), file(&name))
    });
    let pages: Vec<_> = pages.collect();
    assert!(pages.len() > 20, "{}", pages.len());
    pages
}

fn links(page: &str) -> Vec<String> {
    let prose = prose(page);
    let links = prose.split("](").skip(1);
    let links = links.filter_map(|link| link.split(')').next());
    links.map(str::to_owned).collect()
}

/// Whether a page has a heading with this anchor, as GitHub makes them.
fn has_anchor(page: &str, anchor: &str) -> bool {
    let mut anchors: Vec<String> = Vec::new();
    for heading in prose(page).lines().filter(|line| line.starts_with('#')) {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
        let anchor = text.chars().filter(kept).collect::<String>();
        let anchor = anchor.replace(' ', "-");
        let same = anchors.iter().filter(|other| **other == anchor).count();
        anchors.push(match same {
            0 => anchor,
            _ => format!("{anchor}-{same}"),
        });
    }
    anchors.iter().any(|other| other == anchor)
}

#[test]
fn no_link_is_dead_and_the_map_reaches_every_page() {
    let mut dead = Vec::new();
    let map = links(&file("docs/README.md"));
    for (name, text) in pages() {
        let folder = root().join(&name);
        let folder = folder.parent().expect("a page lies in a folder");
        for link in links(&text) {
            let found = match link.split_once('#') {
                _ if link.starts_with("https://") => true,
                Some(("", anchor)) => has_anchor(&text, anchor),
                Some((other, anchor)) => {
                    let page = std::fs::read_to_string(folder.join(other));
                    has_anchor(&page.unwrap_or_default(), anchor)
                }
                None => folder.join(&link).exists(),
            };
            if !found {
                dead.push(format!("{name}: {link}"));
            }
        }
        let below = name.strip_prefix("docs/").unwrap_or("README.md");
        if below != "README.md" && !map.iter().any(|link| link == below) {
            dead.push(format!("docs/README.md has no link to {below}"));
        }
    }
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
}

/// Every block of every page, as its fence says. What fails is said for all pages at once.
#[test]
fn blocks_are_what_their_fences_say() {
    let libraries = files(&root().join("crates"), "lib.rs").into_iter();
    let libraries: String = libraries
        .map(|file| std::fs::read_to_string(file).expect("text"))
        .collect();
    let (mut commands, mut wrong) = (0, Vec::new());
    for (name, text) in pages() {
        let mut served = None;
        let found = blocks(&text);
        for (number, block) in found.iter().enumerate() {
            let below = found.get(number + 1);
            let check = || commands += check(&name, *block, below, &mut served, &libraries);
            if catch_unwind(AssertUnwindSafe(check)).is_err() {
                wrong.push(format!("{name}:{}: {}", block.line, block.kind));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "wrong, as said above:\n{}",
        wrong.join("\n")
    );
    assert!(commands >= 25, "only {commands} commands were run");
}

/// Checks a block of a page, and says how many commands it has run.
fn check(
    name: &str,
    block: Block<'_>,
    below: Option<&Block<'_>>,
    served: &mut Option<Served>,
    libraries: &str,
) -> usize {
    let kind = match block.kind.split_once(" in ") {
        Some((kind, other)) => {
            assert!(has_lines(&file(other), block.text), "not in {other}");
            kind
        }
        None => block.kind,
    };
    match kind {
        _ if ELSEWHERE.contains(&format!("\n{name}: {kind}: ")) => {}
        "toml" | "toml,dependencies" if block.text.starts_with("[dependencies]\n") => {
            dependencies_exist(block.text);
        }
        "toml" => is_read(block.text),
        "toml,wrong" => {
            let errors = settings::parse(block.text, "tidegate.toml", None);
            let shown = below.filter(|below| below.kind == "text").expect("errors");
            assert_eq!(
                errors.expect_err("errors").to_string(),
                shown.text.trim_end()
            );
        }
        "sh" => return run(block),
        "console" => {
            return console_says(served.get_or_insert_with(|| serve(block.file)), block.text);
        }
        "http" => after_checks(block, |decision| {
            let headers = decision.headers().into_iter();
            let lines = headers.map(|(name, value)| format!("{name}: {value}\n"));
            assert_eq!(lines.collect::<String>(), block.text);
        }),
        "json" if block.lead.contains(" check of ") => after_checks(block, |decision| {
            let body: String = block.text.lines().map(str::trim).collect();
            assert_eq!(decision.problem(429), body);
        }),
        "json" => drop(serde_json::from_str::<serde_json::Value>(block.text).expect("JSON")),
        "text" | "" => {}
        kind if kind.starts_with("rust") => {
            let included = format!("include_str!(\"../../../{name}\")");
            let is_compiled = name.starts_with("crates/") || libraries.contains(&included);
            assert!(is_compiled, "no crate compiles this Rust");
        }
        kind => assert!(kind.contains(" skip: "), "nothing looks at it"),
    }
    0
}

/// Whether a text has these lines, however far they are indented there.
fn has_lines(text: &str, lines: &str) -> bool {
    let lines: Vec<&str> = lines.lines().collect();
    let text: Vec<&str> = text.lines().collect();
    text.windows(lines.len()).any(|window| {
        let indent = window[0].len().saturating_sub(lines[0].len());
        let mut pairs = window.iter().zip(&lines);
        pairs.all(|(there, here)| there.get(indent..).unwrap_or_default() == *here)
    })
}

fn read(text: &str) -> Config {
    read_all(text).1
}

fn read_all(text: &str) -> (Server, Config) {
    let read = settings::parse(text, "tidegate.toml", None);
    read.unwrap_or_else(|errors| panic!("{errors}\n\nin:\n{text}"))
}

/// Reads a config, which may be the fields of a policy alone.
fn is_read(text: &str) {
    let is_whole = text.lines().any(|line| line.starts_with('['));
    let start = if is_whole {
        ""
    } else {
        "[[policies]]\nname = \"p\"\n"
    };
    assert_eq!(read(&format!("{start}{text}")).warnings(), [""; 0]);
}

fn dependencies_exist(text: &str) {
    for line in text.lines().filter(|line| line.starts_with("tidegate")) {
        let (dependency, rest) = line.split_once(" = ").expect(line);
        let manifest = file(&format!("crates/{dependency}/Cargo.toml"));
        let features = rest.split_once("features = [").map_or("", |(_, list)| list);
        for feature in features.split('"').skip(1).step_by(2) {
            let known = manifest.contains(&format!("\n{feature} = ["));
            assert!(known, "{dependency} has no feature {feature}");
        }
        let (short, _) = env!("CARGO_PKG_VERSION").rsplit_once('.').expect("three");
        assert!(rest.contains(&format!("\"{short}\"")), "{line}");
    }
}

/// A config with the usual addresses replaced: free ports, and memory for Redis.
fn free(text: &str) -> String {
    let mut text = text.replace("redis://127.0.0.1:6379", "memory:");
    for port in ["8080", "8081", "6380"] {
        text = text.replace(&format!("127.0.0.1:{port}"), "127.0.0.1:0");
    }
    text
}

/// A server with the config before a block, in a folder with the repository's examples.
fn serve(config: &str) -> Served {
    let config = if config.starts_with("[dependencies]") {
        ""
    } else {
        config
    };
    let start = Start::new(&free(config)).variable("TIDEGATE_ADMIN_TOKEN", "sesame");
    let examples = start.folder().path("examples");
    std::os::unix::fs::symlink(root().join("examples"), examples).expect("a link");
    Served::with(start)
}

/// What a command that ends well prints, in the folder of a server that has the usual
/// addresses for it.
fn said(served: &Served, command: &str) -> String {
    let here = command
        .replace("127.0.0.1:8080", served.server.address())
        .replace("-p 6380", &format!("-p {}", served.port()));
    let token = [("TIDEGATE_ADMIN_TOKEN", "sesame")];
    let said = console::shell(served.server.folder().root(), &here, &token).replace('\r', "");
    let is_well = !said.lines().any(|line| line.starts_with("? "));
    assert!(is_well, "{command}: {said}");
    let printed = said.lines().filter(|line| !line.starts_with("! "));
    let printed = printed.collect::<Vec<_>>().join("\n");
    assert!(!printed.is_empty(), "{command} prints nothing: {said}");
    printed
}

/// Runs the commands of an `sh` block, each on a server with the config before it.
fn run(block: Block<'_>) -> usize {
    let joined = block.text.replace("\\\n", " ");
    let commands = joined
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    let run = commands.map(|command| {
        if let Some(arguments) = command.strip_prefix("tidegate serve") {
            let start = Start::without_config();
            start.folder().write("tidegate.toml", free(block.file));
            let arguments = free(arguments);
            arguments
                .split_whitespace()
                .fold(start, Start::argument)
                .start();
            return;
        }
        let said = said(&serve(block.file), command);
        for wrong in ["(error)", "ERR ", "\"status\":4", "NOPOLICY"] {
            assert!(!said.contains(wrong), "{command}: {said}");
        }
    });
    run.count()
}

/// Runs the commands of a `console` block one after the other.
fn console_says(served: &Served, text: &str) -> usize {
    let steps = text.strip_prefix("$ ").expect("a command").split("\n$ ");
    let run = steps.map(|step| {
        let (command, expected) = console::parted(step);
        let said = said(served, command);
        let pattern = format!("…\n{}\n…", expected.trim_end().replace('\n', "\n…\n"));
        let is_like = console::is_like(&said, &pattern);
        assert!(is_like, "{command}\nsays\n{said}\nand not\n{expected}");
    });
    run.count()
}

/// When the checks of the pages are asked.
const START: u64 = 1_700_000_040_000_000;

/// A limiter with the policies of a file, and its clock.
fn limiter(config: &str) -> (Policies, ManualClock) {
    let clock = ManualClock::at_us(START);
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let limiter = Policies::with_stores([("default", store)], read(config).policies);
    (limiter.expect("the file is right"), clock)
}

/// The checks that a paragraph names, such as "The 6th check of `login`", of the file
/// before it; the last one goes to `judge`.
fn after_checks(block: Block<'_>, judge: impl Fn(&PolicyDecision<'_>)) {
    let (limiter, _) = limiter(block.file);
    let (count, named) = block.lead.split_once(" check of ").expect("a check");
    let count = count.rsplit(' ').next().expect("a word");
    let count: usize = count[..count.len() - 2].parse().expect("a number");
    let cost = named
        .split_once("at a cost of ")
        .map_or("1", |(_, cost)| cost);
    let cost = cost.split([',', ':']).next().expect("a word").parse();
    let cost = Cost::of(cost.expect("a number"));
    let check = || {
        let decision = limiter.check(code(named)[0], &[("ip", "203.0.113.7")], cost);
        decision.expect("a policy")
    };
    assert!(
        (1..count).all(|_| check().allowed()),
        "the last check only is refused"
    );
    let decision = check();
    assert_eq!(decision.allowed(), !block.lead.contains("refused"));
    judge(&decision);
}

#[test]
fn limits_in_rust_are_those_of_the_file() {
    let page = file("docs/algorithms.md");
    let blocks = blocks(&page);
    let pairs = blocks.windows(2).filter(|two| two[0].kind == "toml");
    let pairs = pairs.map(|two| {
        let config = read(&format!("[[policies]]\nname = \"p\"\n{}", two[0].text));
        let (_, rust) = two[1].text.split_once("Limit::parse(\"").expect("as text");
        let (limit, _) = rust.split_once('"').expect("a text ends");
        let expected = Limit::parse(limit).expect(limit);
        assert_eq!(*config.policies[0].levels()[0].limit(), expected);
    });
    assert_eq!(pairs.count(), 5);
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
fn errors(start: &str, field: &str, value: &str) -> Vec<String> {
    let file = format!("{start}{field} = {value}\n");
    let errors = settings::parse(&file, "tidegate.toml", None).err();
    let errors = errors.iter().flat_map(|errors| errors.as_slice());
    let about = errors.filter(|error| error.field.ends_with(&format!(".{field}")));
    about.map(|error| error.message.clone()).collect()
}

/// A value with another number in it, unless that is below zero.
fn moved(value: &str, by: i64) -> Option<String> {
    let digits = value.trim_matches(|c: char| !c.is_ascii_digit());
    let number: i64 = digits.parse().expect(value);
    (number + by >= 0).then(|| value.replace(digits, &(number + by).to_string()))
}

/// Every field is in the table of its section and in an example, with the default that
/// holds, and with values that are accepted where those beyond are not.
#[test]
fn tables_of_fields_are_complete_and_right() {
    let page = file("docs/policies.md");
    for (heading, start) in TABLES {
        let text = section(&page, heading);
        let rows = rows(text, "| field |");
        // The reader tells which fields it knows.
        let said = errors(start, "zzzzzz", "1");
        let (_, known) = said[0].split_once("expected one of ").expect("a list");
        let known: BTreeSet<&str> = known.split(", ").collect();
        let fields: Vec<&str> = rows.iter().flat_map(|row| code(row[0])).collect();
        assert_eq!(
            fields.iter().copied().collect::<BTreeSet<_>>(),
            known,
            "{heading}"
        );
        assert_eq!(fields.len(), known.len(), "{heading}: twice");
        let examples = blocks(text);
        for field in fields {
            let uses = |line: &str| {
                line.starts_with(&format!("{field} = ")) || line == format!("[[policies.{field}]]")
            };
            let files = examples.iter().filter(|block| block.kind == "toml");
            let shown = files.flat_map(|file| file.text.lines()).any(uses);
            assert!(shown, "{heading}: no example of {field}");
        }
        for row in rows {
            let (field, default, values) = (code(row[0])[0], row[2], row[3]);
            if let [value] = code(default)[..]
                && default.starts_with('`')
            {
                let explicit = read_all(&format!("{start}{field} = {value}\n"));
                assert_eq!(explicit, read_all(start), "{heading}: {field} = {value}");
            }
            if !values.starts_with('`') {
                continue;
            }
            let refused = |value: &str| {
                let start_of_error = format!("{value}: expected");
                let errors = errors(start, field, value);
                errors
                    .iter()
                    .any(|error| error.starts_with(&start_of_error))
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

/// A value as stored keys have it.
fn encoded(value: &str) -> String {
    let policy = Policy::builder("p").limit(Limit::per_second(1)).build();
    let policy = policy.expect("a policy");
    let attributes = [("key", value)];
    let keys = policy.keys(&attributes).expect("it has the key");
    let stored = keys.iter().next().expect("a level").stored("");
    let inside = stored.strip_prefix(":{").expect("a tag");
    inside.split('}').next().expect("a tag ends").to_owned()
}

#[test]
fn tables_of_rates_urls_and_values_are_right() {
    let page = file("docs/policies.md");
    let table = |heading: &str, header: &str, count: usize| {
        let rows = rows(section(&page, heading), header);
        assert_eq!(rows.len(), count, "{heading}");
        rows
    };
    for row in table("#### `limit`", "| written |", 5) {
        let rate = code(row[0])[0].parse::<Rate>();
        assert_eq!(rate.expect(row[0]).to_string(), code(row[0])[0]);
    }
    for row in table("#### `url`", "| written |", 8) {
        let url = code(row[0])[0];
        let config = read(&format!("[stores.default]\nurl = \"{url}\"\n"));
        let in_memory = config.stores["default"].in_memory().is_some();
        assert_eq!(in_memory, row[1].contains("this process"), "{url}");
    }
    let long = "x".repeat(1_025);
    for row in table("## Keys", "| value |", 7) {
        let expected = code(row[1])[0];
        match row[0] {
            "(empty)" => assert_eq!(encoded(""), expected),
            "(more than 1,024 bytes)" => {
                assert!(encoded(&long).starts_with(expected));
                assert_eq!(encoded(&long).len(), expected.len() + 64);
                assert_eq!(encoded(&long[1..]), long[1..]);
            }
            value => assert_eq!(encoded(code(value)[0]), expected),
        }
    }
}

/// The numbers of docs/choosing.md, under the traffic it names: nothing, then ten times the
/// limit, from a tenth of a second before a window's edge.
#[test]
fn choosing_tells_what_a_limit_admits() {
    let text = file("docs/choosing.md");
    let rows = rows(section(&text, "## The numbers"), "| policy |");
    assert_eq!(rows.len(), 7);
    for row in rows {
        let lines = code(row[0]).join("\n");
        let (limiter, clock) = limiter(&format!("[[policies]]\nname = \"p\"\n{lines}\n"));
        // One request per millisecond, for five seconds.
        let mut admitted: Vec<u64> = (900..5_900).collect();
        admitted.retain(|millisecond| {
            clock.set_us(START + millisecond * 1_000);
            let decision = limiter.check("p", &[("key", "k")], Cost::ONE);
            decision.expect("a policy").allowed()
        });
        let within = |from: u64, to: u64| {
            let found = admitted.iter().filter(|at| (from..to).contains(*at));
            found.count()
        };
        let most = (0..5_000).map(|from| within(from, from + 1_000)).max();
        let most = most.expect("some seconds");
        let number = |text: &str| text.parse::<usize>().expect(text);
        let (bound, steady) = (number(row[1]), number(row[2]));
        assert!(
            (most..=most + 1).contains(&bound),
            "{lines}: {most}, not {bound}"
        );
        let last = within(3_000, 5_000) / 2;
        assert!(last.abs_diff(steady) <= 1, "{lines}: {last}, not {steady}");
    }
}

#[test]
fn choosing_tells_what_each_tier_gets() {
    let text = file("docs/choosing.md");
    let text = section(&text, "## Tiers: free, pro, one customer, one blocked");
    let (limiter, _) = limiter(blocks(text)[0].text);
    let rows = rows(text, "| request |");
    assert_eq!(rows.len(), 4);
    for row in rows {
        let attributes = code(row[0]).into_iter();
        let attributes = attributes.map(|pair| pair.split_once('=').expect(pair));
        let attributes: Vec<(&str, &str)> = attributes.collect();
        let tiers = limiter.handle("tiers").expect("a policy");
        let explained = tiers.explain(&attributes[..]).expect("its attributes");
        let numbers = row[1].split(|c: char| !c.is_ascii_digit());
        let numbers: Vec<&str> = numbers.filter(|it| !it.is_empty()).collect();
        let said = match numbers[..] {
            [rate, burst, ..] => format!("{rate}r/m burst={burst}"),
            _ => "block".to_owned(),
        };
        let limit = explained[0].limit.expect("it counts").to_string();
        assert_eq!(limit, said, "{row:?}");
    }
}
