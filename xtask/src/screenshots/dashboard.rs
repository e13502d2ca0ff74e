//! The dashboard of a real server with a Redis, after two minutes of requests.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::browser::Browser;
use super::tidegate;
use crate::command::{program, root};

/// How long requests come before the picture: as long as a chart is.
const BEFORE: Duration = Duration::from_secs(125);

/// How long anything else may take.
const PATIENCE: Duration = Duration::from_secs(30);

const CONFIG: &str = r#"
[server]
http = "127.0.0.1:HTTP"
admin_token = "sesame"

[stores.fleet]
url = "redis://127.0.0.1:REDIS"

[[policies]]
name = "login"
[[policies.levels]]
name = "total"
key = ""
limit = "100r/s"
[[policies.levels]]
name = "address"
key = "{ip}"
limit = "30r/m"
algorithm = "sliding_log"

[[policies]]
name = "api"
store = "fleet"
mode = "lease"
key = "{token}"
limit = "60r/s"
burst = 120

[[policies]]
name = "api-next"
trial_of = "api"
store = "fleet"
key = "{token}"
limit = "40r/s"
burst = 40

[[policies]]
name = "search"
store = "fleet"
key = "{ip}"
limit = "60/10s"
algorithm = "sliding_window"

[[policies]]
name = "signup"
key = "{ip}"
limit = "60r/h"
algorithm = "fixed_window"
shadow = true

[[policies]]
name = "upload"
key = "{token}:{path}"
limit = "5r/s"
burst = 20
"#;

/// Takes the picture, and those of other screens into the target folder, to be looked at.
pub(super) fn take(picture: &Path) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("tidegate-dashboard-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let _folder = Folder(folder.clone());
    let [http, redis] = [free_port()?, free_port()?];
    let config = CONFIG.replace("HTTP", &http.to_string());
    let file = folder.join("tidegate.toml");
    std::fs::write(&file, config.replace("REDIS", &redis.to_string()))?;
    let mut server = program("redis-server");
    server.args(["--port", &redis.to_string(), "--save", ""]);
    let _redis = Server::start(server, redis)?;
    let mut server = program(tidegate()?);
    server.args(["serve", "--config"]).arg(&file);
    let _server = Server::start(server, http)?;
    let browser = Browser::start()?;
    browser.resize(1_280, 900)?;
    browser.open(&format!("http://127.0.0.1:{http}/"))?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..4 {
            let over = &over;
            scope.spawn(move || ask(http, number, over));
        }
        let taken = pictures(&browser, picture);
        over.store(true, Ordering::Relaxed);
        taken
    })
}

fn pictures(browser: &Browser, picture: &Path) -> Result<()> {
    println!("Sending requests for {} s.", BEFORE.as_secs());
    sleep(BEFORE);
    browser.evaluate(
        "document.getElementById('token').value = 'sesame'; document.getElementById('unlock').requestSubmit()",
    )?;
    wait(browser, "document.querySelector('#top button')")?;
    browser.evaluate("document.querySelector('#top button').click()")?;
    wait(browser, "document.querySelector('#levels .gauge')")?;
    browser.evaluate("document.activeElement.blur()")?;
    let others = root().join("target");
    for (file, width, scheme) in [
        (picture.to_owned(), 1_280, "light"),
        (others.join("dashboard-dark.png"), 1_280, "dark"),
        (others.join("dashboard-narrow.png"), 390, "light"),
    ] {
        browser.prefer(scheme)?;
        browser.resize(width, 900)?;
        // Drawn anew once per second.
        sleep(Duration::from_millis(1_500));
        let height = browser.evaluate("return document.documentElement.scrollHeight")?;
        let height = height
            .trim_start_matches("{\"value\":")
            .trim_end_matches('}');
        let height = height
            .parse()
            .with_context(|| format!("{height}: no height"))?;
        browser.resize(width, height)?;
        sleep(Duration::from_millis(1_500));
        browser.picture(&file)?;
        println!("Saved {}.", file.display());
    }
    Ok(())
}

fn wait(browser: &Browser, expression: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let script = format!("return Boolean({expression})");
    while browser.evaluate(&script)? != "{\"value\":true}" {
        ensure!(Instant::now() < deadline, "{expression}: never there");
        sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Asks like the clients of a small site, more at some times than at others.
fn ask(port: u16, number: u64, over: &AtomicBool) {
    const TOKENS: [&str; 8] = [
        "acme", "globex", "initech", "umbrella", "hooli", "stark", "wayne", "tyrell",
    ];
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a server");
    stream.set_nodelay(true).expect("a socket");
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (number << 32));
    let (start, mut buffer) = (Instant::now(), [0; 16 << 10]);
    while !over.load(Ordering::Relaxed) {
        let seconds = start.elapsed().as_secs_f64();
        let crowd = 1.0 + 0.3 * (seconds / 11.0).sin();
        let rush = if (58.0..74.0).contains(&(seconds % 110.0)) {
            1.1
        } else {
            0.0
        };
        let (share, token) = (random.next(), TOKENS[random.rank(TOKENS.len())]);
        let address = 1 + random.rank(90);
        let path = match share {
            share if share < 0.2 => format!("login?ip=203.0.113.{address}"),
            share if share < 0.6 => format!("api?token={token}"),
            share if share < 0.85 => format!("search?ip=203.0.113.{address}"),
            share if share < 0.93 => format!("signup?ip=198.51.100.{address}"),
            _ => format!("upload?token={token}&path=/files/{}", address % 4),
        };
        let request = format!("GET /v1/gate/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("a server");
        // Short answers come whole.
        assert!(stream.read(&mut buffer).expect("an answer") > 0);
        let pause = 10.0 / (crowd + rush) * (0.6 + 0.8 * random.next());
        sleep(Duration::from_secs_f64(pause / 1_000.0));
    }
}

/// Xorshift: the same requests each time.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from(self.0 >> 32).expect("32 bits are left")
    }

    /// From 0 to below 1.
    fn next(&mut self) -> f64 {
        f64::from(self.bits()) / (f64::from(u32::MAX) + 1.0)
    }

    /// A number below another one. Few ask for most, as is usual: small ones are frequent.
    fn rank(&mut self, below: usize) -> usize {
        let [one, two, three] = [0; 3].map(|_| self.bits() as usize % below);
        one * two * three / (below * below)
    }
}

/// A server, as long as this lives.
struct Server(Child);

impl Server {
    fn start(mut command: Command, port: u16) -> Result<Self> {
        let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Self(quiet.spawn().context("cannot start a server")?);
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some(status) = server.0.try_wait()? {
                bail!("a server ended with {status}");
            }
            ensure!(Instant::now() < deadline, "a server does not listen");
            sleep(Duration::from_millis(20));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A folder that goes with this.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
