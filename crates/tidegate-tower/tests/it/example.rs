//! The example over memory and Redis: the commands of docs/tower.md as they stand there.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use tidegate_testkit::http::Connection;
use tidegate_testkit::redis::Server;

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

/// The example as `cargo test` has built it, next to this program, with the arguments of a
/// command of the manual and a Redis of the test's own.
fn example(command: &[&str], server: &Server) -> Command {
    let own = std::env::current_exe().expect("this program");
    let folder = own.ancestors().nth(2).expect("a target folder");
    let program = folder.join("examples/axum");
    let is_built = program.exists();
    assert!(is_built, "no {program:?}: run `cargo test` without --test");
    let url = server.url();
    let arguments = command.iter();
    let arguments = arguments.map(|word| if *word == REDIS { &url } else { *word });
    let mut example = Command::new(program);
    example.args(arguments);
    example
}

#[test]
fn commands_that_try_it_show_what_the_manual_shows() {
    let shown = MANUAL
        .split("```text\n")
        .find(|block| block.contains("GET /items"));
    let shown = shown.and_then(|block| block.split("```").next());
    for command in commands(true) {
        let server = Server::start();
        let output = example(&command, &server).output();
        let output = output.expect("the example");
        assert!(output.status.success(), "{command:?}");
        let output = String::from_utf8(output.stdout).expect("text");
        let (first, rest) = output.split_once('\n').expect("lines");
        let listens = first.starts_with("listening on http://127.0.0.1:");
        assert!(listens, "{first}");
        assert_eq!(Some(rest), shown, "{command:?}");
    }
}

#[test]
fn commands_that_serve_do_so() {
    for command in commands(false) {
        let server = Server::start();
        let mut process = example(&command, &server)
            .args(["--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example");
        let output = process.stdout.take().expect("its output");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening on http://");
        let mut connection = Connection::tcp(address.expect("an address"));
        let answer = connection.ask("GET", "/", &[], &[]);
        process.kill().expect("a running process");
        process.wait().expect("a killed process");
        assert_eq!((answer.status, answer.text()), (200, "hello\n"));
    }
}
