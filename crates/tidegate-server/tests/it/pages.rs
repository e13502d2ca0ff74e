//! All pages of the repository. The fence of a block says what becomes of it: `toml` is read,
//! `toml,wrong` is refused with the `text` below it, `toml,dependencies` names what exists, `sh`
//! is run, `console` is run and says what stands below each command, in this order and with
//! `…` for what varies, `http` and `json` are the answer to the checks that the paragraph
//! before them names, `rust` is compiled by a crate that includes the page. `skip: ` and a
//! reason behind the kind says why nothing becomes of it. No link is dead, and the map reaches
//! every page. What pages claim of limits in tables is tried here, too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate::{Cost, ManualClock, MemoryStore, PolicyLimiter};
use tidegate_server::settings;
use tidegate_testkit::console;

use crate::manual::{Block, after_checks, blocks, code, read, rows, section};
use crate::process::Start;
use crate::resp::{Served, lines};

/// Blocks that another test runs: the page, the kind, and where.
const ELSEWHERE: &str = "
README.md: sh: xtask/src/readme.rs
README.md: nginx module: tidegate-nginx, tests/it/manual.rs
docs/algorithms.md: rust: tests/it/manual.rs
docs/envoy.md: sh: tests/it/envoy/manual.rs
docs/envoy.md: yaml: tests/it/envoy/manual.rs
docs/migrating.md: js: `express_middleware_limits_and_fails_open`
docs/nginx.md: nginx: tests/it/nginx/readme.rs
docs/nginx.md: nginx module: tidegate-nginx, tests/it/manual.rs
docs/operations.md: log: tests/it/operations.rs
docs/operations.md: yaml: `alerts_name_metrics_that_exist`
docs/proxies.md: caddy: tests/it/proxies.rs
docs/proxies.md: yaml: tests/it/proxies.rs
docs/redis.md: acl: tidegate-redis, tests/it/docs.rs
docs/redis.md: http: tidegate-redis, tests/it/docs.rs
docs/redis.md: lua: tidegate-redis, tests/it/docs.rs
docs/resp.md: js: tests/it/resp/clients.rs
docs/resp.md: python: tests/it/resp/clients.rs
docs/tower.md: sh: tidegate-tower, tests/it/example.rs
examples/nginx/README.md: sh: tests/it/nginx/readme.rs
";

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

/// Every block of every page, as its fence says. What fails is said for all pages at once.
#[test]
fn blocks_are_what_their_fences_say() {
    let libraries = files(&root().join("crates"), "lib.rs");
    let libraries = libraries
        .iter()
        .map(|file| std::fs::read_to_string(file).expect("a source"));
    let libraries: String = libraries.collect();
    let mut run = 0;
    for (name, text) in pages() {
        let found = blocks(&text);
        let mut served = None;
        for (number, block) in found.iter().enumerate() {
            if ELSEWHERE.contains(&format!("\n{name}: {}: ", block.kind)) {
                continue;
            }
            match block.kind {
                "toml" | "toml,dependencies" if block.text.starts_with("[dependencies]\n") => {
                    dependencies_exist(&name, block.text);
                }
                "toml" => is_read(&name, block.text),
                "toml,wrong" => is_refused(block.text, found.get(number + 1)),
                "sh" => run += commands(&name, block),
                "console" => {
                    let served = served.get_or_insert_with(|| serve(block.file));
                    run += console_says(&name, served, block.text);
                }
                "http" => after_checks(*block, |decision| {
                    let headers = decision.headers();
                    let lines = headers
                        .iter()
                        .map(|(name, value)| format!("{name}: {value}\n"));
                    assert_eq!(lines.collect::<String>(), block.text, "{}", block.lead);
                }),
                "json" if block.lead.contains(" check of ") => after_checks(*block, |decision| {
                    let body: String = block.text.lines().map(str::trim).collect();
                    assert_eq!(decision.problem(429), body, "{}", block.lead);
                }),
                "json" => drop(serde_json::from_str::<serde_json::Value>(block.text).expect(&name)),
                "text" | "" => {}
                kind if kind.starts_with("rust") => {
                    let included = format!("include_str!(\"../../../{name}\")");
                    let is_compiled = name.starts_with("crates/") || libraries.contains(&included);
                    assert!(is_compiled, "{name}: no crate compiles this Rust");
                }
                kind => assert!(
                    kind.contains(" skip: "),
                    "{name}: nothing looks at {kind:?}"
                ),
            }
        }
    }
    assert!(run >= 25, "only {run} commands were run");
}

/// Reads a config, which may be the fields of a policy alone.
fn is_read(name: &str, text: &str) {
    let is_whole = text.lines().any(|line| line.starts_with('['));
    let config = match is_whole {
        true => read(text),
        false => read(&format!("[[policies]]\nname = \"p\"\n{text}")),
    };
    assert_eq!(config.warnings(), [""; 0], "{name}: {text}");
}

fn is_refused(text: &str, below: Option<&Block<'_>>) {
    let errors = settings::parse(text, "tidegate.toml", None).expect_err(text);
    let shown = below.filter(|block| block.kind == "text").expect(text);
    assert_eq!(errors.to_string(), shown.text.trim_end(), "of:\n{text}");
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

#[test]
fn alerts_name_metrics_that_exist() {
    let text = page("docs/operations.md");
    let server = Start::new("").start();
    server.get("/v1/gate/default?key=k");
    server.signal("HUP");
    server.line("the config is in force");
    let there = server.get("/metrics");
    let alerts = blocks(&text).into_iter().filter(|it| it.kind == "yaml");
    let alerts: String = alerts.map(|it| it.text).collect();
    let words = alerts.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let named: BTreeSet<&str> = words.filter(|word| word.starts_with("tidegate_")).collect();
    assert!(named.len() >= 2);
    for metric in named {
        let is_there = there.text().contains(&format!("\n# TYPE {metric} "));
        assert!(is_there, "no metric {metric} in {}", there.text());
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
    let config = match config.starts_with("[dependencies]") {
        true => "",
        false => config,
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
fn commands(name: &str, block: &Block<'_>) -> usize {
    let joined = block.text.replace("\\\n", " ");
    let commands = joined
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    let mut run = 0;
    for command in commands {
        run += 1;
        if let Some(arguments) = command.strip_prefix("tidegate serve") {
            let start = Start::without_config();
            start.folder().write("tidegate.toml", free(block.file));
            let arguments = free(arguments);
            let words = arguments.split_whitespace();
            words.fold(start, Start::argument).start();
            continue;
        }
        let said = said(&serve(block.file), command);
        let wrong = ["(error)", "ERR ", "\"status\":4", "NOPOLICY"];
        let found = wrong.iter().find(|wrong| said.contains(**wrong));
        assert!(found.is_none(), "{name}: {command}: {said}");
    }
    run
}

/// Runs the commands of a `console` block one after the other.
fn console_says(name: &str, served: &Served, text: &str) -> usize {
    let steps: Vec<&str> = text.strip_prefix("$ ").expect(text).split("\n$ ").collect();
    for step in &steps {
        let (command, expected) = console::parted(step);
        let said = said(served, command);
        let pattern = format!("…\n{}\n…", expected.trim_end().replace('\n', "\n…\n"));
        let is_like = console::is_like(&said, &pattern);
        assert!(
            is_like,
            "{name}: {command}\nsays\n{said}\nand not\n{expected}"
        );
    }
    steps.len()
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
