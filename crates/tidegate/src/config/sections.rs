//! The file from the top: the server, the stores, the policies.

use std::collections::BTreeMap;
use std::time::Duration;

use super::policies;
use super::read::Fields;
use super::{Address, Config, Secret, Server, Store};
use crate::memory::WhenFull;
use crate::policy::name::{self, is_name, shown};

/// Reads everything; what is wrong is in the errors.
pub(super) fn config(root: &Fields<'_>) -> Config {
    let standard = Config::default();
    let server = root.table("server").map(|fields| server(&fields));
    let stores = stores(root);
    let policies = policies::policies(root, &stores);
    Config {
        server: server.unwrap_or_default(),
        stores,
        policies: match root.has("policies") {
            true => policies,
            false => standard.policies,
        },
    }
}

fn server(fields: &Fields<'_>) -> Server {
    let standard = Server::default();
    let expected =
        "an address such as \"127.0.0.1:8080\" or \"unix:/run/tidegate.sock\", or a list of them";
    let http = fields.texts("http", true, expected).map(|texts| {
        let mut addresses = Vec::new();
        for (text, span) in texts {
            let message = match address(text) {
                Some(address) if !addresses.contains(&address) => {
                    addresses.push(address);
                    continue;
                }
                Some(_) => format!("{}: twice: expected it once", shown(text)),
                None => format!("{}: expected {expected}", shown(text)),
            };
            fields.error_at(span, "http", message);
        }
        if addresses.is_empty() && !fields.is_wrong("http") {
            fields.error("http", format!("an empty list: expected {expected}"));
        }
        addresses
    });
    let expected = "a token, or \"env:NAME\" for that of an environment variable";
    let admin_token = fields.secret("admin_token", expected).and_then(|text| {
        let secret = match text.strip_prefix("env:") {
            Some(name) => Secret::Env(name.into()),
            None => Secret::Text(text.into()),
        };
        let (Secret::Env(part) | Secret::Text(part)) = &secret;
        if part.is_empty() {
            fields.error(
                "admin_token",
                format!("{}: expected {expected}", shown(text)),
            );
            return None;
        }
        Some(secret)
    });
    let expected = "a list of attributes, such as [\"ip\"]";
    let gate_headers = fields.texts("gate_headers", false, expected);
    let gate_headers = gate_headers.map(|names| {
        let mut kept: Vec<String> = Vec::new();
        // `user_id` and `user-id` are one header.
        let header = |name: &str| name.to_lowercase().replace('_', "-");
        for (text, span) in names {
            let message = if !is_name(text) {
                format!("{}: expected {}", shown(text), name::EXPECTED)
            } else if kept.iter().any(|other| header(other) == header(text)) {
                format!("{}: this header is taken: expected it once", shown(text))
            } else {
                kept.push(text.into());
                continue;
            };
            fields.error_at(span, "gate_headers", message);
        }
        kept
    });
    fields.finish();
    Server {
        http: http.unwrap_or(standard.http),
        admin_token,
        gate_headers: gate_headers.unwrap_or_default(),
    }
}

fn address(text: &str) -> Option<Address> {
    if let Some(path) = text.strip_prefix("unix:") {
        return (!path.is_empty() && !path.contains('\0')).then(|| Address::Unix(path.into()));
    }
    let (host, port) = text.rsplit_once(':')?;
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    let is_name = (1..=253).contains(&host.len()) && host.bytes().all(is_part);
    let inside = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_ipv6 = inside.is_some_and(|host| host.parse::<std::net::Ipv6Addr>().is_ok());
    let is_port = crate::duration::number(port).is_some_and(|port| port <= u64::from(u16::MAX));
    ((is_name || is_ipv6) && is_port).then(|| Address::Tcp(text.into()))
}

fn stores(root: &Fields<'_>) -> BTreeMap<String, Store> {
    let mut stores = BTreeMap::from([("default".to_owned(), Store::default())]);
    let Some(tables) = root.table("stores") else {
        return stores;
    };
    for (text, fields) in tables.named_tables() {
        stores.insert(text.into(), store(&fields));
    }
    stores
}

/// Kinds of stores that are still to come.
const NOT_BUILT: [&str; 4] = [
    "redis://",
    "rediss://",
    "redis-cluster://",
    "redis-sentinel://",
];

fn store(fields: &Fields<'_>) -> Store {
    let standard = Store::default();
    let url = fields.secret("url", "\"memory:\"");
    if let Some(url) = url.filter(|url| *url != "memory:") {
        // What follows may hold a password.
        let kind = NOT_BUILT.iter().find(|kind| url.starts_with(**kind));
        let message = match kind {
            Some(kind) => format!("\"{kind}...\" is not built yet: expected \"memory:\""),
            None => format!("{}: expected \"memory:\"", shown(&public(url))),
        };
        fields.error("url", message);
    }
    let prefix = fields.text("prefix", "a text such as \"tg\"");
    if let Some(prefix) = prefix.filter(|prefix| !is_prefix(prefix)) {
        let expected = "1 to 64 of the characters A-Z a-z 0-9 . _ : -";
        fields.error("prefix", format!("{}: expected {expected}", shown(prefix)));
    }
    let (millisecond, minute) = (Duration::from_millis(1), Duration::from_secs(60));
    let store = Store {
        url: standard.url.clone(),
        prefix: prefix.map_or(standard.prefix.clone(), str::to_owned),
        timeout: fields
            .duration("timeout", millisecond, minute)
            .unwrap_or(standard.timeout),
        connections: small(
            fields.number_in("connections", 1..1025),
            standard.connections,
        ),
        replica_acks: small(
            fields.number_in("replica_acks", 0..17),
            standard.replica_acks,
        ),
        max_keys: fields
            .number_in("max_keys", 1..1_000_000_001)
            .and_then(|number| usize::try_from(number).ok())
            .unwrap_or(standard.max_keys),
        when_full: fields
            .choice(
                "when_full",
                &[("evict", WhenFull::Evict), ("deny", WhenFull::Deny)],
            )
            .unwrap_or(standard.when_full),
    };
    // A setting that would have no effect is refused, unless it says what holds anyway.
    if !fields.is_wrong("url") {
        let without_effect = [
            ("prefix", store.prefix != standard.prefix),
            ("timeout", store.timeout != standard.timeout),
            ("connections", store.connections != standard.connections),
            ("replica_acks", store.replica_acks != standard.replica_acks),
        ];
        for (field, changed) in without_effect {
            if changed && !fields.is_wrong(field) {
                fields.error(
                    field,
                    "without effect in memory: expected it with a Redis store only",
                );
            }
        }
    }
    fields.finish();
    store
}

fn small(number: Option<u64>, standard: u32) -> u32 {
    number
        .and_then(|number| u32::try_from(number).ok())
        .unwrap_or(standard)
}

/// A wrong URL without what may be secret.
pub(super) fn public(url: &str) -> String {
    match url.split_once(':') {
        Some((scheme, rest)) if !rest.is_empty() && !scheme.contains('@') => {
            format!("{scheme}:…")
        }
        _ if url.contains('@') => "…".into(),
        _ => url.into(),
    }
}

/// A hash tag begins with a brace: there must be none before it.
fn is_prefix(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    (1..=64).contains(&text.len()) && text.bytes().all(is_part)
}
