//! What only the owner may know is nowhere: not in the log, not in an answer, not in an
//! error.

use crate::process::{Folder, Start, run};
use crate::redis_server::Server;
use crate::resp;

const TOKEN: &str = "token-of-the-owner";
const PASSWORD: &str = "password-of-the-store";

fn assert_hidden(where_: &str, text: &str) {
    for secret in [TOKEN, PASSWORD] {
        assert!(!text.contains(secret), "{where_}: {text}");
    }
}

/// Everything that a server says about itself, with a store that answers and without.
fn look_everywhere(url: &str, format: &str) {
    let config = "[server]\nadmin_token = \"env:TOKEN\"\nlog_keys = true\n\
                  resp = \"127.0.0.1:0\"\nresp_token = \"env:TOKEN\"\n\
                  [stores.default]\nurl = \"env:URL\"\ntimeout = \"200ms\"\n\
                  [[policies]]\nname = \"p\"\nlimit = \"5/1h\"\n";
    let arguments = ["--log", "trace", "--log-format", format];
    let start = arguments
        .into_iter()
        .fold(Start::new(config), Start::argument);
    let server = start.variable("TOKEN", TOKEN).variable("URL", url).start();
    let token = format!("Bearer {TOKEN}");
    let headers = [("Authorization", token.as_str())];
    for (method, path, body) in [
        ("GET", "/v1/policies", ""),
        ("GET", "/v1/keys/p?key=k", ""),
        ("DELETE", "/v1/keys/p?key=k", ""),
        ("GET", "/v1/gate/p?key=k", ""),
        ("GET", "/metrics", ""),
        ("GET", "/readyz", ""),
        ("GET", "/nowhere", ""),
        ("POST", "/v1/check", "{\"policy\":\"p\",\"key\":\"k\"}"),
        (
            "POST",
            "/v1/check",
            "{\"policy\":\"p\",\"key\":\"k\",\"peek\":true}",
        ),
        ("POST", "/v1/refund", "{\"receipt\":\"x\"}"),
        ("POST", "/v1/refund", "nonsense"),
    ] {
        let answer = server.ask_with(method, path, &headers, body);
        assert_hidden(path, answer.text());
        assert_hidden(path, &format!("{:?}", answer.headers));
    }
    let mut client = resp::connect(&resp::address(&server));
    assert_hidden(
        "AUTH",
        &format!("{:?}", client.ask(&format!("AUTH {TOKEN}"))),
    );
    let unset = "[server]\nadmin_token = \"env:NOT_SET\"\n";
    server.folder().write("tidegate.toml", unset);
    let line = server.line("the old one stays in force");
    assert!(line.contains("NOT_SET"), "{line}");
    server.folder().write("tidegate.toml", format!("[server]\nadmin_token = \"{TOKEN} \"\n[stores.default]\nurl = \"redis://:{PASSWORD}@h:p\"\n"));
    server.nth_line("the old one stays in force", 2);
    for line in server.log() {
        assert_hidden("the log", &line);
    }
}

#[test]
fn secrets_stay_secret() {
    let redis = Server::start_with(&["--requirepass", PASSWORD]);
    let right = format!("redis://:{PASSWORD}@127.0.0.1:{}/", redis.port());
    let wrong = format!("redis://:{PASSWORD}x@127.0.0.1:{}/", redis.port());
    let dead = format!("redis://user:{PASSWORD}@127.0.0.1:1/");
    for (url, format) in [(right, "text"), (wrong, "json"), (dead, "text")] {
        look_everywhere(&url, format);
    }
}

#[test]
fn no_error_repeats_a_password() {
    let folder = Folder::new();
    let url = format!("redis://:{PASSWORD}@h:p/");
    folder.write("url.toml", format!("[stores.default]\nurl = {url:?}\n"));
    folder.write(
        "token.toml",
        format!("[server]\nadmin_token = \"{TOKEN} x\"\n"),
    );
    for arguments in [
        &["serve", "--store", &url][..],
        &["check", "p", "--store", &url],
        &["check", "p", "--store", &format!("http://{PASSWORD}")],
        &["config", "check", "url.toml"],
        &["config", "check", "token.toml"],
        &["serve", "--config", "url.toml"],
    ] {
        let (code, said, error) = run(&folder, arguments);
        assert_eq!(code, 2, "{arguments:?}");
        assert!(!error.is_empty());
        assert_hidden("an error", &said);
        assert_hidden("an error", &error);
    }
    let start = Start::without_config().variable("TIDEGATE_STORE", &url);
    let (code, _, error) = start.fail();
    assert_eq!(code, 2);
    assert_hidden("an error", &error);
    let (_, help, _) = crate::process::ended(
        crate::process::tidegate(&folder.path(""))
            .args(["reset", "--help"])
            .env("TIDEGATE_ADMIN_TOKEN", TOKEN)
            .env("TIDEGATE_STORE", &url)
            .output()
            .expect("the binary"),
    );
    assert_hidden("help", &help);
}
