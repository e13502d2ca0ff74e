//! The dashboard in a real browser: numbers that move, keys for operators only, and a page
//! that outlives its server.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::browser::Browser;
use crate::process::{Start, Tidegate};

const CONFIG: &str = r#"
[server]
admin_token = "sesame"

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

/// Sends requests of one key, most of which are refused, until this returns.
fn under_load<T>(server: &Tidegate, watch: impl FnOnce() -> T) -> T {
    struct Stop<'s>(&'s AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut connection = server.connect();
            while !over.load(Ordering::Relaxed) {
                let path = format!("/v1/gate/login?ip={KEY}");
                connection.ask("GET", &path, &[], b"");
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        });
        let _stop = Stop(&over);
        watch()
    })
}

/// The text of an element that can be seen.
fn text(selector: &str) -> String {
    format!("return document.querySelector({selector:?})?.innerText")
}

/// Whether an element can be seen, and has this in its text.
fn says(selector: &str, part: &str) -> String {
    format!("return document.querySelector({selector:?})?.innerText.includes({part:?})")
}

fn open(server: &Tidegate) -> Browser {
    let mut browser = Browser::start();
    browser.resize(1_280, 900);
    browser.open(&format!("{}/", server.url()));
    browser.wait("it is live", &says("#status", "live"));
    browser
}

fn unlock(browser: &mut Browser, token: &str) {
    browser.type_into("#token", token);
    browser.click("#unlock button");
}

/// What nobody should find in a page without the token.
fn has_key(browser: &mut Browser) -> bool {
    let script = "return document.documentElement.outerHTML + JSON.stringify([...document.querySelectorAll('input')].map(it => it.value))";
    let whole = browser.evaluate(script);
    whole.as_str().expect("markup").contains(KEY)
}

#[test]
fn numbers_move_under_load_and_no_key_comes_without_the_token() {
    let server = Tidegate::start(CONFIG);
    server.line(&format!("dashboard: {}/", server.url()));
    let mut browser = open(&server);
    let login = "[aria-label='Policy login']";
    let trial = "[aria-label='Policy login-next']";
    let zero = browser.wait("there is a rate", &text("#all-denied"));
    under_load(&server, || {
        let moved = format!(
            "const text = document.querySelector('#all-denied').innerText;\
             return text !== {zero} && text.includes('/s') && text"
        );
        browser.wait("refusals are counted", &moved);
        browser.wait(
            "and those of the policy",
            &says(&format!("{login} .denied dd"), "/s"),
        );
        browser.wait(
            "and those on trial",
            &says(&format!("{trial} .would dd"), "/s"),
        );
        let drawn = format!(
            "return document.querySelector({:?}).getAttribute('d').length > 20",
            format!("{login} path.denied.line")
        );
        browser.wait("refusals are drawn", &drawn);
    });
    let shown = browser.evaluate(&text(login));
    let shown = shown.as_str().expect("text");
    for part in [
        "1000000r/h in total (total)",
        "3r/h per {ip} (address)",
        "p99",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let shown = browser.evaluate(&text(trial));
    assert!(shown.as_str().expect("text").contains("trial of login"));
    let store = browser.evaluate(&text("[aria-label='Store default']"));
    assert!(store.as_str().expect("text").contains("up"), "{store}");
    let is_hidden = "return document.querySelector('#unlocked').checkVisibility()";
    assert_eq!(browser.evaluate(is_hidden), json!(false));
    assert!(!has_key(&mut browser));
    let requests = browser.requests();
    let expected = ["", "dashboard.css", "dashboard.js", "v1/live"];
    let expected = expected.map(|path| format!("{}/{path}", server.url()));
    for request in requests.iter().filter(|it| !it.starts_with("data:")) {
        assert!(expected.contains(request), "{requests:?}");
    }
    assert!(requests.contains(&expected[3]), "{requests:?}");
    assert_eq!(browser.console(), [""; 0]);
}

#[test]
fn token_shows_keys_explains_and_resets() {
    let server = Tidegate::start(CONFIG);
    for _ in 0..8 {
        server.get(&format!("/v1/gate/login?ip={KEY}"));
    }
    // Markup in a key stays text.
    for _ in 0..5 {
        server.get("/v1/gate/login?ip=%3Cimg%20src%3Dx%3E");
    }
    let mut browser = open(&server);
    unlock(&mut browser, "sesame");
    browser.wait("the refused key is listed", &says("#top", KEY));
    let row = browser.evaluate(&text("#top tr"));
    assert_eq!(row, json!(format!("{KEY}\t8\t5\t")), "most refusals first");
    assert!(browser.evaluate(&says("#top", "<img src=x>")) == json!(true));
    assert_eq!(
        browser.evaluate("return document.images.length"),
        json!(0),
        "keys are text"
    );
    browser.click("#top button");
    browser.wait(
        "both levels are drawn",
        "return document.querySelectorAll('#levels .gauge').length === 2",
    );
    let address = "#levels .level:nth-child(2)";
    let shown = browser.evaluate(&text(address));
    let shown = shown.as_str().expect("text");
    for part in ["address", KEY, "0 of 3 left", "refuses for", "full in"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // Cancelling resets nothing.
    browser.click("#reset");
    browser.wait("it asks", "return document.querySelector('#confirm').open");
    browser.click("#confirm button[value=cancel]");
    browser.wait(
        "it is gone",
        "return !document.querySelector('#confirm').open",
    );
    assert!(left(&server) < 3, "nothing was reset");
    browser.click("#reset");
    let chosen = "return document.querySelector('#confirm input:checked').parentElement.innerText";
    assert_eq!(
        browser.evaluate(chosen),
        json!(format!("address: {KEY}")),
        "the level that refuses"
    );
    browser.click("#confirm-reset");
    browser.wait("its quota is full", &says(address, "3 of 3 left"));
    assert_eq!(left(&server), 3);
    browser.wait("it says so", &says("#explain-note", "Reset"));
    // The token is the tab's: there after a reload, and not in what other tabs see.
    browser.open(&format!("{}/", server.url()));
    browser.wait("keys are listed again", &says("#top", KEY));
    let kept =
        browser.evaluate("return [localStorage.length, document.cookie, sessionStorage.length]");
    assert_eq!(kept, json!([0, "", 1]));
    browser.click("#lock");
    let kept = browser.evaluate("return sessionStorage.length");
    assert_eq!(kept, json!(0));
    assert!(!has_key(&mut browser), "keys go with the token");
    assert_eq!(browser.console(), [""; 0]);
}

/// What the address has left, as the server says.
fn left(server: &Tidegate) -> u64 {
    let key = server.get(&format!("/v1/keys/login?ip={KEY}")).json();
    key["levels"][1]["remaining"].as_u64().expect("a number")
}

#[test]
fn wrong_token_is_refused_and_shows_nothing() {
    let server = Tidegate::start(CONFIG);
    server.get(&format!("/v1/gate/login?ip={KEY}"));
    let mut browser = open(&server);
    unlock(&mut browser, "wrong");
    browser.wait(
        "it says why",
        &says("#unlock-error", "The server refuses this token."),
    );
    assert!(!has_key(&mut browser));
    assert_eq!(
        browser.evaluate("return sessionStorage.length"),
        json!(0),
        "a wrong token is not kept"
    );
    // Nor does anything else on the page help without it.
    let asked = "return fetch('v1/keys/login?ip=203.0.113.7&all=true', {method: 'DELETE'}).then(it => it.status)";
    assert_eq!(browser.evaluate(asked), json!(401));
    let asked = "return fetch('v1/top/login').then(it => it.status)";
    assert_eq!(browser.evaluate(asked), json!(401));
    assert_eq!(left(&server), 2);
    unlock(&mut browser, "s\u{e9}same");
    browser.wait("no header can have it", &says("#unlock-error", "Expected"));
    // A server without a token says so.
    let open_to_nobody = Tidegate::start("");
    browser.open(&format!("{}/", open_to_nobody.url()));
    browser.wait("it is live", &says("#status", "live"));
    unlock(&mut browser, "sesame");
    browser.wait(
        "it says why",
        &says("#unlock-error", "No admin_token is configured"),
    );
}

#[test]
fn two_viewers_see_a_restart_through() {
    let first = Start::new(CONFIG)
        .argument("--drain")
        .argument("0s")
        .start();
    let address = first.address().to_owned();
    let mut viewers = [open(&first), open(&first)];
    for _ in 0..8 {
        first.get(&format!("/v1/gate/login?ip={KEY}"));
    }
    let decided = says("[aria-label='Policy login'] .foot", "8 decided");
    for viewer in &mut viewers {
        viewer.wait("both see the same", &decided);
    }
    unlock(&mut viewers[0], "sesame");
    viewers[0].wait("keys are listed", &says("#top", KEY));
    let mut first = first;
    first.signal("TERM");
    assert!(first.end().0.success());
    for viewer in &mut viewers {
        viewer.wait("it notices", &says("#status", "reconnecting"));
    }
    // Another token is in force from now on.
    let second = Start::configured(&CONFIG.replace("sesame", "other"))
        .argument("--http")
        .argument(&address)
        .start();
    second.get("/v1/gate/login?ip=198.51.100.1");
    let decided = says("[aria-label='Policy login'] .foot", "1 decided");
    for viewer in &mut viewers {
        viewer.wait("it is live again", &says("#status", "live"));
        viewer.wait("with the new server's numbers", &decided);
    }
    viewers[0].wait(
        "the old token is forgotten",
        &says("#unlock-error", "The server refuses this token."),
    );
    assert!(!has_key(&mut viewers[0]));
    // All that a browser has to say is that the server was away.
    for viewer in &mut viewers {
        for line in viewer.console() {
            assert!(
                line.contains("Failed to load resource") || line.contains("ERR_"),
                "{line}"
            );
        }
    }
}

/// The least contrast of any text that can be seen, by the rules of WCAG, and whose it is.
const CONTRAST: &str = r"
    const parts = color => color.match(/[\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map(part => {
        part /= 255;
        return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    }).reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
    const behind = element => {
        for (; element; element = element.parentElement) {
            const color = parts(getComputedStyle(element).backgroundColor);
            if ((color[3] ?? 1) === 1) return color;
        }
        return [255, 255, 255];
    };
    const ratio = (one, other) => {
        const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    };
    let [least, whose, seen] = [21, '', 0];
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const element = walk.currentNode.parentElement;
        if (!walk.currentNode.data.trim() || !element.checkVisibility()) continue;
        if (element.closest('script, style, option, .unseen')) continue;
        seen += 1;
        const contrast = ratio(parts(getComputedStyle(element).color), behind(element));
        if (contrast < least) [least, whose] = [contrast, element.outerHTML];
    }
    // What is drawn needs less.
    for (const [selector, property] of [['.chart .line', 'stroke'], ['.status', 'color'], ['input', 'borderTopColor'], ['.share i', 'backgroundColor']]) {
        for (const element of document.querySelectorAll(selector)) {
            if (!element.checkVisibility()) continue;
            const contrast = ratio(parts(getComputedStyle(element)[property]), behind(element.parentElement)) * 1.5;
            if (contrast < least) [least, whose] = [contrast, element.outerHTML];
        }
    }
    return [least, whose, seen];
";

fn reads_well(browser: &mut Browser, what: &str) {
    let mut grounds = Vec::new();
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        grounds.push(browser.evaluate("return getComputedStyle(document.body).backgroundColor"));
        let found = browser.evaluate(CONTRAST);
        let least = found[0].as_f64().expect("a number");
        assert!(least >= 4.5, "{what}, {scheme}: {found}");
        assert!(found[2].as_u64() > Some(20), "{found}");
    }
    assert_ne!(grounds[0], grounds[1]);
    const ROLES: [&str; 10] = [
        "button",
        "textbox",
        "searchbox",
        "combobox",
        "radio",
        "link",
        "img",
        "meter",
        "dialog",
        "region",
    ];
    let mut count = 0;
    for (role, name) in browser.accessible() {
        if ROLES.contains(&role.as_str()) {
            count += 1;
            assert!(!name.trim().is_empty(), "{what}: a {role} without a name");
        }
    }
    assert!(count >= 5, "{what}");
}

#[test]
fn page_reads_well_on_any_screen_and_every_control_has_a_name() {
    let server = Tidegate::start(CONFIG);
    for _ in 0..8 {
        server.get(&format!("/v1/gate/login?ip={KEY}"));
    }
    let mut browser = open(&server);
    let fits =
        "return document.documentElement.scrollWidth <= document.documentElement.clientWidth";
    reads_well(&mut browser, "locked");
    // By the keyboard alone: the skip link, the policies, the token.
    let enter = "\u{e007}";
    let tab = "\u{e004}";
    browser.type_into("body", tab);
    let focused = "return document.activeElement.innerText || document.activeElement.id";
    assert_eq!(browser.evaluate(focused), json!("Skip to policies"));
    browser.type_into("#token", &format!("sesame{enter}"));
    browser.wait("keys are listed", &says("#top", KEY));
    browser.type_into("#top button", enter);
    browser.wait(
        "a key is explained",
        "return document.querySelectorAll('#levels .gauge').length",
    );
    reads_well(&mut browser, "unlocked");
    browser.type_into("#reset", enter);
    browser.wait("it asks", "return document.querySelector('#confirm').open");
    reads_well(&mut browser, "about to reset");
    browser.type_into("#confirm-reset", "\u{e00c}");
    browser.wait("Esc", "return !document.querySelector('#confirm').open");
    for width in [1_280, 700, 360] {
        browser.resize(width, 800);
        assert_eq!(browser.evaluate(fits), json!(true), "{width}");
    }
    let small = "return [...document.querySelectorAll('button, select, input')].filter(it => it.checkVisibility() && it.getBoundingClientRect().height < 24).map(it => it.outerHTML)";
    assert_eq!(browser.evaluate(small), json!([]), "too small for a finger");
    assert_eq!(browser.console(), [""; 0]);
}

#[test]
fn files_are_served_with_a_strict_policy_and_name_no_other_host() {
    let server = Tidegate::start(CONFIG);
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/dashboard.css", "text/css; charset=utf-8"),
        ("/dashboard.js", "text/javascript; charset=utf-8"),
    ] {
        let answer = server.get(path);
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.header("content-type"), Some(kind));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        let policy = answer.header("content-security-policy").expect("a policy");
        assert!(policy.starts_with("default-src 'none';"), "{policy}");
        assert!(
            !policy.contains("unsafe") && !policy.contains("http"),
            "{policy}"
        );
        let hosts = answer.text().split("://").skip(1);
        let others: Vec<&str> = hosts
            .filter(|it| !it.starts_with("www.w3.org/2000/svg"))
            .collect();
        assert_eq!(others, [""; 0], "{path}");
        assert_eq!(server.ask("POST", path, "").status, 405);
    }
    let head = server.ask("HEAD", "/", "");
    assert_eq!((head.status, head.body.len()), (200, 0));
}

#[test]
fn start_names_the_dashboard_where_operators_are_served() {
    let start = Start::new(CONFIG)
        .argument("--admin")
        .argument("127.0.0.1:0");
    let server = start.start();
    let admin = server.line("(admin)");
    let url = admin.split("listening on ").nth(1).expect("a URL");
    let url = url.split(" (admin)").next().expect("its end");
    server.line(&format!("dashboard: {url}/"));
    let start = Start::new(CONFIG)
        .argument("--admin")
        .argument("unix:a.sock");
    let server = start.start();
    server.line("try: ");
    assert!(!server.log().iter().any(|line| line.contains("dashboard")));
}
