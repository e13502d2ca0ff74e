//! An nginx with the module, and a config of the test's own.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tidegate_testkit::http::{Connection, request};
use tidegate_testkit::nginx::{self, Nginx};
use tidegate_testkit::process::{Folder, free_port, until};
use tidegate_testkit::redis::Server;

/// The line of the config where `http` begins.
const FIRST_LINE: usize = 9;

/// A config around what a test has in `http`. `PORT` is where to listen.
pub(crate) fn config(folder: &Path, port: u16, workers: usize, http: &str) -> String {
    // The module lies beside this test's own folder.
    let test = std::env::current_exe().unwrap();
    let module = test
        .ancestors()
        .nth(2)
        .unwrap()
        .join("libtidegate_nginx.so");
    let (module, folder) = (module.display(), folder.display());
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary = temporary.map(|name| format!("{name}_temp_path {folder}/{name};"));
    let temporary = temporary.join(" ");
    let log = match http.contains("access_log") {
        true => "",
        false => "access_log off;",
    };
    let http = http.replace("PORT", &port.to_string());
    let http = http.replace("FOLDER", &folder.to_string());
    let config = format!(
        "load_module {module};
worker_processes {workers};
worker_shutdown_timeout 30s;
error_log {folder}/error.log info;
pid {folder}/nginx.pid;
events {{ worker_connections 1024; }}
http {{
{temporary} {log}
{http}
}}
"
    );
    let first = config.lines().nth(FIRST_LINE - 1).unwrap();
    assert!(http.starts_with(first), "{config}");
    config
}

/// What `nginx -t` says to this: errors after the line of `http` that they are about.
pub(crate) fn check(http: &str) -> String {
    let folder = Folder::new();
    let text = config(folder.root(), free_port(), 1, http);
    let file = folder.write("nginx.conf", text).display().to_string();
    let said = nginx::check(&folder);
    let errors = said.lines().filter_map(|line| {
        let line = line.strip_prefix("nginx: [emerg] ")?;
        Some(match line.split_once(&format!(" in {file}:")) {
            Some((error, number)) => {
                let number: usize = number.parse().unwrap();
                format!("{}: {error}", (number + 1).saturating_sub(FIRST_LINE))
            }
            None => line.to_owned(),
        })
    });
    let errors: Vec<String> = errors.collect();
    match said.contains("test is successful") {
        true => "accepted".to_owned(),
        false => errors.join("; "),
    }
}

/// A folder with a config, and where it listens.
fn prepared(workers: usize, http: &str) -> (Folder, u16) {
    let (folder, port) = (Folder::new(), free_port());
    std::fs::create_dir(folder.path("html")).unwrap();
    folder.write("html/index.html", "page\n");
    let text = config(folder.root(), port, workers, http);
    folder.write("nginx.conf", text);
    (folder, port)
}

/// An nginx with this in `http`.
pub(crate) fn start(workers: usize, http: &str) -> Nginx {
    let (folder, port) = prepared(workers, http);
    Nginx::start(folder, port)
}

/// The same as a daemon.
pub(crate) fn start_daemon(workers: usize, http: &str) -> Nginx {
    let (folder, port) = prepared(workers, http);
    Nginx::start_daemon(folder, port)
}

/// Has another config read.
pub(crate) fn reload(nginx: &Nginx, workers: usize, http: &str) {
    let root = nginx.folder().root();
    nginx.reload(&config(root, nginx.port(), workers, http));
}

/// `http`, and one server with these locations.
pub(crate) fn serving(http: &str, server: &str) -> String {
    format!("{http}\nserver {{ listen 127.0.0.1:PORT backlog=4096; root FOLDER/html;\n{server}\n}}")
}

/// `http`, and one server that has a location for each of these zones.
pub(crate) fn serving_zones(http: &str, zones: &[&str]) -> String {
    let zones = zones.iter();
    let locations: String = zones
        .map(|zone| {
            format!("location /{zone} {{ tidegate {zone}; try_files /index.html =404; }}\n")
        })
        .collect();
    serving(http, &locations)
}

/// The directive that names a store. The default deadline is short for a machine that does
/// other things, so most tests have ten seconds.
pub(crate) fn store(redis: &Server, timeout: &str) -> String {
    format!("tidegate_store default {}0 timeout={timeout};", redis.url())
}

/// What a command of Redis returns.
pub(crate) fn command<T: redis::FromRedisValue>(server: &Server, words: &str) -> T {
    let mut words = words.split(' ');
    let mut command = redis::cmd(words.next().unwrap());
    command.arg(words.collect::<Vec<_>>());
    command.query(&mut server.connect()).unwrap()
}

/// What four clients have got.
#[derive(Default)]
pub(crate) struct Load {
    stop: AtomicBool,
    answered: AtomicUsize,
    /// Requests that were cut off.
    cut: AtomicUsize,
}

/// Tells clients to stop when it is dropped, whatever happens.
pub(crate) struct Stop<'s>(pub(crate) &'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl Load {
    /// Asks all the time while something else happens. Each request that is not cut off is
    /// answered with one of these statuses.
    pub(crate) fn run(
        port: u16,
        paths: &[&str],
        statuses: &[u16],
        work: impl FnOnce(&Self),
    ) -> usize {
        let load = Self::default();
        let address = format!("127.0.0.1:{port}");
        std::thread::scope(|scope| {
            for client in 0..4 {
                let (load, address) = (&load, &address);
                scope.spawn(move || {
                    for path in paths.iter().cycle().skip(client) {
                        if load.stop.load(Relaxed) {
                            break;
                        }
                        let mut connection = Connection::tcp(address);
                        connection.send(&request("HEAD", path, &[("Connection", "close")], &[]));
                        match connection.receive("HEAD") {
                            Some(it) => assert!(statuses.contains(&it.status), "{path}: {it:?}"),
                            None => {
                                load.cut.fetch_add(1, Relaxed);
                                std::thread::sleep(Duration::from_millis(5));
                            }
                        }
                        load.answered.fetch_add(1, Relaxed);
                    }
                });
            }
            let _stop = Stop(&load.stop);
            work(&load);
        });
        load.cut.into_inner()
    }

    /// Waits until this many more requests have ended.
    pub(crate) fn wait_for(&self, more: usize) {
        let end = self.answered.load(Relaxed) + more;
        until("answers", || {
            (self.answered.load(Relaxed) >= end).then_some(())
        });
    }
}
