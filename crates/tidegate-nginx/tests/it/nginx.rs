//! An nginx with the module, and a config of the test's own.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::{Folder, Process, free_port, send_signal, wait_for};

pub(crate) struct Nginx {
    /// `None` where it runs by itself, as a daemon does.
    process: Option<Process>,
    id: u32,
    pub(crate) folder: Folder,
    pub(crate) port: u16,
    workers: usize,
}

/// The module, which lies beside this test's own folder.
fn module() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(Path::parent).unwrap();
    folder.join("libtidegate_nginx.so")
}

/// The line of the config where `http` begins, so that tests can say where theirs is.
pub(crate) const FIRST_LINE: usize = 9;

/// A config around what a test has in `http`. `PORT` is where to listen.
fn config(folder: &Path, port: u16, workers: usize, http: &str) -> String {
    let (module, folder) = (module(), folder.display());
    let mut config = format!(
        "load_module {};\nworker_processes {workers};\nworker_shutdown_timeout 30s;\nerror_log {folder}/error.log info;\npid {folder}/nginx.pid;\nevents {{ worker_connections 1024; }}\nhttp {{\n",
        module.display()
    );
    for name in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        write!(config, "{name}_temp_path {folder}/{name}; ").unwrap();
    }
    let log = if http.contains("access_log") {
        ""
    } else {
        "access_log off;"
    };
    writeln!(config, "{log}").unwrap();
    let http = http.replace("PORT", &port.to_string());
    let http = http.replace("FOLDER", &folder.to_string());
    writeln!(config, "{http}\n}}").unwrap();
    assert_eq!(
        config.lines().position(|it| http.starts_with(it)),
        Some(FIRST_LINE - 1)
    );
    config
}

/// The nginx to test with: the one that `TIDEGATE_NGINX` names, or the installed one. An
/// upgrade runs the program under the name that it was started by, so this is its whole path.
fn program() -> PathBuf {
    if let Some(program) = std::env::var_os("TIDEGATE_NGINX") {
        return program.into();
    }
    let path = std::env::var("PATH").unwrap();
    let folders = path.split(':').chain(["/usr/sbin"]);
    let mut programs = folders.map(|folder| Path::new(folder).join("nginx"));
    let program = programs.find(|program| program.is_file());
    program.expect("`cargo xtask test` installs nginx")
}

/// Whether nginx runs under valgrind, which writes what it finds into the folder. It is too
/// slow then to be asked for more than a limit admits, and for the deadline of a store.
pub(crate) fn under_valgrind() -> bool {
    std::env::var_os("TIDEGATE_VALGRIND").is_some()
}

fn command(folder: &Folder) -> Command {
    let mut command = match under_valgrind() {
        true => {
            let mut valgrind = Command::new("valgrind");
            let suppressions = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/valgrind.supp");
            valgrind
                .args(["--quiet", "--trace-children=yes", "--leak-check=full"])
                .args(["--show-leak-kinds=definite", "--vgdb=no"])
                .arg(format!("--suppressions={suppressions}"))
                .arg(format!(
                    "--log-file={}/valgrind.%p",
                    folder.path().display()
                ))
                .arg(program());
            valgrind
        }
        false => Command::new(program()),
    };
    command
        .arg("-p")
        .arg(folder.path())
        .arg("-c")
        .arg(folder.path().join("nginx.conf"))
        .arg("-e")
        .arg(folder.path().join("error.log"));
    command
}

/// What `nginx -t` says to this, and whether it accepts it.
pub(crate) fn check(http: &str) -> (bool, String) {
    let folder = Folder::new();
    let text = config(folder.path(), free_port(), 1, http);
    std::fs::write(folder.path().join("nginx.conf"), text).unwrap();
    let checked = command(&folder).arg("-t").output().unwrap();
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    (
        checked.status.success(),
        said.replace(&*folder.path().to_string_lossy(), ""),
    )
}

impl Nginx {
    /// With one worker.
    pub(crate) fn start(http: &str) -> Self {
        Self::start_workers(1, http)
    }

    pub(crate) fn start_workers(workers: usize, http: &str) -> Self {
        Self::launch(workers, http, false)
    }

    /// As a daemon, whose program can be replaced while it runs.
    pub(crate) fn start_daemon(workers: usize, http: &str) -> Self {
        Self::launch(workers, http, true)
    }

    fn launch(workers: usize, http: &str, daemon: bool) -> Self {
        let (folder, port) = (Folder::new(), free_port());
        let html = folder.path().join("html");
        std::fs::create_dir(&html).unwrap();
        std::fs::write(html.join("index.html"), "page\n").unwrap();
        let text = config(folder.path(), port, workers, http);
        std::fs::write(folder.path().join("nginx.conf"), text).unwrap();
        let mut command = command(&folder);
        command.stderr(Stdio::null());
        let process = match daemon {
            true => {
                assert!(command.status().unwrap().success());
                None
            }
            false => {
                let mut process = Process::start(command.args(["-g", "daemon off;"]));
                process.wait_for_port(port);
                Some(process)
            }
        };
        let id = match &process {
            Some(process) => process.id(),
            None => wait_for(|| master(&folder, "nginx.pid")),
        };
        wait_for(|| (children(id).len() == workers).then_some(()));
        Self {
            process,
            id,
            folder,
            port,
            workers,
        }
    }

    /// With `http` and one server, whose locations these are.
    pub(crate) fn serve(workers: usize, http: &str, server: &str) -> Self {
        Self::start_workers(workers, &serving(http, server))
    }

    /// Replaces the config and has it read, and waits until all workers are new.
    pub(crate) fn reload(&self, http: &str) {
        let text = config(self.folder.path(), self.port, self.workers, http);
        std::fs::write(self.folder.path().join("nginx.conf"), text).unwrap();
        let before = self.worker_ids();
        self.signal("HUP");
        wait_for(|| {
            let now = self.worker_ids();
            let old = now.iter().any(|id| before.contains(id));
            (!old && now.len() == self.workers).then_some(())
        });
    }

    /// The id of its master.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn signal(&self, signal: &str) {
        send_signal(self.id, signal);
    }

    /// Waits until it ends by itself, and says whether all went well.
    pub(crate) fn ends(&mut self) -> bool {
        self.process.as_mut().unwrap().ends()
    }

    /// The ids of its workers.
    pub(crate) fn worker_ids(&self) -> Vec<u32> {
        children(self.id)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    /// Lines of the log that are at least errors, but for refusals.
    pub(crate) fn errors(&self) -> Vec<String> {
        let log = self.read("error.log");
        let grave = ["[emerg]", "[alert]", "[crit]", "[error]"];
        let lines = log
            .lines()
            .filter(|line| grave.iter().any(|grave| line.contains(grave)));
        let lines = lines.filter(|line| !line.contains("limiting requests"));
        lines.map(String::from).collect()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        self.stop();
        if under_valgrind() && !std::thread::panicking() {
            let found = findings(&self.folder);
            assert!(found.is_empty(), "valgrind: {found}");
        }
    }
}

/// What valgrind has found in all processes of an nginx.
fn findings(folder: &Folder) -> String {
    let files = std::fs::read_dir(folder.path()).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let files = files.filter(|file| file.display().to_string().contains("valgrind."));
    files
        .map(|file| std::fs::read_to_string(file).unwrap())
        .collect()
}

impl Nginx {
    fn stop(&mut self) {
        if self.process.is_none() {
            // After an upgrade there may be two.
            for file in ["nginx.pid", "nginx.pid.oldbin"] {
                if let Some(id) = master(&self.folder, file) {
                    send_signal(id, "TERM");
                    wait_for(|| (!is_running(id)).then_some(()));
                }
            }
        }
        drop(self.process.take());
    }
}

/// The master that a file names, if it runs.
fn master(folder: &Folder, file: &str) -> Option<u32> {
    let id = std::fs::read_to_string(folder.path().join(file)).ok()?;
    let id = id.trim().parse().ok()?;
    is_running(id).then_some(id)
}

fn is_running(id: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

/// `http`, and one server with these locations.
pub(crate) fn serving(http: &str, server: &str) -> String {
    format!("{http}\nserver {{ listen 127.0.0.1:PORT backlog=4096; root FOLDER/html;\n{server}\n}}")
}

/// The processes that this one has started.
pub(crate) fn children(id: u32) -> Vec<u32> {
    let path = format!("/proc/{id}/task/{id}/children");
    let children = std::fs::read_to_string(path).unwrap_or_default();
    let ids = children.split_ascii_whitespace();
    ids.map(|id| id.parse().unwrap()).collect()
}
