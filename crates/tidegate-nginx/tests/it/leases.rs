//! Each worker of an nginx is a node that leases: whatever happens to a worker, the limit
//! holds.

mod timing {
    use std::time::{Duration, Instant};

    use tidegate::audit::Audit;
    use tidegate::{Limit, Source};
    use tidegate_testkit::http::statuses;
    use tidegate_testkit::nginx::{Nginx, under_valgrind};
    use tidegate_testkit::process::signal;
    use tidegate_testkit::redis::Server;

    use crate::decisions::{Decision, LOG, judge, read};
    use crate::nginx::{Load, command, reload, serving, start, store};

    const LIMIT: &str = "500r/s";

    /// The config of an nginx with a hot key.
    fn config(redis: &Server) -> String {
        let zone = format!("tidegate_zone z key=all rate={LIMIT} mode=lease; {LOG}");
        serving(&(store(redis, "10s") + &zone), "location / { tidegate z; }")
    }

    /// Asks for more than the limit admits while something else happens, for some time: what
    /// was decided. The limit holds, and at least this share of it is used.
    fn run(
        nginx: &Nginx,
        seconds: u64,
        least: f64,
        kills: usize,
        work: impl FnOnce(),
    ) -> Vec<Decision> {
        let end = Instant::now() + Duration::from_secs(seconds);
        let cut = Load::run(nginx.port(), &["/"], &[200, 429], |_| {
            work();
            std::thread::sleep(end.saturating_duration_since(Instant::now()));
        });
        assert!(cut <= 4 * kills, "{cut} requests failed");
        let decisions = read(nginx, kills);
        judge(Audit::new(Limit::parse(LIMIT).unwrap()), decisions.iter());
        if !under_valgrind() {
            let share = share(&decisions);
            assert!(share >= least, "{share:.1} % of the limit");
        }
        decisions
    }

    /// How many of a hundred pass that the rate gives. Under overload tokens come in grants,
    /// each of which is spent at once. So this counts from the start of one grant to the start
    /// of another: any other time would cut one of them.
    fn share(decisions: &[Decision]) -> f64 {
        let passed = decisions.iter().filter(|it| it.passed).map(|it| it.at_us);
        let mut times: Vec<u64> = passed.collect();
        times.sort_unstable();
        // The first second has the burst.
        let from_us = times[0] + 1_000_000;
        let is_start = |at: &usize| times[*at] - times[at - 1] > 10_000 && times[*at] >= from_us;
        let mut starts = (1..times.len()).filter(is_start);
        let (first, last) = (starts.next().unwrap(), starts.next_back().unwrap());
        let seconds = Duration::from_micros(times[last] - times[first]).as_secs_f64();
        (last - first) as f64 / (500.0 * seconds) * 100.0
    }

    /// Scripts that Redis has run.
    fn calls(redis: &Server) -> u64 {
        let stats: String = command(redis, "INFO commandstats");
        let (_, calls) = stats
            .split_once("cmdstat_evalsha:calls=")
            .unwrap_or(("", "0,"));
        calls.split(',').next().unwrap().parse().unwrap()
    }

    /// How often Redis is asked depends on how busy the machine is: it is printed here.
    #[test]
    fn two_workers_use_the_limit_as_one_does() {
        for workers in [1, 2] {
            let redis = Server::start();
            let nginx = start(workers, &config(&redis));
            let before = calls(&redis);
            let decisions = run(&nginx, 5, 97.0, 0, || ());
            let calls = calls(&redis) - before;
            for id in nginx.worker_ids() {
                let mut its = decisions.iter().filter(|it| it.process == id && it.passed);
                let is_used = its.any(|it| it.source == Source::Lease);
                assert!(
                    is_used || under_valgrind(),
                    "worker {id} has leased nothing"
                );
            }
            assert_eq!(nginx.errors(), Vec::<String>::new());
            let passed = decisions.iter().filter(|it| it.passed).count();
            println!("{workers} workers: {calls} calls, {passed} passed");
        }
    }

    #[test]
    fn killed_workers_do_not_break_the_limit_and_the_others_go_on() {
        let redis = Server::start();
        let nginx = start(2, &config(&redis));
        // What a killed worker had is lost for about a second at most.
        run(&nginx, 6, 80.0, 5, || {
            for round in 0..5 {
                std::thread::sleep(Duration::from_millis(700));
                let killed = nginx.worker_ids()[round % 2];
                signal(killed, "KILL");
                nginx.wait_for_workers_other_than(&[killed]);
            }
        });
    }

    #[test]
    fn reload_under_load_keeps_the_limit() {
        let redis = Server::start();
        let config = config(&redis);
        let nginx = start(2, &config);
        run(&nginx, 5, 95.0, 0, || {
            for _ in 0..5 {
                std::thread::sleep(Duration::from_millis(500));
                reload(&nginx, 2, &config);
            }
        });
        assert_eq!(nginx.errors(), Vec::<String>::new());
    }

    #[test]
    fn zone_may_change_its_mode_and_store_in_a_reload() {
        let (redis, other) = (Server::start(), Server::start());
        let config = |redis: &Server, options: &str| {
            let zone = format!("tidegate_zone z key=all rate=5r/d {options};");
            serving(&(store(redis, "10s") + &zone), "location / { tidegate z; }")
        };
        let nginx = start(2, &config(&redis, "mode=lease"));
        let all = [200, 200, 200, 200, 200, 429];
        assert_eq!(statuses(nginx.port(), "/", 6), all);
        for (redis, options, expected) in [
            (&redis, "mode=local size=2m", &all[..]),
            (&other, "mode=lease", &all[..]),
            (&redis, "mode=lease", &[429]),
        ] {
            reload(&nginx, 2, &config(redis, options));
            assert_eq!(
                statuses(nginx.port(), "/", expected.len()),
                expected,
                "{options}"
            );
        }
        assert_eq!(nginx.errors(), Vec::<String>::new());
    }
}
