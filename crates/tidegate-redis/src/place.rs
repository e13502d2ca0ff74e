//! The addresses of a store's servers, as URLs that the client library understands.
//! `tidegate-config` parses the store's URL.

use tidegate_config::{RedisUrl, Servers};

/// What a URL says.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// One server, by its URL.
    One(String),
    /// Sentinels, which know the master of a name and how to reach it.
    Sentinel {
        sentinels: Vec<String>,
        master: String,
        login: Login,
    },
    /// Some nodes of a cluster, which know the others.
    Cluster { seeds: Vec<String>, login: Login },
}

/// How to be let in by a server that others have named. May hold a password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Login {
    scheme: &'static str,
    /// With its `@`, or empty.
    user: String,
    /// With its `/`, or empty.
    database: String,
}

/// The port of a sentinel that names none.
const SENTINEL_PORT: u16 = 26_379;
const PORT: u16 = 6_379;

impl Place {
    /// Where the servers of a URL are. One that only the client knows, such as
    /// `redis+unix:`, is for it to judge.
    pub(crate) fn parse(text: &str) -> Self {
        let Ok(url) = text.parse::<RedisUrl>() else {
            return Self::One(text.into());
        };
        let with = |mark_before: &str, part: &str, mark_after: &str| match part {
            "" => String::new(),
            part => format!("{mark_before}{part}{mark_after}"),
        };
        let login = Login {
            scheme: if url.tls() { "rediss" } else { "redis" },
            user: with("", url.user(), "@"),
            database: with("/", url.database(), ""),
        };
        let hosts = |port: u16| {
            let hosts = url.hosts().iter();
            hosts.map(|host| with_port(host, port)).collect()
        };
        match url.servers() {
            Servers::One => Self::One(text.into()),
            Servers::Sentinel(master) => Self::Sentinel {
                sentinels: hosts(SENTINEL_PORT),
                master: master.clone(),
                login,
            },
            Servers::Cluster => Self::Cluster {
                seeds: hosts(PORT),
                login,
            },
        }
    }
}

impl Login {
    /// The URL of a server at an address.
    pub(crate) fn url(&self, address: &str) -> String {
        let Self {
            scheme,
            user,
            database,
        } = self;
        format!("{scheme}://{user}{address}{database}")
    }

    /// The same for a server that has no databases, as sentinels do.
    pub(crate) fn without_database(&self) -> Self {
        Self {
            database: String::new(),
            ..self.clone()
        }
    }

    /// And for one that lets in anybody.
    pub(crate) fn anonymous(&self) -> Self {
        Self {
            user: String::new(),
            ..self.without_database()
        }
    }
}

/// `host:port`, with an IPv6 address in brackets.
pub(crate) fn address(host: &str, port: u16) -> String {
    match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

fn with_port(host: &str, port: u16) -> String {
    let has_port = match host.rsplit_once(']') {
        Some((_, rest)) => !rest.is_empty(),
        None => host.contains(':'),
    };
    match has_port {
        true => host.into(),
        false => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_of_a_url() {
        let login = |scheme, user: &str, database: &str| Login {
            scheme,
            user: user.into(),
            database: database.into(),
        };
        let urls = |urls: &[&str]| urls.iter().map(|url| (*url).to_owned()).collect::<Vec<_>>();
        for (url, expected) in [
            ("redis://h:1/2", Place::One("redis://h:1/2".into())),
            (
                "redis-cluster://h1:1,[::1],h2",
                Place::Cluster {
                    seeds: urls(&["h1:1", "[::1]:6379", "h2:6379"]),
                    login: login("redis", "", ""),
                },
            ),
            (
                "rediss-cluster://u:p%40@h1:1",
                Place::Cluster {
                    seeds: urls(&["h1:1"]),
                    login: login("rediss", "u:p%40@", ""),
                },
            ),
            (
                "redis-sentinel://:p@h1,h2:5/main/3",
                Place::Sentinel {
                    sentinels: urls(&["h1:26379", "h2:5"]),
                    master: "main".into(),
                    login: login("redis", ":p@", "/3"),
                },
            ),
        ] {
            assert!(Place::parse(url) == expected, "{url}");
        }
        assert_eq!(
            login("rediss", "u:p@", "/3").url(&address("::1", 7)),
            "rediss://u:p@[::1]:7/3"
        );
    }
}
