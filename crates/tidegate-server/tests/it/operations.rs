//! The log of a store's outage, as docs/operations.md shows it, and what no log shows.

use crate::observed::metrics;
use crate::process::{Folder, Tidegate, until};
use crate::redis_server::Server;
use tidegate_testkit::page::blocks;

/// A server with three policies, one for each way to go on without the store.
fn start(redis: &Server) -> Tidegate {
    let policies = [("open", "allow"), ("shut", "deny"), ("alone", "local")];
    let policies = policies.map(|(name, on_error)| {
        format!("[[policies]]\nname = {name:?}\nlimit = \"100r/m\"\non_error = {on_error:?}\n")
    });
    let store = format!(
        "[stores.default]\nurl = {:?}\ntimeout = \"1s\"\n",
        redis.url()
    );
    Tidegate::start(&(store + &policies.concat()))
}

fn until_it_is(up: f64, server: &Tidegate) {
    let name = "tidegate_store_up{store=\"default\"}";
    until(name, || (metrics(server)[name] == up).then_some(()));
}

/// A line without its time, the address, numbers, and the cause: which error comes first is
/// a matter of microseconds.
fn shape(line: &str) -> String {
    let (_, line) = line.trim_start().split_once(' ').expect("a time first");
    let (start, rest) = line.split_once(" cause=").unwrap_or((line, ""));
    let end = rest.split_once(" policies=").map_or("", |(_, end)| end);
    let shape = format!("{} {end}", start.trim_start()).replace(" ms", " s");
    shape.replace(|sign: char| sign.is_ascii_digit() || sign == '.', "")
}

#[test]
fn outage_is_logged_as_the_manual_says() {
    let mut redis = Server::start();
    let server = start(&redis);
    let ask = |policy: &str| {
        let decision = server
            .check(&format!("{{\"policy\":\"{policy}\",\"key\":\"k\"}}"))
            .json();
        format!("{} {}", decision["allowed"], decision["source"])
    };
    let all = ["open", "shut", "alone"];
    for policy in all {
        until("the store decides", || {
            (ask(policy) == "true \"store\"").then_some(())
        });
    }
    redis.kill();
    // Nobody asks: it is noticed all the same.
    server.line("the store keeps failing");
    until_it_is(0.0, &server);
    let answers = [
        "true \"error_policy\"",
        "false \"error_policy\"",
        "true \"local\"",
    ];
    assert_eq!(all.map(ask), answers);
    redis.restart();
    let last = server.line("the store answers again");
    until_it_is(1.0, &server);
    let (_, count) = last.split_once("checks_without_it=").expect("a count");
    assert!(count.parse::<u32>().expect("a number") >= 3, "{last}");
    let shapes: Vec<String> = server.log().iter().map(|line| shape(line)).collect();
    let story = blocks(include_str!("../../../../docs/operations.md"));
    let story = story.iter().filter(|block| block.kind == "log");
    let story: Vec<&str> = story.flat_map(|block| block.text.lines()).collect();
    assert_eq!(story.len(), 3);
    for line in story {
        assert!(
            shapes.contains(&shape(line)),
            "{line}\nis not in\n{shapes:#?}"
        );
    }
}

#[test]
fn store_that_is_down_at_the_start_and_comes_back_is_logged() {
    let mut redis = Server::start();
    redis.kill();
    let server = start(&redis);
    let line = server.line("the store does not answer: on_error decides");
    let address = format!("server=\"127.0.0.1:{}\"", redis.port());
    let is_whole = line.contains(&address) && line.contains("Connection refused");
    assert!(is_whole, "{line}");
    until_it_is(0.0, &server);
    redis.restart();
    let line = server.line("the store answers again");
    assert!(line.contains("checks_without_it=0"), "{line}");
    until_it_is(1.0, &server);
}

#[test]
fn what_is_debugged_has_no_contents_of_files() {
    let folder = Folder::new();
    folder.write("key.pem", "PRIVATE-KEY-BYTES");
    let file = folder.write(
        "tidegate.toml",
        "[server]\ntls_cert = \"key.pem\"\ntls_key = \"key.pem\"\nadmin_token = \"hunter2\"\n",
    );
    let source = tidegate_server::cli::Source {
        config: Some(file),
        store: None,
    };
    let settings =
        tidegate_server::settings::Settings::new(&source, Default::default()).expect("settings");
    let loaded = settings.load().expect("a right file");
    let shown = format!("{loaded:?}");
    let bytes = "80, 82, 73, 86, 65, 84, 69";
    for secret in ["PRIVATE-KEY", bytes, "hunter2"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}
