//! The commands of `examples/nginx/README.md`, what it says they print, and the lines of
//! configuration in `docs/nginx.md`.

use std::process::Command;

use super::path;
use super::proxy::{self, Nginx, PATIENT};
use super::tidegate::{Tidegate, example};
use crate::manual::blocks;
use tidegate_testkit::http::{get, send};
use tidegate_testkit::process::{Folder, free_port};

/// What the test has already.
const SKIPPED: [&str; 2] = ["apt-get install ", "cargo install "];

/// The lines in all blocks of a kind.
fn lines<'p>(page: &'p str, kind: &str) -> Vec<&'p str> {
    let blocks = blocks(page).into_iter().filter(|block| block.kind == kind);
    blocks.flat_map(|block| block.text.lines()).collect()
}

/// A line without what differs from one run to the next.
fn without_numbers(line: &str) -> String {
    line.replace(|letter: char| letter.is_ascii_digit(), "")
}

#[test]
fn the_commands_do_what_it_says() {
    let folder = Folder::new();
    let (front, back) = (free_port(), free_port());
    let (front_address, back_address) = (format!("127.0.0.1:{front}"), format!("127.0.0.1:{back}"));
    let examples = folder.root().join("examples/nginx");
    let changes = [&PATIENT[..], &[("127.0.0.1:8080", &back_address)]].concat();
    proxy::copy(&examples, front, &changes);

    let readme = std::fs::read_to_string(example("README.md")).unwrap();
    let demo = folder.root().join("demo");
    let mut commands = lines(&readme, "sh");
    commands.retain(|command| !SKIPPED.iter().any(|start| command.starts_with(start)));
    let script = commands
        .join("\n")
        .replace("127.0.0.1:8000", &front_address)
        .replace("127.0.0.1:8080", &back_address)
        .replace("/tmp/tidegate-demo", &demo.display().to_string());

    // Nothing may go wrong unseen, and nothing stay behind.
    let script = format!("set -e\ntrap 'kill $! 2>/dev/null || true' EXIT\n{script}");
    let output = Command::new("sh")
        .args(["-c", &script])
        .current_dir(folder.root())
        .env("PATH", path())
        .output()
        .unwrap();
    let (printed, errors) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{printed}{errors}");

    let mut printed_lines = printed.lines().map(without_numbers);
    for line in lines(&readme, "text") {
        let wanted = without_numbers(line);
        assert!(
            printed_lines.any(|printed| printed == wanted),
            "{line:?} is not, or not in this place, in:\n{printed}"
        );
    }
    let statuses: Vec<&str> = printed.lines().filter(|line| line.len() == 3).collect();
    assert_eq!(statuses, ["200", "200", "200", "200", "200", "429"]);
}

#[test]
fn what_the_manual_shows_works() {
    let manual = std::fs::read_to_string(example("../../docs/nginx.md")).unwrap();
    let policies = "
        [[policies]]
        name = \"default\"
        key = \"{ip}\"
        limit = \"5r/m\"
        headers = \"x-ratelimit\"
        [[policies]]
        name = \"token\"
        key = \"{key}\"
        limit = \"1r/m\"
    ";
    let tidegate = Tidegate::start(policies);
    let nginx = Nginx::start_location(&tidegate, &lines(&manual, "nginx").join("\n"));
    let api = |key| send(nginx.port(), "GET", "/api/", &[("X-Api-Key", key)]).status;
    assert_eq!([api("a"), api("b&ip=1"), api("a")], [200, 200, 429]);
    assert_eq!(
        [(); 2].map(|()| get(nginx.port(), "/api/").status),
        [200, 429]
    );
    let other = get(nginx.port(), "/other-headers/");
    assert_eq!(other.header("X-RateLimit-Remaining"), Some("4"));
}
