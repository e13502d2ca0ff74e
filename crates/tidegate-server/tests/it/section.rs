//! The section `[server]` of the config file: what is read, what is refused together
//! with the rest of the file, what is printed.

use proptest::prelude::*;
use proptest::sample::select;
use tidegate_config::{Config, ConfigErrors, Secret};
use tidegate_server::section::{Address, Server};
use tidegate_server::settings;

/// The secret of every file here that has one.
const SECRET: &str = "hunter2";

fn parse(text: &str) -> Result<(Server, Config), ConfigErrors> {
    settings::parse(text, "tidegate.toml", None)
}

/// What a right file says of the server.
fn server(text: &str) -> Server {
    let (server, _) = parse(text).unwrap_or_else(|errors| panic!("{errors}\nin:\n{text}"));
    server
}

/// A description of a file, its text, and its error messages.
fn check(table: &[(&str, &str, &str)]) {
    for (what, text, expected) in table {
        let errors = parse(text).expect_err(what);
        assert_eq!(errors.to_string(), *expected, "{what}");
    }
}

#[test]
fn every_field_has_its_meaning() {
    let tcp = |text: &str| Address::Tcp(text.into());
    for (fields, expected) in [
        ("http = \"[::1]:0\"", vec![tcp("[::1]:0")]),
        (
            "http = [\"localhost:80\", \"unix:/run/tidegate.sock\"]",
            vec![
                tcp("localhost:80"),
                Address::Unix("/run/tidegate.sock".into()),
            ],
        ),
    ] {
        let read = server(&format!("[server]\n{fields}"));
        assert_eq!(read.http, expected, "{fields}");
        assert_eq!(server(&read.to_string()), read, "{fields}");
    }
    let read = server("[server]\nadmin_token = \"s3cret\"");
    assert_eq!(read.admin_token, Some(Secret::Text("s3cret".into())));
    for text in [
        "[server]\nadmin_token = \"env:TOKEN\"\ngate_headers = [\"ip\"]\n",
        "server.admin_token = \"env:TOKEN\"\nserver.gate_headers = [\"ip\"]\n",
    ] {
        let expected = Server {
            admin_token: Some(Secret::Env("TOKEN".into())),
            gate_headers: vec!["ip".into()],
            ..Server::default()
        };
        assert_eq!(server(text), expected, "{text}");
    }
    assert_eq!(server(""), Server::default());
}

#[test]
fn what_is_wrong_with_times_levels_and_permissions() {
    check(&[
        (
            "a number without a unit",
            "[server]\ndrain = 2",
            "tidegate.toml:2:9: server.drain: 2: expected a duration in quotes, such as \"50ms\" or \"1s\", from 0s to 10m",
        ),
        (
            "no time at all",
            "[server]\nidle = \"0s\"",
            "tidegate.toml:2:8: server.idle: \"0s\": expected a duration in quotes, such as \"50ms\" or \"1s\", from 1s to 10m",
        ),
        (
            "another level",
            "[server]\nlog = \"loud\"",
            "tidegate.toml:2:7: server.log: \"loud\": expected one of \"off\", \"error\", \"warn\", \"info\", \"debug\", \"trace\"",
        ),
        (
            "permissions that are not octal",
            "[server]\nsocket_mode = \"0680\"",
            "tidegate.toml:2:15: server.socket_mode: \"0680\": expected permissions in octal, such as \"0660\"",
        ),
        (
            "permissions of something else",
            "[server]\nsocket_mode = \"4755\"",
            "tidegate.toml:2:15: server.socket_mode: \"4755\": expected permissions in octal, such as \"0660\"",
        ),
    ]);
    let text = "[server]\nsocket_mode = \"0660\"\ndrain = \"500ms\"\nidle = \"1m\"\nlog = \"debug\"\naccess_log = true\nadmin_token = \"file:token\"\n";
    let read = server(text);
    assert_eq!(read.socket_mode, Some(0o660));
    assert_eq!(read.admin_token, Some(Secret::File("token".into())));
    assert_eq!(server(&read.to_string()), read);
    assert_eq!(server(&format!("{read:#}")), read);
}

#[test]
fn what_is_wrong_in_the_server() {
    check(&[
        (
            "an address without a port",
            r#"[server]
http = "localhost""#,
            r#"tidegate.toml:2:8: server.http: "localhost": expected an address such as "127.0.0.1:8080" or "unix:/run/tidegate.sock", or a list of them"#,
        ),
        (
            "a port out of range",
            r#"[server]
http = "127.0.0.1:65536""#,
            r#"tidegate.toml:2:8: server.http: "127.0.0.1:65536": expected an address such as "127.0.0.1:8080" or "unix:/run/tidegate.sock", or a list of them"#,
        ),
        (
            "an IPv6 address without brackets",
            r#"[server]
http = "::1:8080""#,
            r#"tidegate.toml:2:8: server.http: "::1:8080": expected an address such as "127.0.0.1:8080" or "unix:/run/tidegate.sock", or a list of them"#,
        ),
        (
            "a URL as an address",
            r#"[server]
http = "http://localhost:8080""#,
            r#"tidegate.toml:2:8: server.http: "http://localhost:8080": expected an address such as "127.0.0.1:8080" or "unix:/run/tidegate.sock", or a list of them"#,
        ),
        (
            "an address that is a number",
            r#"[server]
http = 8080"#,
            r#"tidegate.toml:2:8: server.http: 8080: expected an address such as "127.0.0.1:8080" or "unix:/run/tidegate.sock", or a list of them"#,
        ),
        (
            "a socket without a path",
            r#"[server]
http = "unix:""#,
            r#"tidegate.toml:2:8: server.http: "unix:": expected an address such as "127.0.0.1:8080" or "unix:/run/tidegate.sock", or a list of them"#,
        ),
        (
            "a wrong item of a list, on its own line",
            r#"[server]
http = [
  "127.0.0.1:8080",
  8081,
  "nowhere",
]"#,
            r#"tidegate.toml:4:3: server.http: 8081: expected an address such as "127.0.0.1:8080" or "unix:/run/tidegate.sock", or a list of them
tidegate.toml:5:3: server.http: "nowhere": expected an address such as "127.0.0.1:8080" or "unix:/run/tidegate.sock", or a list of them"#,
        ),
        (
            "the same address twice",
            r#"[server]
http = ["[::1]:80", "[::1]:80"]"#,
            r#"tidegate.toml:2:21: server.http: "[::1]:80": twice: expected it once"#,
        ),
        (
            "no address at all",
            r#"[server]
http = []"#,
            r#"tidegate.toml:2:8: server.http: an empty list: expected an address such as "127.0.0.1:8080" or "unix:/run/tidegate.sock", or a list of them"#,
        ),
        (
            "an empty token",
            r#"[server]
admin_token = """#,
            r#"tidegate.toml:2:15: server.admin_token: "": expected "file:PATH", "env:NAME", or a token"#,
        ),
        (
            "a token from a variable without a name",
            r#"[server]
admin_token = "env:""#,
            r#"tidegate.toml:2:15: server.admin_token: "env:": expected "file:PATH", "env:NAME", or a token"#,
        ),
        (
            "a token that no header could carry",
            r#"[server]
admin_token = "two words""#,
            r#"tidegate.toml:2:15: server.admin_token: a token with spaces or other characters: expected visible ASCII characters"#,
        ),
        (
            "a key without its certificate",
            r#"[server]
tls_key = "server.key""#,
            r#"tidegate.toml:1:1: server.tls_cert: missing: expected it together with tls_key = "server.key""#,
        ),
        (
            "an attribute that is no name",
            r#"[server]
gate_headers = ["ip", "user id"]"#,
            r#"tidegate.toml:2:23: server.gate_headers: "user id": expected 1 to 64 of the characters A-Z a-z 0-9 _ -"#,
        ),
        (
            "two attributes of one header",
            r#"[server]
gate_headers = ["user_id", "User-Id"]"#,
            r#"tidegate.toml:2:28: server.gate_headers: "User-Id": maps to the same header as another name: expected it once"#,
        ),
        (
            "one attribute and not a list",
            r#"[server]
gate_headers = "ip""#,
            r#"tidegate.toml:2:16: server.gate_headers: "ip": expected a list of attributes, such as ["ip"]"#,
        ),
        (
            "an attribute that is a number",
            r#"[server]
gate_headers = ["ip", 7]"#,
            r#"tidegate.toml:2:23: server.gate_headers: 7: expected a list of attributes, such as ["ip"]"#,
        ),
        (
            "an unknown field of the server",
            r#"[server]
port = 8080"#,
            r#"tidegate.toml:2:1: server.port: unknown field: expected one of http, admin, resp, grpc, resp_token, admin_token, gate_headers, trusted_proxies, hosts, tls_cert, tls_key, tls_client_ca, tls_client_listeners, socket_mode, drain, idle, log, log_keys, access_log"#,
        ),
        (
            "an unknown field of the server, almost right",
            r#"[server]
admin-tokens = "x""#,
            r#"tidegate.toml:2:1: server.admin-tokens: unknown field: did you mean "admin_token"?"#,
        ),
    ]);
}

#[test]
fn mistakes_of_all_sections_are_told_together_in_the_order_of_their_lines() {
    check(&[
        (
            "in the order of the lines",
            r#"[[policies]]
name = "b"
limit = "10"
burst = 0

[server]
http = 1
colour = 2

[[policies]]
name = "b"
key = "{"
limit = "1r/s"
store = "none"

[stores.default]
max_keys = -1"#,
            r#"tidegate.toml:3:9: policies.b.limit: "10": expected a rate such as 100r/s, 100r/m, 100r/h or 100r/d, or a count per window such as 5/10s or 3/500ms
tidegate.toml:4:9: policies.b.burst: 0: expected a whole number from 1 to 4294967295
tidegate.toml:7:8: server.http: 1: expected an address such as "127.0.0.1:8080" or "unix:/run/tidegate.sock", or a list of them
tidegate.toml:8:1: server.colour: unknown field: expected one of http, admin, resp, grpc, resp_token, admin_token, gate_headers, trusted_proxies, hosts, tls_cert, tls_key, tls_client_ca, tls_client_listeners, socket_mode, drain, idle, log, log_keys, access_log
tidegate.toml:11:8: policies[1].name: "b": two policies have this name: expected different names
tidegate.toml:12:7: policies[1].key: "{": an unmatched brace: expected attributes in braces, such as "{ip}"
tidegate.toml:14:9: policies[1].store: "none": no such store: expected one of "default"
tidegate.toml:17:12: stores.default.max_keys: -1: expected a whole number from 1 to 1000000000"#,
        ),
        (
            "columns count characters, not bytes",
            r#"server = { gate_headers = ["größe", "日本"], http = "é" }"#,
            r#"tidegate.toml:1:28: server.gate_headers: "größe": expected 1 to 64 of the characters A-Z a-z 0-9 _ -
tidegate.toml:1:37: server.gate_headers: "日本": expected 1 to 64 of the characters A-Z a-z 0-9 _ -
tidegate.toml:1:51: server.http: "é": expected an address such as "127.0.0.1:8080" or "unix:/run/tidegate.sock", or a list of them"#,
        ),
        (
            "dotted keys",
            r#"server.http = 5
stores.default.max_keys = 0"#,
            r#"tidegate.toml:1:15: server.http: 5: expected an address such as "127.0.0.1:8080" or "unix:/run/tidegate.sock", or a list of them
tidegate.toml:2:27: stores.default.max_keys: 0: expected a whole number from 1 to 1000000000"#,
        ),
    ]);
}

#[test]
fn no_error_repeats_a_token() {
    for text in [
        "[server]\nadmin_token = [\"hunter2\"]",
        "[server]\nadmin_token = { value = \"hunter2\" }",
        "[server]\nadmin_tokn = \"hunter2\"",
        "[server]\nadmin_token = \"hunter2\"\ncolour = 1",
        "[server]\nadmin_token = \"hunter2",
        "[server]\nadmin_token = hunter2",
        "[server]\nadmin_token = \"hunter2\"\nadmin_token = \"hunter2\"",
    ] {
        let errors = parse(text).expect_err(text);
        assert!(!errors.to_string().contains(SECRET), "{errors}");
        assert!(!format!("{errors:?}").contains(SECRET), "{errors:?}");
    }
}

#[test]
fn a_token_that_is_a_number_is_not_repeated() {
    check(&[(
        "a number",
        "[server]\nadmin_token = 271828",
        "tidegate.toml:2:15: server.admin_token: not a string: \
         expected \"file:PATH\", \"env:NAME\", or a token",
    )]);
}

#[test]
fn a_token_is_not_printed() {
    let hidden = server("[server]\nadmin_token = \"hunter2\"");
    for printed in [
        hidden.to_string(),
        format!("{hidden:#}"),
        format!("{hidden:?}"),
    ] {
        assert!(!printed.contains(SECRET), "{printed}");
    }
    let printed = hidden.to_string();
    // What was hidden must not become a token that everybody knows, nor none at all.
    let set_me = Secret::Env("SET_ME".into());
    assert_eq!(server(&printed).admin_token, Some(set_me));
    // The name of a variable is no secret.
    let named = server("[server]\nadmin_token = \"env:TOKEN\"");
    assert!(named.to_string().contains("admin_token = \"env:TOKEN\"\n"));
    assert!(format!("{named:?}").contains("env:TOKEN"));
}

#[test]
fn long_texts_are_cut_in_messages() {
    let quoted = format!("\"\"\"{}\"\"\"", "é\n".repeat(500_000));
    for field in ["http = ", "gate_headers = [", "admin_token = ["] {
        let close = if field.ends_with('[') { "]" } else { "" };
        let errors = parse(&format!("[server]\n{field}{quoted}{close}")).expect_err(field);
        for error in errors.as_slice() {
            assert!(error.to_string().len() < 1_000, "{error}");
        }
    }
}

#[path = "../../../../fuzz/properties/config.rs"]
mod fuzzed;

/// Each of these made the property fail although the config was right.
#[test]
fn s16_fuzzed_property_holds_with_every_section_and_every_secret() {
    for text in [
        "[envoy]\nquota = true",
        "[server]\nresp_token = \"x\"\nadmin_token = \"y\"",
        "[stores.default]\nurl = \"redis://h\"\npassword = \"x\"",
        "[stores.default]\nurl = \"redis://u:p@h\"",
        "policies = []",
    ] {
        assert!(parse(text).is_ok(), "{text}");
        fuzzed::check(text);
    }
}

proptest! {
    #[test]
    fn what_is_printed_reads_back(read in servers()) {
        for text in [read.to_string(), format!("{read:#}")] {
            let again = parse(&text);
            prop_assert!(again.is_ok(), "{}", text);
            prop_assert_eq!(&again.unwrap().0, &read, "{}", text);
        }
    }
}

/// Texts that are hard to write down.
fn texts() -> impl Strategy<Value = String> {
    const ODD: &[&str] = &[
        "", " ", "\"", "'", "\\", "\n", "\t", "\0", "\u{85}", "'''", "#", "日本",
    ];
    prop_oneof![select(ODD).prop_map(String::from), any::<String>()]
}

fn servers() -> impl Strategy<Value = Server> {
    let address = prop_oneof![
        select(vec!["localhost:0", "[::1]:8080", "127.0.0.1:65535"])
            .prop_map(|text| Address::Tcp(text.into())),
        texts().prop_filter_map("a path", |text| {
            (!text.is_empty() && !text.contains('\0')).then_some(Address::Unix(text))
        }),
    ];
    let token = texts().prop_filter_map("a name", |name| {
        (!name.is_empty()).then_some(Secret::Env(name))
    });
    let http = prop::collection::vec(address, 0..4);
    let headers = prop::sample::subsequence(vec!["ip", "user_id", "X", "a-b"], 0..=4);
    (http, prop::option::of(token), headers).prop_map(|(mut http, admin_token, headers)| {
        let mut kept = Vec::new();
        http.retain(|address| {
            let new = !kept.contains(address);
            kept.push(address.clone());
            new
        });
        if http.is_empty() {
            http = Server::default().http;
        }
        let admin = match headers.len() {
            0 | 3 => http.clone(),
            _ => Vec::new(),
        };
        Server {
            resp: match headers.len() {
                1 | 3 => http.clone(),
                _ => Vec::new(),
            },
            grpc: match headers.len() {
                2 | 3 => http.clone(),
                _ => Vec::new(),
            },
            resp_token: admin_token.clone().filter(|_| headers.len() == 3),
            http,
            admin,
            admin_token,
            log_keys: headers.len() % 2 == 1,
            tls_cert: (headers.len() > 1).then(|| "cert.pem".into()),
            tls_key: (headers.len() > 1).then(|| "key.pem".into()),
            tls_client_ca: (headers.len() > 2).then(|| "ca.pem".into()),
            tls_client_listeners: match headers.len() {
                4 => vec!["admin", "http"],
                _ => Server::default().tls_client_listeners,
            },
            trusted_proxies: ["10.0.0.0/8", "fd00::1/128", "unix:"][..headers.len().min(3)]
                .iter()
                .map(|text| text.parse().expect("a network"))
                .collect(),
            hosts: ["a.example", "b"][..headers.len() / 2]
                .iter()
                .map(ToString::to_string)
                .collect(),
            gate_headers: headers.into_iter().map(String::from).collect(),
            ..Server::default()
        }
    })
}
