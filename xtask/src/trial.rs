//! `cargo xtask trial`: the jobs of a first day, done with real programs and timed. Each job
//! fails when a step does not give what the docs promise.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::command::{cargo, output, program, root, run};
use crate::install;

/// How long a program may take to listen, and a change to take effect.
const PATIENCE: Duration = Duration::from_secs(10);

/// What it is, and the work.
type Job = (&'static str, fn(&Trial) -> Result<()>);

/// What somebody does on the first day, in this order.
const JOBS: &[Job] = &[
    ("first run: build it, start it, be refused", first_run),
    ("a policy with tiers", tiers),
    ("nginx in front of an application", nginx),
    ("two servers on one Redis through an outage", outage),
    ("why a customer was refused, and a higher limit", explain),
    ("bench", bench),
    ("the library in a new program", library),
];

/// Free, pro, one customer with a limit of its own, and one that is blocked.
const TIERS: &str = r#"[server]
http = "127.0.0.1:0"

[[policies]]
name = "api"
key = "{tier}:{customer}"
limit = "2r/m"

[[policies.overrides]]
match = { customer = "mallory" }
block = true

[[policies.overrides]]
match = { customer = "acme" }
limit = "4r/m"

[[policies.overrides]]
match = { tier = "pro" }
limit = "3r/m"
"#;

/// Runs the jobs and prints what each took.
pub(crate) fn run_all() -> Result<()> {
    install::run_all()?;
    let trial = Trial::new()?;
    let mut times = Vec::new();
    for (job, work) in JOBS {
        println!("\n=== {job}");
        let start = Instant::now();
        work(&trial).with_context(|| format!("job failed: {job}"))?;
        let minutes = start.elapsed().as_secs_f64() / 60.0;
        times.push(format!("{minutes:6.2} min  {job}"));
    }
    println!("\n{}", times.join("\n"));
    Ok(())
}

/// A folder of its own, gone in the end.
struct Trial {
    folder: PathBuf,
}

impl Trial {
    fn new() -> Result<Self> {
        let name = format!("tidegate-trial-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).context("a folder for the trial")?;
        Ok(Self { folder })
    }

    /// The program that the first job builds.
    fn tidegate() -> Command {
        program(root().join("target/release/tidegate"))
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let file = self.folder.join(name);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }

    /// A server with this config, at a port of its own.
    fn serve(&self, name: &str, config: &str) -> Result<Running> {
        let port = free_port()?;
        let config = config.replace("127.0.0.1:0", &format!("127.0.0.1:{port}"));
        let file = self.write(name, &config)?;
        run(Self::tidegate().args(["config", "check"]).arg(&file))?;
        let mut command = Self::tidegate();
        command.arg("serve").arg("--config").arg(&file);
        Running::start(&mut command, port, &self.folder.join(format!("{name}.log")))
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// A program that listens at a port, and what it logs.
struct Running {
    child: Child,
    port: u16,
    log: PathBuf,
}

impl Running {
    fn start(command: &mut Command, port: u16, log: &Path) -> Result<Self> {
        let file = fs::OpenOptions::new().create(true).append(true).open(log);
        let file = file.with_context(|| format!("cannot write {}", log.display()))?;
        command.stdout(Stdio::null()).stderr(file);
        let child = command.spawn().context("cannot start a program")?;
        let running = Self {
            child,
            port,
            log: log.to_owned(),
        };
        until("it listens", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        })?;
        Ok(running)
    }

    /// The statuses of some requests on one connection, one after the other.
    fn statuses(&self, path: &str, times: usize) -> Result<Vec<u16>> {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        let mut curl = program("curl");
        curl.args(["-s", "-w", "%{http_code}\\n"]);
        for _ in 0..times {
            curl.args(["-o", "/dev/null", &url]);
        }
        let said = output(&mut curl)?;
        let statuses = said.lines().map(str::parse);
        statuses.collect::<Result<_, _>>().context("a status")
    }

    fn status(&self, path: &str) -> Result<u16> {
        Ok(self.statuses(path, 1)?[0])
    }

    fn get(&self, path: &str) -> Result<String> {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        output(program("curl").arg("-s").arg(url))
    }

    /// Waits for a line of the log.
    fn line(&self, text: &str) -> Result<()> {
        until(&format!("the log has {text:?}"), || {
            fs::read_to_string(&self.log).is_ok_and(|log| log.contains(text))
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("a free port")?;
    Ok(listener.local_addr()?.port())
}

fn until(what: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > PATIENCE {
            bail!("waited {} s until {what}", PATIENCE.as_secs());
        }
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn expect(what: &str, found: &[u16], expected: &[u16]) -> Result<()> {
    println!("{what}: {found:?}");
    ensure!(found == expected, "{what}: expected {expected:?}");
    Ok(())
}

fn redis(port: u16, log: &Path) -> Result<Running> {
    let mut command = program("redis-server");
    command.args(["--save", "", "--port", &port.to_string()]);
    Running::start(&mut command, port, log)
}

fn first_run(trial: &Trial) -> Result<()> {
    run(cargo().args(["build", "--release"]))?;
    let server = trial.serve("first.toml", "[server]\nhttp = \"127.0.0.1:0\"\n")?;
    let statuses = server.statuses("/v1/gate/default?key=you", 12)?;
    println!("twelve requests: {statuses:?}");
    // A slow machine may refill one of the ten on the way.
    ensure!(statuses[..10] == [200; 10] && statuses[10..].contains(&429));
    Ok(())
}

fn tiers(trial: &Trial) -> Result<()> {
    let server = trial.serve("tiers.toml", TIERS)?;
    for (tier, customer, statuses) in [
        ("free", "alice", [200, 200, 429, 429, 429]),
        ("pro", "bob", [200, 200, 200, 429, 429]),
        ("free", "acme", [200, 200, 200, 200, 429]),
        ("pro", "mallory", [429; 5]),
    ] {
        let path = format!("/v1/gate/api?tier={tier}&customer={customer}");
        let who = format!("{customer} ({tier})");
        expect(&who, &server.statuses(&path, 5)?, &statuses)?;
    }
    Ok(())
}

/// The files of examples/nginx, with an application behind it that is not nginx.
fn nginx(trial: &Trial) -> Result<()> {
    let example = root().join("examples/nginx");
    let read = |name: &str| {
        let file = example.join(name);
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
    };
    let config = read("tidegate.toml")?.replace("127.0.0.1:8080", "127.0.0.1:0");
    let server = trial.serve("nginx.toml", &config)?;
    let (application_port, port) = (free_port()?, free_port()?);
    trial.write("index.html", "my application\n")?;
    let mut application = program("python3");
    application
        .args(["-m", "http.server", "--bind", "127.0.0.1"])
        .arg(application_port.to_string())
        .current_dir(&trial.folder);
    let log = trial.folder.join("application.log");
    let _application = Running::start(&mut application, application_port, &log)?;
    fs::create_dir_all(trial.folder.join("tidegate"))?;
    let tidegate = format!("127.0.0.1:{}", server.port);
    for (name, from, to) in [
        ("tidegate/http.conf", "127.0.0.1:8080", tidegate.as_str()),
        ("tidegate/server.conf", "", ""),
        ("tidegate/limit.conf", "", ""),
    ] {
        trial.write(name, &read(name)?.replace(from, to))?;
    }
    let config = read("nginx.conf")?
        .replace(
            "http://127.0.0.1:8001",
            &format!("http://127.0.0.1:{application_port}"),
        )
        .replace(
            "listen 127.0.0.1:8001",
            &format!("listen 127.0.0.1:{}", free_port()?),
        )
        .replace("127.0.0.1:8000", &format!("127.0.0.1:{port}"));
    let config = trial.write("nginx.conf", &config)?;
    let mut command = program("nginx");
    command.arg("-p").arg(&trial.folder).arg("-c").arg(config);
    command.args(["-g", "daemon off;"]);
    let nginx = Running::start(&mut command, port, &trial.folder.join("nginx.log"))?;
    expect(
        "six requests through nginx",
        &nginx.statuses("/", 6)?,
        &[200, 200, 200, 200, 200, 429],
    )
}

fn outage(trial: &Trial) -> Result<()> {
    let port = free_port()?;
    let log = trial.folder.join("redis.log");
    let store = redis(port, &log)?;
    let config = format!(
        "[server]\nhttp = \"127.0.0.1:0\"\n\n[stores.default]\nurl = \"redis://127.0.0.1:{port}\"\n\n\
         [[policies]]\nname = \"api\"\nlimit = \"3/10m\"\nalgorithm = \"fixed_window\"\nrefusal_memory = \"0s\"\n"
    );
    let servers = [
        trial.serve("one.toml", &config)?,
        trial.serve("two.toml", &config)?,
    ];
    let path = "/v1/gate/api?key=alice";
    let asked = |times: usize| -> Result<Vec<u16>> {
        let servers = servers.iter().cycle().take(times);
        servers.map(|server| server.status(path)).collect()
    };
    expect(
        "both servers share three",
        &asked(4)?,
        &[200, 200, 200, 429],
    )?;
    drop(store);
    expect("Redis is down", &asked(6)?, &[200; 6])?;
    servers[0].line("Connection refused")?;
    let _store = redis(port, &log)?;
    for server in &servers {
        server.line("answers again")?;
    }
    expect(
        "Redis is back, and empty",
        &asked(4)?,
        &[200, 200, 200, 429],
    )
}

fn explain(trial: &Trial) -> Result<()> {
    let server = trial.serve("explain.toml", TIERS)?;
    let path = "/v1/gate/api?tier=free&customer=acme";
    expect(
        "acme",
        &server.statuses(path, 5)?,
        &[200, 200, 200, 200, 429],
    )?;
    let explained = server.get("/v1/keys/api?tier=free&customer=acme")?;
    println!("{explained}");
    ensure!(
        explained.contains("acme"),
        "expected the override that matched"
    );
    let raised = TIERS.replace("4r/m", "40r/m");
    let raised = raised.replace("127.0.0.1:0", &format!("127.0.0.1:{}", server.port));
    trial.write("explain.toml", &raised)?;
    until("acme is admitted again", || {
        server.status(path).is_ok_and(|status| status == 200)
    })?;
    server.line("4r/m -> 40r/m")
}

fn bench(trial: &Trial) -> Result<()> {
    let port = free_port()?;
    let _store = redis(port, &trial.folder.join("bench.log"))?;
    let url = format!("redis://127.0.0.1:{port}");
    let said = output(Trial::tidegate().args(["bench", &url, "--duration", "3s"]))?;
    println!("{said}");
    ensure!(said.contains("verdict: the limit held"));
    Ok(())
}

/// The example of README.md, in a package of its own.
fn library(trial: &Trial) -> Result<()> {
    let readme = fs::read_to_string(root().join("README.md")).context("README.md")?;
    let code = readme
        .split("```rust\n")
        .nth(1)
        .and_then(|it| it.split("```").next());
    let code = code.context("README.md: expected a block of Rust")?;
    let folder = trial.folder.join("program");
    fs::create_dir_all(folder.join("src"))?;
    let core = root().join("crates/tidegate");
    let manifest = format!(
        "[package]\nname = \"program\"\nedition = \"2024\"\n\n[dependencies]\ntidegate = {{ path = {core:?} }}\n\n[workspace]\n"
    );
    fs::write(folder.join("Cargo.toml"), manifest)?;
    fs::write(
        folder.join("src/main.rs"),
        format!("fn main() {{\n{code}}}\n"),
    )?;
    run(cargo().args(["run", "--quiet"]).current_dir(&folder))
}
