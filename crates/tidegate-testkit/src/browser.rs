//! A real browser without a window: Chromium, told what to do by chromedriver over
//! WebDriver. It notes every request and every line of its console.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::http::Connection;
use crate::process::{Folder, command, spawn, until};

/// A browser with one page. It ends with this.
pub struct Browser {
    driver: Child,
    connection: Connection,
    session: String,
    _profile: Folder,
}

impl Browser {
    /// Starts it.
    pub fn start() -> Self {
        let profile = Folder::new();
        let mut started = command("chromedriver", "TERM");
        started.arg("--port=0").stdin(Stdio::null());
        started.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut driver = spawn(started);
        let mut said = BufReader::new(driver.stdout.take().expect("a pipe")).lines();
        let port = said.find_map(|line| {
            let line = line.expect("text");
            let port = line.split("started successfully on port ").nth(1)?;
            Some(port.trim_end_matches('.').to_owned())
        });
        let port = port.expect("a port that it says");
        // It must not wait for anybody to read what else it says.
        std::thread::spawn(move || said.for_each(drop));
        let mut browser = Self {
            connection: Connection::tcp(&format!("127.0.0.1:{port}")),
            driver,
            session: String::new(),
            _profile: profile,
        };
        let folder = browser._profile.path("profile");
        let options = json!({
            "args": [
                "--headless=new",
                // In a container there is no user to keep apart from.
                "--no-sandbox",
                "--disable-dev-shm-usage",
                "--disable-gpu",
                "--no-first-run",
                "--disable-background-networking",
                "--window-size=1000,900",
                format!("--user-data-dir={}", folder.display()),
            ],
        });
        let asked = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }}});
        let session = browser.ask("POST", "/session", &asked);
        session["sessionId"]
            .as_str()
            .expect("a session")
            .clone_into(&mut browser.session);
        browser
    }

    fn ask(&mut self, method: &str, path: &str, body: &Value) -> Value {
        let headers = [("Content-Type", "application/json")];
        let body = body.to_string();
        let answer = self.connection.ask(method, path, &headers, body.as_bytes());
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()["value"].clone()
    }

    fn tell(&mut self, command: &str, body: &Value) -> Value {
        let path = format!("/session/{}/{command}", self.session);
        self.ask("POST", &path, body)
    }

    /// Opens a page, and waits until it is loaded.
    pub fn open(&mut self, url: &str) {
        self.tell("url", &json!({ "url": url }));
    }

    /// What a script returns.
    pub fn evaluate(&mut self, script: &str) -> Value {
        self.tell("execute/sync", &json!({"script": script, "args": []}))
    }

    /// What a user does with a mouse: on the first element of a CSS selector that can be
    /// clicked.
    pub fn click(&mut self, selector: &str) {
        let element = self.element(selector);
        self.tell(&format!("element/{element}/click"), &json!({}));
    }

    /// What a user does with a keyboard.
    pub fn type_into(&mut self, selector: &str, text: &str) {
        let element = self.element(selector);
        let body = json!({ "text": text });
        self.tell(&format!("element/{element}/value"), &body);
    }

    fn element(&mut self, selector: &str) -> String {
        let body = json!({"using": "css selector", "value": selector});
        let found = self.tell("element", &body);
        let id = found.as_object().and_then(|it| it.values().next());
        id.and_then(Value::as_str).expect("an element").to_owned()
    }

    /// Waits until a script returns something true, and returns it.
    pub fn wait(&mut self, what: &str, script: &str) -> Value {
        until(what, || {
            let value = self.evaluate(script);
            let is_true = value != json!(null) && value != json!(false) && value != json!("");
            is_true.then_some(value)
        })
    }

    /// Makes the page as wide and high as a screen.
    pub fn resize(&mut self, width: u32, height: u32) {
        let params = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600,
        });
        self.command("Emulation.setDeviceMetricsOverride", &params);
    }

    /// What a screen reader would see: role and name of every element.
    pub fn accessible(&mut self) -> Vec<(String, String)> {
        let tree = self.command("Accessibility.getFullAXTree", &json!({}));
        let nodes = tree["nodes"].as_array().expect("a list").iter();
        let nodes = nodes.filter(|node| node["ignored"] == false);
        let text = |part: &Value| part["value"].as_str().unwrap_or_default().to_owned();
        let nodes = nodes.map(|node| (text(&node["role"]), text(&node["name"])));
        nodes.collect()
    }

    /// A command of the browser's own protocol.
    fn command(&mut self, name: &str, params: &Value) -> Value {
        self.tell("goog/cdp/execute", &json!({"cmd": name, "params": params}))
    }

    /// Makes pages believe that the user prefers `dark` or `light`.
    pub fn prefer(&mut self, scheme: &str) {
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        let params = json!({"features": [feature]});
        self.command("Emulation.setEmulatedMedia", &params);
    }

    /// Holds every text against what is behind it, in light and in dark colors.
    pub fn assert_contrast(&mut self, what: &str) {
        let grounds = ["light", "dark"].map(|scheme| {
            self.prefer(scheme);
            let found = self.evaluate(include_str!("contrast.js"));
            let least = found[0].as_f64().expect("a number");
            assert!(least >= 4.5, "{what}, {scheme}: {found}");
            assert!(found[2].as_u64() > Some(20), "{what}: {found}");
            self.evaluate("return getComputedStyle(document.body).backgroundColor")
        });
        assert_ne!(grounds[0], grounds[1], "{what}");
    }

    /// Asserts that a page of this width is not cut off: what is too wide scrolls within it.
    pub fn assert_fits(&mut self, width: u32) {
        self.resize(width, 800);
        let fits =
            "const page = document.documentElement; return page.scrollWidth <= page.clientWidth";
        assert_eq!(self.evaluate(fits), json!(true), "{width}");
    }

    /// The lines of the console since the last time.
    pub fn console(&mut self) -> Vec<String> {
        let lines = self.tell("se/log", &json!({"type": "browser"}));
        let lines = lines.as_array().expect("a list").iter();
        lines.map(Value::to_string).collect()
    }

    /// The URLs of all requests of pages since the last time.
    pub fn requests(&mut self) -> Vec<String> {
        let events = self.tell("se/log", &json!({"type": "performance"}));
        let events = events.as_array().expect("a list").iter();
        let urls = events.filter_map(|event| {
            let message: Value = serde_json::from_str(event["message"].as_str()?).ok()?;
            let message = &message["message"];
            let sent = message["method"] == "Network.requestWillBeSent";
            let params = &message["params"];
            // The browser's own start page is not of interest.
            let of_page = !params["documentURL"].as_str()?.starts_with("chrome:");
            let url = params["request"]["url"].as_str()?;
            (sent && of_page).then(|| url.to_owned())
        });
        urls.collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            let path = format!("/session/{}", self.session);
            self.ask("DELETE", &path, &json!({}));
        }
        drop(self.driver.kill());
        drop(self.driver.wait());
    }
}
