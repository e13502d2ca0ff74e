//! The example: its routes over memory and Redis, and the commands of docs/tower.md as
//! they stand there.

#[path = "../../examples/axum/app.rs"]
mod app;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::axum::serve;
use crate::http1;
use crate::server::Server;

const MANUAL: &str = include_str!("../../../../docs/tower.md");

/// The Redis of the manual.
const REDIS: &str = "redis://127.0.0.1:6379";

/// What follows `--` in the commands that start the example, those that try it or the others.
fn commands(that_try: bool) -> Vec<Vec<&'static str>> {
    let start = "cargo run --release -p tidegate-tower --example axum";
    let lines = MANUAL.lines().filter_map(|line| line.strip_prefix(start));
    let words = lines.map(|line| line.split(' ').filter(|word| !["", "--"].contains(word)));
    let commands: Vec<Vec<&str>> = words.map(Iterator::collect).collect();
    let wanted = |command: &Vec<&str>| command.contains(&"--try") == that_try;
    let commands: Vec<_> = commands.into_iter().filter(wanted).collect();
    assert_eq!(commands.len(), 2, "in memory, and in Redis");
    commands
}

/// The example as `cargo test` has built it, next to this program.
fn example() -> Command {
    let own = std::env::current_exe().expect("this program");
    let folder = own.ancestors().nth(2).expect("a target folder");
    let program: PathBuf = folder.join("examples/axum");
    assert!(
        program.exists(),
        "no {}: run `cargo test` without --test",
        program.display()
    );
    Command::new(program)
}

/// What a command of the manual prints, after where it listens.
fn printed(command: &[&str]) -> String {
    let server = Server::start();
    let url = server.url();
    let arguments = command
        .iter()
        .map(|word| if *word == REDIS { &url } else { *word });
    let output = example().args(arguments).output().expect("the example");
    assert!(output.status.success(), "{command:?}");
    let output = String::from_utf8(output.stdout).expect("text");
    let (first, rest) = output.split_once('\n').expect("lines");
    assert!(
        first.starts_with("listening on http://127.0.0.1:"),
        "{first}"
    );
    rest.to_owned()
}

#[test]
fn commands_that_try_it_show_what_the_manual_shows() {
    let shown = MANUAL
        .split("```text\n")
        .find(|block| block.contains("GET /items"));
    let shown = shown
        .and_then(|block| block.split("```").next())
        .expect("the output");
    for command in commands(true) {
        // Whom Redis does not answer within a second may pass: it has three tries.
        let mut last = String::new();
        let right = (0..3).any(|_| {
            last = printed(&command);
            last == shown
        });
        assert!(right, "{command:?}:\n{last}");
    }
}

#[tokio::test]
async fn commands_that_serve_do_so() {
    for command in commands(false) {
        let server = Server::start();
        let url = server.url();
        let arguments = command
            .iter()
            .map(|word| if *word == REDIS { &url } else { *word });
        let mut process = example()
            .args(arguments)
            .args(["--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example");
        let output = process.stdout.take().expect("its output");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("a line");
        let address = line
            .trim()
            .strip_prefix("listening on http://")
            .expect("an address");
        let address: SocketAddr = address.parse().expect("an address");
        let answer = http1::get(address, "/", &[]).await;
        process.kill().expect("a running process");
        process.wait().expect("a killed process");
        assert_eq!((answer.status.as_u16(), &*answer.body), (200, "hello\n"));
    }
}

#[tokio::test]
async fn two_instances_of_it_on_one_redis_share_their_limits() {
    // Whom Redis does not answer within a second may pass: it has three tries.
    let mut admitted = Vec::new();
    while admitted.len() < 3 && admitted.last() != Some(&3) {
        admitted.push(admitted_by_two().await);
    }
    assert_eq!(admitted.last(), Some(&3), "{admitted:?}");
}

/// Requests of eight that two instances admit together.
async fn admitted_by_two() -> usize {
    let server = Server::start();
    let mut instances = Vec::new();
    for _ in 0..2 {
        let limiter = app::limiter(Some(&server.url())).expect("a limiter");
        instances.push(serve(app::router(&limiter).expect("a router")).await);
    }
    let token = [("authorization", "Bearer alice")];
    let mut admitted = 0;
    for address in instances.iter().cycle().take(8) {
        let answer = http1::get(*address, "/items", &token).await;
        admitted += usize::from(answer.status == 200);
    }
    admitted
}
