//! Where a store is: `memory:`, or the URL of a server, which may hold a password.

use std::fmt;

use super::Secret;

/// Where a store is.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// `memory:`, in this process.
    Memory,
    /// `redis://`, `redis-sentinel://` or `redis-cluster://`, each also with TLS as
    /// `rediss`, or the name of the environment variable that has it.
    Redis(Secret),
}

/// What a URL looks like, for messages.
pub(super) const EXPECTED: &str = "\"memory:\", \"redis://host:port/database\", \"rediss://user:password@host:port/database\", \"redis-sentinel://host:port,host:port/master\", \"redis-cluster://host:port,host:port\", or \"env:NAME\"";

/// What the URL of a server looks like, for messages.
const EXPECTED_SERVER: &str = "\"redis://host:port/database\", \"rediss://user:password@host:port/database\", \"redis-sentinel://host:port,host:port/master\" or \"redis-cluster://host:port,host:port\"";

/// Whether the rest of a URL is right.
type IsRight = fn(&str) -> bool;

/// How the URL of a server may begin, and what must follow.
const SCHEMES: [(&str, IsRight); 6] = [
    ("redis://", is_place),
    ("rediss://", is_place),
    ("redis-sentinel://", is_sentinel),
    ("rediss-sentinel://", is_sentinel),
    ("redis-cluster://", is_cluster),
    ("rediss-cluster://", is_cluster),
];

impl StoreUrl {
    /// Reads a URL, or says what is wrong with it without telling what may be secret.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text == "memory:" {
            return Ok(Self::Memory);
        }
        if let Some(name) = text.strip_prefix("env:") {
            if name.is_empty() {
                return Err(format!("\"env:\": expected {EXPECTED}"));
            }
            return Ok(Self::Redis(Secret::Env(name.into())));
        }
        server(text, EXPECTED).unwrap_or_else(|| {
            let shown = super::sections::public(text);
            Err(format!(
                "{}: expected {EXPECTED}",
                crate::policy::name::shown(&shown)
            ))
        })
    }

    /// Reads the URL of a server, which is what the variable of an `env:NAME` has; or
    /// says what is wrong with it, repeating nothing but how it begins.
    pub fn parse_server(text: &str) -> Result<Self, String> {
        server(text, EXPECTED_SERVER)
            .unwrap_or_else(|| Err(format!("not a Redis URL: expected {EXPECTED_SERVER}")))
    }

    /// Whether the connection is encrypted, as far as one can tell.
    pub(super) fn may_be_encrypted(&self) -> bool {
        match self {
            Self::Memory => false,
            Self::Redis(Secret::Env(_)) => true,
            Self::Redis(Secret::Text(url)) => url.starts_with("rediss"),
        }
    }
}

/// Reads what begins like the URL of a server; anything else is `None`.
fn server(text: &str, expected: &str) -> Option<Result<StoreUrl, String>> {
    SCHEMES.iter().find_map(|(scheme, is_right)| {
        let rest = text.strip_prefix(scheme)?;
        Some(match is_right(rest) {
            true => Ok(StoreUrl::Redis(Secret::Text(text.into()))),
            false => Err(format!("\"{scheme}…\": expected {expected}")),
        })
    })
}

/// Whether this is `[user[:password]@]host[:port][/database]`.
fn is_place(text: &str) -> bool {
    let (user, place) = split_user(text);
    let (place, database) = place.split_once('/').unwrap_or((place, "0"));
    is_user(user) && is_host_and_port(place) && is_database(database)
}

/// Whether this is `[user[:password]@]host[:port],.../master[/database]`.
fn is_sentinel(text: &str) -> bool {
    let (user, place) = split_user(text);
    let Some((hosts, path)) = place.split_once('/') else {
        return false;
    };
    let (master, database) = path.split_once('/').unwrap_or((path, "0"));
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_master = !master.is_empty() && master.bytes().all(is_part);
    is_user(user) && are_hosts(hosts) && is_master && is_database(database)
}

/// Whether this is `[user[:password]@]host[:port],...`: a cluster has one database.
fn is_cluster(text: &str) -> bool {
    let (user, place) = split_user(text);
    let (hosts, database) = place.split_once('/').unwrap_or((place, ""));
    is_user(user) && are_hosts(hosts) && matches!(database, "" | "0")
}

fn split_user(text: &str) -> (&str, &str) {
    text.rsplit_once('@').unwrap_or(("", text))
}

/// In a password these would end it: they are written as `%2F`, say.
fn is_user(user: &str) -> bool {
    !user.contains(['/', '?', '#']) && !user.contains(char::is_control)
}

fn are_hosts(hosts: &str) -> bool {
    hosts.split(',').all(is_host_and_port)
}

fn is_host_and_port(place: &str) -> bool {
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if !place.ends_with(']') => (host, port),
        _ => (place, "6379"),
    };
    let port = crate::duration::number(port);
    let is_port = port.is_some_and(|port| (1..=u64::from(u16::MAX)).contains(&port));
    super::sections::is_host(host, b".-_") && is_port
}

fn is_database(text: &str) -> bool {
    let is_number = crate::duration::number(text).is_some_and(|number| number < 1 << 31);
    text.is_empty() || is_number
}

/// Without a password.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Redis(Secret::Env(name)) => write!(f, "env:{name}"),
            Self::Redis(Secret::Text(url)) => match (url.split_once("://"), url.rsplit_once('@')) {
                (Some((scheme, _)), Some((_, place))) => write!(f, "{scheme}://***@{place}"),
                _ => f.write_str(url),
            },
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}
