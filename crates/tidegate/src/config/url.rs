//! Where a store is: `memory:`, or the URL of a server, which may hold a password.

use std::fmt;

use super::Secret;

/// Where a store is.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// `memory:`, in this process.
    Memory,
    /// `redis://` or `rediss://`, or the name of the environment variable that has it.
    Redis(Secret),
}

/// What a URL looks like, for messages.
pub(super) const EXPECTED: &str = "\"memory:\", \"redis://host:port/database\", \"rediss://user:password@host:port/database\", or \"env:NAME\"";

/// What the URL of a server looks like, for messages.
const EXPECTED_SERVER: &str =
    "\"redis://host:port/database\" or \"rediss://user:password@host:port/database\"";

/// Kinds of stores that are still to come.
const NOT_BUILT: [&str; 2] = ["redis-cluster://", "redis-sentinel://"];

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
            Self::Redis(Secret::Text(url)) => url.starts_with("rediss://"),
        }
    }
}

/// Reads what begins like the URL of a server; anything else is `None`.
fn server(text: &str, expected: &str) -> Option<Result<StoreUrl, String>> {
    if let Some(kind) = NOT_BUILT.iter().find(|kind| text.starts_with(**kind)) {
        let wrong = format!("\"{kind}…\" is not built yet: expected {expected}");
        return Some(Err(wrong));
    }
    let mut schemes = ["redis://", "rediss://"].into_iter();
    schemes.find_map(|scheme| {
        let rest = text.strip_prefix(scheme)?;
        Some(match is_place(rest) {
            true => Ok(StoreUrl::Redis(Secret::Text(text.into()))),
            false => Err(format!("\"{scheme}…\": expected {expected}")),
        })
    })
}

/// Whether this is `[user[:password]@]host[:port][/database]`.
fn is_place(text: &str) -> bool {
    let (user, place) = text.rsplit_once('@').unwrap_or(("", text));
    let (place, database) = place.split_once('/').unwrap_or((place, "0"));
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if !place.ends_with(']') => (host, port),
        _ => (place, "6379"),
    };
    let number = crate::duration::number;
    // In a password these would end it: they are written as `%2F`, say.
    let is_user = !user.contains(['/', '?', '#']) && !user.contains(char::is_control);
    let is_port = number(port).is_some_and(|port| (1..=u64::from(u16::MAX)).contains(&port));
    let is_number = |text: &str| number(text).is_some_and(|number| number < 1 << 31);
    let is_database = database.is_empty() || is_number(database);
    is_user && super::sections::is_host(host, b".-_") && is_port && is_database
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
