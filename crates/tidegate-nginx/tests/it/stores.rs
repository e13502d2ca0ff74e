//! Redis stopped, hung, restarted, and down at the start; zones and `tidegate serve` share
//! their keys.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::client::{get, statuses};
use crate::nginx::{Nginx, under_valgrind};
use crate::process::{Process, free_port, wait_for};
use crate::redis::{Redis, store};

#[test]
fn zone_is_the_policy_of_its_name_in_redis() {
    let redis = Redis::start();
    let zones = format!(
        "{} tidegate_zone login key=$arg_k rate=5r/d mode=exact; tidegate_zone w key=$arg_k rate=5r/d algorithm=fixed_window store=default;",
        redis.store()
    );
    let nginx = Nginx::serve(
        1,
        &zones,
        "location / { tidegate login; } location /w { tidegate w; try_files /index.html =404; }",
    );
    assert_eq!(get(nginx.port, "/?k=a:b").status, 200);
    assert_eq!(get(nginx.port, "/w?k=x").status, 200);
    let keys = redis.command(&["KEYS", "*"]);
    let mut keys: Vec<&str> = keys.lines().collect();
    keys.sort_unstable();
    assert_eq!(keys, ["tg:{a%3Ab}:login:login", "tg:{x}:w:w~fw"]);
}

#[test]
fn nginx_and_the_server_share_one_limit() {
    let (redis, port) = (Redis::start(), free_port());
    for mode in ["exact", "lease", "background"] {
        redis.command(&["FLUSHALL"]);
        let zones = format!(
            "{} tidegate_zone login key=$remote_addr rate=4r/d mode={mode};",
            redis.store()
        );
        let nginx = Nginx::serve(1, &zones, "location / { tidegate login; }");
        let config = nginx.folder.path().join("tidegate.toml");
        let text = format!(
            "[stores.default]\nurl = \"redis://127.0.0.1:{}/0\"\ntimeout = \"10s\"\n\n[[policies]]\nname = \"login\"\nlimit = \"4r/d\"\n",
            redis.port
        );
        std::fs::write(&config, text).unwrap();
        let program = std::env::var_os("TIDEGATE").expect("`cargo xtask nginx test` sets it");
        let mut serve = Command::new(program);
        serve.args(["serve", "--log", "error", "--http"]);
        serve.arg(format!("127.0.0.1:{port}")).arg("--config");
        let mut server = Process::start(serve.arg(&config));
        server.wait_for_port(port);
        let path = "/v1/gate/login?key=127.0.0.1";
        assert_eq!(statuses(nginx.port, "/", 2), [200; 2], "{mode}");
        // A worker in the background tells Redis a moment later.
        let look = || {
            get(port, "/v1/keys/login?key=127.0.0.1")
                .body
                .replace(' ', "")
        };
        wait_for(|| look().contains("\"remaining\":2").then_some(()));
        assert_eq!(statuses(port, path, 3), [200, 200, 429], "{mode}");
        if mode != "background" {
            assert_eq!(get(nginx.port, "/").status, 429, "{mode}");
        }
        let keys = redis.command(&["KEYS", "*"]);
        assert_eq!(keys, "tg:{127.0.0.1}:login:login\n", "{mode}");
    }
}

#[test]
fn u2_zone_uses_the_default_store_when_one_is_declared() {
    let redis = Redis::start();
    let zones = format!(
        "{} tidegate_zone shared key=all rate=2r/d;
         tidegate_zone none key=all rate=2r/d store=none;
         tidegate_zone alone key=all rate=2r/d mode=local;",
        redis.store()
    );
    let locations = "
        location /shared { tidegate shared; try_files /index.html =404; }
        location /none { tidegate none; try_files /index.html =404; }
        location /alone { tidegate alone; try_files /index.html =404; }";
    let fleet = [(); 2].map(|()| Nginx::serve(1, &zones, locations));
    let passed = |path| {
        let all = fleet.iter().flat_map(|it| statuses(it.port, path, 3));
        all.filter(|status| *status == 200).count()
    };
    assert_eq!(passed("/shared"), 2);
    assert_eq!(passed("/none"), 4);
    assert_eq!(passed("/alone"), 4);
    assert_eq!(redis.command(&["KEYS", "*"]), "tg:{all}:shared:shared\n");
}

#[test]
fn zones_in_two_places_are_all_or_none() {
    let redis = Redis::start();
    let zones = format!(
        "{} tidegate_zone total key=all rate=5r/d mode=local;
         tidegate_zone each key=$arg_k rate=2r/d mode=exact;
         tidegate_zone third key=$arg_t rate=1r/d;",
        redis.store()
    );
    let locations = "
        location / { tidegate total; tidegate each; tidegate third; }
        location /total { tidegate total; try_files /index.html =404; }
        location /each { tidegate each; try_files /index.html =404; }";
    let nginx = Nginx::serve(1, &zones, locations);
    assert_eq!(statuses(nginx.port, "/?k=a", 4), [200, 200, 429, 429]);
    assert_eq!(statuses(nginx.port, "/?k=b&t=x", 3), [200, 429, 429]);
    // Refusals of the third zone have cost neither Redis nor memory anything.
    assert_eq!(statuses(nginx.port, "/each?k=b", 2), [200, 429]);
    assert_eq!(statuses(nginx.port, "/total", 3), [200, 200, 429]);
}

mod timing {
    use super::*;

    const ZONES: &str = "
        tidegate_zone open key=$arg_k rate=3r/d mode=exact on_error=allow;
        tidegate_zone closed key=$arg_k rate=3r/d mode=exact on_error=deny;
        tidegate_zone alone key=all rate=3r/d mode=exact;
        tidegate_zone leased key=all rate=1000r/d mode=lease on_error=deny;
        tidegate_zone behind key=all rate=3r/d mode=background;
        log_format t '$status $tidegate_status $tidegate_source'; access_log FOLDER/t.log t;";

    const LOCATIONS: &str = "
        location /open { tidegate open; try_files /index.html =404; }
        location /closed { tidegate closed; try_files /index.html =404; }
        location /alone { tidegate alone; try_files /index.html =404; }
        location /leased { tidegate leased; try_files /index.html =404; }
        location /behind { tidegate behind; try_files /index.html =404; }";

    fn start(port: u16) -> Nginx {
        Nginx::serve(1, &format!("{} {ZONES}", store(port, "100ms")), LOCATIONS)
    }

    /// What each zone does without its store.
    fn is_down(nginx: &Nginx) {
        assert_eq!(statuses(nginx.port, "/open?k=down", 10), [200; 10]);
        let refused = get(nginx.port, "/closed?k=down");
        assert_eq!(refused.status, 503);
        let wait: u32 = refused.header("Retry-After").unwrap().parse().unwrap();
        assert!((1..=60).contains(&wait), "{wait}");
        assert_eq!(refused.header("RateLimit"), None);
        assert!(
            refused
                .body
                .contains("the store of policy closed is unavailable"),
            "{refused:?}"
        );
        let passed = statuses(nginx.port, "/alone", 6);
        assert!(
            passed.iter().filter(|status| **status == 200).count() <= 3,
            "{passed:?}"
        );
        assert!(passed.contains(&429), "{passed:?}");
        let passed = statuses(nginx.port, "/behind", 6);
        assert!(
            passed.contains(&429),
            "a node alone keeps the limit: {passed:?}"
        );
    }

    /// Waits until the store decides again.
    fn is_back(nginx: &Nginx) {
        let mut keys = 0..;
        wait_for(|| {
            let key = keys.next()?;
            get(nginx.port, &format!("/open?k={key}"));
            let log = nginx.read("t.log");
            let decided = log
                .lines()
                .last()
                .is_some_and(|line| line.ends_with(" store"));
            let closed = get(nginx.port, &format!("/closed?k={key}"));
            (decided && closed.status == 200).then_some(())
        });
    }

    #[test]
    fn redis_that_is_down_at_the_start_and_comes_later() {
        let port = free_port();
        let nginx = start(port);
        is_down(&nginx);
        let _redis = Redis::start_at(port);
        is_back(&nginx);
        let log = nginx.read("error.log");
        let began = log.matches("on_error decides").count();
        assert!((1..=3).contains(&began), "{log}");
    }

    /// By default nginx logs errors and nothing below them.
    #[test]
    fn u9_end_of_an_outage_is_logged_as_an_error_like_its_begin() {
        let port = free_port();
        let nginx = start(port);
        let is_logged = |what: &str| nginx.errors().iter().any(|line| line.contains(what));
        wait_for(|| {
            get(nginx.port, "/open?k=down");
            is_logged("the store keeps failing").then_some(())
        });
        let _redis = Redis::start_at(port);
        is_back(&nginx);
        let log = nginx.read("error.log");
        assert!(is_logged("the store answers again"), "{log}");
    }

    #[test]
    fn redis_that_is_killed_and_restarted() {
        let mut redis = Redis::start();
        let nginx = start(redis.port);
        is_back(&nginx);
        redis.process.kill();
        is_down(&nginx);
        let port = redis.port;
        drop(redis);
        let _redis = Redis::start_at(port);
        is_back(&nginx);
    }

    #[test]
    fn redis_that_hangs_costs_a_deadline_now_and_then() {
        let redis = Redis::start();
        let nginx = start(redis.port);
        is_back(&nginx);
        redis.process.signal("STOP");
        let start = Instant::now();
        is_down(&nginx);
        // The breaker keeps it to a few deadlines of a tenth of a second.
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{:?}",
            start.elapsed()
        );
        redis.process.signal("CONT");
        is_back(&nginx);
        assert!(!nginx.read("error.log").contains("[alert]"));
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
            let redis = Redis::start();
            let zones = format!(
                "{} tidegate_zone z key=all rate=10000r/s mode={mode}; log_format t $request_time; access_log FOLDER/t.log t;",
                store(redis.port, "50ms")
            );
            let nginx = Nginx::serve(1, &zones, "location / { tidegate z; }");
            let log = |lines: usize| {
                wait_for(|| {
                    let log = nginx.read("t.log");
                    (log.lines().count() == lines).then_some(log)
                })
            };
            load(nginx.port, 500);
            log(500);
            redis.process.signal(fault);
            let start = Instant::now();
            load(nginx.port, 5_000);
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

    #[test]
    fn lease_decides_without_asking_for_each_request() {
        let redis = Redis::start();
        let nginx = start(redis.port);
        // A key that is asked for often enough is leased.
        for _ in 0..200 {
            get(nginx.port, "/leased");
        }
        let log = nginx.read("t.log");
        let leased = log.lines().filter(|line| line.ends_with(" lease")).count();
        assert!(leased > 0, "{log}");
    }
}
