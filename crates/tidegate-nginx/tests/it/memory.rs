//! Zones in shared memory.

use tidegate_testkit::http::{get, statuses};
use tidegate_testkit::nginx::pipelined;
use tidegate_testkit::process::until;

use crate::nginx::{reload, serving, start};

#[test]
fn workers_share_a_zone() {
    let zone = "tidegate_zone z key=all rate=100r/d; tidegate_headers off;";
    let nginx = start(4, &serving(zone, "location / { tidegate z; }"));
    let passed: usize = std::thread::scope(|scope| {
        let clients = [(); 8].map(|()| scope.spawn(|| statuses(nginx.port(), "/", 40)));
        let all = clients.into_iter().flat_map(|it| it.join().unwrap());
        all.filter(|&status| status == 200).count()
    });
    assert_eq!(passed, 100);
    assert_eq!(nginx.errors(), Vec::<String>::new());
}

#[test]
fn reload_keeps_counts_and_another_limit_keeps_what_was_used() {
    let config = |rate: &str, size: &str| {
        let zone = format!("tidegate_zone z key=all rate={rate} size={size};");
        serving(&zone, "location / { tidegate z; }")
    };
    let nginx = start(2, &config("5r/d", "1m"));
    let reload = |rate, size| reload(&nginx, 2, &config(rate, size));
    let port = nginx.port();
    assert_eq!(statuses(port, "/", 3), [200; 3]);
    reload("5r/d", "1m");
    assert_eq!(statuses(port, "/", 3), [200, 200, 429]);
    reload("10r/d", "1m");
    let next = get(port, "/");
    let limit = next.header("RateLimit").unwrap();
    assert!(limit.starts_with("\"z\";r=4;"), "{next:?}");
    reload("3r/d", "1m");
    assert_eq!(statuses(port, "/", 1), [429]);
    // Memory of another size is other memory.
    reload("3r/d", "2m");
    assert_eq!(statuses(port, "/", 2), [200, 200]);
    assert_eq!(nginx.errors(), Vec::<String>::new());
    // A wrong config is not loaded, and the old one goes on.
    let text = nginx.read("nginx.conf").replace("rate=3r/d", "rate=3r/y");
    nginx.folder().write("nginx.conf", text);
    nginx.signal("HUP");
    until("an error", || {
        (nginx.count("…rate=3r/y: …") > 0).then_some(())
    });
    assert_eq!(statuses(port, "/", 2), [200, 429]);
}

#[test]
fn zone_of_a_fixed_size_takes_any_number_of_keys() {
    let zone = "tidegate_zone z key=$arg_k rate=1r/h size=128k; tidegate_headers off;";
    let nginx = start(1, &serving(zone, "location / { tidegate z; }"));
    for round in 0..40 {
        let keys = round * 500..(round + 1) * 500;
        let targets: Vec<String> = keys.map(|key| format!("/index.html?k={key}")).collect();
        let answers = pipelined(nginx.port(), "HEAD", &targets);
        let passed = answers.iter().filter(|answer| answer.status == 200);
        assert_eq!(passed.count(), 500);
    }
    assert_eq!(nginx.errors(), Vec::<String>::new());
}
