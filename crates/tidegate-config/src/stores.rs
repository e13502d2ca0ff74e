//! The sections `[stores.NAME]`: where counters are kept.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate::text::shown;
use tidegate::{MemoryStore, WhenFull};

use crate::read::Fields;
use crate::schema::{Rows, Table};
use crate::url::{self, Secret, StoreUrl};
use crate::write::quoted;

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
    // Messages list these before the others.
    let _ = ["url", "prefix"].map(|name| fields.has(name));
    let store = fields.rows(StoreConfig::default());
    fields.pair("tls_cert", "tls_key");
    if fields.has("username") && !fields.has("password") {
        fields.error("password", "missing: expected it together with username");
    }
    if matches!(&store.url, StoreUrl::Redis(url) if !url.user().is_empty()) {
        let message = "the URL already has credentials: expected user and password in one place";
        for field in ["username", "password"] {
            if fields.has(field) && !fields.is_wrong(field) {
                fields.error(field, message);
            }
        }
    }
    fields.finish();
    store
}

const REDIS_ONLY: &str = "has no effect in memory: expected it only with a Redis store";
const TLS_ONLY: &str = "has no effect here: expected it only with a rediss:// store";
const MEMORY_ONLY: &str = "has no effect in Redis: expected it only with a memory store";

impl Table for StoreConfig {
    fn rows(&mut self, rows: &mut Rows<'_>) {
        rows.row("url", &mut self.url, url, |url| quoted(&url.to_string()));
        let (is_memory, is_tls) = (self.url == StoreUrl::Memory, self.url.may_be_encrypted());
        rows.only(!is_memory, "url", REDIS_ONLY);
        let user = "the name of a user, such as \"tidegate\"";
        let is_user = |name: &str| !name.is_empty() && !name.contains(char::is_control);
        rows.text_if("username", user, is_user, &mut self.username);
        rows.secret("password", "a password", &mut self.password);
        rows.only(is_tls, "url", TLS_ONLY);
        rows.path("tls_ca", &mut self.tls_ca);
        rows.path("tls_cert", &mut self.tls_cert);
        rows.path("tls_key", &mut self.tls_key);
        rows.only(!is_memory, "url", REDIS_ONLY);
        rows.row("prefix", &mut self.prefix, prefix, |text| quoted(&text));
        let timeouts = Duration::from_millis(1)..=Duration::from_secs(60);
        rows.duration("timeout", timeouts, &mut self.timeout);
        rows.number::<u32>("connections", 1..1025, &mut self.connections);
        rows.number::<u32>("replica_acks", 0..17, &mut self.replica_acks);
        rows.only(is_memory, "url", MEMORY_ONLY);
        rows.number::<usize>("max_keys", 1..1_000_000_001, &mut self.max_keys);
        let when = [("evict", WhenFull::Evict), ("deny", WhenFull::Deny)];
        rows.choice("when_full", &when, &mut self.when_full);
    }
}

fn url(fields: &Fields<'_>, name: &'static str) -> Option<StoreUrl> {
    let url = fields.hidden(name, url::EXPECTED)?.parse();
    url.map_err(|message: String| fields.error(name, message))
        .ok()
}

fn prefix(fields: &Fields<'_>, name: &'static str) -> Option<String> {
    // A hash tag begins with a brace: there must be none before it.
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    let expected = "1 to 64 of the characters A-Z a-z 0-9 . _ : -";
    fields.parsed(name, "a string such as \"tg\"", |text| {
        match (1..=64).contains(&text.len()) && text.bytes().all(is_part) {
            true => Ok(text.to_owned()),
            false => Err(format!("{}: expected {expected}", shown(text))),
        }
    })
}
