//! `tidegate top` in a terminal: tmux is the terminal, and tells what its screen shows.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;

use crate::process::{Folder, Start, Tidegate, run, until};

const CONFIG: &str = r#"
[server]
admin_token = "sesame"

[[policies]]
name = "login"
key = "{ip}"
limit = "3/1h"

[[policies]]
name = "login-next"
trial_of = "login"
key = "{ip}"
limit = "1/1h"
"#;

const KEY: &str = "203.0.113.7";

/// A terminal of 100 columns and 30 lines, with a shell that runs `tidegate top` once.
struct Terminal {
    folder: Folder,
}

impl Terminal {
    fn start(url: &str, token: &str) -> Self {
        let terminal = Self {
            folder: Folder::new(),
        };
        let program = env!("CARGO_BIN_EXE_tidegate");
        let script = format!(
            "echo before; TIDEGATE_ADMIN_TOKEN={token} {program} top --server {url}; \
             echo after $?; stty -a | grep -o -w -e '-\\?icanon' -e '-\\?echo' | tr '\\n' ' '; exec sleep 600"
        );
        terminal.tmux(&[
            "new-session",
            "-d",
            "-x",
            "100",
            "-y",
            "30",
            "sh",
            "-c",
            &script,
        ]);
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux")
            .arg("-S")
            .arg(self.folder.path("tmux"))
            .args(["-f", "/dev/null"])
            .args(arguments)
            .env("LC_ALL", "C.UTF-8")
            .output()
            .expect("tmux, which `cargo xtask test` installs");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// What is on the screen.
    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// Waits for a screen with all of these.
    fn until(&self, parts: &[&str]) -> String {
        let mut last = String::new();
        let deadline = std::time::Instant::now() + crate::process::PATIENCE;
        while std::time::Instant::now() < deadline {
            last = self.screen();
            if parts.iter().all(|part| last.contains(part)) {
                return last;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("never {parts:?}:\n{last}");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let mut tmux = Command::new("tmux");
        let tmux = tmux.arg("-S").arg(self.folder.path("tmux"));
        drop(tmux.arg("kill-server").output());
    }
}

/// The line of the screen that has this in it.
fn line<'s>(screen: &'s str, part: &str) -> &'s str {
    let mut lines = screen.lines().filter(|line| line.contains(part));
    lines
        .next()
        .unwrap_or_else(|| panic!("no line has {part:?}:\n{screen}"))
}

fn ask(server: &Tidegate, count: usize) {
    for _ in 0..count {
        server.get(&format!("/v1/gate/login?ip={KEY}"));
    }
}

#[test]
fn screen_shows_policies_stores_and_keys_and_is_left_clean() {
    let server = Tidegate::start(CONFIG);
    ask(&server, 8);
    let terminal = Terminal::start(server.url(), "sesame");
    let key = format!("ip={KEY}");
    let screen = terminal.until(&["live", &key, "up "]);
    let words = |part| -> Vec<&str> { line(&screen, part).split_whitespace().collect() };
    assert_eq!(words(&key), [&*key, "8", "5", "62.5%"]);
    assert_eq!(words("default")[..3], ["default", "memory", "up"]);
    assert!(line(&screen, "default").contains("2 keys, 0 evicted"));
    assert!(line(&screen, "login-next").contains("login-next (trial of login)"));
    assert!(screen.contains("most refused keys of login, last minute"));
    assert!(line(&screen, "tidegate").contains(server.url()));
    assert!(!screen.contains("before"), "a screen of its own");
    // Numbers move: a refusal is a rate, for a second.
    until("there is a rate", || {
        ask(&server, 3);
        let screen = terminal.screen();
        let refused = line(&screen, "refused ").to_owned();
        (!refused.contains("refused 0.0/s")).then_some(())
    });
    terminal.press("Down");
    terminal.until(&["most refused keys of login-next, last minute"]);
    terminal.press("b");
    terminal.press("w");
    terminal.until(&["busiest keys of login-next, last hour"]);
    // Larger, as small as can be, and back.
    for (width, height) in [("140", "40"), ("20", "3"), ("100", "30")] {
        terminal.tmux(&["resize-window", "-x", width, "-y", height]);
        terminal.until(&["tidegate"]);
    }
    let screen = terminal.until(&["live", &key, "q quit"]);
    assert!(screen.lines().all(|line| line.chars().count() <= 100));
    terminal.press("q");
    let screen = terminal.until(&["after 0", "echo"]);
    let lines: Vec<&str> = screen.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(lines[0], "before");
    assert_eq!(lines[1], "after 0");
    let mut modes: Vec<&str> = lines[2].split_whitespace().collect();
    modes.sort_unstable();
    assert_eq!(modes, ["echo", "icanon"], "no raw mode is left");
    let flags = terminal.tmux(&["display-message", "-p", "#{cursor_flag} #{alternate_on}"]);
    assert_eq!(
        flags.trim(),
        "1 0",
        "the cursor is there, the other screen is not"
    );
}

#[test]
fn server_that_goes_away_is_waited_for() {
    let first = Start::new(CONFIG).argument("--drain").argument("0s");
    let mut first = first.start();
    let address = first.address().to_owned();
    let terminal = Terminal::start(first.url(), "wrong");
    terminal.until(&["live", "refused this admin token"]);
    first.signal("TERM");
    assert!(first.end().0.success());
    terminal.until(&["reconnecting: "]);
    let second = Start::configured(CONFIG)
        .argument("--http")
        .argument(&address);
    let second = second.start();
    let screen = terminal.until(&["live", "login"]);
    assert!(!screen.contains("reconnecting"));
    // SIGTERM leaves the terminal clean, too.
    let panes = terminal.tmux(&["list-panes", "-F", "#{pane_pid}"]);
    let children = format!("/proc/{0}/task/{0}/children", panes.trim());
    let child = std::fs::read_to_string(children).expect("a shell");
    let killed = Command::new("kill").args(["-TERM", child.trim()]).status();
    assert!(killed.expect("kill").success());
    terminal.until(&["before", "after 0"]);
    drop(second);
}

#[test]
fn what_cannot_be_watched_is_said_before_the_screen_changes() {
    let folder = Folder::new();
    let (code, said, error) = run(&folder, &["top", "--server", "http://127.0.0.1:1"]);
    assert_eq!((code, &*said), (2, ""));
    assert!(error.contains("expected a terminal"), "{error}");
    let terminal = Terminal::start("http://127.0.0.1:1", "x");
    terminal.until(&["no server answers at http://127.0.0.1:1", "after 2"]);
    let terminal = Terminal::start("ftp://x", "x");
    terminal.until(&["expected https://host:port", "after 2"]);
    // Another server, with a page for every path.
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", other.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in other.incoming().take(1) {
            let mut stream = stream.expect("a client");
            let mut asked = [0; 4 << 10];
            assert!(stream.read(&mut asked).expect("a request") > 0);
            let page = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi";
            stream.write_all(page.as_bytes()).expect("a client");
        }
    });
    let terminal = Terminal::start(&url, "x");
    let screen = terminal.until(&["is not Tidegate", "after 2"]);
    assert!(screen.contains("before"), "{screen}");
    // The admin address is another one.
    let admin = Start::new(CONFIG)
        .argument("--admin")
        .argument("127.0.0.1:0");
    let admin = admin.start();
    let terminal = Terminal::start(admin.url(), "x");
    terminal.until(&["not served on this address", "after 2"]);
}
