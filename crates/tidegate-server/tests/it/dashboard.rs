//! The dashboard in a real browser, step by step as dashboard.txt says, and how it is served.

use serde_json::json;

use crate::browser::Browser;
use crate::process::{Process, Start, Tidegate, command};

const POLICIES: &str = r#"
[[policies]]
name = "login"
[[policies.levels]]
name = "total"
key = ""
limit = "1000000/1h"
[[policies.levels]]
name = "address"
key = "{ip}"
limit = "3/1h"

[[policies]]
name = "login-next"
trial_of = "login"
key = "{ip}"
limit = "1/1h"

[[policies]]
name = "off"
limit = "1/1h"
enabled = false
"#;

const KEY: &str = "203.0.113.7";

/// A server with this admin token, or without one.
fn start(token: &str, address: &str) -> Tidegate {
    let token = match token {
        "" => String::new(),
        token => format!("[server]\nadmin_token = {token:?}\n"),
    };
    let start = Start::configured(&(token + POLICIES));
    let arguments = ["--drain", "0s", "--http", address];
    arguments.into_iter().fold(start, Start::argument).start()
}

/// A server, and the browser in front of it.
struct Case<'b> {
    server: Tidegate,
    browser: &'b mut Browser,
    _load: Option<Process>,
}

impl Case<'_> {
    fn sees(&mut self, selector: &str, text: &str) {
        let script = "return document.querySelector(SELECTOR)?.innerText.includes(TEXT)";
        let script = script.replace("SELECTOR", &json!(selector).to_string());
        let script = script.replace("TEXT", &json!(text).to_string());
        self.browser.wait(text, &script);
    }

    fn step(&mut self, step: &str) {
        let (verb, rest) = step.split_once(' ').unwrap_or((step, ""));
        let (selector, text) = rest.split_once(" | ").unwrap_or((rest, ""));
        match verb {
            "#" => {}
            "ask" => {
                let (count, path) = rest.split_once(' ').expect(step);
                for _ in 0..count.parse().expect(step) {
                    self.server.get(path);
                }
            }
            "load" => {
                let mut curl = command("curl", "KILL");
                curl.args(["-s", "-o", "/dev/null", "--rate", "200/s"]);
                curl.arg(format!("{}{rest}#[1-1000000]", self.server.url()));
                self._load = Some(Process::start(curl));
            }
            "left" => {
                let key = self.server.get(&format!("/v1/keys/login?ip={KEY}")).json();
                assert_eq!(key["levels"][1]["remaining"].to_string(), rest, "{step}");
            }
            "restart" => {
                let address = self.server.address().to_owned();
                self.server.signal("TERM");
                assert!(self.server.end().0.success());
                self.sees("#status", "reconnecting");
                self.server = start(rest, &address);
            }
            "open" => {
                self.browser.open(&format!("{}/", self.server.url()));
                self.sees("#status", "live");
            }
            "sees" => self.sees(selector, text),
            "type" => {
                let keys = [
                    ("ENTER", "\u{e007}"),
                    ("TAB", "\u{e004}"),
                    ("ESC", "\u{e00c}"),
                ];
                let keys = keys.iter();
                let text = keys.fold(text.to_owned(), |text, (name, key)| text.replace(name, key));
                self.browser.type_into(selector, &text);
            }
            "click" => self.browser.click(selector),
            "until" => drop(self.browser.wait(rest, &format!("return {rest}"))),
            "is" => {
                let (script, expected) = rest.rsplit_once(" => ").expect(step);
                let found = self.browser.evaluate(&format!("return {script}"));
                assert_eq!(found.to_string(), expected, "{step}");
            }
            "hides" => {
                let script = "return document.documentElement.outerHTML \
                    + [...document.querySelectorAll('input')].map(it => it.value)";
                let page = self.browser.evaluate(script);
                assert!(!page.as_str().expect("markup").contains(rest), "{page}");
            }
            "requests" => {
                let own = self.server.url();
                let requests = self.browser.requests().into_iter();
                let requests = requests.filter(|it| !it.starts_with("data:"));
                let mut requests: Vec<String> = requests.map(|it| it.replace(own, "")).collect();
                requests.sort();
                requests.dedup();
                assert_eq!(requests.join(" "), rest, "{step}");
            }
            "reads" => {
                self.browser.assert_contrast(step);
                self.names_every_control();
            }
            "fits" => self.browser.assert_fits(rest.parse().expect(step)),
            "console" => assert_eq!(self.browser.console(), [""; 0]),
            _ => panic!("{step}: no such step"),
        }
    }

    fn names_every_control(&mut self) {
        let roles = "button textbox searchbox combobox radio link img meter dialog region";
        let mut controls = self.browser.accessible();
        controls.retain(|(role, _)| roles.split(' ').any(|known| known == role));
        assert!(controls.len() >= 5, "{controls:?}");
        let mut names = controls.iter().map(|(_, name)| name.trim());
        assert!(names.all(|name| !name.is_empty()), "{controls:?}");
    }
}

#[test]
fn viewers_see_what_the_server_says() {
    let mut browser = Browser::start();
    let steps = include_str!("dashboard.txt").replace("KEY", KEY);
    let mut cases = 0;
    for case in steps.split("\n--- ").skip(1) {
        let (title, steps) = case.split_once('\n').expect("a title");
        println!("--- {title}");
        browser.resize(1_280, 900);
        browser.requests();
        browser.console();
        let server = start("sesame", "127.0.0.1:0");
        let (browser, _load) = (&mut browser, None);
        let mut case = Case {
            server,
            browser,
            _load,
        };
        for step in steps.lines().filter(|step| !step.is_empty()) {
            println!("{step}");
            case.step(step);
        }
        cases += 1;
    }
    assert_eq!(cases, 6);
}

#[test]
fn files_are_served_with_a_strict_policy_and_name_no_other_host() {
    let server = Tidegate::start("");
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/dashboard.css", "text/css; charset=utf-8"),
        ("/dashboard.js", "text/javascript; charset=utf-8"),
    ] {
        let answer = server.get(path);
        for (header, value) in [
            ("content-type", kind),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(answer.header(header), Some(value), "{path}");
        }
        let policy = answer.header("content-security-policy").expect("a policy");
        assert!(policy.starts_with("default-src 'none';"), "{policy}");
        assert!(
            !policy.contains("unsafe") && !policy.contains("http"),
            "{policy}"
        );
        let mut hosts = answer.text().split("://").skip(1);
        assert!(
            hosts.all(|it| it.starts_with("www.w3.org/2000/svg")),
            "{path}"
        );
    }
}

#[test]
fn start_names_the_dashboard_where_operators_are_served() {
    for (admin, dashboard) in [("127.0.0.1:0", Some("(admin)")), ("unix:a.sock", None)] {
        let server = Start::new("").argument("--admin").argument(admin).start();
        server.line("try: ");
        let log = server.log();
        let named = log.iter().find_map(|line| line.split("dashboard: ").nth(1));
        let listens = dashboard.map(|admin| {
            let line = server.line(admin);
            let (_, url) = line.split_once("listening on ").expect("a URL");
            format!("{}/", url.split(' ').next().expect("its end"))
        });
        assert_eq!(named.map(str::to_owned), listens, "{log:#?}");
    }
}
