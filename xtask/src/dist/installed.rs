//! The package as its users meet it: installed on a clean Debian system without systemd,
//! started, asked with the commands of README.md, reloaded, upgraded, removed and purged.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::root::{Root, ensure_same};
use crate::command::{output, program};
use crate::{install, readme};

const CONFIG: &str = "etc/tidegate/tidegate.toml";
const PID: &str = "run/tidegate.pid";
const LOG: &str = "run/tidegate.log";

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Does all of it with one package.
pub(super) fn check(package: &Path) -> Result<()> {
    if !install::is_root()? {
        println!("\n*** PACKAGE NOT TESTED: a clean root needs root. ***\n");
        return Ok(());
    }
    let root = Root::new()?;
    let before = root.listing()?;
    println!("On a clean Debian root:");
    install_and_use(&root, package)?;
    ensure_same(&before, &root.listing()?)?;
    without_useradd(&root, package)?;
    ensure_same(&before, &root.listing()?)?;
    println!("The package installs, runs, reloads, upgrades and purges.");
    Ok(())
}

fn install_and_use(root: &Root, package: &Path) -> Result<()> {
    install(root, package)?;
    root.run(&["dpkg", "--verify", "tidegate"])?;
    for file in [
        "usr/share/man/man1/tidegate.1.gz",
        "usr/share/man/man1/tidegate-serve.1.gz",
        "usr/share/bash-completion/completions/tidegate",
        "usr/lib/systemd/system/tidegate.service",
        CONFIG,
    ] {
        ensure!(root.path(file).is_file(), "the package has no /{file}");
    }
    let said = root.run(&["tidegate", "config", "check", &format!("/{CONFIG}")])?;
    ensure!(said.contains("1 polic"), "config check: {said}");

    // An operator moves it to another port: what is at 8080 here is none of our business.
    let port = free_port()?;
    let config = root.read(CONFIG)?;
    ensure!(
        config.contains("127.0.0.1:8080"),
        "the example config listens at 8080"
    );
    let config = config.replace("127.0.0.1:8080", &format!("127.0.0.1:{port}"));
    root.write(CONFIG, &config)?;
    let server = Server::start(root, port)?;
    server.runs_as_its_user()?;
    server.answers_the_readme()?;
    server.reloads(&config)?;

    // The same version again takes the path of an upgrade: a changed config stays.
    install(root, package)?;
    let changed = config.replace("10r/s", "20r/s");
    ensure!(
        root.read(CONFIG)? == changed,
        "an upgrade has replaced the config"
    );
    server.stop()?;

    root.run(&["dpkg", "--remove", "tidegate"])?;
    ensure!(
        !root.path("usr/bin/tidegate").exists(),
        "removed, but still there"
    );
    ensure!(
        root.read(CONFIG)? == changed,
        "a removal has to keep the config"
    );
    // Secrets of the operator go with a purge as well.
    root.write("etc/tidegate/environment", "TIDEGATE_ADMIN_TOKEN=sesame\n")?;
    root.run(&["dpkg", "--purge", "tidegate"])?;
    ensure!(
        !root.read("etc/passwd")?.contains("tidegate"),
        "the user is still there"
    );
    Ok(())
}

fn install(root: &Root, package: &Path) -> Result<()> {
    std::fs::copy(package, root.path("tidegate.deb")).context("the package")?;
    root.run(&["dpkg", "--install", "/tidegate.deb"])?;
    std::fs::remove_file(root.path("tidegate.deb")).context("the package")
}

/// On a system that cannot make users, installing and purging must work all the same.
fn without_useradd(root: &Root, package: &Path) -> Result<()> {
    let tools = ["usr/sbin/useradd", "usr/sbin/userdel"];
    let hidden = |tool: &str| root.path(&format!("{tool}.hidden"));
    for tool in tools {
        std::fs::rename(root.path(tool), hidden(tool)).context(tool)?;
    }
    install(root, package)?;
    root.run(&["tidegate", "--version"])?;
    root.run(&["dpkg", "--purge", "tidegate"])?;
    for tool in tools {
        std::fs::rename(hidden(tool), root.path(tool)).context(tool)?;
    }
    Ok(())
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("a free port")?;
    Ok(listener.local_addr()?.port())
}

/// A server inside the root, started without systemd.
struct Server<'r> {
    root: &'r Root,
    port: u16,
}

impl<'r> Server<'r> {
    fn start(root: &'r Root, port: u16) -> Result<Self> {
        root.run(&[
            "start-stop-daemon",
            "--start",
            "--background",
            "--make-pidfile",
            "--pidfile",
            &format!("/{PID}"),
            "--output",
            &format!("/{LOG}"),
            "--chuid",
            "tidegate",
            "--exec",
            "/usr/bin/tidegate",
            "--",
            "serve",
            "--config",
            &format!("/{CONFIG}"),
        ])?;
        let server = Self { root, port };
        server.until("it listens", || {
            Ok(TcpStream::connect(("127.0.0.1", port)).is_ok())
        })?;
        Ok(server)
    }

    fn until(&self, what: &str, is_so: impl Fn() -> Result<bool>) -> Result<()> {
        let start = Instant::now();
        while !is_so()? {
            let log = || self.root.read(LOG).unwrap_or_default();
            ensure!(start.elapsed() < PATIENCE, "never: {what}\n{}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Sends a signal as an operator would.
    fn signal(&self, arguments: &[&str]) -> Result<()> {
        let pid = format!("/{PID}");
        let words = ["start-stop-daemon", "--stop", "--pidfile", &pid];
        self.root.run(&[&words, arguments].concat()).map(drop)
    }

    fn runs_as_its_user(&self) -> Result<()> {
        let users = self.root.read("etc/passwd")?;
        let user = users
            .lines()
            .find_map(|line| line.strip_prefix("tidegate:x:"));
        let id = user.and_then(|line| line.split(':').next());
        let pid = self.root.read(PID)?;
        let status = std::fs::read_to_string(format!("/proc/{}/status", pid.trim()));
        let status = status.context("the server's process")?;
        let ids = status.lines().find_map(|line| line.strip_prefix("Uid:\t"));
        let own = ids.and_then(|ids| ids.split('\t').next());
        ensure!(
            id.is_some() && own == id,
            "it runs as {own:?}, not as {id:?}"
        );
        Ok(())
    }

    /// Runs the commands of README.md that ask a server, outside the root.
    fn answers_the_readme(&self) -> Result<()> {
        let commands = readme::questions()?;
        let mut said = String::new();
        for command in commands {
            let command = command.replace("127.0.0.1:8080", &self.address());
            println!("  $ {command}");
            said.push_str(&output(program("sh").args(["-c", &command]))?);
        }
        ensure!(
            said.contains("200 OK") && said.contains("\"allowed\":true"),
            "README.md's questions were answered with:\n{said}"
        );
        Ok(())
    }

    /// SIGHUP reads the file again even if it is the same; a changed file is in force.
    fn reloads(&self, config: &str) -> Result<()> {
        let before = self.metric("tidegate_reload_total{result=\"ok\"}")?;
        self.signal(&["--signal", "HUP"])?;
        self.until("it reloads on SIGHUP", || {
            Ok(self.metric("tidegate_reload_total{result=\"ok\"}")? > before)
        })?;
        self.root.write(CONFIG, &config.replace("10r/s", "20r/s"))?;
        self.signal(&["--signal", "HUP"])?;
        self.until("the changed file is in force", || {
            Ok(self.get("/v1/policies")?.contains("20r/s"))
        })
    }

    fn stop(self) -> Result<()> {
        self.signal(&["--retry", "TERM/20"])?;
        for file in [PID, LOG] {
            std::fs::remove_file(self.root.path(file)).context(file)?;
        }
        Ok(())
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn get(&self, path: &str) -> Result<String> {
        let url = format!("http://{}{path}", self.address());
        output(Command::new("curl").args(["--silent", "--show-error", "--fail", &url]))
    }

    fn metric(&self, name: &str) -> Result<f64> {
        let text = self.get("/metrics")?;
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.map_or(Ok(0.0), |value| value.trim().parse().context("a number"))
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        // Nothing is left to stop when all went well.
        if let Ok(pid) = self.root.read(PID) {
            drop(Command::new("kill").args(["-KILL", pid.trim()]).status());
        }
    }
}
