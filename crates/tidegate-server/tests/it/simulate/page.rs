//! The page of `--html` in a real browser.

use serde_json::json;

use super::{MIDNIGHT, folder, nginx, text};
use crate::browser::Browser;
use crate::process::run;

/// The least contrast between each text and what is behind it, by the rules of WCAG.
const CONTRAST: &str = r"
    const parts = color => color.match(/[\d.]+/g).map(Number);
    const light = color => {
        const [r, g, b] = parts(color).slice(0, 3).map(part => {
            part /= 255;
            return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = element => {
        for (; element; element = element.parentElement) {
            const color = getComputedStyle(element).backgroundColor;
            if ((parts(color)[3] ?? 1) > 0) return color;
        }
        return 'rgb(255, 255, 255)';
    };
    let least = 21;
    for (const element of document.querySelectorAll('h1,h2,h3,p,code,dt,dd,small,th,td,li,figcaption span,svg text')) {
        if (!element.textContent.trim()) continue;
        const style = getComputedStyle(element);
        const ink = element.closest('svg') ? style.fill : style.color;
        const [one, other] = [light(ink), light(behind(element))].sort((a, b) => b - a);
        least = Math.min(least, (one + 0.05) / (other + 0.05));
    }
    return least;
";

#[test]
fn page_is_whole_loads_nothing_and_reads_well_in_light_and_dark() {
    let folder = folder(
        "[[policies]]\nname = \"a\"\nkey = \"{ip}\"\nlimit = \"2r/s\"\nburst = 3\n\
         [[policies]]\nname = \"page\"\nkey = \"{ip}:{path}:{agent}\"\nlimit = \"3r/m\"\nalgorithm = \"sliding_window\"\n",
    );
    let mut log = String::new();
    for second in 0..300 {
        let count = if (100..130).contains(&second) { 9 } else { 1 };
        for _ in 0..count {
            log.push_str(&nginx(MIDNIGHT + second, "203.0.113.7"));
        }
        // Text that would be markup, if it were not escaped.
        let nasty = nginx(MIDNIGHT + second, "2001:db8::1");
        let nasty = nasty.replace("/a?b=c", "/<script>document.title='x'</script>");
        log.push_str(&nasty.replace("curl", "<img src=http://127.0.0.1:1/x onerror=alert(1)>"));
    }
    log.push_str("<b>broken</b>\n");
    folder.write("log", log);
    let page = folder.path("report.html");
    let (code, said, error) = run(
        &folder,
        &[
            "simulate",
            "--config",
            "tidegate.toml",
            "--attr",
            "agent=user_agent",
            "--suggest",
            "1%",
            "--compare",
            "sliding_window,sliding_log",
            "--html",
            text(&page),
            "log",
        ],
    );
    assert_eq!((code, error.as_str()), (0, ""), "{said}");
    let mut browser = Browser::start();
    let url = format!("file://{}", text(&page));
    browser.open(&url);
    let count = |browser: &mut Browser, selector: &str| {
        let script = format!("return document.querySelectorAll({selector:?}).length");
        browser.evaluate(&script)
    };
    // Two policies and what was left out; over time, the curve and the differences of each.
    assert_eq!(count(&mut browser, "main section"), 3);
    assert_eq!(
        count(&mut browser, "section figure svg[role=img][aria-label]"),
        6
    );
    assert_eq!(count(&mut browser, "script, img, b"), 0);
    let title = browser.evaluate("return document.title");
    assert_eq!(title, "What the limits would have done");
    let said = browser.evaluate("return document.body.innerText");
    let said = said.as_str().expect("text");
    for part in [
        "203.0.113.7",
        "<script>document.title='x'</script>",
        "<b>broken</b>",
        "Suggested",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // Bars are drawn within the chart, and the tallest reaches up.
    let drawn = "const box = document.querySelector('svg').getBoundingClientRect();\
        const bars = [...document.querySelectorAll('svg')[0].querySelectorAll('rect')].map(bar => bar.getBoundingClientRect());\
        return bars.length > 100 && bars.every(bar => bar.left >= box.left && bar.right <= box.right + 1 && bar.top >= box.top && bar.bottom <= box.bottom)\
            && bars.some(bar => bar.height > box.height / 2);";
    assert_eq!(browser.evaluate(drawn), json!(true));
    let mut grounds = Vec::new();
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        grounds.push(browser.evaluate("return getComputedStyle(document.body).backgroundColor"));
        let contrast = browser.evaluate(CONTRAST);
        let contrast = contrast.as_f64().expect("a number");
        assert!(contrast >= 4.5, "{scheme}: {contrast}");
    }
    assert_ne!(grounds[0], grounds[1]);
    // Narrow screens scroll tables, not the page.
    let wide =
        "return document.documentElement.scrollWidth <= document.documentElement.clientWidth";
    assert_eq!(browser.evaluate(wide), json!(true));
    let requests = browser.requests();
    let others = requests
        .iter()
        .filter(|other| **other != url && !other.starts_with("data:"));
    assert_eq!(others.count(), 0, "{requests:?}");
    assert!(requests.contains(&url), "{requests:?}");
    assert_eq!(browser.console(), [""; 0]);
}
