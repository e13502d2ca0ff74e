//! `tidegate check` and `tidegate reset`: of a server, and of a store.

use serde_json::Value;

use crate::process::{Folder, Start, Tidegate, ended, run, tidegate};
use crate::redis_server::Server;

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

/// Runs the same questions wherever the counts are.
fn ask_everything(folder: &Folder, place: &[&str]) {
    let ask = |arguments: &[&str]| {
        let mut command = tidegate(&folder.path(""));
        command.args(arguments).args(place);
        // Nobody but a server asks for it.
        command.env("TIDEGATE_ADMIN_TOKEN", "sesame");
        ended(command.output().expect("the binary"))
    };
    let (code, said, error) = ask(&["check", "by-ip", "ip=a b&c=é"]);
    assert_eq!((code, error.as_str()), (0, ""), "{said}");
    assert!(
        said.starts_with("allowed; 1 of 2 left, quota full in "),
        "{said}"
    );
    let (code, said, _) = ask(&["check", "by-ip", "ip=a b&c=é", "--peek", "--json"]);
    assert_eq!(code, 0);
    let decision: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(
        (&decision["remaining"], &decision["receipt"]),
        (&1.into(), &Value::Null)
    );
    let (code, said, _) = ask(&["check", "by-ip", "ip=a b&c=é", "--cost", "2"]);
    assert_eq!(code, 1);
    assert!(
        said.starts_with("denied by level \"by-ip\"; retry in 3"),
        "{said}"
    );
    let (code, said, _) = ask(&["check", "by-ip", "ip=a b&c=é", "--json"]);
    assert_eq!(code, 0);
    let decision: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(
        (&decision["allowed"], &decision["remaining"]),
        (&true.into(), &0.into())
    );
    let (code, said, _) = ask(&["check", "by-ip", "ip=a b&c=é", "--peek"]);
    assert_eq!(code, 1, "{said}");
    let (code, said, _) = ask(&["check", "closed", "key=k"]);
    assert_eq!(
        (code, said.contains("waiting will not help")),
        (1, true),
        "{said}"
    );
    for expected in [
        "allowed; ",
        "allowed (shadow mode: would be denied by level \"watch\")",
    ] {
        let (code, said, _) = ask(&["check", "watch", "key=k"]);
        assert_eq!(code, 0);
        assert!(said.starts_with(expected), "{said}");
    }
    for (arguments, answer) in [
        (&["reset", "by-ip", "ip=a b&c=é"][..], "forgot 1 key\n"),
        (
            &["reset", "by-ip", "ip=a b&c=é"],
            "there was nothing to forget\n",
        ),
        (
            &["reset", "by-ip", "ip=a b&c=é", "--all"],
            "there was nothing to forget\n",
        ),
    ] {
        assert_eq!(
            ask(arguments),
            (0, answer.into(), String::new()),
            "{arguments:?}"
        );
    }
    ask(&["check", "api", "x=1", "y=2"]);
    for (arguments, answer) in [
        (
            &["reset", "api", "x=1", "y=2", "--level", "b"][..],
            "forgot 1 key\n",
        ),
        (&["reset", "api", "x=1", "y=2", "--all"], "forgot 1 key\n"),
    ] {
        assert_eq!(
            ask(arguments),
            (0, answer.into(), String::new()),
            "{arguments:?}"
        );
    }
    for (arguments, message) in [
        (
            &["check", "nobody", "ip=1"][..],
            "no policy named \"nobody\"",
        ),
        (&["check", "by-ip"], "attribute \"ip\""),
        (
            &["check", "by-ip", "ip=1", "ip=2"],
            "the attribute \"ip\" twice: expected it once",
        ),
        (
            &["reset", "api", "x=1", "y=2"],
            "policy \"api\" has 2 levels: add `--level a`, `--level b` or `--all`",
        ),
        (
            &["reset", "api", "x=1", "y=2", "--level", "c"],
            "no level named \"c\"",
        ),
    ] {
        let (code, said, error) = ask(arguments);
        assert_eq!((code, said.as_str()), (2, ""), "{arguments:?}");
        assert!(
            error.starts_with("tidegate: ") && error.contains(message),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn of_a_server_by_tcp() {
    let server = Tidegate::start(CONFIG);
    ask_everything(server.folder(), &["--server", server.url()]);
}

#[test]
fn of_a_server_by_a_unix_socket() {
    let start = Start::configured(&CONFIG.replace("[server]", "[server]\nhttp = \"unix:s\""));
    let server = start.start();
    ask_everything(server.folder(), &["--server", "unix:s"]);
}

#[test]
fn of_a_store() {
    let redis = Server::start();
    let folder = Folder::new();
    let store = format!(
        "[stores.default]\nurl = {:?}\ntimeout = \"5s\"\n",
        redis.url()
    );
    folder.write("tidegate.toml", format!("{CONFIG}{store}"));
    ask_everything(&folder, &["--config", "tidegate.toml"]);
    // What a command charges, a server counts.
    let place = ["--config", "tidegate.toml"];
    assert_eq!(
        run(
            &folder,
            &[&["check", "by-ip", "ip=9", "--cost", "2"][..], &place].concat()
        )
        .0,
        0
    );
    let server = Tidegate::start(&format!("{CONFIG}{store}"));
    assert_eq!(server.get("/v1/gate/by-ip?ip=9").status, 429);
}

#[test]
fn token_is_sent_with_changes() {
    let server = Tidegate::start(CONFIG);
    let reset = |token: &[&str], variable: Option<&str>| {
        let mut command = tidegate(&server.folder().path(""));
        command
            .args(["reset", "by-ip", "ip=1", "--server", server.url()])
            .args(token);
        command.envs(variable.map(|token| ("TIDEGATE_ADMIN_TOKEN", token)));
        ended(command.output().expect("the binary"))
    };
    for (token, variable, code) in [
        (&["--token", "sesame"][..], None, 0),
        (&[], Some("sesame"), 0),
        (&["--token", "sesame"], Some("wrong"), 0),
        (&[], Some("wrong"), 2),
        (&[], None, 2),
    ] {
        let (got, _, error) = reset(token, variable);
        assert_eq!(got, code, "{error}");
        if code == 2 {
            let url = server.url();
            let expected = match variable {
                Some(_) => format!("tidegate: the server at {url} refused this admin token\n"),
                None => format!(
                    "tidegate: the server at {url} wants the admin token: give it with --token or TIDEGATE_ADMIN_TOKEN\n"
                ),
            };
            assert_eq!(error, expected);
        }
    }
}

#[test]
fn failed_question_says_what_to_do() {
    let folder = Folder::new();
    folder.write("memory.toml", "");
    folder.write(
        "dead.toml",
        "[stores.default]\nurl = \"redis://127.0.0.1:1\"\n",
    );
    let other = Server::start();
    let other = format!("http://127.0.0.1:{}", other.port());
    for (arguments, message) in [
        (
            &["check", "default", "key=k", "--config", "memory.toml"][..],
            "name it with --server, such as --server http://127.0.0.1:8080",
        ),
        (&["check", "default", "key=k"], "name it with --server"),
        (
            &["check", "mine", "key=k"],
            "expected a config with --config FILE, or a server with --server URL",
        ),
        (
            &["check", "default", "key=k", "--config", "dead.toml"],
            "the store",
        ),
        (
            &["check", "default", "key=k", "--config", "missing.toml"],
            "missing.toml: No such file",
        ),
        (
            &[
                "check",
                "default",
                "key=k",
                "--server",
                "http://127.0.0.1:1",
            ],
            "no server answers at http://127.0.0.1:1: is `tidegate serve` running?",
        ),
        (
            &["check", "default", "key=k", "--server", "unix:nowhere"],
            "no server answers at unix:nowhere: is `tidegate serve` running?",
        ),
        (
            &["check", "default", "key=k", "--server", "127.0.0.1:8080"],
            "expected https://host:port, http://host:port or unix:PATH",
        ),
        (
            &[
                "check",
                "default",
                "key=k",
                "--server",
                "https://127.0.0.1:1",
            ],
            "no server answers at https://127.0.0.1:1: is `tidegate serve` running?",
        ),
        (
            &["check", "default", "key=k", "--server", &other],
            other.as_str(),
        ),
        (
            &[
                "reset",
                "default",
                "level=k",
                "--server",
                "http://127.0.0.1:1",
            ],
            "the attribute \"level\" is reserved in URLs",
        ),
    ] {
        let (code, said, error) = run(&folder, arguments);
        assert_eq!((code, said.as_str()), (2, ""), "{arguments:?} {error}");
        assert!(
            error.starts_with("tidegate: ") && error.contains(message),
            "{arguments:?}: {error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn u9_store_that_refuses_the_password_is_said_to() {
    let redis = Server::start_with(&["--requirepass", "secret"]);
    let folder = Folder::new();
    for login in ["", "password = \"wrong\"\n"] {
        let config = format!("[stores.default]\nurl = {:?}\n{login}", redis.url());
        folder.write("tidegate.toml", config);
        for command in [&["check"][..], &["check", "--peek"], &["reset"]] {
            let question = ["default", "key=k", "--config", "tidegate.toml"];
            let (code, said, error) = run(&folder, &[command, &question].concat());
            assert_eq!((code, said.as_str()), (2, ""), "{error}");
            assert!(
                error.starts_with("tidegate: the store refused the password: ")
                    && error.contains("check its username and password in the config"),
                "{error}"
            );
        }
    }
    let config = std::fs::read_to_string(folder.path("tidegate.toml")).expect("a file");
    let server = Tidegate::start(&config);
    server.check(r#"{"policy":"default","key":"k"}"#);
    server.line("the store refused the password: on_error decides");
}
