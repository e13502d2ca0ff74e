//! What an operator sees: the log of an outage, what a reload changes, errors, the access
//! log, sockets.

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::observed::metrics;
use crate::process::{Folder, Start, Tidegate, until};
use crate::redis_server::Server;

const MANUAL: &str = include_str!("../../../../docs/operations.md");

/// Three policies, one for each of what to do without a store.
const THREE: &str = r#"[[policies]]
name = "open"
limit = "100r/m"
on_error = "allow"

[[policies]]
name = "shut"
limit = "100r/m"
on_error = "deny"

[[policies]]
name = "alone"
limit = "100r/m"
on_error = "local"
"#;

/// A line without what differs from run to run.
fn plain(line: &str, address: &str) -> String {
    let (_, line) = line
        .trim_start()
        .split_once(' ')
        .expect("a time and the rest");
    let line = line.trim_start().replace(address, "10.0.0.5:6379");
    let mut words: Vec<String> = Vec::new();
    for word in line.split(' ') {
        words.push(match word.split_once('=') {
            Some((name @ ("outage" | "checks_without_it"), _)) => format!("{name}=…"),
            _ => word.to_owned(),
        });
    }
    words.join(" ").replace("outage=… s", "outage=…")
}

/// The story in docs/operations.md, from the first failure to the recovery.
#[test]
fn outage_is_logged_as_the_manual_says() {
    let mut redis = Server::start();
    let config = format!(
        "[stores.default]\nurl = {:?}\ntimeout = \"1s\"\n{THREE}",
        redis.url()
    );
    let server = Tidegate::start(&config);
    let ask = |policy: &str| {
        let answer = server.check(&format!("{{\"policy\":\"{policy}\",\"key\":\"k\"}}"));
        answer.json()
    };
    for policy in ["open", "shut", "alone"] {
        until("the store decides", || {
            (ask(policy)["source"] == "store").then_some(())
        });
    }
    let address = format!("127.0.0.1:{}", redis.port());
    redis.kill();
    // Nobody asks: it is noticed all the same.
    server.line("the store keeps failing");
    until("the metric says so", || {
        (metrics(&server)["tidegate_store_up{store=\"default\"}"] == 0.0).then_some(())
    });
    for (policy, allowed, source) in [
        ("open", true, "error_policy"),
        ("shut", false, "error_policy"),
        ("alone", true, "local"),
    ] {
        let decision = ask(policy);
        assert_eq!(
            (&decision["allowed"], &decision["source"]),
            (&allowed.into(), &source.into())
        );
    }
    redis.restart();
    let last = server.line("the store answers again");
    assert_eq!(
        metrics(&server)["tidegate_store_up{store=\"default\"}"],
        1.0
    );
    let number = |name: &str| -> f64 {
        let value = last.split(&format!("{name}=")).nth(1).expect(name);
        value
            .split(' ')
            .next()
            .and_then(|it| it.parse().ok())
            .expect(name)
    };
    assert!(number("checks_without_it") >= 3.0, "{last}");
    assert!(number("outage") > 0.0, "{last}");
    let story = MANUAL.split("\n```log\n").nth(1).expect("the story");
    let story: Vec<&str> = story
        .split("\n```")
        .next()
        .expect("its end")
        .lines()
        .collect();
    let told: Vec<String> = server
        .log()
        .iter()
        .map(|line| plain(line, &address))
        .collect();
    for line in story {
        let line = plain(line, &address);
        // Which error comes first is a matter of microseconds.
        let (start, rest) = line.split_once(" cause=").unwrap_or((&line, ""));
        let end = rest.split_once(" policies=").map_or("", |(_, end)| end);
        let found = told
            .iter()
            .any(|it| it.starts_with(start) && it.ends_with(end));
        assert!(found, "{line}\nis not in\n{told:#?}");
    }
}

#[test]
fn store_that_is_down_at_the_start_and_comes_back_is_logged() {
    let mut redis = Server::start();
    redis.kill();
    let config = format!("[stores.default]\nurl = {:?}\n{THREE}", redis.url());
    let server = Tidegate::start(&config);
    let line = server.line("the store does not answer: on_error decides");
    assert!(
        line.contains(&format!("server=\"127.0.0.1:{}\"", redis.port())),
        "{line}"
    );
    assert!(line.contains("Connection refused"), "{line}");
    let up = || metrics(&server)["tidegate_store_up{store=\"default\"}"];
    until("it is down", || (up() == 0.0).then_some(()));
    redis.restart();
    let line = server.line("the store answers again");
    assert!(line.contains("checks_without_it=0"), "{line}");
    until("it is up", || (up() == 1.0).then_some(()));
}

#[test]
fn reload_says_what_changed_and_what_waits_for_a_restart() {
    let policy = |limit: &str| format!("[[policies]]\nname = \"api\"\nlimit = \"{limit}\"\n");
    let at = |address: &str| format!("[server]\nhttp = \"{address}\"\n{}", policy("10r/m"));
    let server = Start::configured(&at("unix:a.sock")).start();
    server.folder().write("tidegate.toml", at("unix:b.sock"));
    server.line("server.http has changed: it takes effect at the next start");
    // Back again is as it was: nothing waits for a restart.
    server.folder().write("tidegate.toml", at("unix:a.sock"));
    server.nth_line("the config is in force", 1);
    let raised = at("unix:a.sock").replace("10r/m", "20r/m");
    server.folder().write("tidegate.toml", raised);
    server.line("changed: api: 10r/m -> 20r/m");
    server.nth_line("the config is in force", 2);
    let log = server.log();
    let warnings = log
        .iter()
        .filter(|line| line.contains("takes effect at the next start"));
    assert_eq!(warnings.count(), 1, "{log:#?}");
}

#[test]
fn config_file_that_is_removed_is_logged() {
    let server = Tidegate::start("");
    let path = server.folder().path("tidegate.toml");
    std::fs::remove_file(&path).expect("a file");
    let line = server.line("tidegate.toml: No such file or directory (os error 2): the config in force stays, but a restart would fail");
    assert!(line.contains("WARN"), "{line}");
    server
        .folder()
        .write("tidegate.toml", "[server]\nlog_keys = true\n");
    server.line("the config file is back");
    server.line("changed: server: log_keys false -> true");
    let log = server.log();
    let lines = log
        .iter()
        .filter(|line| line.contains("a restart would fail"));
    assert_eq!(lines.count(), 1, "once: {log:#?}");
}

#[test]
fn log_level_changes_on_reload_unless_a_flag_says_it() {
    let config = |level: &str| format!("[server]\nlog = \"{level}\"\n");
    let server = Tidegate::start(&config("info"));
    server.get("/v1/gate/default?key=k");
    server.folder().write("tidegate.toml", config("debug"));
    server.line("changed: server: log \"info\" -> \"debug\"");
    server.get("/v1/gate/default?key=k");
    server.line("decided");
    let lines = |server: &Tidegate| {
        server
            .log()
            .iter()
            .filter(|it| it.contains("decided"))
            .count()
    };
    assert_eq!(lines(&server), 1, "{:#?}", server.log());
    server.folder().write("tidegate.toml", config("warn"));
    until("the level is back", || {
        let before = lines(&server);
        server.get("/v1/gate/default?key=k");
        std::thread::sleep(std::time::Duration::from_millis(100));
        (lines(&server) == before).then_some(())
    });
    let start = Start::new(&config("debug")).variable("TIDEGATE_LOG", "info");
    let server = start.start();
    server.get("/v1/gate/default?key=k");
    server.signal("HUP");
    server.line("the config is in force");
    assert_eq!(lines(&server), 0, "{:#?}", server.log());
}

#[test]
fn errors_and_peeks_are_counted_and_some_logged() {
    let server = Tidegate::start("[[policies]]\nname = \"p\"\nkey = \"{ip}\"\nlimit = \"1/1h\"\n");
    for _ in 0..20 {
        let headers = [("X-Request-Id", "id-4711")];
        assert_eq!(
            server
                .ask_with("GET", "/v1/gate/p?user=1", &headers, "")
                .status,
            400
        );
        assert_eq!(server.get("/v1/gate/nobody?ip=1").status, 404);
    }
    let batch =
        server.check("[{\"policy\":\"p\"},{\"policy\":\"p\",\"attributes\":{\"ip\":\"1\"}}]");
    assert_eq!(batch.status, 200);
    let peek = "{\"policy\":\"p\",\"attributes\":{\"ip\":\"1\"},\"peek\":true}";
    assert_eq!(server.check(peek).status, 200);
    assert_eq!(server.get("/v1/keys/p?ip=1").status, 200);
    let metrics = metrics(&server);
    assert_eq!(metrics["tidegate_http_errors_total{status=\"400\"}"], 21.0);
    assert_eq!(metrics["tidegate_http_errors_total{status=\"404\"}"], 20.0);
    assert_eq!(metrics["tidegate_peeks_total{policy=\"p\"}"], 2.0);
    let line = server.line("a request cannot be answered");
    for part in [
        "WARN",
        "status=400",
        "path=\"/v1/gate/p\"",
        "id=\"id-4711\"",
        "the attribute \\\"ip\\\"",
    ] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    let log = server.log();
    let lines = log
        .iter()
        .filter(|line| line.contains("a request cannot be answered"));
    // Of each status one in ten seconds.
    assert!(lines.count() <= 6, "{log:#?}");
}

#[test]
fn access_log_is_off_until_asked_for_and_has_no_keys() {
    let server = Start::new("")
        .argument("--log-format")
        .argument("json")
        .start();
    server.get("/v1/gate/default?key=203.0.113.7");
    server
        .folder()
        .write("tidegate.toml", "[server]\naccess_log = true\n");
    server.line("changed: server: access_log");
    assert!(
        !server
            .log()
            .iter()
            .any(|line| line.contains("\"message\":\"request\""))
    );
    let headers = [("X-Request-Id", "id-4711")];
    server.ask_with("GET", "/v1/gate/default?key=203.0.113.7", &headers, "");
    let line: Value = serde_json::from_str(&server.line("\"message\":\"request\"")).expect("JSON");
    for (field, value) in [
        ("method", "GET".into()),
        ("path", "/v1/gate/default".into()),
        ("status", Value::from(200)),
        ("id", "id-4711".into()),
    ] {
        assert_eq!(line[field], value, "{line}");
    }
    assert!(line["took_us"].is_u64(), "{line}");
    let peer = line["peer"].as_str().expect("an address");
    assert!(peer.starts_with("127.0.0.1:"), "{line}");
    assert!(!server.log().iter().any(|line| line.contains("203.0.113")));
}

#[test]
fn socket_has_the_mode_of_the_config() {
    for (mode, bits) in [("0600", 0o600), ("666", 0o666), ("0660", 0o660)] {
        let config = format!("[server]\nhttp = \"unix:s\"\nsocket_mode = \"{mode}\"\n");
        let start = Start::configured(&config);
        let path = start.folder().path("s");
        let _server = start.start();
        let metadata = std::fs::metadata(path).expect("a socket");
        assert_eq!(metadata.permissions().mode() & 0o777, bits);
    }
    let unit = include_str!("../../../../deploy/tidegate.service");
    assert!(unit.contains("\nUMask=0077\n") && unit.contains("socket_mode = \"0666\""));
}

#[test]
fn drain_and_idle_are_in_the_file_and_flags_beat_them() {
    let config = "[server]\ndrain = \"0s\"\nidle = \"20s\"\n";
    let mut server = Tidegate::start(config);
    server.signal("TERM");
    server.line("shutting down: draining for 0 s");
    server.end();
    let mut server = Start::new(config)
        .argument("--drain")
        .argument("1s")
        .start();
    server.signal("TERM");
    server.line("shutting down: draining for 1 s");
    server.end();
}

/// A token in a file is read again when the file changes.
#[test]
fn admin_token_in_a_file_is_reloaded() {
    let start = Start::new("[server]\nadmin_token = \"file:token\"\n");
    start.folder().write("token", "one");
    let server = start.start();
    let reset = |token: &str| {
        let token = format!("Bearer {token}");
        server
            .ask_with(
                "DELETE",
                "/v1/keys/default?key=k",
                &[("Authorization", &token)],
                "",
            )
            .status
    };
    assert_eq!(reset("one"), 200);
    server.folder().write("token", "two");
    until("the new token is known", || {
        (reset("two") == 200).then_some(())
    });
    assert_eq!(reset("one"), 401);
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
