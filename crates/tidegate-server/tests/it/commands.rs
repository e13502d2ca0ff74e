//! Commands that end by themselves, and what they say: the files of tests/cmd.

use tidegate_testkit::console;

use crate::certificates::Certificates;
use crate::process::{Start, Tidegate, free_port};
use crate::redis_server::Server;

/// Runs a file of tests/cmd.
fn check(file: &str, least: usize, variables: &[(&str, &str)]) {
    let path = format!("{}/tests/cmd/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).expect(&path);
    console::check(&text, least, variables);
}

#[test]
fn usage() {
    check("usage.txt", 9, &[("VERSION", env!("CARGO_PKG_VERSION"))]);
}

const ROOT: (&str, &str) = ("ROOT", concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));

#[test]
fn config() {
    check("config.txt", 9, &[ROOT]);
}

#[test]
fn pages() {
    let redis = Server::start();
    let address = format!("127.0.0.1:{}", redis.port());
    check("pages.txt", 6, &[ROOT, ("REDIS", &address)]);
}

#[test]
fn pages_with_other_programs() {
    let ports = ["FRONT", "BACK", "APP"].map(|name| (name, free_port().to_string()));
    let ports = ports.each_ref().map(|(name, port)| (*name, &**port));
    check("programs.txt", 2, &[&[ROOT], &ports[..]].concat());
}

#[test]
fn operations() {
    check("operations.txt", 8, &[]);
}

#[test]
fn top_in_a_terminal() {
    check("top.txt", 3, &[]);
}

#[test]
fn bench() {
    let (full, redis) = (Server::start_with(&["--maxmemory", "1"]), Server::start());
    let (full, redis) = (full.url(), redis.url());
    check("bench.txt", 14, &[("FULL", &full), ("REDIS", &redis)]);
}

#[test]
fn simulate() {
    check("simulate.txt", 24, &[]);
}

#[test]
fn verify() {
    check("verify.txt", 7, &[]);
}

const CONFIG: &str = r#"
[server]
admin_token = "sesame"

[[policies]]
name = "by-ip"
key = "{ip}"
limit = "2/1h"
algorithm = "fixed_window"

[[policies]]
name = "api"
[[policies.levels]]
name = "a"
key = "{x}"
limit = "5/1h"
algorithm = "fixed_window"
[[policies.levels]]
name = "b"
key = "{x}:{y}"
limit = "1/1h"
algorithm = "fixed_window"

[[policies]]
name = "watch"
limit = "1/1h"
shadow = true

[[policies]]
name = "closed"
block = true
"#;

/// The same questions, wherever the counts are.
fn questions(place: &str, config: &str) {
    let token = ("TIDEGATE_ADMIN_TOKEN", "sesame");
    let variables = [token, ("PLACE", place), ("CONFIG", config)];
    check("questions.txt", 3, &variables);
}

#[test]
fn questions_to_a_server_by_tcp() {
    let server = Tidegate::start(CONFIG);
    questions(&format!("--server {}", server.url()), CONFIG);
}

#[test]
fn questions_to_a_server_by_a_socket() {
    let start = Start::configured(&CONFIG.replace("[server]", "[server]\nhttp = \"unix:s\""));
    let socket = start.folder().path("s");
    let _server = start.start();
    questions(&format!("--server unix:{}", socket.display()), CONFIG);
}

#[test]
fn questions_to_a_store() {
    let redis = Server::start();
    let url = redis.url();
    let store = format!("[stores.default]\nurl = {url:?}\ntimeout = \"5s\"\n");
    questions("--config tidegate.toml", &format!("{CONFIG}{store}"));
}

#[test]
fn what_a_question_needs() {
    let server = Tidegate::start(CONFIG);
    let [open, locked] = [&[][..], &["--requirepass", "secret"]].map(Server::start_with);
    let (redis, locked) = (open.url(), locked.url());
    let urls = [
        ("URL", server.url()),
        ("REDIS", &redis),
        ("LOCKED", &locked),
    ];
    check("asking.txt", 4, &urls);
}

#[test]
fn tls() {
    let certificates = Certificates::make();
    let files = [
        ("CA", "authority.crt"),
        ("CERT", "server.crt"),
        ("KEY", "server.key"),
        ("CLIENT_CERT", "client.crt"),
        ("CLIENT_KEY", "client.key"),
    ];
    let paths = files.map(|(name, file)| (name, certificates.path(file)));
    check(
        "tls.txt",
        3,
        &paths.each_ref().map(|(name, path)| (*name, &**path)),
    );
}
