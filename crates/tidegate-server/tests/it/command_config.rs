//! `tidegate config check` and `config print`, and which of flag, variable and file is heard.

use crate::process::{Folder, Start, Tidegate, ended, run, tidegate};

#[test]
fn a_right_file_is_right() {
    let folder = Folder::new();
    folder.write("one.toml", "[[policies]]\nname = \"a\"\nlimit = \"1/1s\"\n");
    let two = "[[policies]]\nname = \"a\"\nkey = \"ip\"\nlimit = \"1/1s\"\n[[policies]]\nname = \"b\"\nlimit = \"1/1s\"\n";
    folder.write("two.toml", two);
    for (file, said, error) in [
        ("one.toml", "one.toml: ok, 1 policy\n", ""),
        (
            "two.toml",
            "two.toml: ok, 2 policies\n",
            "two.toml: warning: policy \"a\", level \"a\": the key \"ip\" has no attribute in braces, so all requests share one counter\n",
        ),
    ] {
        let got = run(&folder, &["config", "check", file]);
        assert_eq!(got, (0, said.into(), error.into()));
    }
}

#[test]
fn every_mistake_has_its_line() {
    let folder = Folder::new();
    folder.write("bad.toml", "[[policies]]\nname = \"a\"\nlimit = \"100\"\nburrst = 5\n\n[stores.default]\nurl = \"mysql://x\"\n");
    folder.write("latin1.toml", b"# \xe9\n");
    folder.write("syntax.toml", "[server\nhttp = 1\n");
    folder.write("secret.toml", "[server]\nadmin_token = \"env:NOT_SET\"\n");
    folder.write(
        "tls.toml",
        "[server]\ntls_cert = \"no.crt\"\ntls_key = \"no.key\"\n",
    );
    folder.write("script.toml", "[stores.default]\nurl = \"redis://h:1\"\n[[policies]]\nname = \"s\"\nalgorithm = \"script\"\nscript = \"no.lua\"\n");
    folder.write("empty.pem", "");
    folder.write(
        "pem.toml",
        "[server]\ntls_cert = \"empty.pem\"\ntls_key = \"empty.pem\"\n",
    );
    std::fs::create_dir(folder.path("folder")).expect("a folder");
    for (file, lines) in [
        (
            "bad.toml",
            &[
                "bad.toml:3:9: policies.a.limit: ",
                "bad.toml:4:1: policies.a.burrst: ",
                "bad.toml:7:7: stores.default.url: ",
            ][..],
        ),
        (
            "latin1.toml",
            &["latin1.toml: not UTF-8: expected a text file"],
        ),
        ("syntax.toml", &["syntax.toml:1:"]),
        (
            "secret.toml",
            &[
                "secret.toml: server.admin_token: the environment variable NOT_SET is not set: expected the token in it",
            ],
        ),
        ("tls.toml", &["tls.toml: server.tls_cert: no.crt: "]),
        ("pem.toml", &["pem.toml: server.tls_key: empty.pem: "]),
        (
            "script.toml",
            &["script.toml: the script of policy \"s\": "],
        ),
        ("folder", &["folder: Is a directory"]),
        (
            "missing.toml",
            &["missing.toml: No such file or directory (os error 2): expected a config file"],
        ),
    ] {
        let (code, said, error) = run(&folder, &["config", "check", file]);
        assert_eq!((code, said.as_str()), (2, ""), "{file}: {error}");
        let got: Vec<&str> = error.lines().collect();
        assert_eq!(got.len(), lines.len(), "{file}: {error}");
        for (got, line) in got.iter().zip(lines) {
            assert!(got.starts_with(line), "{got}");
        }
        // A server says the same, and does not start.
        let (code, _, error) = run(
            &folder,
            &["serve", "--http", "127.0.0.1:0", "--config", file],
        );
        assert_eq!(code, 2, "{file}");
        for (got, line) in error.lines().zip(lines) {
            let what = line.strip_prefix(&format!("{file}: ")).unwrap_or(line);
            assert!(
                got.starts_with("tidegate: ") && got.contains(what.trim_end()),
                "{got}"
            );
        }
    }
}

#[test]
fn offline_check_needs_no_secret_certificate_or_script() {
    let folder = Folder::new();
    let text = "[server]\nadmin_token = \"env:NOT_SET\"\ntls_cert = \"no.crt\"\ntls_key = \"no.key\"\n\
                [stores.default]\nurl = \"env:NO_URL\"\npassword = \"file:no-password\"\ntls_ca = \"no.ca\"\n\
                [[policies]]\nname = \"s\"\nalgorithm = \"script\"\nscript = \"no.lua\"\n";
    folder.write("a.toml", text);
    assert_eq!(run(&folder, &["config", "check", "a.toml"]).0, 2);
    let got = run(&folder, &["config", "check", "--offline", "a.toml"]);
    assert_eq!(got, (0, "a.toml: ok, 1 policy\n".into(), String::new()));
    folder.write("b.toml", text.replace("algorithm", "algoritm"));
    let (code, _, error) = run(&folder, &["config", "check", "--offline", "b.toml"]);
    assert_eq!(code, 2);
    assert!(
        error.contains("b.toml:11:1: policies.s.algoritm: unknown field"),
        "{error}"
    );
}

/// Every config in docs/ is right as it stands there, whatever is set where it is checked.
#[test]
fn every_config_in_the_docs_is_right_without_secrets() {
    let folder = Folder::new();
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let mut checked = 0;
    for page in std::fs::read_dir(docs).expect("docs/") {
        let page = page.expect("a file").path();
        if page.extension().is_none_or(|it| it != "md") {
            continue;
        }
        let text = std::fs::read_to_string(&page).expect("text");
        for block in text.split("\n```toml\n").skip(1) {
            let block = block.split("\n```").next().expect("every block ends");
            // Some are the fields of a policy alone.
            let is_whole = block.lines().any(|line| line.starts_with('['));
            let start = if is_whole {
                ""
            } else {
                "[[policies]]\nname = \"p\"\n"
            };
            folder.write("tidegate.toml", format!("{start}{block}"));
            let (code, said, error) =
                run(&folder, &["config", "check", "--offline", "tidegate.toml"]);
            assert_eq!(code, 0, "{}: {error}\nin\n{block}", page.display());
            assert!(said.starts_with("tidegate.toml: ok, "), "{said}");
            checked += 1;
        }
    }
    assert!(checked >= 20, "{checked} configs");
}

#[test]
fn overrides_that_look_like_a_mistake_are_warned_of() {
    let folder = Folder::new();
    let policy = "[[policies]]\nname = \"api\"\nkey = \"{ip}:{user}\"\nlimit = \"1/1s\"\n\
                  [[policies.overrides]]\nmatch = { ip = \"10.0.0.*\" }\nlimit = \"2/1s\"\n\
                  [[policies.overrides]]\nmatch = { user = \"a\" }\nlimit = \"3/1s\"\n\
                  [[policies.overrides]]\nmatch = { ip = \"10.1.2.3\", user = \"a\" }\nlimit = \"4/1s\"\n\
                  [[policies.overrides]]\nmatch = { ip = \"10.1.2.3\", user = \"b\" }\nlimit = \"5/1s\"\n";
    folder.write("a.toml", policy);
    let (code, _, error) = run(&folder, &["config", "check", "a.toml"]);
    assert_eq!(code, 0, "{error}");
    let lines: Vec<&str> = error.lines().collect();
    let expected = [
        "a.toml: warning: policy \"api\", override 1 (ip = \"10.0.0.*\"): ip must be \"10.0.0.*\" literally: * is not a wildcard",
        "a.toml: warning: policy \"api\", override 3 (ip = \"10.1.2.3\", user = \"a\"): never applies: override 2 (user = \"a\") comes before it and matches the same keys",
    ];
    assert_eq!(lines, expected);
}

/// What a container's image sets is a default, and what somebody sets instead of the
/// file's is said.
#[test]
fn environment_does_not_beat_a_file_silently() {
    let own = "[server]\nhttp = \"unix:own.sock\"\n";
    let start = Start::configured(own).variable("TIDEGATE_HTTP_DEFAULT", "unix:image.sock");
    assert_eq!(start.start().url(), "unix:own.sock");
    let start = Start::configured("[server]\nlog_keys = true\n");
    let start = start.variable("TIDEGATE_HTTP_DEFAULT", "unix:image.sock");
    assert_eq!(start.start().url(), "unix:image.sock");
    let start = Start::configured(own).variable("TIDEGATE_HTTP", "unix:set.sock");
    let server = start.start();
    assert_eq!(server.url(), "unix:set.sock");
    let line = server.line(
        "server.http in tidegate.toml is not used: --http or TIDEGATE_HTTP says unix:set.sock",
    );
    assert!(line.contains("WARN"), "{line}");
    let docker = include_str!("../../../../Dockerfile");
    assert!(docker.contains("ENV TIDEGATE_HTTP_DEFAULT=0.0.0.0:8080"));
    assert!(
        !docker.contains("TIDEGATE_HTTP="),
        "it would beat a mounted file"
    );
}

#[test]
fn flags_beat_variables_which_beat_the_file() {
    let name = |server: &Tidegate| server.get("/v1/policies").json()[0]["name"].clone();
    let policy = |name: &str| {
        format!(
            "[server]\nhttp = \"unix:file.sock\"\n[[policies]]\nname = \"{name}\"\nlimit = \"1/1s\"\n"
        )
    };
    let start = |variable: bool, flag: bool| {
        let mut start = Start::bare();
        start.folder().write("variable.toml", policy("variable"));
        start.folder().write("flag.toml", policy("flag"));
        if variable {
            start = start.variable("TIDEGATE_CONFIG", "variable.toml");
            start = start.variable("TIDEGATE_HTTP", "unix:variable.sock");
            start = start.variable("TIDEGATE_LOG_FORMAT", "json");
        }
        if flag {
            start = start.argument("--config").argument("flag.toml");
            start = start
                .argument("--http")
                .argument("unix:flag.sock,127.0.0.1:0");
            start = start.argument("--log-format").argument("text");
        }
        start
    };
    let folder_of = |start: &Start| start.folder().path("");
    for (variable, flag, url, config) in [
        (true, false, "unix:variable.sock", "variable"),
        (true, true, "unix:flag.sock", "flag"),
    ] {
        let start = start(variable, flag);
        let folder = folder_of(&start);
        let server = start.start();
        assert_eq!(server.url(), url);
        assert_eq!(server.line("listening on").starts_with('{'), !flag);
        let socket = folder.join(url.trim_start_matches("unix:"));
        let mut connection = crate::client::Connection::unix(socket.to_str().expect("text"));
        let policies = connection.ask("GET", "/v1/policies", &[], b"").json();
        assert_eq!(policies[0]["name"], config);
    }
    let start = Start::configured(&policy("file")).start();
    assert_eq!(start.url(), "unix:file.sock");
    // The store of a flag takes the place of the file's, of the default one.
    let dead = "[stores.default]\nurl = \"redis://127.0.0.1:1\"\n";
    let server = Start::new(dead)
        .variable("TIDEGATE_STORE", "memory:")
        .start();
    assert_eq!(
        server
            .check("{\"policy\":\"default\",\"key\":\"k\"}")
            .json()["source"],
        "store"
    );
    assert_eq!(name(&server), "default");
    let start = Start::new(dead).variable("TIDEGATE_STORE", "redis://127.0.0.1:1");
    let server = start.argument("--store").argument("memory:").start();
    assert_eq!(
        server
            .check("{\"policy\":\"default\",\"key\":\"k\"}")
            .json()["source"],
        "store"
    );
}

/// What `config print` says of a file, under these variables and flags.
fn printed(folder: &Folder, variables: &[(&str, &str)], arguments: &[&str]) -> String {
    let mut command = tidegate(&folder.path(""));
    command.envs(variables.iter().copied());
    command.args(["config", "print"]).args(arguments);
    let (code, said, error) = ended(command.output().expect("the binary"));
    assert_eq!((code, error.as_str()), (0, ""), "{said}");
    said
}

#[test]
fn print_without_a_file_shows_what_holds_anyway() {
    let folder = Folder::new();
    let expected = r#"[server]
http = ["127.0.0.1:8080"]
gate_headers = []
trusted_proxies = []
hosts = []
drain = "2s"
idle = "75s"
log = "info"
log_keys = false
access_log = false

[stores.default]
url = "memory:"
max_keys = 1000000
when_full = "evict"

[[policies]]
name = "default"
key = "{key}"
limit = "10r/s"
algorithm = "token_bucket"
burst = 10
strict = false
mode = "exact"
refusal_memory = "1s"
on_error = "local"
local_share = 1.0
count_denied = false
shadow = false
enabled = true
store = "default"
headers = "ietf"
"#;
    assert_eq!(printed(&folder, &[], &[]), expected);
    // It reads back as what it says.
    folder.write("printed.toml", expected);
    assert_eq!(printed(&folder, &[], &["printed.toml"]), expected);
}

#[test]
fn print_shows_what_flags_and_variables_say_instead_of_the_file() {
    let folder = Folder::new();
    folder.write(
        "file.toml",
        "[server]\nhttp = \"unix:file.sock\"\n[stores.default]\nurl = \"redis://file\"\n",
    );
    let says = |variables: &[(&str, &str)], arguments: &[&str], lines: [&str; 2]| {
        let printed = printed(&folder, variables, arguments);
        for line in lines {
            assert!(printed.contains(&format!("\n{line}\n")), "{printed}");
        }
    };
    let file = [("TIDEGATE_CONFIG", "file.toml")];
    let of_file = ["http = [\"unix:file.sock\"]", "url = \"redis://file\""];
    says(&[], &["file.toml"], of_file);
    says(&file, &[], of_file);
    let variables = [
        ("TIDEGATE_CONFIG", "missing.toml"),
        ("TIDEGATE_STORE", "redis://variable"),
        ("TIDEGATE_HTTP", "localhost:1,localhost:2"),
    ];
    says(
        &variables,
        &["file.toml"],
        [
            "http = [\"localhost:1\", \"localhost:2\"]",
            "url = \"redis://variable\"",
        ],
    );
    says(
        &variables,
        &["file.toml", "--store", "memory:", "--http", "localhost:3"],
        ["http = [\"localhost:3\"]", "url = \"memory:\""],
    );
}

#[test]
fn v8_printed_config_hides_secrets_and_refuses_to_start_without_them() {
    let folder = Folder::new();
    let file = |token: &str, url: &str| {
        format!("[server]\nadmin_token = \"{token}\"\n[stores.default]\nurl = \"{url}\"\n")
    };
    folder.write("text.toml", file("hunter2", "redis://u:hunter2@h:1/2"));
    let text = printed(&folder, &[], &["text.toml"]);
    assert!(text.contains("admin_token = \"env:SET_ME\"\n"), "{text}");
    assert!(text.contains("url = \"redis://***@h:1/2\"\n"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");

    let store = "[stores.default]\nurl = \"redis://h\"\npassword = \"hunter2\"\n";
    for (file, error) in [
        (
            "[server]\nresp = \"127.0.0.1:0\"\nresp_token = \"hunter2\"\n",
            "server.resp_token: the environment variable SET_ME is not set: expected the token in it",
        ),
        (
            "[server]\nadmin_token = \"hunter2\"\n",
            "server.admin_token: the environment variable SET_ME is not set: expected the token in it",
        ),
        (
            store,
            "store \"default\": password: the environment variable SET_ME is not set",
        ),
        (
            "[stores.default]\nurl = \"redis://u:hunter2@h\"\n",
            "store \"default\": url: *** stands for a user and a password that were not printed: expected them in its place",
        ),
    ] {
        folder.write("secret.toml", file);
        folder.write("printed.toml", printed(&folder, &[], &["secret.toml"]));
        let (code, _, said) = run(&folder, &["config", "check", "printed.toml"]);
        assert_eq!((code, said), (2, format!("printed.toml: {error}\n")));
    }

    folder.write("env.toml", file("env:NOT_SET", "env:NOT_SET_EITHER"));
    let text = printed(&folder, &[], &["env.toml"]);
    assert!(text.contains("admin_token = \"env:NOT_SET\"\n"), "{text}");
    assert!(text.contains("url = \"env:NOT_SET_EITHER\"\n"), "{text}");

    let store = [("TIDEGATE_STORE", "redis://:hunter2@h")];
    let text = printed(&folder, &store, &[]);
    assert!(text.contains("url = \"redis://***@h\"\n"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn print_of_a_wrong_file_says_what_is_wrong() {
    let folder = Folder::new();
    folder.write(
        "bad.toml",
        "[server]\nhtpp = 1\n[stores.default]\nmax_keys = 0\n",
    );
    let (code, said, error) = run(&folder, &["config", "print", "bad.toml"]);
    assert_eq!((code, said.as_str()), (2, ""));
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(
        lines[0],
        "bad.toml:2:1: server.htpp: unknown field: did you mean \"http\"?"
    );
    assert!(lines[1].starts_with("bad.toml:4:12: stores.default.max_keys: 0: "));
    assert_eq!(lines.len(), 2, "{error}");
}
