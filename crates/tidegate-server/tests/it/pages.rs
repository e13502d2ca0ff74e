//! All pages of the repository together: no link is dead, the map reaches every page,
//! configs are read, commands are run, and quoted messages exist. What single pages claim
//! in tables is tried here, too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate::{Cost, ManualClock, MemoryStore, PolicyLimiter};

use crate::manual::{Block, blocks, code, read, rows, section};
use crate::process::Start;
use crate::resp::{Served, lines};

/// Pages whose commands another test runs, and which.
const RUN_ELSEWHERE: [(&str, &str); 6] = [
    ("README.md", "xtask/src/readme.rs"),
    ("examples/nginx/README.md", "tests/it/nginx/readme.rs"),
    ("docs/resp.md", "tests/it/resp/clients.rs"),
    ("docs/tower.md", "tidegate-tower: tests/it/example.rs"),
    ("docs/envoy.md", "tests/it/envoy/manual.rs"),
    ("docs/simulate.md", "tests/it/simulate, on logs of its own"),
];

/// Commands that no test of this crate runs, by how they begin, and why.
const NOT_RUN: [(&str, &str); 9] = [
    (
        "cargo xtask dist",
        "`cargo xtask test` packages the debug build",
    ),
    ("cargo xtask ", "it would run itself, or takes minutes"),
    ("cargo build ", "the tests are built already"),
    ("cargo install ", "the tests are built already"),
    ("cargo test ", "it would run itself"),
    ("./target/release/tidegate serve", "`tidegate serve` is run"),
    (
        "docker ",
        "needs a daemon; `cargo xtask docker` builds the image where one runs",
    ),
    (
        "dpkg ",
        "xtask/src/dist/installed.rs runs it on a clean root",
    ),
    (
        "start-stop-daemon ",
        "xtask/src/dist/installed.rs runs it on a clean root",
    ),
];

/// A page whose blocks of TOML are lines of a policy, held by `manual.rs`.
const FRAGMENTS: [&str; 1] = ["docs/algorithms.md"];

/// Blocks of other kinds: the page, the kind, and what holds them.
const HELD: [(&str, &str, &str); 19] = [
    (
        "README.md",
        "nginx module",
        "tidegate-nginx: tests/it/manual.rs",
    ),
    (
        "docs/algorithms.md",
        "rust",
        "lines of a limit: tests/it/manual.rs",
    ),
    ("docs/envoy.md", "yaml", "tests/it/envoy/manual.rs"),
    ("docs/http.md", "console", "tests/it/docs.rs"),
    (
        "docs/migrating.md",
        "js",
        "`express_middleware_limits_and_fails_open`",
    ),
    ("docs/migrating.md", "nginx", "another limiter's config"),
    ("docs/migrating.md", "yaml", "another limiter's config"),
    ("docs/nginx.md", "nginx", "tests/it/nginx/readme.rs"),
    (
        "docs/nginx.md",
        "nginx module",
        "tidegate-nginx: tests/it/manual.rs",
    ),
    ("docs/operations.md", "log", "tests/it/operations.rs"),
    (
        "docs/operations.md",
        "yaml",
        "`alerts_name_metrics_that_exist`",
    ),
    ("docs/policies.md", "http", "tests/it/manual.rs"),
    ("docs/policies.md", "toml,wrong", "tests/it/manual.rs"),
    ("docs/proxies.md", "caddy and yaml", "tests/it/proxies.rs"),
    ("docs/redis.md", "acl", "tidegate-redis: tests/it/docs.rs"),
    ("docs/redis.md", "http", "tidegate-redis: tests/it/docs.rs"),
    ("docs/redis.md", "lua", "tidegate-redis: tests/it/docs.rs"),
    ("docs/resp.md", "js and python", "tests/it/resp/clients.rs"),
    ("docs/simulate.md", "console", "tests/it/simulate/manual.rs"),
];

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the workspace")
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
    let mut pages: Vec<_> = files(&root, ".md")
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(&root).expect("below the root");
            let text = std::fs::read_to_string(&path).expect("a page");
            (name.display().to_string(), text)
        })
        .collect();
    pages.sort();
    assert!(pages.len() > 20, "{}", pages.len());
    pages
}

fn page(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).expect(name)
}

/// A page without its fenced blocks.
fn prose(page: &str) -> String {
    let blocks = blocks(page);
    let inside = |line: &str| {
        let at = line.as_ptr();
        let holds = |block: &Block<'_>| block.text.as_bytes().as_ptr_range().contains(&at);
        blocks.iter().any(holds)
    };
    let lines = page.lines().filter(|line| !inside(line));
    lines.collect::<Vec<_>>().join("\n")
}

fn links(page: &str) -> Vec<String> {
    let prose = prose(page);
    let links = prose.split("](").skip(1);
    links
        .filter_map(|link| link.split(')').next())
        .map(str::to_owned)
        .collect()
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(page: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    let prose = prose(page);
    for heading in prose.lines().filter(|line| line.starts_with('#')) {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = text
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor: String = kept.collect::<String>().replace(' ', "-");
        let same = anchors.iter().filter(|other| **other == anchor).count();
        anchors.push(match same {
            0 => anchor,
            _ => format!("{anchor}-{same}"),
        });
    }
    anchors
}

#[test]
fn no_link_is_dead() {
    let mut dead = Vec::new();
    for (name, text) in pages() {
        let file = root().join(&name);
        let folder = file.parent().expect("a page lies in a folder");
        for link in links(&text) {
            let found = match link.split_once('#') {
                _ if link.starts_with("https://") => true,
                Some(("", anchor)) => anchors(&text).iter().any(|other| other == anchor),
                Some((other, anchor)) => {
                    let page = std::fs::read_to_string(folder.join(other)).unwrap_or_default();
                    anchors(&page).iter().any(|other| other == anchor)
                }
                None => folder.join(&link).exists(),
            };
            if !found {
                dead.push(format!("{name}: {link}"));
            }
        }
    }
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
}

#[test]
fn map_of_the_documentation_reaches_every_page() {
    let reached: BTreeSet<String> = links(&page("docs/README.md")).into_iter().collect();
    let docs = root().join("docs");
    for path in files(&docs, ".md") {
        let name = path.strip_prefix(&docs).expect("below").display();
        let name = name.to_string();
        let found = name == "README.md" || reached.contains(&name);
        assert!(found, "docs/README.md has no link to {name}");
    }
}

/// Whole files are read; `[dependencies]` name crates of this workspace with the features
/// that these have.
#[test]
fn configs_of_all_pages_are_read() {
    for (name, text) in pages() {
        let blocks = blocks(&text).into_iter();
        for block in blocks.filter(|block| ["toml", "toml,dependencies"].contains(&block.kind)) {
            if block.text.starts_with("[dependencies]\n") {
                dependencies_exist(&name, block.text);
            } else if !FRAGMENTS.contains(&name.as_str()) {
                read(block.text);
            }
        }
    }
}

fn dependencies_exist(name: &str, text: &str) {
    for line in text
        .lines()
        .skip(1)
        .filter(|line| line.starts_with("tidegate"))
    {
        let (dependency, rest) = line.split_once(" = ").expect(line);
        let manifest = page(&format!("crates/{dependency}/Cargo.toml"));
        let features = rest.split_once("features = [").map_or("", |(_, list)| list);
        for feature in features.split('"').skip(1).step_by(2) {
            let known = manifest.contains(&format!("\n{feature} = ["));
            assert!(known, "{name}: {dependency} has no feature {feature}");
        }
        let version = env!("CARGO_PKG_VERSION");
        let short = version.rsplit_once('.').expect("three numbers").0;
        assert!(rest.contains(&format!("\"{short}\"")), "{name}: {line}");
    }
}

/// A kind of block that nobody looks at could say anything.
#[test]
fn blocks_of_every_kind_are_held_by_a_test() {
    let sources = files(&root().join("crates"), "lib.rs");
    let sources = sources
        .iter()
        .map(|file| std::fs::read_to_string(file).expect("a source"));
    let sources: String = sources.collect();
    for (name, text) in pages() {
        for block in blocks(&text) {
            let held = match block.kind {
                "toml" | "toml,dependencies" | "sh" | "text" | "" => true,
                "json" => serde_json::from_str::<serde_json::Value>(block.text).is_ok(),
                // Rust of a page is compiled where a crate includes the page.
                kind if kind.starts_with("rust") => {
                    let own = name.strip_prefix("crates/").is_some();
                    let included = format!("include_str!(\"../../../{name}\")");
                    own || sources.contains(&included)
                }
                _ => false,
            };
            let mut listed = HELD.iter();
            let listed = listed.any(|(page, kinds, _)| {
                *page == name && kinds.split(" and ").any(|kind| kind == block.kind)
            });
            let kind = block.kind;
            assert!(
                held || listed,
                "{name}: no test looks at blocks of {kind:?}"
            );
        }
    }
}

#[test]
fn alerts_name_metrics_that_exist() {
    let text = page("docs/operations.md");
    let source = page("crates/tidegate-server/src/metrics.rs");
    let mut seen = 0;
    for block in blocks(&text).into_iter().filter(|it| it.kind == "yaml") {
        let words = block
            .text
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for metric in words.filter_map(|word| word.strip_prefix("tidegate_")) {
            let registered = source.contains(&format!("\"{metric}\""));
            assert!(registered, "no metric tidegate_{metric}");
            seen += 1;
        }
    }
    assert!(seen >= 2);
}

/// The commands of a page's `sh` blocks, each with the config before it.
fn commands(text: &str) -> Vec<(String, String)> {
    let mut commands = Vec::new();
    for block in blocks(text).into_iter().filter(|block| block.kind == "sh") {
        let joined = block.text.replace("\\\n", " ");
        for line in joined.lines().map(str::trim) {
            if !line.is_empty() && !line.starts_with('#') {
                commands.push((line.to_owned(), block.file.to_owned()));
            }
        }
    }
    commands
}

#[test]
fn commands_of_all_pages_are_run_or_have_a_reason() {
    let mut run = 0;
    for (name, text) in pages() {
        if RUN_ELSEWHERE.iter().any(|(page, _)| *page == name) {
            continue;
        }
        for (command, config) in commands(&text) {
            if NOT_RUN.iter().any(|(start, _)| command.starts_with(start)) {
                continue;
            }
            run_command(&name, &command, &config);
            run += 1;
        }
    }
    assert!(run >= 5, "only {run} commands were run");
}

/// Runs a command in the folder of a server that has the config before it, with the usual
/// addresses replaced by that server's.
fn run_command(name: &str, command: &str, config: &str) {
    let mut config = match config.starts_with("[dependencies]") {
        true => String::new(),
        false => config.replace("redis://127.0.0.1:6379", "memory:"),
    };
    let free = |text: &str| {
        let mut text = text.to_owned();
        for port in ["8080", "8081", "6380"] {
            text = text.replace(&format!("127.0.0.1:{port}"), "127.0.0.1:0");
        }
        text
    };
    config = free(&config);
    if let Some(arguments) = command.strip_prefix("tidegate serve") {
        let start = Start::without_config();
        start.folder().write("tidegate.toml", config);
        let arguments = free(arguments);
        let words = arguments.split_whitespace();
        words.fold(start, Start::argument).start();
        return;
    }
    let served = Served::start(&config);
    let program = Path::new(env!("CARGO_BIN_EXE_tidegate"));
    let folder = program.parent().expect("a folder").display();
    let paths = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
    let here = command
        .replace("127.0.0.1:8080", served.server.address())
        .replace("-p 6380", &format!("-p {}", served.port()));
    let mut shell = Command::new("sh");
    shell.args(["-c", &here]).env("PATH", paths);
    shell.current_dir(served.server.folder().path(""));
    let said = lines(&mut shell).join("\n");
    let wrong = ["(error)", "ERR ", "\"status\":4", "NOPOLICY"];
    let found = wrong.iter().find(|wrong| said.contains(**wrong));
    assert!(
        !said.is_empty() && found.is_none(),
        "{name}: {command}: {said}"
    );
}

/// Every message in the first column of a table of docs/troubleshooting.md is one of the
/// sources', piece by piece between the `…`.
#[test]
fn troubleshooting_quotes_messages_that_exist() {
    let mut source = String::new();
    for file in files(&root().join("crates"), ".rs") {
        if file.components().any(|part| part.as_os_str() == "src") {
            source.push_str(&std::fs::read_to_string(&file).expect("a source"));
        }
    }
    // A text that goes on in the next line.
    let mut source = source
        .split("\\\n")
        .map(str::trim_start)
        .collect::<String>();
    source = source.replace("\\\"", "\"");
    let text = page("docs/troubleshooting.md");
    let mut seen = 0;
    for table in text.split("\n| message |").skip(1) {
        let rows = table.lines().skip(2);
        for row in rows.map_while(|line| line.strip_prefix("| ")) {
            let message = code(row)[0];
            for piece in message
                .split('…')
                .map(|piece| piece.trim_matches([' ', ':']))
            {
                let found = piece.len() < 4 || source.contains(piece);
                assert!(found, "another text now? {message}: {piece:?}");
            }
            let longest = message.split('…').map(str::len).max();
            assert!(longest > Some(10), "{message} says too little to be found");
            seen += 1;
        }
    }
    assert!(seen > 25, "only {seen} messages");
}

/// Every cell of the comparison has a link, and every test that is named exists.
#[test]
fn comparison_has_a_source_in_every_cell() {
    let text = page("docs/why.md");
    let table = section(&text, "## Compared with others");
    let rows = rows(table, "| | Tidegate |");
    assert!(rows.len() >= 6);
    for row in &rows {
        assert_eq!(row.len(), 7, "{row:?}");
        for cell in &row[1..] {
            assert!(cell.contains("]("), "{}: no source: {cell}", row[0]);
        }
    }
    let mut tests = String::new();
    for file in files(&root().join("crates"), ".rs") {
        tests.push_str(&std::fs::read_to_string(file).expect("a source"));
    }
    let named: Vec<&str> = code(&text)
        .into_iter()
        .filter_map(|name| name.strip_suffix('…'))
        .collect();
    assert!(named.len() > 8);
    for name in named {
        assert!(tests.contains(&format!("fn {name}")), "no test {name}…");
    }
}

const START: u64 = 1_700_000_000_000_000;

/// The numbers of docs/choosing.md, under the traffic it names: nothing, then ten times the
/// limit, from a tenth of a second before a window's edge.
#[test]
fn choosing_tells_what_a_limit_admits() {
    let text = page("docs/choosing.md");
    let rows = rows(section(&text, "## The numbers"), "| policy |");
    assert_eq!(rows.len(), 7);
    for row in rows {
        let lines = code(row[0]).join("\n");
        let config = read(&format!("[[policies]]\nname = \"p\"\n{lines}\n"));
        let clock = ManualClock::at_us(START);
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let limiter = PolicyLimiter::with_stores([("default", store)], config.policies);
        let limiter = limiter.expect("the row is right");
        // One request per millisecond, for five seconds.
        let mut admitted = Vec::new();
        for millisecond in 900..5_900_u64 {
            clock.set_us(START + millisecond * 1_000);
            let decision = limiter.check("p", &[("key", "k")], Cost::ONE);
            if decision.expect("a policy").allowed() {
                admitted.push(millisecond);
            }
        }
        let within = |from: u64, to: u64| {
            let found = admitted.iter().filter(|at| (from..to).contains(*at));
            found.count()
        };
        let most = (0..5_000).map(|from| within(from, from + 1_000)).max();
        let most = most.expect("some seconds");
        let number = |text: &str| text.parse::<usize>().expect(text);
        let (bound, steady) = (number(row[1]), number(row[2]));
        assert!(
            most <= bound && most + 1 >= bound,
            "{lines}: {most}, not {bound}"
        );
        let last = within(3_000, 5_000) / 2;
        assert!(last.abs_diff(steady) <= 1, "{lines}: {last}, not {steady}");
    }
}

#[test]
fn choosing_tells_what_each_tier_gets() {
    let text = page("docs/choosing.md");
    let text = section(&text, "## Tiers: free, pro, one customer, one blocked");
    let config = blocks(text)[0].text;
    let limiter = read(config).limiter().expect("the file is right");
    let rows = rows(text, "| request |");
    assert_eq!(rows.len(), 4);
    for row in rows {
        let attributes: Vec<(&str, &str)> = code(row[0])
            .into_iter()
            .map(|pair| pair.split_once('=').expect(pair))
            .collect();
        let explained = limiter.explain("tiers", &attributes[..]).expect("a policy");
        let limit = explained[0].limit.expect("it counts").to_string();
        let said = match row[1] {
            "blocked" => "block".to_owned(),
            gets => {
                let mut numbers = gets.split(|c: char| !c.is_ascii_digit());
                let numbers: Vec<&str> = numbers.by_ref().filter(|it| !it.is_empty()).collect();
                format!("{}r/m burst={}", numbers[0], numbers[1])
            }
        };
        assert_eq!(limit, said, "{row:?}");
    }
}

/// The middleware of docs/migrating.md in a server of Node's own: a hundred requests pass,
/// the next gets a 429, and without Tidegate all pass.
#[test]
fn express_middleware_limits_and_fails_open() {
    let text = page("docs/migrating.md");
    let text = section(&text, "## express-rate-limit");
    let found = blocks(text);
    let find = |kind: &str, nth: usize| {
        let mut blocks = found.iter().filter(|block| block.kind == kind);
        blocks.nth(nth).expect(kind).text
    };
    let served = Served::start(find("toml", 0));
    let folder = served.server.folder();
    folder.write("tidegate.mjs", find("js", 1));
    let program = r#"
import http from 'node:http';
import { tidegate } from './tidegate.mjs';
async function statuses(url, times) {
  const limit = tidegate('express', url);
  const server = http.createServer((request, response) =>
    limit(request, response, () => response.end('served')));
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  const seen = [];
  for (let i = 0; i < times; i++) {
    const answer = await fetch(`http://127.0.0.1:${server.address().port}/`);
    await answer.text();
    seen.push([answer.status, answer.headers.get('ratelimit'), answer.headers.has('retry-after')]);
  }
  server.closeAllConnections();
  server.close();
  return seen;
}
const seen = await statuses(process.argv[2], 101);
console.log(JSON.stringify([seen[0][0], seen[99][0], seen[100][0], seen[100][2], seen[0][1] !== null]));
console.log((await statuses('http://127.0.0.1:1', 1))[0][0]);
"#;
    let file = folder.write("try.mjs", program);
    let mut node = Command::new("node");
    node.arg(file).arg(served.server.url());
    let said = lines(&mut node);
    assert_eq!(said, ["[200,200,429,true,true]", "200"]);
}
