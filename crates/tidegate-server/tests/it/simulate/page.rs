//! The page of `--html` in a real browser.

use super::{nginx, simulate};
use crate::browser::Browser;
use crate::process::Folder;

const CONFIG: &str = r#"
[[policies]]
name = "a"
key = "{ip}"
limit = "2r/s"
burst = 3
[[policies]]
name = "page"
key = "{ip}:{path}:{agent}"
limit = "3r/m"
algorithm = "sliding_window"
"#;

#[test]
fn page_is_whole_loads_nothing_and_reads_well_in_light_and_dark() {
    let mut log = String::new();
    for second in 0..300 {
        let count = if (100..130).contains(&second) { 9 } else { 1 };
        log.push_str(&nginx(second, "203.0.113.7", "/").repeat(count));
        // Text that would be markup, if it were not escaped.
        let line = nginx(
            second,
            "2001:db8::1",
            "/<script>document.title='x'</script>",
        );
        log.push_str(&line.replace("curl", "<img src=http://127.0.0.1:1/x onerror=alert(1)>"));
    }
    log.push_str("<b>broken</b>\n");
    let folder = Folder::new();
    let page = folder.path("report.html").display().to_string();
    let flags = format!("--suggest 1% --compare sliding_window,sliding_log --html {page}");
    let flags = ["--attr", "agent=user_agent"]
        .into_iter()
        .chain(flags.split(' '));
    simulate(CONFIG, log, &flags.collect::<Vec<_>>());
    let mut browser = Browser::start();
    let url = format!("file://{page}");
    browser.open(&url);
    // Two policies and what was left out; over time, the curve and the differences of each.
    for (selector, expected) in [
        ("main section", 3),
        ("section figure svg[role=img][aria-label]", 6),
        ("script, img, b", 0),
    ] {
        let script = format!("return document.querySelectorAll({selector:?}).length");
        assert_eq!(browser.evaluate(&script), expected, "{selector}");
    }
    let title = browser.evaluate("return document.title");
    assert_eq!(title, "What the limits would have done");
    let said = browser.evaluate("return document.body.innerText");
    let said = said.as_str().expect("text");
    let script = "<script>document.title='x'</script>";
    for part in ["203.0.113.7", script, "<b>broken</b>", "Suggested"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // Bars are drawn within the chart, and the tallest reaches up.
    let drawn = "const [box, ...bars] = [document.querySelector('svg'), ...document.querySelector('svg').querySelectorAll('rect')].map(it => it.getBoundingClientRect());\
        return bars.length > 100 && bars.every(bar => bar.left >= box.left && bar.right <= box.right + 1 && bar.top >= box.top && bar.bottom <= box.bottom)\
            && bars.some(bar => bar.height > box.height / 2);";
    assert_eq!(browser.evaluate(drawn), true);
    browser.assert_contrast("the report");
    browser.assert_fits(1_000);
    let requests = browser.requests();
    let [own, others]: [Vec<_>; 2] = [true, false].map(|is_own| {
        let requests = requests.iter().filter(|it| !it.starts_with("data:"));
        requests.filter(|it| (**it == url) == is_own).collect()
    });
    assert!(!own.is_empty() && others.is_empty(), "{requests:?}");
    assert_eq!(browser.console(), [""; 0]);
}
