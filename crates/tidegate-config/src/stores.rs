//! The sections `[stores.NAME]`: where counters are kept.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate::text::shown;
use tidegate::{MemoryStore, WhenFull};

use crate::read::Fields;
use crate::url::{self, Secret, StoreUrl};

/// Where counters are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// The URL.
    pub url: StoreUrl,
    /// The user name, if it is not in the URL.
    pub username: Option<String>,
    /// The password, if it is not in the URL. A password in a file may change at any time.
    pub password: Option<Secret>,
    /// For `rediss://`: the file of the CA that signed the server's certificate, if it is not
    /// a public one.
    pub tls_ca: Option<String>,
    /// The file of the client certificate, if the server asks for one.
    pub tls_cert: Option<String>,
    /// The file of its private key.
    pub tls_key: Option<String>,
    /// The prefix of keys in a shared store.
    pub prefix: String,
    /// The deadline of a check, retries included.
    pub timeout: Duration,
    /// Connections to each server.
    pub connections: u32,
    /// How many replicas must acknowledge a charge.
    pub replica_acks: u32,
    /// Memory stores: the maximum number of keys.
    pub max_keys: usize,
    /// Memory stores: what to do with a new key when every slot holds a key in use.
    pub when_full: WhenFull,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            url: StoreUrl::Memory,
            username: None,
            password: None,
            tls_ca: None,
            tls_cert: None,
            tls_key: None,
            prefix: "tg".into(),
            timeout: Duration::from_millis(50),
            connections: 2,
            replica_acks: 0,
            max_keys: 1_000_000,
            when_full: WhenFull::Evict,
        }
    }
}

impl StoreConfig {
    /// Builds the store, if it is in memory.
    #[must_use]
    pub fn in_memory(&self) -> Option<MemoryStore> {
        let builder = MemoryStore::builder()
            .max_keys(self.max_keys)
            .when_full(self.when_full);
        (self.url == StoreUrl::Memory).then(|| builder.build())
    }
}

/// Reads all stores and reports their errors.
pub(crate) fn read(root: &Fields<'_>) -> BTreeMap<String, StoreConfig> {
    let mut stores = BTreeMap::from([("default".to_owned(), StoreConfig::default())]);
    let Some(tables) = root.table("stores") else {
        return stores;
    };
    for (text, fields) in tables.named_tables() {
        stores.insert(text.into(), store(&fields));
    }
    stores
}

fn store(fields: &Fields<'_>) -> StoreConfig {
    let standard = StoreConfig::default();
    let url = fields.secret("url", url::EXPECTED).and_then(|text| {
        let url = text.parse::<StoreUrl>();
        url.map_err(|message| fields.error("url", message)).ok()
    });
    let prefix = fields.text("prefix", "a string such as \"tg\"");
    if let Some(prefix) = prefix.filter(|prefix| !is_prefix(prefix)) {
        let expected = "1 to 64 of the characters A-Z a-z 0-9 . _ : -";
        fields.error("prefix", format!("{}: expected {expected}", shown(prefix)));
    }
    let (millisecond, minute) = (Duration::from_millis(1), Duration::from_secs(60));
    let store = StoreConfig {
        url: url.unwrap_or(StoreUrl::Memory),
        username: username(fields),
        password: password(fields),
        tls_ca: fields.path("tls_ca"),
        tls_cert: fields.path("tls_cert"),
        tls_key: fields.path("tls_key"),
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

/// A setting that would have no effect is an error, unless it has its default value.
fn check_store(fields: &Fields<'_>, store: &StoreConfig, standard: &StoreConfig) {
    let in_memory = store.url == StoreUrl::Memory;
    let encrypted = store.url.may_be_encrypted();
    let (memory, redis) = (
        "has no effect in memory: expected it only with a Redis store",
        "has no effect in Redis: expected it only with a memory store",
    );
    let tls = "has no effect here: expected it only with a rediss:// store";
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
        ("username", store.username.is_some(), in_memory, memory),
        ("password", store.password.is_some(), in_memory, memory),
        ("tls_ca", store.tls_ca.is_some(), !encrypted, tls),
        ("tls_cert", store.tls_cert.is_some(), !encrypted, tls),
        ("tls_key", store.tls_key.is_some(), !encrypted, tls),
    ];
    for (field, said, idle, message) in rules {
        if said && idle && !fields.is_wrong("url") && !fields.is_wrong(field) {
            fields.error(field, message);
        }
    }
    fields.pair("tls_cert", "tls_key");
    if fields.has("username") && !fields.has("password") {
        fields.error("password", "missing: expected it together with username");
    }
    if let StoreUrl::Redis(url) = &store.url
        && !url.user().is_empty()
    {
        let said = [
            ("username", store.username.is_some()),
            ("password", store.password.is_some()),
        ];
        for (field, _) in said.into_iter().filter(|(_, said)| *said) {
            fields.error(
                field,
                "the URL already has credentials: expected user and password in one place",
            );
        }
    }
}

fn username(fields: &Fields<'_>) -> Option<String> {
    let expected = "the name of a user, such as \"tidegate\"";
    let text = fields.text("username", expected)?;
    if text.is_empty() || text.contains(char::is_control) {
        fields.error("username", format!("{}: expected {expected}", shown(text)));
        return None;
    }
    Some(text.into())
}

fn password(fields: &Fields<'_>) -> Option<Secret> {
    let expected = "\"file:PATH\", \"env:NAME\", or a password";
    let text = fields.secret("password", expected)?;
    let secret = Secret::parse(text);
    if secret.is_none() {
        fields.error("password", format!("{}: expected {expected}", shown(text)));
    }
    secret
}

fn small(number: Option<u64>, standard: u32) -> u32 {
    number
        .and_then(|number| u32::try_from(number).ok())
        .unwrap_or(standard)
}

/// A hash tag begins with a brace: there must be none before it.
fn is_prefix(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    (1..=64).contains(&text.len()) && text.bytes().all(is_part)
}
