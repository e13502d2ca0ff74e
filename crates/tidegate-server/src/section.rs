//! The section `[server]`: addresses, tokens, TLS and logging.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tidegate::text::{NAME, is_name, shown};
use tidegate_config::write::quoted;
use tidegate_config::{Fields, List, Rows, Secret, Table, is_host};

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
    /// How long to keep answering after SIGTERM.
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
        // Messages list these before the others.
        let _ = ["http", "admin", "resp"].map(|name| fields.has(name));
        let server = fields.rows(Self::default());
        for (name, token) in [
            ("resp_token", &server.resp_token),
            ("admin_token", &server.admin_token),
        ] {
            // Another one could not stand in the header of a request.
            if let Some(Secret::Text(text)) = token
                && !text.bytes().all(|byte| byte.is_ascii_graphic())
            {
                let message =
                    "a token with spaces or other characters: expected visible ASCII characters";
                fields.error(name, message);
            }
        }
        fields.pair("tls_cert", "tls_key");
        if server.tls_client_ca.is_some() && server.tls_cert.is_none() {
            let message = "client certificates need TLS: expected tls_cert and tls_key";
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

impl Table for Server {
    fn rows(&mut self, rows: &mut Rows<'_>) {
        use List::{Any, Filled, FilledOrItem};
        rows.list("http", FilledOrItem, ADDRESSES, &mut self.http, address);
        for (name, listener) in [
            ("admin", &mut self.admin),
            ("grpc", &mut self.grpc),
            ("resp", &mut self.resp),
        ] {
            rows.print_if(!listener.is_empty());
            rows.list(name, FilledOrItem, ADDRESSES, listener, address);
        }
        rows.print_if(true);
        rows.secret("resp_token", "a token", &mut self.resp_token);
        rows.secret("admin_token", "a token", &mut self.admin_token);
        let expected = "a list of attributes, such as [\"ip\"]";
        rows.list(
            "gate_headers",
            Any,
            expected,
            &mut self.gate_headers,
            gate_header,
        );
        let expected = "a list of networks, such as [\"10.0.0.0/8\"]";
        let proxies = &mut self.trusted_proxies;
        rows.list("trusted_proxies", Any, expected, proxies, |text, _| {
            text.parse()
        });
        let expected = "names without a port, such as [\"tidegate.internal\"]";
        rows.list("hosts", Any, expected, &mut self.hosts, |text, _| {
            let host = Some(text.to_owned()).filter(|host| is_host(host, b".-_"));
            host.ok_or_else(|| format!("{}: expected {expected}", shown(text)))
        });
        rows.path("tls_cert", &mut self.tls_cert);
        rows.path("tls_key", &mut self.tls_key);
        rows.path("tls_client_ca", &mut self.tls_client_ca);
        rows.print_if(self.tls_client_ca.is_some());
        let expected = "a list of \"http\", \"admin\", \"grpc\" and \"resp\"";
        let listeners = &mut self.tls_client_listeners;
        rows.list(
            "tls_client_listeners",
            Filled,
            expected,
            listeners,
            |text, _| {
                let mut known = ["http", "admin", "grpc", "resp"].into_iter();
                let listener = known.find(|it| *it == text);
                listener.ok_or_else(|| format!("{}: expected {expected}", shown(text)))
            },
        );
        rows.print_if(true);
        let print = |mode| quoted(&format!("{mode:04o}"));
        rows.row("socket_mode", &mut self.socket_mode, socket_mode, print);
        rows.duration("drain", Duration::ZERO..=LONGEST, &mut self.drain);
        rows.duration("idle", Duration::from_secs(1)..=LONGEST, &mut self.idle);
        rows.choice("log", &Level::ALL, &mut self.log);
        rows.flag("log_keys", &mut self.log_keys);
        rows.flag("access_log", &mut self.access_log);
    }
}

/// An address of a listener, which has each once.
fn address(text: &str, before: &[Address]) -> Result<Address, String> {
    let address = text.parse()?;
    match before.contains(&address) {
        true => Err(format!("{}: twice: expected it once", shown(text))),
        false => Ok(address),
    }
}

/// The permissions of a file in octal.
fn socket_mode(fields: &Fields<'_>, name: &'static str) -> Option<u32> {
    let expected = "permissions in octal, such as \"0660\"";
    fields.parsed(name, expected, |text| {
        let is_octal = text.bytes().all(|byte| byte.is_ascii_digit());
        let mode = u32::from_str_radix(text, 8).ok();
        let mode = mode.filter(|mode| is_octal && *mode <= 0o777);
        mode.ok_or_else(|| format!("{}: expected {expected}", shown(text)))
    })
}

/// The name of an attribute whose header is not that of another one.
fn gate_header(name: &str, before: &[String]) -> Result<String, String> {
    // `user_id` and `user-id` are one header.
    let header = |name: &str| name.to_lowercase().replace('_', "-");
    let is_taken = before.iter().any(|other| header(other) == header(name));
    let problem = match is_taken {
        _ if !is_name(name) => format!("expected {NAME}"),
        true => "maps to the same header as another name: expected it once".into(),
        false => return Ok(name.into()),
    };
    Err(format!("{}: {problem}", shown(name)))
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
        self.print(f, &standard)?;
        writeln!(f)
    }
}
