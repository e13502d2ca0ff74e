//! A browser without a window that stays open: Chromium, told what to do by chromedriver.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};

use anyhow::{Context, Result, ensure};

use crate::command::{program, run};

/// A browser with one page. It ends with this.
pub(super) struct Browser {
    driver: Child,
    port: u16,
    session: String,
    profile: std::path::PathBuf,
}

impl Browser {
    pub(super) fn start() -> Result<Self> {
        let mut driver = program("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start chromedriver")?;
        let mut said = BufReader::new(driver.stdout.take().context("a pipe")?).lines();
        let port = said.by_ref().map_while(Result::ok).find_map(|line| {
            let port = line.split("started successfully on port ").nth(1)?;
            port.trim_end_matches('.').parse().ok()
        });
        // It must not wait for anybody to read what else it says.
        std::thread::spawn(move || said.for_each(drop));
        let profile = format!("tidegate-shot-{}", std::process::id());
        let mut browser = Self {
            driver,
            port: port.context("chromedriver names no port")?,
            session: String::new(),
            profile: std::env::temp_dir().join(profile),
        };
        let arguments = format!(
            r#"["--headless=new","--no-sandbox","--disable-gpu","--disable-dev-shm-usage","--hide-scrollbars","--user-data-dir={}"]"#,
            browser.profile.display()
        );
        let wanted = format!(
            r#"{{"capabilities":{{"alwaysMatch":{{"browserName":"chrome","goog:chromeOptions":{{"args":{arguments}}}}}}}}}"#
        );
        let session = browser.ask("POST", "/session", &wanted)?;
        browser.session = text_of(&session, "sessionId").context("no session")?;
        Ok(browser)
    }

    /// Opens a page.
    pub(super) fn open(&self, url: &str) -> Result<()> {
        self.tell("url", &format!(r#"{{"url":"{url}"}}"#)).map(drop)
    }

    /// What a script returns, as JSON.
    pub(super) fn evaluate(&self, script: &str) -> Result<String> {
        let script = script.replace('\\', "\\\\").replace('"', "\\\"");
        let body = format!(r#"{{"script":"{script}","args":[]}}"#);
        self.tell("execute/sync", &body)
    }

    /// Makes the page as wide and high as a screen.
    pub(super) fn resize(&self, width: u32, height: u32) -> Result<()> {
        let mobile = width < 600;
        self.command(
            "Emulation.setDeviceMetricsOverride",
            &format!(
                r#"{{"width":{width},"height":{height},"deviceScaleFactor":1,"mobile":{mobile}}}"#
            ),
        )
    }

    /// Makes pages believe that the user prefers `dark` or `light`.
    pub(super) fn prefer(&self, scheme: &str) -> Result<()> {
        let params =
            format!(r#"{{"features":[{{"name":"prefers-color-scheme","value":"{scheme}"}}]}}"#);
        self.command("Emulation.setEmulatedMedia", &params)
    }

    /// Writes what is to be seen into a file.
    pub(super) fn picture(&self, file: &Path) -> Result<()> {
        let path = format!("/session/{}/screenshot", self.session);
        let answer = self.ask("GET", &path, "")?;
        let encoded = text_of(&answer, "value").context("no picture")?;
        let text = file.with_extension("base64");
        std::fs::write(&text, encoded)?;
        let picture = std::fs::File::create(file)?;
        let decoded = run(program("base64").arg("-d").arg(&text).stdout(picture));
        std::fs::remove_file(&text)?;
        decoded
    }

    fn command(&self, name: &str, params: &str) -> Result<()> {
        let body = format!(r#"{{"cmd":"{name}","params":{params}}}"#);
        self.tell("goog/cdp/execute", &body).map(drop)
    }

    fn tell(&self, command: &str, body: &str) -> Result<String> {
        self.ask(
            "POST",
            &format!("/session/{}/{command}", self.session),
            body,
        )
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        // It keeps the connection open, whatever it is asked for.
        let (mut head, mut length, mut reader) = (String::new(), 0, BufReader::new(stream));
        loop {
            let start = head.len();
            reader.read_line(&mut head)?;
            let line = head[start..].trim_end().to_ascii_lowercase();
            match line.strip_prefix("content-length:") {
                Some(number) => length = number.trim().parse()?,
                None if line.is_empty() => break,
                None => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let body = String::from_utf8(body)?;
        ensure!(head.starts_with("HTTP/1.1 200"), "{path}: {body}");
        Ok(body)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            drop(self.ask("DELETE", &format!("/session/{}", self.session), ""));
        }
        drop(self.driver.kill());
        drop(self.driver.wait());
        drop(std::fs::remove_dir_all(&self.profile));
    }
}

/// The text of a field of JSON, which has no escapes.
fn text_of(json: &str, field: &str) -> Option<String> {
    let (_, rest) = json.split_once(&format!("\"{field}\":\""))?;
    Some(rest.split('"').next()?.to_owned())
}
