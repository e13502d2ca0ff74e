//! docs/envoy.md with a real Envoy. Its configs are those in examples/envoy, as their fences
//! say, and its other commands are a case of tests/cmd/pages.txt.

use super::gateway::{EXT_AUTHZ, RLS};
use super::proxy::{Proxy, example};
use super::{Served, address};
use crate::process::{Folder, Start};
use tidegate_testkit::console::shell;
use tidegate_testkit::page::{blocks, section};

const PAGE: &str = include_str!("../../../../../docs/envoy.md");

#[test]
fn five_minutes_are_enough_for_a_429() {
    let found = blocks(section(PAGE, "## Five minutes to a 429"));
    // A machine that stalls for six seconds does not refill it.
    let config = found[0].text.replace("10r/m", "10r/h");
    let served = Served::start(&config);
    let proxy = Proxy::start(&example(RLS, &address(&served.server)));
    let [.., curl, text] = &found[..] else {
        panic!("a command, and what it prints");
    };
    let curl = curl.text.replace("127.0.0.1:10000", proxy.address());
    assert_eq!(shell(Folder::new().root(), &curl, &[]), text.text);
}

#[test]
fn ext_authz_works_as_shown() {
    let found = blocks(section(PAGE, "## ext_authz"));
    let server = Start::new(found[0].text).start();
    let proxy = Proxy::start(&example(EXT_AUTHZ, server.address()));
    let mut connection = proxy.connect();
    for _ in 0..10 {
        assert_eq!(connection.ask("GET", "/", &[], b"").status, 200);
    }
}
