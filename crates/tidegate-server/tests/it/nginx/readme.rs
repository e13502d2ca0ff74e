//! The lines of configuration in `docs/nginx.md`.

use super::proxy::Nginx;
use super::tidegate::Tidegate;
use tidegate_testkit::http::{get, send};
use tidegate_testkit::page::blocks;

const POLICIES: &str = "
    [[policies]]
    name = \"default\"
    key = \"{ip}\"
    limit = \"5r/m\"
    headers = \"x-ratelimit\"
    [[policies]]
    name = \"token\"
    key = \"{key}\"
    limit = \"1r/m\"
";

#[test]
fn what_the_manual_shows_works() {
    let blocks = blocks(include_str!("../../../../../docs/nginx.md"));
    let shown = blocks.iter().filter(|block| block.kind == "nginx");
    let shown: String = shown.map(|block| block.text).collect();
    let tidegate = Tidegate::start(POLICIES);
    let nginx = Nginx::start_location(&tidegate, &shown);
    let api = |key| send(nginx.port(), "GET", "/api/", &[("X-Api-Key", key)]).status;
    assert_eq!([api("a"), api("b&ip=1"), api("a")], [200, 200, 429]);
    let without_key = || get(nginx.port(), "/api/").status;
    assert_eq!([without_key(), without_key()], [200, 429]);
    let other = get(nginx.port(), "/other-headers/");
    assert_eq!(other.header("X-RateLimit-Remaining"), Some("4"));
}
