//! The command line itself: help, completions, colors, and what cannot be understood.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::process::Command;

use crate::process::{Folder, Start, ended, run};

const COMMANDS: [&[&str]; 9] = [
    &[],
    &["serve"],
    &["check"],
    &["reset"],
    &["verify"],
    &["simulate"],
    &["top"],
    &["config"],
    &["config", "check"],
];

#[test]
fn every_command_explains_itself() {
    let folder = Folder::new();
    for command in COMMANDS {
        let (code, help, _) = run(&folder, &[command, &["--help"]].concat());
        assert_eq!(code, 0, "{command:?}");
        assert!(help.contains("Usage: tidegate"), "{help}");
        assert!(help.lines().all(|line| line.len() <= 100), "{help}");
        let (code, short, _) = run(&folder, &[command, &["-h"]].concat());
        assert_eq!(code, 0);
        assert!(short.contains("Usage: tidegate"));
    }
    let help = run(&folder, &["serve", "--help"]).1;
    for word in [
        "--config",
        "--store",
        "--http",
        "--log",
        "--log-format",
        "--drain",
        "--idle",
        "TIDEGATE_CONFIG",
        "TIDEGATE_STORE",
        "TIDEGATE_HTTP",
        "TIDEGATE_LOG",
        "TIDEGATE_LOG_FORMAT",
        "127.0.0.1:8080",
        "unix:PATH",
    ] {
        assert!(help.contains(word), "{word}: {help}");
    }
    let help = run(&folder, &["check", "--help"]).1;
    for word in [
        "POLICY",
        "ATTR=VALUE",
        "--cost",
        "--peek",
        "--json",
        "--server",
        "0 if allowed, 1 if denied, 2 on an error",
    ] {
        assert!(help.contains(word), "{word}: {help}");
    }
    let (code, said, _) = run(&folder, &["--version"]);
    assert_eq!(
        (code, said),
        (0, format!("tidegate {}\n", env!("CARGO_PKG_VERSION")))
    );
    let (code, _, help) = run(&folder, &[]);
    assert_eq!(code, 2);
    assert!(help.contains("Usage: tidegate"));
}

#[test]
fn usage_error_is_one_line() {
    let folder = Folder::new();
    for (arguments, message) in [
        (&["serv"][..], "unrecognized subcommand 'serv'"),
        (&["serve", "--htp", "x"], "unexpected argument '--htp'"),
        (&["serve", "--http", "8080"], "expected"),
        (&["serve", "--log", "loud"], "invalid value 'loud'"),
        (&["serve", "--drain=-1"], "--drain"),
        (
            &["serve", "--drain", "601"],
            "expected a time from 0s to 10m, such as 2s",
        ),
        (
            &["serve", "--idle", "0"],
            "expected a time from 1s to 10m, such as 75s",
        ),
        (
            &["serve", "--drain", "soon"],
            "such as 2s; see `tidegate serve --help`",
        ),
        (&["config", "chek"], "see `tidegate config --help`"),
        (
            &["config", "check", "--ofline", "x"],
            "see `tidegate config check --help`",
        ),
        (&["serv"], "see `tidegate --help`"),
        (&["serve", "--store", "mysql://x"], "--store: "),
        (&["check"], "<POLICY>"),
        (
            &["check", "p", "ip"],
            "expected NAME=VALUE, such as ip=203.0.113.7",
        ),
        (&["check", "p", "=1"], "expected NAME=VALUE"),
        (
            &["check", "p", "--cost", "0"],
            "expected a whole number from 1 to 4294967295",
        ),
        (
            &["check", "p", "--cost", "many"],
            "expected a whole number from 1 to 4294967295",
        ),
        (
            &["reset", "p", "--all", "--level", "x"],
            "cannot be used with",
        ),
        (&["completions", "tcsh"], "invalid value 'tcsh'"),
        (&["config", "check"], "<FILE>"),
    ] {
        let (code, said, error) = run(&folder, arguments);
        assert_eq!((code, said.as_str()), (2, ""), "{arguments:?}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(
            error.starts_with("tidegate: ") && error.contains(message),
            "{error}"
        );
    }
}

#[test]
fn completions_are_scripts_of_their_shells() {
    let folder = Folder::new();
    for (shell, word) in [
        ("bash", "complete -F _tidegate"),
        ("zsh", "#compdef tidegate"),
        ("fish", "complete -c tidegate"),
    ] {
        let (code, script, _) = run(&folder, &["completions", shell]);
        assert_eq!(code, 0);
        assert!(script.contains(word), "{script}");
        for name in ["serve", "check", "reset", "config", "log-format"] {
            assert!(script.contains(name), "{shell}: {name}");
        }
    }
    folder.write("tidegate.bash", run(&folder, &["completions", "bash"]).1);
    let checked = Command::new("bash")
        .arg("-n")
        .arg(folder.path("tidegate.bash"))
        .status();
    assert!(checked.expect("bash").success());
    // A reader may close the pipe early.
    let script = format!(
        "{} completions bash | head -c 1; exit ${{PIPESTATUS[0]}}",
        env!("CARGO_BIN_EXE_tidegate")
    );
    let (code, _, error) = ended(
        Command::new("bash")
            .args(["-c", &script])
            .output()
            .expect("bash"),
    );
    assert_eq!((code, error.as_str()), (0, ""));
}

/// One page per command that the help lists, and none for hidden ones.
#[test]
fn manual_pages_cover_every_command() {
    let folder = Folder::new();
    let (code, said, error) = run(&folder, &["man", "."]);
    assert_eq!((code, said.as_str(), error.as_str()), (0, "", ""));
    for (page, phrases) in [
        (
            "tidegate.1",
            &["tidegate\\-serve(1)", "tidegate\\-config(1)"][..],
        ),
        ("tidegate-serve.1", &["\\-\\-config", "TIDEGATE_CONFIG"]),
        ("tidegate-config-check.1", &["\\-\\-offline"]),
    ] {
        let text = std::fs::read_to_string(folder.path(page)).expect(page);
        for phrase in phrases {
            assert!(text.contains(phrase), "{page}: {phrase}: {text}");
        }
    }
    let (_, help, _) = run(&folder, &["--help"]);
    let commands = help.split("Commands:\n").nth(1).expect("a list");
    let commands = commands.lines().map_while(|line| line.strip_prefix("  "));
    let names = commands.filter(|line| !line.starts_with(' ') && !line.starts_with("help"));
    let names: Vec<&str> = names.filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains(&"bench"), "{help}");
    for name in names {
        let page = format!("tidegate-{name}.1");
        assert!(folder.path(&page).is_file(), "{page}");
    }
    assert!(!folder.path("tidegate-bench-worker.1").exists());
    let (code, _, error) = run(&folder, &["man", "no/such/folder"]);
    assert_eq!(code, 2);
    let expected = "tidegate: cannot write manual pages into no/such/folder: ";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn colors_are_for_terminals_unless_forced() {
    let folder = Folder::new();
    let on_a_terminal = |arguments: &str, variable: Option<&str>| {
        let program = env!("CARGO_BIN_EXE_tidegate");
        let mut command = Command::new("script");
        command.args(["-qec", &format!("{program} {arguments}"), "/dev/null"]);
        command
            .current_dir(folder.path(""))
            .env("TERM", "xterm")
            .env_remove("NO_COLOR");
        command.envs(variable.map(|value| ("NO_COLOR", value)));
        let output = command.output().expect("script, of every Linux");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    // It listens once the file is there, and is stopped some time after that.
    let serve = "serve --http unix:there --drain 0 & \
                 while ! [ -S there ]; do sleep 0.1; done; sleep 0.5; kill -TERM $!; wait $!";
    for arguments in ["--help", serve] {
        assert!(
            on_a_terminal(arguments, None).contains('\u{1b}'),
            "{arguments}"
        );
        assert!(
            on_a_terminal(arguments, Some("")).contains('\u{1b}'),
            "{arguments}"
        );
        let plain = on_a_terminal(arguments, Some("1"));
        assert!(!plain.contains('\u{1b}') && !plain.is_empty(), "{plain}");
    }
}

#[test]
fn taken_address_is_reported() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let (code, _, error) = Start::bare().argument("--http").argument(&address).fail();
    let last = error.lines().last().expect("a line");
    let expected = format!(
        "tidegate: cannot listen on {address}: choose another address with --http: Address already in use"
    );
    assert_eq!(code, 2);
    assert!(last.starts_with(&expected), "{error}");

    let start = Start::bare().argument("--http").argument("unix:s");
    let listener = UnixListener::bind(start.folder().path("s")).expect("a socket");
    let (code, _, error) = start.fail();
    assert_eq!(code, 2);
    assert_eq!(
        error,
        "tidegate: unix:s: another process listens there: choose another path with --http\n"
    );
    drop(listener);

    // One that a dead process has left is no obstacle; anything else is.
    let start = Start::bare().argument("--http").argument("unix:s");
    let path = start.folder().path("s");
    drop(UnixListener::bind(&path).expect("a socket"));
    let server = start.start();
    assert_eq!(server.url(), "unix:s");
    let start = Start::bare().argument("--http").argument("unix:s");
    let path = start.folder().write("s", "something of somebody's");
    let (code, _, error) = start.fail();
    assert_eq!(code, 2);
    assert_eq!(
        error,
        "tidegate: unix:s exists and is not a socket: choose another path with --http\n"
    );
    drop(path);
    let (code, _, error) = Start::bare()
        .argument("--http")
        .argument("unix:no/folder/s")
        .fail();
    assert_eq!(code, 2);
    assert!(
        error.contains("is the folder there, and may this user write to it?"),
        "{error}"
    );
}

#[test]
fn variables_that_are_empty_are_not_set() {
    let mut start = Start::without_config();
    for name in [
        "TIDEGATE_CONFIG",
        "TIDEGATE_STORE",
        "TIDEGATE_LOG",
        "TIDEGATE_LOG_FORMAT",
    ] {
        start = start.variable(name, "");
    }
    let server = start.start();
    assert_eq!(server.get("/healthz").status, 200);
}
