//! URLs of stores: `memory:`, or the URL of a server, which may contain a password. Only
//! this module parses such URLs.

use std::fmt;
use std::str::FromStr;

use tidegate::text::shown;

/// The URL of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// `memory:`, in this process.
    Memory,
    /// `env:NAME`: the [`RedisUrl`] in this environment variable.
    Env(String),
    /// In Redis.
    Redis(RedisUrl),
}

/// The URL of one server (`redis://`), of the sentinels that know the master
/// (`redis-sentinel://`) or of a cluster (`redis-cluster://`); each also with TLS
/// (`rediss://`, `rediss-sentinel://`, `rediss-cluster://`).
///
/// `Display` and `Debug` hide the user and the password.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    text: String,
    tls: bool,
    user: String,
    servers: Servers,
    /// Each `host:port`, with IPv6 addresses in brackets; at least one.
    addresses: Vec<String>,
    /// In digits; empty for the first one.
    database: String,
}

/// The kind of servers at the hosts of a [`RedisUrl`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Servers {
    /// The server that has all keys.
    One,
    /// Sentinels, which know the master with this name.
    Sentinel(String),
    /// Some nodes of a cluster, which know the others.
    Cluster,
}

/// A secret, which is never printed.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// The value of an environment variable.
    Env(String),
    /// The contents of a file.
    File(String),
    /// The text itself.
    Text(String),
}

impl Secret {
    /// The secret, if it is given as text.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Env(_) | Self::File(_) => None,
        }
    }

    /// Parses `env:NAME`, `file:PATH`, or the secret itself. `None` if the text is empty, or
    /// nothing follows the colon.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (part, secret) = match (text.strip_prefix("env:"), text.strip_prefix("file:")) {
            (Some(name), _) => (name, Self::Env(name.into())),
            (_, Some(path)) => (path, Self::File(path.into())),
            _ => (text, Self::Text(text.into())),
        };
        let is_path = !matches!(&secret, Self::File(path) if path.contains('\0'));
        (!part.is_empty() && is_path).then_some(secret)
    }
}

/// What the URL of a store looks like, for messages.
pub(crate) const EXPECTED: &str = "\"memory:\", \"redis://host:port/database\", \"rediss://user:password@host:port/database\", \"redis-sentinel://host:port,host:port/master\", \"redis-cluster://host:port,host:port\", or \"env:NAME\"";

/// What the URL of a server looks like, for messages.
const EXPECTED_SERVER: &str = "\"redis://host:port/database\", \"rediss://user:password@host:port/database\", \"redis-sentinel://host:port,host:port/master\" or \"redis-cluster://host:port,host:port\"";

impl StoreUrl {
    /// Whether the connection is encrypted, as far as the URL says.
    pub(crate) fn may_be_encrypted(&self) -> bool {
        match self {
            Self::Memory => false,
            Self::Env(_) => true,
            Self::Redis(url) => url.tls,
        }
    }
}

impl FromStr for StoreUrl {
    type Err = String;

    /// The error has the form of a config error, without a password.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "memory:" {
            return Ok(Self::Memory);
        }
        match text.strip_prefix("env:") {
            Some("") => return Err(format!("\"env:\": expected {EXPECTED}")),
            Some(name) => return Ok(Self::Env(name.into())),
            None => {}
        }
        RedisUrl::read(text).map(Self::Redis).map_err(|scheme| {
            let shown = match scheme {
                Some(scheme) => format!("\"{scheme}…\""),
                None => shown(&public(text)),
            };
            format!("{shown}: expected {EXPECTED}")
        })
    }
}

impl FromStr for RedisUrl {
    type Err = String;

    /// The error repeats only the scheme of the URL.
    fn from_str(text: &str) -> Result<Self, String> {
        Self::read(text).map_err(|scheme| match scheme {
            Some(scheme) => format!("\"{scheme}…\": expected {EXPECTED_SERVER}"),
            None => format!("not a Redis URL: expected {EXPECTED_SERVER}"),
        })
    }
}

impl RedisUrl {
    /// The whole URL, password included.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether connections are encrypted.
    #[must_use]
    pub fn tls(&self) -> bool {
        self.tls
    }

    /// `user:password`, escaped as in the URL; empty without one.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The kind of servers at the hosts.
    #[must_use]
    pub fn servers(&self) -> &Servers {
        &self.servers
    }

    /// Each `host:port`, with the usual port of these servers where the URL names none.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.addresses.clone()
    }

    /// The `redis://` URL of the server at an address, with this URL's login and database.
    #[must_use]
    pub fn server(&self, address: &str) -> String {
        match &*self.database {
            "" => self.sentinel(address, true),
            database => format!("{}/{database}", self.sentinel(address, true)),
        }
    }

    /// The URL of the sentinel at an address, which has no databases: with this URL's login, or
    /// without.
    #[must_use]
    pub fn sentinel(&self, address: &str, has_login: bool) -> String {
        let scheme = if self.tls { "rediss" } else { "redis" };
        match &*self.user {
            user if has_login && !user.is_empty() => format!("{scheme}://{user}@{address}"),
            _ => format!("{scheme}://{address}"),
        }
    }

    /// Parses `scheme://[user[:password]@]host[:port],...[/path]`. If it is invalid, returns its
    /// scheme, if that is valid.
    fn read(text: &str) -> Result<Self, Option<&str>> {
        let kind = text.strip_prefix("redis").ok_or(None)?;
        let kind = kind.strip_prefix('s').unwrap_or(kind);
        let (kind, rest) = kind.split_once("://").ok_or(None)?;
        if !["", "-sentinel", "-cluster"].contains(&kind) {
            return Err(None);
        }
        let scheme = &text[..text.len() - rest.len()];
        Self::after(scheme, kind, rest, text).ok_or(Some(scheme))
    }

    /// Reads what is behind the scheme.
    fn after(scheme: &str, kind: &str, rest: &str, text: &str) -> Option<Self> {
        let (user, place) = rest.rsplit_once('@').unwrap_or(("", rest));
        let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
        let (servers, database, usual_port) = match kind {
            "-sentinel" => {
                let (master, database) = path.split_once('/').unwrap_or((path, ""));
                let servers = is_master(master).then(|| Servers::Sentinel(master.into()))?;
                (servers, database, "26379")
            }
            // A cluster has one database.
            "-cluster" if matches!(path, "" | "0") => (Servers::Cluster, "", "6379"),
            "" if !hosts.contains(',') => (Servers::One, path, "6379"),
            _ => return None,
        };
        let addresses = hosts.split(',').map(|host| address(host, usual_port));
        let addresses = addresses.collect::<Option<_>>()?;
        (is_user(user) && is_database(database)).then(|| Self {
            text: text.into(),
            tls: scheme.starts_with("rediss"),
            user: user.into(),
            servers,
            addresses,
            database: database.into(),
        })
    }
}

/// Characters that would end a password. They must be percent-encoded, such as `%2F`.
fn is_user(user: &str) -> bool {
    !user.contains(['/', '?', '#']) && !user.contains(char::is_control)
}

fn is_master(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !name.is_empty() && name.bytes().all(is_part)
}

/// `host:port`, with the usual port where there is none.
fn address(place: &str, usual_port: &str) -> Option<String> {
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if !place.ends_with(']') => (host, port),
        _ => (place, usual_port),
    };
    let is_port = digits::<u16>(port).is_some_and(|port| port > 0);
    (is_host(host, b".-_") && is_port).then(|| format!("{host}:{port}"))
}

fn is_database(text: &str) -> bool {
    text.is_empty() || digits::<u32>(text).is_some_and(|number| number < 1 << 31)
}

/// A number written in digits and nothing else.
fn digits<N: FromStr>(text: &str) -> Option<N> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// Whether this is a host: a name of letters, digits and `others`, or an IPv6 address in
/// brackets.
#[must_use]
pub fn is_host(host: &str, others: &[u8]) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || others.contains(&byte);
    let is_name = (1..=253).contains(&host.len()) && host.bytes().all(is_part);
    let inside = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    is_name || inside.is_some_and(|host| host.parse::<std::net::Ipv6Addr>().is_ok())
}

/// An invalid URL without parts that may be secret.
pub(crate) fn public(url: &str) -> String {
    match url.split_once(':') {
        Some((scheme, rest)) if !rest.is_empty() && !scheme.contains('@') => {
            format!("{scheme}:…")
        }
        _ if url.contains('@') => "…".into(),
        _ => url.into(),
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Env(name) => write!(f, "env:{name}"),
            Self::Redis(url) => write!(f, "{url}"),
        }
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.text.split_once("://"), self.text.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, place))) => write!(f, "{scheme}://***@{place}"),
            _ => f.write_str(&self.text),
        }
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "env:{name}"),
            Self::File(path) => write!(f, "file:{path}"),
            Self::Text(_) => f.write_str("(not shown)"),
        }
    }
}
