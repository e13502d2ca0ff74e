//! The `tidegate` binary, with a config of the test's or that of `examples/nginx/`.

use std::fs::File;
use std::path::PathBuf;

use tidegate_testkit::http::get;
use tidegate_testkit::process::{Folder, Process, command};
use tidegate_testkit::tidegate::binary;

/// The part of a config that goes with `examples/nginx/tidegate/server.conf`.
const SERVER: &str = "[server]\ngate_headers = [\"ip\", \"method\", \"key\"]\n";

pub(crate) struct Tidegate {
    process: Process,
    folder: Folder,
    port: u16,
}

impl Tidegate {
    /// With the config in `examples/nginx/`, as it stands.
    pub(crate) fn example() -> Self {
        Self::run(Folder::new(), example("tidegate.toml"), &[])
    }

    /// With other policies.
    pub(crate) fn start(policies: &str) -> Self {
        Self::start_with(policies, &[])
    }

    /// With other policies, and more arguments.
    pub(crate) fn start_with(policies: &str, arguments: &[&str]) -> Self {
        let server = if policies.contains("[server]") {
            ""
        } else {
            SERVER
        };
        let folder = Folder::new();
        let config = folder.root().join("tidegate.toml");
        std::fs::write(&config, format!("{server}{policies}")).expect("a folder to write to");
        Self::run(folder, config, arguments)
    }

    fn run(folder: Folder, config: PathBuf, arguments: &[&str]) -> Self {
        let log = File::create(folder.root().join("log")).expect("a folder to write to");
        // The workers of nginx are another user, who may write to a socket file only if
        // everybody may.
        let mut serve = command("sh", "KILL");
        serve
            .args(["-c", "umask 0; exec \"$0\" \"$@\""])
            .arg(binary())
            .args(["serve", "--http", "127.0.0.1:0", "--config"])
            .arg(config)
            .args(["--drain", "0"])
            .args(arguments)
            .env("NO_COLOR", "1")
            .stderr(log);
        let mut process = Process::start(serve);
        let log = folder.root().join("log");
        // It opens one listener after the other: all of them have to be there.
        let listeners = 1 + arguments.iter().filter(|word| **word == "--http").count();
        let port = process.wait_for(|| {
            let log = std::fs::read_to_string(&log).expect("a log that was created");
            if log.matches("listening on ").count() < listeners {
                return None;
            }
            let (_, rest) = log.split_once("listening on http://127.0.0.1:")?;
            rest.split_once('\n')?.0.parse().ok()
        });
        Self {
            process,
            folder,
            port,
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Where it is, for `server` in an `upstream` of nginx.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.root().join("log")).expect("a log that was created")
    }

    /// The sum of a metric over all labels that contain a text.
    pub(crate) fn metric(&self, name: &str, labels: &str) -> f64 {
        let metrics = get(self.port, "/metrics");
        let lines = metrics
            .text()
            .lines()
            .filter_map(|line| line.rsplit_once(' '));
        let lines = lines.filter(|(metric, _)| {
            let (metric, rest) = metric.split_once('{').unwrap_or((metric, ""));
            metric == name && rest.contains(labels)
        });
        lines
            .map(|(_, value)| value.parse::<f64>().expect("a number"))
            .sum()
    }
}

/// The policy of locations that choose none.
pub(crate) fn default_policy(key: &str, limit: &str) -> String {
    format!("[[policies]]\nname = \"default\"\nkey = {key:?}\nlimit = {limit:?}\n")
}

/// A file of `examples/nginx/`.
pub(crate) fn example(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples/nginx")
        .join(name)
}
