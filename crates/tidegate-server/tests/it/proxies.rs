//! Caddy and Traefik with the configs of docs/proxies.md: real ones, and clients that try
//! to choose their own key.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};

use serde_json::json;

use crate::client::{Answer, Connection};
use crate::process::{Folder, Tidegate, until};
use crate::resp::peer;
use tidegate_testkit::page::{blocks, section};

const PAGE: &str = include_str!("../../../../docs/proxies.md");

/// What a client may send to be taken for another one, or to pay less.
const ATTACKS: [(&str, &[(&str, &str)]); 19] = [
    ("?ip=6.6.6.1", &[]),
    ("?ip=6.6.6.2&ip=6.6.6.3", &[]),
    ("?i%70=6.6.6.4", &[]),
    ("?cost=0", &[]),
    ("?deny=200", &[]),
    ("?deny=404&body=none", &[]),
    ("?level=x&all=true", &[]),
    ("?", &[]),
    ("", &[("X-Tidegate-Ip", "6.6.6.5")]),
    (
        "",
        &[("x-tidegate-ip", "6.6.6.6"), ("x-tidegate-ip", "6.6.6.7")],
    ),
    ("", &[("X_Tidegate_Ip", "6.6.6.8")]),
    ("", &[("X-Forwarded-For", "6.6.6.9")]),
    (
        "",
        &[
            ("X-Forwarded-For", "6.6.7.1"),
            ("X-Forwarded-For", "6.6.7.2"),
        ],
    ),
    ("", &[("X-Forwarded-For", "")]),
    (
        "",
        &[
            ("X-Forwarded-Uri", "/v1/gate/default?ip=6.6.7.3"),
            ("X-Forwarded-Method", "PUT"),
        ],
    ),
    (
        "",
        &[("X-Real-Ip", "6.6.7.4"), ("Forwarded", "for=6.6.7.5")],
    ),
    // Headers that a proxy removes once they are named here.
    (
        "",
        &[
            ("Connection", "close, X-Tidegate-Ip"),
            ("X-Tidegate-Ip", "6.6.7.6"),
        ],
    ),
    (
        "",
        &[
            ("Connection", "close, X-Forwarded-For"),
            ("X-Forwarded-For", "6.6.7.7"),
        ],
    ),
    ("", &[("Connection", "close, Host")]),
];

/// A proxy that runs, with Tidegate beside it and an application behind it.
struct Proxied {
    process: Child,
    address: String,
    tidegate: Tidegate,
    /// Another Tidegate: it answers, and that is all that an application has to do here.
    _application: Tidegate,
    _folder: Folder,
}

/// Host and port that nobody else uses: on an address of this process's own.
fn free_address() -> String {
    static NEXT: AtomicU8 = AtomicU8::new(2);
    let [.., high, low] = std::process::id().to_be_bytes();
    let own = Ipv4Addr::new(127, high, low, NEXT.fetch_add(1, Ordering::Relaxed));
    let listener = TcpListener::bind((own, 0)).expect("an address of the machine's own");
    listener.local_addr().expect("a socket").to_string()
}

impl Proxied {
    /// Starts all three as a section of the page says, with the limit three. `command` gets
    /// the address to listen on and the config, and makes the proxy's command.
    fn start(
        heading: &str,
        kind: &str,
        command: impl FnOnce(&str, String, &Folder) -> Command,
    ) -> Self {
        let shown = blocks(section(PAGE, heading));
        let shown = |kind: &str| {
            let mut blocks = shown.iter().filter(|block| block.kind == kind);
            let text = blocks.next().expect(kind).text;
            assert!(blocks.next().is_none(), "{heading}: two blocks of {kind}");
            text
        };
        let replaced = |text: &str, old: &str, new: &str| {
            assert_eq!(text.matches(old).count(), 1, "{heading}: {old}");
            text.replace(old, new)
        };
        let config = replaced(shown("toml"), "\"100r/s\"", "\"3/1h\"");
        let (tidegate, application) = (Tidegate::start(&config), Tidegate::start(""));
        let config = replaced(shown(kind), "127.0.0.1:8080", tidegate.address());
        let config = replaced(&config, "127.0.0.1:8001", application.address());
        let (address, folder) = (free_address(), Folder::new());
        let log = std::fs::File::create(folder.path("log")).expect("a file");
        let process = command(&address, config, &folder)
            .current_dir(folder.path(""))
            .env("HOME", folder.path(""))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log)
            .spawn();
        let mut started = Self {
            process: process.expect("installed by `cargo xtask test`"),
            address,
            tidegate,
            _application: application,
            _folder: folder,
        };
        until("the proxy listens", || {
            let ended = started.process.try_wait().expect("a child of ours");
            let log = || std::fs::read_to_string(started._folder.path("log"));
            assert!(ended.is_none(), "it has ended: {:?}", log());
            TcpStream::connect(&started.address).ok()
        });
        started
    }

    fn ask(&self, query: &str, headers: &[(&str, &str)]) -> Answer {
        let path = format!("/healthz{query}");
        Connection::tcp(&self.address).ask("GET", &path, headers, b"")
    }

    /// Three requests pass, whatever the client sends, and then none does.
    fn assert_limited(&self) -> Answer {
        let long = "6.6.8.8, ".repeat(500);
        let attacks = [("", &[("X-Forwarded-For", &*long)][..])];
        let attacks = || attacks.into_iter().chain(ATTACKS);
        // While a proxy reads its config, it does not know the path.
        let first = until("the proxy has read its config", || {
            Some(self.ask("?ip=6.6.8.9", &[])).filter(|answer| answer.status != 404)
        });
        for answer in [&first, &self.ask("", &[]), &self.ask("?deny=200", &[])] {
            assert_eq!((answer.status, answer.text()), (200, "ok\n"), "{answer:?}");
        }
        for (query, headers) in attacks() {
            let answer = self.ask(query, headers);
            assert_eq!(answer.status, 429, "{query} {headers:?} {answer:?}");
            assert!(answer.header("retry-after").is_some(), "{answer:?}");
        }
        let key = self.tidegate.get("/v1/keys/default?ip=127.0.0.1").json();
        assert_eq!(key["levels"][0]["remaining"], json!(0));
        first
    }
}

impl Drop for Proxied {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn caddy(program: PathBuf) {
    let proxied = Proxied::start("## Caddy", "caddy", |address, config, folder| {
        let (host, port) = address.split_once(':').expect("a port");
        let site = format!("{{\n\tadmin off\n}}\nhttp://:{port} {{\n\tbind {host}");
        let config = config.replace("example.org {", &site);
        let mut command = Command::new(program);
        command.args(["run", "--adapter", "caddyfile", "--config"]);
        command.arg(folder.write("Caddyfile", config));
        command
    });
    let allowed = proxied.assert_limited();
    assert!(allowed.header("ratelimit").is_some(), "{allowed:?}");
    assert!(allowed.header("ratelimit-policy").is_some(), "{allowed:?}");
}

#[test]
fn u10_client_of_caddy_cannot_choose_its_key() {
    // Debian's, and a new one.
    caddy("caddy".into());
    caddy(peer("caddy/bin/caddy"));
}

#[test]
fn u11_traefik_limits_by_address_and_its_client_cannot_choose_it() {
    let program = peer("traefik/bin/traefik");
    let proxied = Proxied::start("## Traefik", "yaml", |address, config, folder| {
        let config = folder.write("dynamic.yml", config);
        let mut command = Command::new(program);
        command.arg(format!("--entrypoints.web.address={address}"));
        command.arg(format!("--providers.file.filename={}", config.display()));
        command.arg("--global.checknewversion=false");
        command
    });
    proxied.assert_limited();
}
