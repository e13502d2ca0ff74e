//! What published limiters for nginx and Redis show in their manuals, end to end.

use std::time::{Duration, Instant};

use crate::client::{get, send, statuses};
use crate::nginx::Nginx;
use crate::process::free_port;
use crate::redis::{Redis, store};

#[test]
fn get_head_and_put_are_keys_of_their_own() {
    let zones = "tidegate_zone z key=$request_method rate=2r/m;";
    let nginx = Nginx::serve(
        1,
        zones,
        "location / { tidegate z; error_page 405 =200 /index.html; }",
    );
    for method in ["GET", "HEAD", "PUT"] {
        let statuses = [(); 4].map(|()| send(nginx.port, method, "/", &[]).status);
        assert_eq!(statuses, [200, 200, 429, 429], "{method}");
    }
}

#[test]
fn store_on_a_dead_port_lets_all_pass_and_one_line_says_so() {
    let zones = format!(
        "{} tidegate_zone z key=$remote_addr rate=2r/m mode=exact on_error=allow; log_format t $tidegate_status; access_log FOLDER/t.log t;",
        store(free_port(), "500ms")
    );
    let nginx = Nginx::serve(1, &zones, "location / { tidegate z; }");
    assert_eq!(statuses(nginx.port, "/", 20), [200; 20]);
    assert!(
        get(nginx.port, "/").header("RateLimit").is_none(),
        "nobody has counted"
    );
    assert!(nginx.read("t.log").lines().all(|line| line == "ERROR"));
    let log = nginx.read("error.log");
    let said: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("tidegate: "))
        .collect();
    let said = |what: &str| -> Vec<&&str> {
        let lines = said.iter().filter(|line| line.contains(what));
        lines.collect()
    };
    let started = said("the store does not answer: on_error decides");
    let caused = |cause: &str| started.iter().filter(|line| line.contains(cause)).count();
    // A machine that stalls adds a line: the deadline passes before the port refuses.
    let (refused, late) = (caused("cause=connect: "), caused("cause=timeout: "));
    assert!(refused == 1 && late <= 1, "{log}");
    // Another says that it is not asked any more.
    assert_eq!(said("the store keeps failing").len(), 1, "{log}");
    assert_eq!(said("").len(), refused + late + 1, "{log}");
    let line = started[0];
    assert!(
        line.contains("store=\"default\"") && line.contains("allowed: z"),
        "{line}"
    );
}

mod timing {
    use super::*;

    /// In memory, and through Redis.
    fn each(zone: &str, check: impl Fn(&Nginx)) {
        let redis = Redis::start();
        for mode in ["mode=local", "mode=exact"] {
            let zones = format!("{} tidegate_zone {zone} {mode};", redis.store());
            check(&Nginx::serve(2, &zones, "location / { tidegate login; }"));
        }
    }

    #[test]
    fn login_zone_of_100_requests_per_second() {
        each("login key=$binary_remote_addr rate=100r/s", |nginx| {
            let start = Instant::now();
            let passed: u32 = std::thread::scope(|scope| {
                let clients: Vec<_> = (0..4)
                    .map(|_| scope.spawn(|| statuses(nginx.port, "/", 100)))
                    .collect();
                let all = clients
                    .into_iter()
                    .flat_map(|client| client.join().unwrap());
                all.filter(|&status| status == 200).map(|_| 1).sum()
            });
            let most = 100.0 + 100.0 * start.elapsed().as_secs_f64();
            assert!(passed >= 100, "{passed}");
            assert!(
                f64::from(passed) <= most,
                "bound broken: {passed} of at most {most}"
            );
        });
    }

    #[test]
    fn zone_of_2_requests_per_minute_refuses_the_third_of_four() {
        each("login key=$binary_remote_addr rate=2r/m", |nginx| {
            let statuses = [0, 1, 2, 3].map(|number| {
                if number > 0 {
                    std::thread::sleep(Duration::from_millis(200));
                }
                get(nginx.port, "/").status
            });
            assert_eq!(statuses, [200, 200, 429, 429]);
        });
    }

    #[test]
    fn zone_of_2_requests_per_second_passes_requests_600_ms_apart() {
        each("login key=$binary_remote_addr rate=2r/s", |nginx| {
            for _ in 0..5 {
                assert_eq!(get(nginx.port, "/").status, 200);
                std::thread::sleep(Duration::from_millis(600));
            }
        });
    }
}
