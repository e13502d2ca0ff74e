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

#[test]
fn files_are_read_printed_and_refused_as_written() {
    tidegate_testkit::cases::check(include_str!("section.txt"), 40, |text| {
        let parsed = parse(text);
        let debug = format!("{parsed:?}");
        let (said, commented) = match parsed {
            Ok((server, _)) => (format!("{server:#}"), server.to_string()),
            Err(errors) => (errors.to_string(), String::new()),
        };
        assert!(![debug, commented].concat().contains(SECRET), "{said}");
        said.trim_end().to_owned()
    });
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
