//! Redis stopped, hung, restarted, and down at the start; zones and `tidegate serve` share
//! their keys.

use tidegate_testkit::http::{get, statuses};
use tidegate_testkit::process::until;
use tidegate_testkit::redis::Server;
use tidegate_testkit::tidegate::Tidegate;

use crate::nginx::{command, serving_zones, start, store};

#[test]
fn nginx_and_the_server_share_one_limit() {
    let redis = Server::start();
    let modes = ["exact", "lease", "background"];
    let zones =
        modes.map(|mode| format!("tidegate_zone {mode} key=$remote_addr rate=4r/d mode={mode};"));
    let zones = store(&redis, "10s") + &zones.concat();
    let nginx = start(1, &serving_zones(&zones, &modes));
    let policies = modes.map(|mode| format!("[[policies]]\nname = \"{mode}\"\nlimit = \"4r/d\"\n"));
    let store = format!(
        "[stores.default]\nurl = \"{}0\"\ntimeout = \"10s\"\n",
        redis.url()
    );
    let server = Tidegate::start(&(store + &policies.concat()));
    for mode in modes {
        let path = format!("/{mode}");
        assert_eq!(statuses(nginx.port(), &path, 2), [200; 2], "{mode}");
        // A worker in the background tells Redis a moment later.
        until("two that remain", || {
            let key = server.get(&format!("/v1/keys/{mode}?key=127.0.0.1"));
            key.text()
                .replace(' ', "")
                .contains("\"remaining\":2")
                .then_some(())
        });
        let gate = format!("/v1/gate/{mode}?key=127.0.0.1");
        assert_eq!(
            [(); 3].map(|()| server.get(&gate).status),
            [200, 200, 429],
            "{mode}"
        );
        if mode != "background" {
            assert_eq!(get(nginx.port(), &path).status, 429, "{mode}");
        }
        let keys: Vec<String> = command(&redis, &format!("KEYS *{mode}*"));
        assert_eq!(keys, [format!("tg:{{127.0.0.1}}:{mode}:{mode}")]);
    }
}

mod timing {
    use std::time::{Duration, Instant};

    use tidegate_testkit::nginx::{Nginx, under_valgrind};

    use super::*;
    use crate::nginx::serving;

    const ZONES: &str = "
        tidegate_zone open key=$arg_k rate=3r/d mode=exact on_error=allow;
        tidegate_zone closed key=$arg_k rate=3r/d mode=exact on_error=deny;
        tidegate_zone alone key=all rate=3r/d mode=exact;
        tidegate_zone behind key=all rate=3r/d mode=background;
        log_format t '$tidegate_source'; access_log FOLDER/t.log t;";

    /// What each zone does without its store.
    fn assert_down(nginx: &Nginx) {
        let port = nginx.port();
        assert_eq!(statuses(port, "/open?k=down", 10), [200; 10]);
        let refused = get(port, "/closed?k=down");
        assert_eq!(refused.status, 503);
        let wait: u32 = refused.header("Retry-After").unwrap().parse().unwrap();
        assert!((1..=60).contains(&wait), "{wait}");
        assert_eq!(refused.header("RateLimit"), None);
        let detail = "the store of policy closed is unavailable";
        assert!(refused.text().contains(detail), "{refused:?}");
        // A node alone keeps the limit.
        for path in ["/alone", "/behind"] {
            let statuses = statuses(port, path, 6);
            let passed = statuses.iter().filter(|status| **status == 200).count();
            assert!(
                passed <= 3 && statuses.contains(&429),
                "{path}: {statuses:?}"
            );
        }
    }

    /// Waits until the store decides again.
    fn wait_until_up(nginx: &Nginx) {
        let mut keys = 0..;
        until("the store decides", || {
            let key = keys.next()?;
            get(nginx.port(), &format!("/open?k={key}"));
            let log = nginx.read("t.log");
            let decided = log.lines().last() == Some("store");
            let closed = get(nginx.port(), &format!("/closed?k={key}"));
            (decided && closed.status == 200).then_some(())
        });
    }

    /// By default nginx logs errors and nothing below them, so the end of an outage is one.
    #[test]
    fn u9_redis_that_is_down_at_the_start_then_killed_then_hung() {
        let mut redis = Server::start();
        redis.kill();
        let zones = store(&redis, "100ms") + ZONES;
        let nginx = start(
            1,
            &serving_zones(&zones, &["open", "closed", "alone", "behind"]),
        );
        let is_logged = |what: &str| nginx.errors().iter().any(|line| line.contains(what));
        assert_down(&nginx);
        until("the log says so", || {
            get(nginx.port(), "/open?k=down");
            is_logged("the store keeps failing").then_some(())
        });
        redis.restart();
        wait_until_up(&nginx);
        assert!(
            is_logged("the store answers again"),
            "{}",
            nginx.read("error.log")
        );
        let began = nginx.count("…on_error decides…");
        assert!((1..=3).contains(&began), "{}", nginx.read("error.log"));

        redis.kill();
        assert_down(&nginx);
        redis.restart();
        wait_until_up(&nginx);

        redis.signal("STOP");
        let start = Instant::now();
        assert_down(&nginx);
        // The breaker keeps it to a few deadlines of a tenth of a second.
        let took = start.elapsed();
        assert!(took < Duration::from_secs(10), "{took:?}");
        redis.signal("CONT");
        wait_until_up(&nginx);
        assert_eq!(nginx.count("…[alert]…"), 0);
    }

    /// Sends this many requests from four clients, 500 per second together.
    fn load(port: u16, requests: usize) {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for client in 0..4 {
                scope.spawn(move || {
                    for number in (client..requests).step_by(4) {
                        let due = start + Duration::from_millis(2) * u32::try_from(number).unwrap();
                        std::thread::sleep(due.saturating_duration_since(Instant::now()));
                        assert_eq!(get(port, "/").status, 200);
                    }
                });
            }
        });
    }

    /// nginx measures how long a request takes. The clock that it does so by stands still while
    /// it works, so a stall of the machine counts only for requests that wait anyway.
    #[test]
    fn u1_few_requests_wait_for_a_store_that_is_down() {
        let faults = ["STOP", "KILL"].map(|fault| [("exact", fault), ("lease", fault)]);
        for (mode, fault) in faults.concat() {
            let redis = Server::start();
            let zone = format!(
                "{} tidegate_zone z key=all rate=10000r/s mode={mode}; log_format t $request_time; access_log FOLDER/t.log t;",
                store(&redis, "50ms")
            );
            let nginx = start(1, &serving(&zone, "location / { tidegate z; }"));
            let log = |lines: usize| {
                until("all lines", || {
                    let log = nginx.read("t.log");
                    (log.lines().count() == lines).then_some(log)
                })
            };
            load(nginx.port(), 500);
            log(500);
            redis.signal(fault);
            let start = Instant::now();
            load(nginx.port(), 5_000);
            let lasted = start.elapsed();
            let log = log(5_500);
            let took = log.lines().skip(500).map(|line| line.parse::<f64>());
            let waited = took.filter(|took| *took.as_ref().unwrap() > 0.040).count();
            println!("{mode}, {fault}: {waited} of 5000 requests in {lasted:.1?} above 40 ms");
            assert!(
                waited <= 20 || under_valgrind(),
                "{mode}, {fault}: {waited}"
            );
        }
    }
}
