//! docs/envoy.md: its configs are those in examples/envoy, and its commands are run.

use std::path::Path;
use std::process::Command;

use super::gateway::{EXT_AUTHZ, RLS};
use super::proxy::{Proxy, example};
use super::{Served, address, ratelimit};
use crate::manual::{Block, blocks, section};
use crate::process::{Start, ended};
use crate::redis_server::Server;

const PAGE: &str = include_str!("../../../../../docs/envoy.md");

fn one<'p>(blocks: &[Block<'p>], kind: &str) -> &'p str {
    let found: Vec<_> = blocks.iter().filter(|it| it.kind == kind).collect();
    assert_eq!(found.len(), 1, "{kind}");
    found[0].text
}

/// A file below examples/envoy.
fn file(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/envoy");
    std::fs::read_to_string(folder.join(name)).expect(name)
}

/// A file without the comment at its top.
fn body(text: &str) -> &str {
    text.split_once("\n\n").expect("a comment first").1
}

#[test]
fn five_minutes_are_enough_for_a_429() {
    let found = blocks(section(PAGE, "## Five minutes to a 429"));
    let (toml, yaml) = (one(&found, "toml"), one(&found, "yaml"));
    assert_eq!(toml, body(&file("rls.toml")));
    assert_eq!(yaml, body(RLS));
    let commands: Vec<&str> = found
        .iter()
        .filter(|it| it.kind == "sh")
        .map(|it| it.text.trim())
        .collect();
    let [serve, envoy, curl] = commands[..] else {
        panic!("three commands: {commands:?}");
    };
    assert_eq!(serve, "tidegate serve --config tidegate.toml");
    assert_eq!(envoy, "envoy --config-path envoy.yaml");
    // A machine that stalls for six seconds does not refill it.
    assert_eq!(toml.matches("10r/m").count(), 1);
    let served = Served::start(&toml.replace("10r/m", "10r/h"));
    let proxy = Proxy::start(&example(yaml, &address(&served.server)));
    assert_eq!(curl.matches("127.0.0.1:10000").count(), 1);
    let curl = curl.replace("127.0.0.1:10000", proxy.address());
    let output = Command::new("sh").args(["-c", &curl]).output();
    let (code, said, errors) = ended(output.expect("a shell"));
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!(said, one(&found, "text"));
}

#[test]
fn ext_authz_works_as_shown() {
    let found = blocks(section(PAGE, "## ext_authz"));
    let toml = one(&found, "toml");
    assert_eq!(toml, body(&file("ext_authz.toml")));
    let indented = |line: &str| match line {
        "" => "\n".to_owned(),
        line => format!("          {line}\n"),
    };
    let filter: String = one(&found, "yaml").lines().map(indented).collect();
    assert!(EXT_AUTHZ.contains(&filter), "{filter}");
    let expected = "tidegate serve --config examples/envoy/ext_authz.toml\n\
                    envoy --config-path examples/envoy/ext_authz.yaml\n";
    assert_eq!(one(&found, "sh"), expected);
    let server = Start::new(toml).start();
    let proxy = Proxy::start(&example(EXT_AUTHZ, server.address()));
    let mut connection = proxy.connect();
    for _ in 0..10 {
        assert_eq!(connection.ask("GET", "/", &[], b"").status, 200);
    }
}

#[test]
fn reference_is_replaced_as_shown() {
    let found = blocks(section(PAGE, "## Replace envoyproxy/ratelimit"));
    let commands: Vec<&str> = one(&found, "sh").lines().collect();
    let [serve, curl] = commands[..] else {
        panic!("two commands: {commands:?}");
    };
    let variables = serve.strip_suffix(" tidegate ratelimit");
    let redis = Server::start();
    let mut start = ratelimit::bare();
    let root = start.folder().path("data");
    let folder = root.join("ratelimit/config");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("shop.yaml"), ratelimit::SHOP).expect("a file");
    for variable in variables.expect("a command").split(' ') {
        let (name, value) = variable.split_once('=').expect("a value");
        let value = value.replace("/data", &root.display().to_string());
        let value = value.replace("6379", &redis.port().to_string());
        start = start.variable(name, &value);
    }
    let server = start.start();
    assert_eq!(curl.matches("127.0.0.1:8080").count(), 1);
    let curl = curl.replace("127.0.0.1:8080", server.address());
    let output = Command::new("sh").args(["-c", &curl]).output();
    let (code, said, _) = ended(output.expect("a shell"));
    assert_eq!(code, 0);
    assert!(said.starts_with("{\"overallCode\":\"OK\""), "{said}");
}

/// Run with two Envoys in `quota.rs`.
#[test]
fn quotas_are_shown_as_in_the_example() {
    let found = blocks(section(PAGE, "## Quotas (RLQS)"));
    assert_eq!(one(&found, "toml"), body(&file("rlqs.toml")));
    let expected = "tidegate serve --config examples/envoy/rlqs.toml\n\
                    envoy --config-path examples/envoy/rlqs.yaml\n";
    assert_eq!(one(&found, "sh"), expected);
    file("rlqs.yaml");
}
