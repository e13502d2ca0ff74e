//! Caddy and Traefik with the configs of docs/proxies.md: real ones, and clients that try
//! to choose their own key, as the rows of proxies.txt do.

use std::fs::File;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::json;
use tidegate_testkit::cases::rows;
use tidegate_testkit::page::{blocks, section};

use crate::client::{Answer, Connection};
use crate::process::{Folder, Process, Tidegate, command, free_port, until};
use crate::resp::peer;

const PAGE: &str = include_str!("../../../../docs/proxies.md");

/// A proxy that runs, with Tidegate beside it and an application behind it.
struct Proxied {
    _process: Process,
    address: String,
    tidegate: Tidegate,
    /// Another Tidegate: it answers, and that is all that an application has to do here.
    _application: Tidegate,
    _folder: Folder,
}

impl Proxied {
    /// Starts all three as a section of the page says, with the limit three. `arguments` gets
    /// the port to listen on and the config, and completes the proxy's command.
    fn start(
        program: PathBuf,
        heading: &str,
        kind: &str,
        arguments: impl FnOnce(&mut Command, u16, String, &Folder),
    ) -> Self {
        let blocks = blocks(section(PAGE, heading));
        let shown = |kind: &str, replaced: &[(&str, &str)]| {
            let mut blocks = blocks.iter().filter(|block| block.kind == kind);
            let text = blocks.next().expect(kind).text.to_owned();
            assert!(blocks.next().is_none(), "{heading}: two blocks of {kind}");
            replaced.iter().fold(text, |text, (old, new)| {
                assert_eq!(text.matches(old).count(), 1, "{heading}: {old}");
                text.replace(old, new)
            })
        };
        let tidegate = Tidegate::start(&shown("toml", &[("\"100r/s\"", "\"3/1h\"")]));
        let application = Tidegate::start("");
        let addresses = [
            ("127.0.0.1:8080", tidegate.address()),
            ("127.0.0.1:8001", application.address()),
        ];
        let (port, folder) = (free_port(), Folder::new());
        let log = File::create(folder.path("log")).expect("a file");
        let mut proxy = command(program, "KILL");
        arguments(&mut proxy, port, shown(kind, &addresses), &folder);
        proxy.current_dir(folder.root()).env("HOME", folder.root());
        proxy
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log);
        let mut process = Process::start(proxy);
        let address = format!("127.0.0.1:{port}");
        process.wait_for(|| TcpStream::connect(&address).ok());
        Self {
            _process: process,
            address,
            tidegate,
            _application: application,
            _folder: folder,
        }
    }

    fn ask(&self, target: &str, headers: &[(&str, &str)]) -> Answer {
        Connection::tcp(&self.address).ask("GET", target, headers, b"")
    }

    /// Three requests pass, whatever the client sends, and then none does.
    fn assert_limited(&self) -> Answer {
        // While a proxy reads its config, it does not know the path.
        let first = until("the proxy has read its config", || {
            Some(self.ask("/healthz?ip=6.6.8.9", &[])).filter(|answer| answer.status != 404)
        });
        let others = ["/healthz", "/healthz?deny=200"].map(|target| self.ask(target, &[]));
        for answer in [&first].into_iter().chain(&others) {
            assert_eq!((answer.status, answer.text()), (200, "ok\n"), "{answer:?}");
        }
        let long = "6.6.8.8, ".repeat(500);
        rows(include_str!("proxies.txt"), "attacks", |row| {
            let mut parts = row.split(" | ");
            let target = parts.next().expect("a target");
            let headers = parts.map(|header| {
                let (name, value) = header.split_once(':').expect(header);
                (
                    name,
                    if value == " LONG" {
                        &long
                    } else {
                        value.trim()
                    },
                )
            });
            let answer = self.ask(target, &headers.collect::<Vec<_>>());
            match answer.header("retry-after") {
                Some(_) => answer.status.to_string(),
                None => format!("{answer:?}"),
            }
        });
        let key = self.tidegate.get("/v1/keys/default?ip=127.0.0.1").json();
        assert_eq!(key["levels"][0]["remaining"], json!(0));
        first
    }
}

#[test]
fn u10_client_of_caddy_cannot_choose_its_key() {
    // Debian's, and a new one.
    for program in [|| "caddy".into(), || peer("caddy/bin/caddy")] {
        let proxied = Proxied::start(
            program(),
            "## Caddy",
            "caddy",
            |caddy, port, config, folder| {
                let site = format!("{{\n\tadmin off\n}}\nhttp://:{port} {{\n\tbind 127.0.0.1");
                let config = config.replace("example.org {", &site);
                caddy.args(["run", "--adapter", "caddyfile", "--config"]);
                caddy.arg(folder.write("Caddyfile", config));
            },
        );
        let allowed = proxied.assert_limited();
        for header in ["ratelimit", "ratelimit-policy"] {
            assert!(allowed.header(header).is_some(), "{allowed:?}");
        }
    }
}

#[test]
fn u11_traefik_limits_by_address_and_its_client_cannot_choose_it() {
    let program = peer("traefik/bin/traefik");
    let proxied = Proxied::start(
        program,
        "## Traefik",
        "yaml",
        |traefik, port, config, folder| {
            let config = folder.write("dynamic.yml", config);
            traefik.arg(format!("--entrypoints.web.address=127.0.0.1:{port}"));
            traefik.arg(format!("--providers.file.filename={}", config.display()));
            traefik.arg("--global.checknewversion=false");
        },
    );
    proxied.assert_limited();
}
