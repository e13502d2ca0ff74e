//! A new config while requests go on, however it gets there.

use std::os::unix::fs::symlink;

use crate::client::Answer;
use crate::observed::metrics;
use crate::process::{Folder, Start, Tidegate, until};
use crate::redis_server::Server;

/// A config whose only policy admits so many an hour.
fn limit(requests: u32) -> String {
    format!("[[policies]]\nname = \"p\"\nlimit = \"{requests}/1h\"\nalgorithm = \"fixed_window\"\n")
}

fn ask(server: &Tidegate) -> Answer {
    server.check("{\"policy\":\"p\",\"key\":\"k\"}")
}

/// The limit in force, in the end.
fn wait_for(server: &Tidegate, requests: u32) {
    until("the limit", || {
        let policies = server.get("/v1/policies").json();
        let limit = policies[0]["levels"][0]["limit"]["requests"].as_u64();
        (limit == Some(u64::from(requests))).then_some(())
    });
}

/// How often a config was read again: well, and badly.
fn reloads(server: &Tidegate) -> (f64, f64) {
    let metrics = metrics(server);
    let count = |result: &str| metrics[&format!("tidegate_reload_total{{result=\"{result}\"}}")];
    (count("ok"), count("error"))
}

#[test]
fn a_good_file_swaps_in_and_counts_survive() {
    let server = Tidegate::start(&limit(5));
    for remaining in [4, 3] {
        assert_eq!(ask(&server).json()["remaining"], remaining);
    }
    server.folder().write("tidegate.toml", limit(9));
    wait_for(&server, 9);
    server.line("the config is in force");
    let decision = ask(&server).json();
    assert_eq!(
        (&decision["limit"], &decision["remaining"]),
        (&9.into(), &6.into())
    );
    // An editor that writes beside the file and puts that in its place.
    let beside = server.folder().write(".tidegate.toml.swp", limit(8));
    std::fs::rename(beside, server.folder().path("tidegate.toml")).expect("a rename");
    wait_for(&server, 8);
    assert_eq!(ask(&server).json()["remaining"], 4);
    assert_eq!(reloads(&server), (2.0, 0.0));
    assert_eq!(ask(&server).status, 200);
}

#[test]
fn a_bad_file_is_refused_and_the_old_one_stays() {
    let server = Tidegate::start(&limit(5));
    ask(&server);
    let bad = "[[policies]]\nname = \"p\"\nlimit = \"5 per hour\"\nburrst = 1\n";
    server.folder().write("tidegate.toml", bad);
    let first = server.line("the config is wrong, and the old one stays in force");
    let second = server.nth_line("the config is wrong, and the old one stays in force", 1);
    assert!(
        first.contains("tidegate.toml:3:9: policies.p.limit:"),
        "{first}"
    );
    assert!(second.contains("tidegate.toml:4:1: "), "{second}");
    assert!(first.contains("ERROR"));
    let decision = ask(&server).json();
    assert_eq!(
        (&decision["limit"], &decision["remaining"]),
        (&5.into(), &3.into())
    );
    until("the count", || {
        (reloads(&server) == (0.0, 1.0)).then_some(())
    });
    // It is not read over and over, but whenever it changes.
    server.signal("HUP");
    until("the count", || {
        (reloads(&server) == (0.0, 2.0)).then_some(())
    });
    server.folder().write("tidegate.toml", limit(7));
    wait_for(&server, 7);
    assert_eq!(ask(&server).json()["remaining"], 4);
    assert_eq!(reloads(&server), (1.0, 2.0));
}

#[test]
fn sighup_reads_it_at_once_and_again() {
    let server = Tidegate::start(&limit(5));
    for time in [1.0, 2.0] {
        server.signal("HUP");
        until("it is read", || {
            (reloads(&server) == (time, 0.0)).then_some(())
        });
    }
    assert_eq!(ask(&server).json()["remaining"], 4);
}

#[test]
fn a_link_that_is_swapped_as_kubernetes_does_is_followed() {
    let folder = Folder::new();
    for (version, requests) in [("..1", 5), ("..2", 6)] {
        std::fs::create_dir(folder.path(version)).expect("a folder");
        folder.write(&format!("{version}/tidegate.toml"), limit(requests));
    }
    symlink("..1", folder.path("..data")).expect("a link");
    symlink("..data/tidegate.toml", folder.path("tidegate.toml")).expect("a link");
    let path = folder.path("tidegate.toml");
    let start = Start::without_config().argument("--config");
    let server = start.argument(path.to_str().expect("text")).start();
    assert_eq!(ask(&server).json()["limit"], 5);
    symlink("..2", folder.path("..data_tmp")).expect("a link");
    std::fs::rename(folder.path("..data_tmp"), folder.path("..data")).expect("a rename");
    wait_for(&server, 6);
    assert_eq!(ask(&server).json()["remaining"], 4);
}

const SCRIPT: &str = "return {'allow', {ARGV[1]}}";

#[test]
fn a_script_is_read_again_when_it_changes() {
    let redis = Server::start();
    let config = format!(
        "[stores.default]\nurl = {:?}\ntimeout = \"5s\"\n\
         [[policies]]\nname = \"p\"\nalgorithm = \"script\"\nscript = \"mine.lua\"\nargs = [1]\nheaders = [\"x-a\", \"x-b\", \"x-c\"]\n",
        redis.url()
    );
    let start = Start::new(&config);
    start.folder().write("mine.lua", SCRIPT);
    let server = start.start();
    let allowed = || ask(&server).json()["allowed"].clone();
    assert_eq!(allowed(), true);
    server
        .folder()
        .write("mine.lua", SCRIPT.replace("allow", "deny"));
    until("it denies", || (allowed() == false).then_some(()));
    // One that no store takes is refused.
    server.folder().write("mine.lua", "this is no Lua");
    let line = server.line("the config is wrong, and the old one stays in force");
    assert!(
        line.contains("the script of policy \\\"p\\\"")
            || line.contains("the script of policy \"p\""),
        "{line}"
    );
    assert_eq!(allowed(), false);
    // A config that names a script which comes later is taken when it has come.
    let later = config.replace("mine.lua", "later.lua");
    server.folder().write("tidegate.toml", &later);
    server.line("later.lua");
    assert_eq!(allowed(), false);
    server.folder().write("later.lua", SCRIPT);
    until("it allows", || (allowed() == true).then_some(()));
    // Looking at what a script counts is a question that cannot be answered.
    let answer = server.check("{\"policy\":\"p\",\"key\":\"k\",\"peek\":true}");
    assert_eq!(answer.status, 400);
    assert!(answer.detail().contains("its script decides"));
    assert_eq!(server.get("/v1/keys/p?key=k").status, 400);
    assert_eq!(server.get("/v1/policies").json()[0]["script"], true);
}

#[test]
fn addresses_wait_for_the_next_start_and_stores_of_before_are_gone() {
    let server = Tidegate::start(&format!("[stores.old]\nmax_keys = 5\n{}", limit(5)));
    assert!(metrics(&server).contains_key("tidegate_store_up{store=\"old\"}"));
    server.folder().write(
        "tidegate.toml",
        format!("[stores.new]\nmax_keys = 6\n{}", limit(6)),
    );
    wait_for(&server, 6);
    let metrics = metrics(&server);
    assert!(metrics.contains_key("tidegate_store_up{store=\"new\"}"));
    assert!(!metrics.contains_key("tidegate_store_up{store=\"old\"}"));

    let server = Start::configured("[server]\nhttp = \"127.0.0.1:0\"\n").start();
    server
        .folder()
        .write("tidegate.toml", "[server]\nhttp = \"127.0.0.1:1\"\n");
    server.line("server.http has changed: it takes effect at the next start");
    assert_eq!(server.get("/healthz").status, 200);
}
