//! The environment of envoyproxy/ratelimit: what its variables say here.
//!
//! A variable that is set and not supported is named in a warning; it never keeps the
//! server from starting. A variable that is supported and wrong does.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use super::variables::Variables;
use crate::envoy::options::Options;
use crate::envoy::xds::{ClientTls, ControlPlane};
use crate::log::{Format, Level};

/// What the environment says.
#[derive(Debug)]
pub struct Environment {
    /// Where `/json` and `/healthcheck` are: `HOST`, `PORT`.
    pub http: String,
    /// Where `/rlconfig` is: `DEBUG_HOST`, `DEBUG_PORT`.
    pub debug: String,
    /// Where Envoy asks: `GRPC_HOST`, `GRPC_PORT`, or `unix:` and `GRPC_UDS`.
    pub grpc: String,
    /// Its certificates, with `GRPC_SERVER_USE_TLS`.
    pub grpc_tls: Option<ServerTls>,
    /// The Redis that counts.
    pub redis: Redis,
    /// Where the limits come from: `CONFIG_TYPE`.
    pub limits: Limits,
    /// Whether to answer before there are any: `FORCE_START_WITHOUT_INITIAL_CONFIG`.
    pub start_without_limits: bool,
    /// How requests are answered.
    pub options: Options,
    /// Files about the same domain add to it: `MERGE_DOMAIN_CONFIG`.
    pub merge_domains: bool,
    /// How much to log: `LOG_LEVEL`.
    pub log: Level,
    /// How log lines look: `LOG_FORMAT`.
    pub log_format: Format,
    /// Where statistics are served, and under which path: `USE_PROMETHEUS`,
    /// `PROMETHEUS_ADDR`, `PROMETHEUS_PATH`.
    pub prometheus: Option<(String, String)>,
    /// Where statistics are sent, and how often: `USE_STATSD`, `STATSD_HOST`, `STATSD_PORT`,
    /// `STATS_FLUSH_INTERVAL`.
    pub statsd: Option<(String, Duration)>,
    /// What to tell the operator at the start.
    pub warnings: Vec<String>,
}

/// Certificates of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTls {
    /// Its own: `GRPC_SERVER_TLS_CERT`.
    pub cert: String,
    /// The key of it: `GRPC_SERVER_TLS_KEY`.
    pub key: String,
    /// The authority of its clients: `GRPC_CLIENT_TLS_CACERT`. Without it, they need none.
    pub client_ca: Option<String>,
}

/// The Redis that counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Redis {
    /// Its URL, with user and password.
    pub url: String,
    /// The authority of its certificate: `REDIS_TLS_CACERT`.
    pub ca: Option<String>,
    /// A certificate to show and its key: `REDIS_TLS_CLIENT_CERT`, `REDIS_TLS_CLIENT_KEY`.
    pub identity: Option<(String, String)>,
    /// What keys begin with: `CACHE_KEY_PREFIX`.
    pub prefix: Option<String>,
    /// How long it may take to answer: `REDIS_TIMEOUT`.
    pub timeout: Option<Duration>,
}

/// Where limits come from.
#[derive(Debug)]
pub enum Limits {
    /// The files in this folder.
    Files(PathBuf),
    /// A control plane.
    Xds(Box<ControlPlane>),
}

/// Variables of envoyproxy/ratelimit without a counterpart here, and what happens instead.
const UNSUPPORTED: [(&[&str], &str); 15] = [
    (
        &["HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED"],
        "a server that starts without limits is healthy",
    ),
    (
        &[
            "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL",
            "XDS_CLIENT_BACKOFF_RANDOM_FACTOR",
            "XDS_CLIENT_BACKOFF_JITTER",
        ],
        "pauses begin with CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL, double, and are shortened by up to a half at random",
    ),
    (
        &["REDIS_SENTINEL_AUTH"],
        "sentinels get the password of REDIS_AUTH",
    ),
    (
        &["GRPC_MAX_CONNECTION_AGE", "GRPC_MAX_CONNECTION_AGE_GRACE"],
        "connections stay open while they are used",
    ),
    (
        &["GRPC_CLIENT_TLS_SAN"],
        "any certificate that the CA signed is accepted",
    ),
    (
        &[
            "REDIS_POOL_SIZE",
            "REDIS_PIPELINE_WINDOW",
            "REDIS_PIPELINE_LIMIT",
            "REDIS_POOL_ON_EMPTY_BEHAVIOR",
            "REDIS_POOL_ON_EMPTY_WAIT_DURATION",
            "REDIS_USE_EXPLICIT_PIPELINE",
        ],
        "concurrent checks share connections and batches",
    ),
    (
        &[
            "REDIS_PERSECOND",
            "REDIS_PERSECOND_SOCKET_TYPE",
            "REDIS_PERSECOND_TYPE",
            "REDIS_PERSECOND_URL",
            "REDIS_PERSECOND_POOL_SIZE",
            "REDIS_PERSECOND_AUTH",
            "REDIS_PERSECOND_TLS",
            "REDIS_PERSECOND_PIPELINE_WINDOW",
            "REDIS_PERSECOND_PIPELINE_LIMIT",
            "REDIS_PERSECOND_TIMEOUT",
            "REDIS_PERSECOND_SENTINEL_AUTH",
        ],
        "all limits count in the Redis of REDIS_URL",
    ),
    (
        &["REDIS_TLS_SKIP_HOSTNAME_VERIFICATION"],
        "the name in the certificate is verified",
    ),
    (
        &["REDIS_HEALTH_CHECK_ACTIVE_CONNECTION"],
        "a server is healthy while Redis is down: requests then get an error, and Envoy decides",
    ),
    (
        &["LOCAL_CACHE_SIZE_IN_BYTES"],
        "every hit is counted in Redis, also above the limit",
    ),
    (
        &["EXPIRATION_JITTER_MAX_SECONDS"],
        "keys expire with their windows",
    ),
    (
        &[
            "MEMCACHE_HOST_PORT",
            "MEMCACHE_MAX_IDLE_CONNS",
            "MEMCACHE_SRV",
            "MEMCACHE_SRV_REFRESH",
            "MEMCACHE_TLS",
            "MEMCACHE_TLS_CLIENT_CERT",
            "MEMCACHE_TLS_CLIENT_KEY",
            "MEMCACHE_TLS_CACERT",
            "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION",
        ],
        "counts are in Redis",
    ),
    (
        &[
            "USE_DOG_STATSD",
            "USE_DOG_STATSD_MOGRIFIERS",
            "EXTRA_TAGS",
            "PROMETHEUS_MAPPER_YAML",
        ],
        "statistics have the standard names and labels",
    ),
    (
        &[
            "TRACING_ENABLED",
            "TRACING_SERVICE_NAME",
            "TRACING_SERVICE_NAMESPACE",
            "TRACING_SERVICE_INSTANCE_ID",
            "TRACING_EXPORTER_PROTOCOL",
            "TRACING_SAMPLING_RATE",
        ],
        "no traces are sent",
    ),
    (
        &["RUNTIME_IGNOREDOTFILES", "RUNTIME_WATCH_ROOT"],
        "files that begin with a dot are ignored, and changes are found by content",
    ),
];

impl Environment {
    /// Reads variables; or all that is wrong with them, one line each.
    pub fn read(set: impl IntoIterator<Item = (String, String)>) -> Result<Self, Vec<String>> {
        let variables = Variables::new(set);
        let it = &variables;
        let near = it.read("NEAR_LIMIT_RATIO", 0.8, "a share from 0 to 1", |text| {
            text.parse()
                .ok()
                .filter(|share| (0.0..=1.0).contains(share))
        });
        let standard = Options::default();
        let environment = Self {
            http: address(it, ("HOST", "PORT"), 8080),
            debug: address(it, ("DEBUG_HOST", "DEBUG_PORT"), 6070),
            grpc: match it.get("GRPC_UDS") {
                Some(path) => format!("unix:{path}"),
                None => address(it, ("GRPC_HOST", "GRPC_PORT"), 8081),
            },
            grpc_tls: grpc_tls(it),
            redis: redis(it),
            limits: limits(it),
            start_without_limits: it.flag("FORCE_START_WITHOUT_INITIAL_CONFIG", false),
            options: Options {
                response_headers: it.flag("LIMIT_RESPONSE_HEADERS_ENABLED", false),
                limit_header: it.text("LIMIT_LIMIT_HEADER", &standard.limit_header),
                remaining_header: it.text("LIMIT_REMAINING_HEADER", &standard.remaining_header),
                reset_header: it.text("LIMIT_RESET_HEADER", &standard.reset_header),
                shadow_mode: it.flag("SHADOW_MODE", false),
                quota_mode: it.flag("QUOTA_MODE", false),
                near_limit_ratio: near,
                dynamic_metadata: it.flag("RESPONSE_DYNAMIC_METADATA", false),
                stop_increment_when_over: it.flag("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", false),
            },
            merge_domains: it.flag("MERGE_DOMAIN_CONFIG", false),
            log: it.read(
                "LOG_LEVEL",
                Level::Warn,
                "trace, debug, info, warn or error",
                level,
            ),
            log_format: it.read(
                "LOG_FORMAT",
                Format::Text,
                "text or json",
                |text| match text {
                    "text" => Some(Format::Text),
                    "json" => Some(Format::Json),
                    _ => None,
                },
            ),
            prometheus: prometheus(it),
            statsd: statsd(it),
            warnings: warnings(it),
        };
        let errors = variables.errors();
        match errors.is_empty() {
            true => Ok(environment),
            false => Err(errors),
        }
    }
}

/// Host and port, of two variables.
fn address(it: &Variables, (host, port): (&str, &str), standard: u16) -> String {
    let host = it.text(host, "0.0.0.0");
    let port = it.port(port, standard);
    match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

fn level(text: &str) -> Option<Level> {
    match text.to_ascii_lowercase().as_str() {
        "trace" => Some(Level::Trace),
        "debug" => Some(Level::Debug),
        "info" => Some(Level::Info),
        "warn" | "warning" => Some(Level::Warn),
        "error" | "fatal" | "panic" => Some(Level::Error),
        _ => None,
    }
}

fn grpc_tls(it: &Variables) -> Option<ServerTls> {
    if !it.flag("GRPC_SERVER_USE_TLS", false) {
        return None;
    }
    let file = |name: &str| {
        let file = it.get(name);
        if file.is_none() {
            it.wrong(format!(
                "GRPC_SERVER_USE_TLS is true, but {name} is not set: expected a file"
            ));
        }
        file.unwrap_or_default().to_owned()
    };
    Some(ServerTls {
        cert: file("GRPC_SERVER_TLS_CERT"),
        key: file("GRPC_SERVER_TLS_KEY"),
        client_ca: it.get("GRPC_CLIENT_TLS_CACERT").map(str::to_owned),
    })
}

/// Two files that go together.
fn pair(it: &Variables, cert: &str, key: &str) -> Option<(String, String)> {
    match (it.get(cert), it.get(key)) {
        (Some(cert), Some(key)) => Some((cert.to_owned(), key.to_owned())),
        (None, None) => None,
        (Some(_), None) => {
            it.wrong(format!("{cert} is set, but {key} is not: expected both"));
            None
        }
        (None, Some(_)) => {
            it.wrong(format!("{key} is set, but {cert} is not: expected both"));
            None
        }
    }
}

fn redis(it: &Variables) -> Redis {
    let backend = it.text("BACKEND_TYPE", "redis");
    if backend != "redis" {
        it.wrong(format!("BACKEND_TYPE is {backend:?}: expected redis"));
    }
    if it.get("REDIS_URL").is_none() {
        return Redis {
            url: "memory:".into(),
            ..Redis::default()
        };
    }
    let identity = pair(it, "REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY");
    Redis {
        url: redis_url(it),
        ca: it.get("REDIS_TLS_CACERT").map(str::to_owned),
        identity,
        prefix: it.get("CACHE_KEY_PREFIX").map(str::to_owned),
        timeout: Some(it.duration("REDIS_TIMEOUT", Duration::from_secs(10))),
    }
}

/// The URL of a store, of the variables `REDIS_*`.
fn redis_url(it: &Variables) -> String {
    let socket = it.text("REDIS_SOCKET_TYPE", "tcp").to_ascii_lowercase();
    if !["tcp", "tls"].contains(&&*socket) {
        it.wrong(format!(
            "REDIS_SOCKET_TYPE is {socket:?}: expected tcp or tls"
        ));
    }
    let tls = it.flag("REDIS_TLS", false) || socket == "tls";
    let hosts = it.get("REDIS_URL").unwrap_or_default();
    let access = it.get("REDIS_AUTH").map(access).unwrap_or_default();
    let (is_secure, place) = match (
        hosts.strip_prefix("rediss://"),
        hosts.strip_prefix("redis://"),
    ) {
        (Some(place), _) => (true, Some(place)),
        (None, place) => (tls, place),
    };
    let scheme = if is_secure { "rediss" } else { "redis" };
    if let Some(place) = place {
        if is_secure && !tls && it.get("REDIS_TLS").is_some() {
            it.wrong("REDIS_TLS is false, and REDIS_URL begins with rediss://: expected redis://, or REDIS_TLS true".into());
        }
        if !access.is_empty() && place.contains('@') {
            it.wrong("REDIS_AUTH is set, and REDIS_URL has a user or a password: expected them in one place".into());
        }
        return format!("{scheme}://{access}{place}");
    }
    match &*it.text("REDIS_TYPE", "SINGLE").to_ascii_uppercase() {
        "SINGLE" => format!("{scheme}://{access}{hosts}"),
        "CLUSTER" => format!("{scheme}-cluster://{access}{hosts}"),
        "SENTINEL" => match hosts.split_once(',') {
            Some((master, sentinels)) => {
                format!("{scheme}-sentinel://{access}{sentinels}/{master}")
            }
            None => {
                it.wrong(format!(
                    "REDIS_URL is {hosts:?}, and REDIS_TYPE is SENTINEL: expected the master's name and sentinels, such as mymaster,host:26379"
                ));
                String::new()
            }
        },
        other => {
            it.wrong(format!(
                "REDIS_TYPE is {other:?}: expected SINGLE, SENTINEL or CLUSTER"
            ));
            String::new()
        }
    }
}

/// `password` or `user:password`, as a URL has them.
fn access(auth: &str) -> String {
    let (user, password) = auth.split_once(':').unwrap_or(("", auth));
    format!("{}:{}@", escaped(user), escaped(password))
}

fn escaped(text: &str) -> String {
    let mut url = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                url.push(byte.into());
            }
            _ => drop(write!(url, "%{byte:02X}")),
        }
    }
    url
}

fn limits(it: &Variables) -> Limits {
    match &*it.text("CONFIG_TYPE", "FILE") {
        "FILE" => {
            let mut folder = PathBuf::from(it.text("RUNTIME_ROOT", "/srv/runtime_data/current"));
            folder.push(it.text("RUNTIME_SUBDIRECTORY", ""));
            folder.push(it.text("RUNTIME_APPDIRECTORY", "config"));
            Limits::Files(folder)
        }
        "GRPC_XDS_SOTW" => Limits::Xds(Box::new(control_plane(it))),
        other => {
            it.wrong(format!(
                "CONFIG_TYPE is {other:?}: expected FILE or GRPC_XDS_SOTW"
            ));
            Limits::Files(PathBuf::new())
        }
    }
}

fn control_plane(it: &Variables) -> ControlPlane {
    let own = (
        "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
        "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
    );
    let tls = it.flag("CONFIG_GRPC_XDS_SERVER_USE_TLS", false);
    let tls = tls.then(|| ClientTls {
        ca: it
            .get("CONFIG_GRPC_XDS_SERVER_TLS_CACERT")
            .map(PathBuf::from),
        identity: pair(it, own.0, own.1).map(|(cert, key)| (cert.into(), key.into())),
        server_name: it.get("CONFIG_GRPC_XDS_SERVER_TLS_SAN").map(str::to_owned),
    });
    let seconds = Duration::from_secs;
    let retry = it.duration("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", seconds(3));
    ControlPlane {
        address: it.text("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000"),
        node: it.text("CONFIG_GRPC_XDS_NODE_ID", "default"),
        metadata: it.map("CONFIG_GRPC_XDS_NODE_METADATA"),
        headers: it.map("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS"),
        tls,
        // A control plane that is down is not asked without a pause.
        retry: retry.max(Duration::from_millis(10)),
        longest_retry: it.duration("XDS_CLIENT_BACKOFF_MAX_INTERVAL", seconds(60)),
    }
}

fn prometheus(it: &Variables) -> Option<(String, String)> {
    if !it.flag("USE_PROMETHEUS", false) {
        return None;
    }
    let address = it.text("PROMETHEUS_ADDR", ":9090");
    let address = match address.starts_with(':') {
        true => format!("0.0.0.0{address}"),
        false => address,
    };
    Some((address, it.text("PROMETHEUS_PATH", "/metrics")))
}

fn statsd(it: &Variables) -> Option<(String, Duration)> {
    let is_wanted = it.flag("USE_STATSD", true) && !it.flag("DISABLE_STATS", false);
    // The reference sends to statsd by default, even if no server listens.
    let is_named = it.get("STATSD_HOST").is_some() || it.get("STATSD_PORT").is_some();
    let is_asked = it.get("USE_STATSD").is_some() || is_named;
    let host = it.text("STATSD_HOST", "localhost");
    let port = it.port("STATSD_PORT", 8125);
    let interval = it.duration("STATS_FLUSH_INTERVAL", Duration::from_secs(10));
    let interval = interval.max(Duration::from_millis(100));
    (is_wanted && is_asked).then(|| (format!("{host}:{port}"), interval))
}

fn warnings(it: &Variables) -> Vec<String> {
    let mut warnings = Vec::new();
    if it.get("REDIS_URL").is_none() {
        warnings.push(
            "REDIS_URL is not set: counts are in the memory of this process, and other servers do not share them"
                .into(),
        );
    }
    for (names, instead) in UNSUPPORTED {
        let set: Vec<&str> = names
            .iter()
            .copied()
            .filter(|name| it.get(name).is_some())
            .collect();
        if !set.is_empty() {
            let verb = if set.len() == 1 { "is" } else { "are" };
            let set = set.join(", ");
            warnings.push(format!("{set} {verb} not supported: {instead}"));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use tidegate_testkit::cases::{check, rows};

    use super::*;

    const ROWS: &str = include_str!("environment.txt");

    /// Reads variables, which stand in words or in lines.
    fn read(text: &str) -> Result<Environment, Vec<String>> {
        let set = text.split_whitespace();
        let set = set.map(|it| it.split_once('=').expect("NAME=value"));
        Environment::read(set.map(|(name, value)| (name.to_owned(), value.to_owned())))
    }

    fn described(it: &Environment) -> Vec<String> {
        let Redis {
            url,
            ca,
            identity,
            prefix,
            timeout,
        } = &it.redis;
        let limits = match &it.limits {
            Limits::Files(folder) => format!("limits {}", folder.display()),
            Limits::Xds(plane) => {
                format!(
                    "limits {} as {}: {:?}",
                    plane.address, plane.node, plane.tls
                )
            }
        };
        let mut lines = vec![
            format!("http {}, debug {}", it.http, it.debug),
            format!("grpc {}: {:?}", it.grpc, it.grpc_tls),
            format!("redis {url}"),
            format!("redis ca {ca:?}, identity {identity:?}"),
            format!("redis prefix {prefix:?}, timeout {timeout:?}"),
            limits,
            format!("start without limits: {}", it.start_without_limits),
            format!("merge domains: {}", it.merge_domains),
            format!("{:?}", it.options),
            format!("log {:?} {:?}", it.log, it.log_format),
            format!("prometheus {:?}", it.prometheus),
            format!("statsd {:?}", it.statsd),
        ];
        lines.extend(it.warnings.iter().map(|it| format!("warning: {it}")));
        lines
    }

    /// What variables change, or the errors in alphabetical order.
    fn lines(text: &str) -> Vec<String> {
        let usual = described(&read("REDIS_URL=redis:6379").unwrap());
        match read(text) {
            Ok(it) if text.is_empty() => described(&it),
            Ok(it) => {
                let url: Result<tidegate_config::StoreUrl, _> = it.redis.url.parse();
                assert!(url.is_ok(), "{text}: {url:?}");
                let lines = described(&it).into_iter();
                lines.filter(|line| !usual.contains(line)).collect()
            }
            Err(mut errors) => {
                errors.sort_unstable();
                errors
            }
        }
    }

    #[test]
    fn variables_are_understood_as_written() {
        check(ROWS, 3, |text| lines(text).join("\n"));
    }

    #[test]
    fn redis_variables_make_the_url_of_a_store() {
        for heading in [
            "redis variables make the URL of a store",
            "s8 TLS and password apply to a Redis that is a URL",
        ] {
            rows(ROWS, heading, |text| lines(text).join("; "));
        }
    }

    #[test]
    fn timeout_of_redis_is_applied_without_a_warning() {
        let heading = "s13 the timeout of Redis is applied without a warning";
        rows(ROWS, heading, |text| {
            let it = read(text).unwrap();
            assert_eq!(it.warnings, [""; 0]);
            let config = it.config();
            let timeout = config.lines().find(|line| line.contains("timeout"));
            timeout.unwrap().to_owned()
        });
    }
}
