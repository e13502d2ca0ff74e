//! The section `[server]`: addresses, tokens, TLS and logging.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tidegate::text::{NAME, is_name, shown};
use tidegate_config::write::{duration, field, list, optional, quoted, secret};
use tidegate_config::{Fields, Secret, is_host};

use crate::envoy::section::Envoy;
use crate::log::Level;
use crate::proxies::TrustedProxy;

/// The section `[server]`.
///
/// `Display` prints it as it is read, except for a token in the file. `{:#}`
/// prints defaults, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// The addresses of the HTTP server.
    pub http: Vec<Address>,
    /// The addresses for operators; none where they ask at those of `http`.
    pub admin: Vec<Address>,
    /// The addresses that speak the protocol of Redis.
    pub resp: Vec<Address>,
    /// The addresses of the gRPC server, for Envoy.
    pub grpc: Vec<Address>,
    /// What a client of Redis must show before it may ask.
    pub resp_token: Option<Secret>,
    /// What a client must show to change anything.
    pub admin_token: Option<Secret>,
    /// Attributes that the gate may also read from headers.
    pub gate_headers: Vec<String>,
    /// The proxies whose `X-Forwarded-*` headers the gate may read, too.
    pub trusted_proxies: Vec<TrustedProxy>,
    /// Names by which clients of loopback addresses may call the server.
    pub hosts: Vec<String>,
    /// The file of the certificate, where the TCP addresses speak TLS.
    pub tls_cert: Option<String>,
    /// And the file of its key.
    pub tls_key: Option<String>,
    /// The file of the authorities that sign the certificates of clients, where those must
    /// show one.
    pub tls_client_ca: Option<String>,
    /// The listeners whose clients must show one, by their names in the file.
    pub tls_client_listeners: Vec<&'static str>,
    /// The permissions of unix sockets; as the umask of the process has it where none
    /// are given.
    pub socket_mode: Option<u32>,
    /// After SIGTERM, how long to go on answering.
    pub drain: Duration,
    /// How long a connection may be without a request.
    pub idle: Duration,
    /// How much to log.
    pub log: Level,
    /// Whether log lines show keys as they are.
    pub log_keys: bool,
    /// Whether every request has a log line.
    pub access_log: bool,
    /// The section `[envoy]`.
    pub envoy: Envoy,
}

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A host and a port, such as `127.0.0.1:8080` or `[::1]:8080`.
    Tcp(String),
    /// A socket at this path.
    Unix(String),
}

/// The longest drain, and the longest that a connection may be idle.
const LONGEST: Duration = Duration::from_secs(600);

const ADDRESSES: &str =
    "an address such as \"127.0.0.1:8080\" or \"unix:/run/tidegate.sock\", or a list of them";

impl Default for Server {
    fn default() -> Self {
        Self {
            http: vec![Address::Tcp("127.0.0.1:8080".into())],
            admin: Vec::new(),
            resp: Vec::new(),
            grpc: Vec::new(),
            resp_token: None,
            admin_token: None,
            gate_headers: Vec::new(),
            trusted_proxies: Vec::new(),
            hosts: Vec::new(),
            tls_cert: None,
            tls_key: None,
            tls_client_ca: None,
            tls_client_listeners: vec!["http", "grpc", "resp"],
            socket_mode: None,
            drain: Duration::from_secs(2),
            idle: Duration::from_secs(75),
            log: Level::default(),
            log_keys: false,
            access_log: false,
            envoy: Envoy::default(),
        }
    }
}

impl Server {
    /// Reads the section; what is wrong is in the errors.
    #[must_use]
    pub fn read(fields: &Fields<'_>) -> Self {
        let standard = Self::default();
        let server = Self {
            http: addresses(fields, "http").unwrap_or(standard.http),
            admin: addresses(fields, "admin").unwrap_or_default(),
            resp: addresses(fields, "resp").unwrap_or_default(),
            grpc: addresses(fields, "grpc").unwrap_or_default(),
            resp_token: token(fields, "resp_token"),
            admin_token: token(fields, "admin_token"),
            gate_headers: gate_headers(fields).unwrap_or_default(),
            trusted_proxies: trusted_proxies(fields).unwrap_or_default(),
            hosts: hosts(fields).unwrap_or_default(),
            tls_cert: fields.path("tls_cert"),
            tls_key: fields.path("tls_key"),
            tls_client_ca: fields.path("tls_client_ca"),
            tls_client_listeners: tls_client_listeners(fields)
                .unwrap_or(standard.tls_client_listeners),
            socket_mode: socket_mode(fields),
            drain: fields
                .duration("drain", Duration::ZERO, LONGEST)
                .unwrap_or(standard.drain),
            idle: fields
                .duration("idle", Duration::from_secs(1), LONGEST)
                .unwrap_or(standard.idle),
            log: fields.choice("log", &Level::ALL).unwrap_or(standard.log),
            log_keys: fields.flag("log_keys").unwrap_or(standard.log_keys),
            access_log: fields.flag("access_log").unwrap_or(standard.access_log),
            envoy: standard.envoy,
        };
        fields.pair("tls_cert", "tls_key");
        if server.tls_client_ca.is_some() && server.tls_cert.is_none() {
            let message = "clients show certificates over TLS only: expected tls_cert and tls_key";
            fields.error("tls_client_ca", message);
        }
        if fields.has("tls_client_listeners") && !fields.has("tls_client_ca") {
            let message = "missing: expected it together with tls_client_listeners";
            fields.error("tls_client_ca", message);
        }
        fields.finish();
        server
    }
}

/// The addresses of a listener: one, or a list.
fn addresses(fields: &Fields<'_>, name: &'static str) -> Option<Vec<Address>> {
    let mut addresses = Vec::new();
    for (text, span) in fields.texts(name, true, ADDRESSES)? {
        let message = match text.parse::<Address>() {
            Ok(address) if !addresses.contains(&address) => {
                addresses.push(address);
                continue;
            }
            Ok(_) => format!("{}: twice: expected it once", shown(text)),
            Err(message) => message,
        };
        fields.error_at(span, name, message);
    }
    if addresses.is_empty() && !fields.is_wrong(name) {
        fields.error(name, format!("an empty list: expected {ADDRESSES}"));
    }
    Some(addresses)
}

/// The permissions of a file in octal.
fn socket_mode(fields: &Fields<'_>) -> Option<u32> {
    let expected = "permissions in octal, such as \"0660\"";
    let text = fields.text("socket_mode", expected)?;
    let mode = u32::from_str_radix(text, 8).ok();
    let is_octal = text.bytes().all(|byte| byte.is_ascii_digit());
    let mode = mode.filter(|mode| is_octal && *mode <= 0o777);
    if mode.is_none() {
        fields.error(
            "socket_mode",
            format!("{}: expected {expected}", shown(text)),
        );
    }
    mode
}

/// What clients must show.
fn token(fields: &Fields<'_>, name: &'static str) -> Option<Secret> {
    let expected = "\"file:PATH\", \"env:NAME\", or a token";
    let text = fields.secret(name, expected)?;
    let fault = match Secret::parse(text) {
        None => format!("{}: expected {expected}", shown(text)),
        // Another one could not stand in the header of a request.
        Some(Secret::Text(token)) if !token.bytes().all(|byte| byte.is_ascii_graphic()) => {
            "a token with spaces or other characters: expected visible ASCII characters".into()
        }
        secret => return secret,
    };
    fields.error(name, fault);
    None
}

fn gate_headers(fields: &Fields<'_>) -> Option<Vec<String>> {
    let expected = "a list of attributes, such as [\"ip\"]";
    let mut kept: Vec<String> = Vec::new();
    // `user_id` and `user-id` are one header.
    let header = |name: &str| name.to_lowercase().replace('_', "-");
    for (text, span) in fields.texts("gate_headers", false, expected)? {
        let message = if !is_name(text) {
            format!("{}: expected {NAME}", shown(text))
        } else if kept.iter().any(|other| header(other) == header(text)) {
            format!(
                "{}: maps to the same header as another name: expected it once",
                shown(text)
            )
        } else {
            kept.push(text.into());
            continue;
        };
        fields.error_at(span, "gate_headers", message);
    }
    Some(kept)
}

fn trusted_proxies(fields: &Fields<'_>) -> Option<Vec<TrustedProxy>> {
    let name = "trusted_proxies";
    let expected = "a list of networks, such as [\"10.0.0.0/8\"]";
    let mut kept = Vec::new();
    for (text, span) in fields.texts(name, false, expected)? {
        match text.parse() {
            Ok(proxy) => kept.push(proxy),
            Err(message) => fields.error_at(span, name, message),
        }
    }
    Some(kept)
}

fn hosts(fields: &Fields<'_>) -> Option<Vec<String>> {
    let expected = "names without a port, such as [\"tidegate.internal\"]";
    let texts = fields.texts("hosts", false, expected)?;
    let (kept, wrong): (Vec<_>, Vec<_>) = texts
        .into_iter()
        .partition(|(text, _)| is_host(text, b".-_"));
    for (text, span) in wrong {
        fields.error_at(
            span,
            "hosts",
            format!("{}: expected {expected}", shown(text)),
        );
    }
    Some(kept.into_iter().map(|(text, _)| text.into()).collect())
}

fn tls_client_listeners(fields: &Fields<'_>) -> Option<Vec<&'static str>> {
    let name = "tls_client_listeners";
    let expected = "a list of \"http\", \"admin\", \"grpc\" and \"resp\"";
    let mut kept = Vec::new();
    for (text, span) in fields.texts(name, false, expected)? {
        let known = ["http", "admin", "grpc", "resp"]
            .into_iter()
            .find(|it| *it == text);
        match known {
            Some(listener) => kept.push(listener),
            None => fields.error_at(span, name, format!("{}: expected {expected}", shown(text))),
        }
    }
    if kept.is_empty() && !fields.is_wrong(name) {
        fields.error(name, format!("an empty list: expected {expected}"));
    }
    Some(kept)
}

impl FromStr for Address {
    type Err = String;

    /// The error is in the words of a config's.
    fn from_str(text: &str) -> Result<Self, String> {
        let read = match text.strip_prefix("unix:") {
            Some(path) => {
                (!path.is_empty() && !path.contains('\0')).then(|| Self::Unix(path.into()))
            }
            None => text.rsplit_once(':').and_then(|(host, port)| {
                let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
                let is_port = is_number && port.parse::<u16>().is_ok();
                (is_host(host, b".-") && is_port).then(|| Self::Tcp(text.into()))
            }),
        };
        read.ok_or_else(|| format!("{}: expected {ADDRESSES}", shown(text)))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let standard = Self::default();
        if *self == standard && !f.alternate() {
            return Ok(());
        }
        writeln!(f, "[server]")?;
        for (name, addresses, standard) in [
            ("http", &self.http, &standard.http),
            ("admin", &self.admin, &standard.admin),
            ("grpc", &self.grpc, &standard.grpc),
            ("resp", &self.resp, &standard.resp),
        ] {
            let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            let shown = list(texts.iter().map(String::as_str));
            if !addresses.is_empty() {
                field(f, name, addresses, standard, shown)?;
            }
        }
        secret(f, "resp_token", self.resp_token.as_ref())?;
        secret(f, "admin_token", self.admin_token.as_ref())?;
        let names = &self.gate_headers;
        let shown = list(names.iter().map(String::as_str));
        field(f, "gate_headers", names, &standard.gate_headers, shown)?;
        let proxies = &self.trusted_proxies;
        let texts: Vec<String> = proxies.iter().map(ToString::to_string).collect();
        let shown = list(texts.iter().map(String::as_str));
        field(
            f,
            "trusted_proxies",
            proxies,
            &standard.trusted_proxies,
            shown,
        )?;
        let shown = list(self.hosts.iter().map(String::as_str));
        field(f, "hosts", &self.hosts, &standard.hosts, shown)?;
        optional(f, "tls_cert", self.tls_cert.as_deref())?;
        optional(f, "tls_key", self.tls_key.as_deref())?;
        optional(f, "tls_client_ca", self.tls_client_ca.as_deref())?;
        if self.tls_client_ca.is_some() {
            let (names, usual) = (&self.tls_client_listeners, &standard.tls_client_listeners);
            let shown = list(names.iter().copied());
            field(f, "tls_client_listeners", names, usual, shown)?;
        }
        if let Some(mode) = self.socket_mode {
            writeln!(f, "socket_mode = {}", quoted(&format!("{mode:04o}")))?;
        }
        field(
            f,
            "drain",
            &self.drain,
            &standard.drain,
            duration(self.drain),
        )?;
        field(f, "idle", &self.idle, &standard.idle, duration(self.idle))?;
        let level = quoted(self.log.word());
        field(f, "log", &self.log, &standard.log, level)?;
        let (log_keys, access_log) = (self.log_keys, self.access_log);
        field(f, "log_keys", &log_keys, &standard.log_keys, log_keys)?;
        field(
            f,
            "access_log",
            &access_log,
            &standard.access_log,
            access_log,
        )?;
        writeln!(f)
    }
}
