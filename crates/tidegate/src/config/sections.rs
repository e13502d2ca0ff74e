//! The file from the top: the server, the stores, the policies.

use std::collections::BTreeMap;
use std::time::Duration;

use super::policies;
use super::read::Fields;
use super::url::{self, StoreUrl};
use super::{Address, Config, Secret, Server, Store};
use crate::memory::WhenFull;
use crate::policy::name::{self, is_name, shown};

/// Reads everything; what is wrong is in the errors. `url` is where the store `default`
/// is in place of what the file says.
pub(super) fn config(root: &Fields<'_>, url: Option<&StoreUrl>) -> Config {
    let standard = Config::default();
    let server = root.table("server").map(|fields| server(&fields));
    let mut stores = stores(root);
    if let (Some(url), Some(store)) = (url, stores.get_mut("default")) {
        store.url = url.clone();
    }
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

const ADDRESSES: &str =
    "an address such as \"127.0.0.1:8080\" or \"unix:/run/tidegate.sock\", or a list of them";

fn server(fields: &Fields<'_>) -> Server {
    let standard = Server::default();
    let expected = ADDRESSES;
    let http = fields.texts("http", true, expected).map(|texts| {
        let mut addresses = Vec::new();
        for (text, span) in texts {
            let message = match address(text) {
                Ok(address) if !addresses.contains(&address) => {
                    addresses.push(address);
                    continue;
                }
                Ok(_) => format!("{}: twice: expected it once", shown(text)),
                Err(message) => message,
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
        let fault = match &secret {
            _ if part.is_empty() => format!("{}: expected {expected}", shown(text)),
            // Another one could not stand in the header of a request.
            Secret::Text(token) if !token.bytes().all(|byte| byte.is_ascii_graphic()) => {
                "a token with spaces or other signs: expected visible ASCII characters".into()
            }
            _ => return Some(secret),
        };
        fields.error("admin_token", fault);
        None
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
    let server = Server {
        http: http.unwrap_or(standard.http),
        admin_token,
        gate_headers: gate_headers.unwrap_or_default(),
        tls_cert: path(fields, "tls_cert"),
        tls_key: path(fields, "tls_key"),
        log_keys: fields.flag("log_keys").unwrap_or(standard.log_keys),
    };
    check_pair(fields);
    fields.finish();
    server
}

/// Reads an address, or says what is wrong with it.
pub(super) fn address(text: &str) -> Result<Address, String> {
    let read = match text.strip_prefix("unix:") {
        Some(path) => {
            (!path.is_empty() && !path.contains('\0')).then(|| Address::Unix(path.into()))
        }
        None => text.rsplit_once(':').and_then(|(host, port)| {
            let port = crate::duration::number(port);
            let is_port = port.is_some_and(|port| port <= u64::from(u16::MAX));
            (is_host(host, b".-") && is_port).then(|| Address::Tcp(text.into()))
        }),
    };
    read.ok_or_else(|| format!("{}: expected {ADDRESSES}", shown(text)))
}

/// Whether this is a name, of letters, digits and `others`, or an IPv6 address in brackets.
pub(super) fn is_host(host: &str, others: &[u8]) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || others.contains(&byte);
    let is_name = (1..=253).contains(&host.len()) && host.bytes().all(is_part);
    let inside = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    is_name || inside.is_some_and(|host| host.parse::<std::net::Ipv6Addr>().is_ok())
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

fn store(fields: &Fields<'_>) -> Store {
    let standard = Store::default();
    let url = fields.secret("url", url::EXPECTED).and_then(|text| {
        let url = StoreUrl::parse(text);
        url.map_err(|message| fields.error("url", message)).ok()
    });
    let prefix = fields.text("prefix", "a text such as \"tg\"");
    if let Some(prefix) = prefix.filter(|prefix| !is_prefix(prefix)) {
        let expected = "1 to 64 of the characters A-Z a-z 0-9 . _ : -";
        fields.error("prefix", format!("{}: expected {expected}", shown(prefix)));
    }
    let (millisecond, minute) = (Duration::from_millis(1), Duration::from_secs(60));
    let store = Store {
        url: url.unwrap_or(StoreUrl::Memory),
        tls_ca: path(fields, "tls_ca"),
        tls_cert: path(fields, "tls_cert"),
        tls_key: path(fields, "tls_key"),
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
    check_store(fields, &store, &standard);
    fields.finish();
    store
}

/// A setting that would have no effect is refused, unless it says what holds anyway.
fn check_store(fields: &Fields<'_>, store: &Store, standard: &Store) {
    let in_memory = store.url == StoreUrl::Memory;
    let encrypted = store.url.may_be_encrypted();
    let (memory, redis) = (
        "without effect in memory: expected it with a Redis store only",
        "without effect in Redis: expected it with a store in memory only",
    );
    let tls = "without effect here: expected it with a rediss:// store only";
    let (acks, when_full) = (store.replica_acks, store.when_full);
    let rules = [
        ("prefix", store.prefix != standard.prefix, in_memory, memory),
        (
            "timeout",
            store.timeout != standard.timeout,
            in_memory,
            memory,
        ),
        (
            "connections",
            store.connections != standard.connections,
            in_memory,
            memory,
        ),
        (
            "replica_acks",
            acks != standard.replica_acks,
            in_memory,
            memory,
        ),
        (
            "max_keys",
            store.max_keys != standard.max_keys,
            !in_memory,
            redis,
        ),
        (
            "when_full",
            when_full != standard.when_full,
            !in_memory,
            redis,
        ),
        ("tls_ca", store.tls_ca.is_some(), !encrypted, tls),
        ("tls_cert", store.tls_cert.is_some(), !encrypted, tls),
        ("tls_key", store.tls_key.is_some(), !encrypted, tls),
    ];
    for (field, said, idle, message) in rules {
        if said && idle && !fields.is_wrong("url") && !fields.is_wrong(field) {
            fields.error(field, message);
        }
    }
    check_pair(fields);
}

/// A certificate is of no use without its key.
fn check_pair(fields: &Fields<'_>) {
    for (field, other) in [("tls_cert", "tls_key"), ("tls_key", "tls_cert")] {
        if fields.has(field) && !fields.has(other) && !fields.is_wrong(field) {
            fields.error(other, format!("missing: expected it beside {field}"));
        }
    }
}

fn path(fields: &Fields<'_>, name: &'static str) -> Option<String> {
    let path = fields.text(name, "the path of a file")?;
    if path.is_empty() {
        fields.error(name, "\"\": expected the path of a file");
    }
    Some(path.into())
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
