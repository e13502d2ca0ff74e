//! Each worker of an nginx is a node that leases: whatever happens to a worker, the limit
//! holds.

mod timing {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::time::{Duration, Instant};

    use tidegate::audit::{Audit, Record};
    use tidegate::{Cost, Limit, Source};

    use crate::client::{request, try_exchange};
    use crate::nginx::{Nginx, serving, under_valgrind};
    use crate::process::{send_signal, wait_for};
    use crate::redis::Redis;

    const LIMIT: &str = "500r/s";
    const FORMAT: &str = "log_format t '$pid $tidegate_decided_at $tidegate_source $status'; access_log FOLDER/t.log t; tidegate_headers off; tidegate_log_level info;";

    /// An nginx with a hot key, and what it counts in.
    struct Load {
        redis: Redis,
        nginx: Nginx,
        config: String,
    }

    /// What was decided: by which process, when, from where, and whether it passed.
    struct Decided {
        process: u32,
        at_us: u64,
        source: Source,
        passed: bool,
    }

    impl Load {
        fn start(workers: usize) -> Self {
            let redis = Redis::start();
            let zones = format!(
                "{} tidegate_zone z key=all rate={LIMIT} mode=lease; {FORMAT}",
                redis.store()
            );
            let config = serving(&zones, "location / { tidegate z; }");
            let nginx = Nginx::start_workers(workers, &config);
            Self {
                redis,
                nginx,
                config,
            }
        }

        /// Asks for more than the limit admits while something else happens, for some time.
        fn run(&self, time: Duration, work: impl FnOnce()) {
            let (stop, port) = (AtomicBool::new(false), self.nginx.port);
            let start = Instant::now();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        while !stop.load(Relaxed) {
                            // A killed worker cuts some off.
                            match try_exchange(port, &request("GET", "/", &[])) {
                                Ok(it) => assert!(matches!(it.status, 200 | 429), "{it:?}"),
                                Err(_) => std::thread::sleep(Duration::from_millis(5)),
                            }
                        }
                    });
                }
                work();
                std::thread::sleep(time.saturating_sub(start.elapsed()));
                stop.store(true, Relaxed);
            });
        }

        fn decided(&self) -> Vec<Decided> {
            let log = self.nginx.read("t.log");
            // A worker that is killed may cut its last line off.
            let lines = log.lines().map(|line| line.split(' ').collect::<Vec<_>>());
            let lines = lines.filter_map(|words| match words[..] {
                [process, at_us, source, status] => Some(Decided {
                    process: process.parse().ok()?,
                    at_us: at_us.parse().ok()?,
                    source: Source::ALL.into_iter().find(|it| it.as_str() == source)?,
                    passed: status == "200",
                }),
                _ => None,
            });
            lines.collect()
        }

        /// Scripts that Redis has run.
        fn calls(&self) -> u64 {
            let stats = self.redis.command(&["INFO", "commandstats"]);
            let scripts = stats
                .lines()
                .filter(|line| line.starts_with("cmdstat_evalsha:"));
            let calls = scripts.filter_map(|line| {
                let (_, calls) = line.split_once("calls=")?;
                calls.split(',').next()?.parse::<u64>().ok()
            });
            calls.sum()
        }
    }

    /// The limit holds in any stretch of time.
    fn judge(decided: &[Decided]) {
        let records = decided.iter().map(|it| Record {
            key: b"all",
            at_us: it.at_us,
            cost: Cost::ONE,
            source: it.source,
            allowed: it.passed,
        });
        let verdict = Audit::new(Limit::parse(LIMIT).unwrap()).judge(records);
        assert!(verdict.held(), "{verdict:?}");
        let failed = decided.iter().filter(|it| it.source == Source::ErrorPolicy);
        let failed = failed.count();
        assert!(failed == 0 || under_valgrind(), "the store was there");
    }

    /// At least this much of the limit is used under overload.
    fn assert_share(decided: &[Decided], least: f64) {
        if !under_valgrind() {
            let share = share(decided);
            assert!(share >= least, "{share:.1} % of the limit");
        }
    }

    /// How many of a hundred pass that the rate gives. Under overload tokens come in grants,
    /// each of which is spent at once. So this counts from the start of one grant to the start
    /// of another: any other time would cut one of them.
    fn share(decided: &[Decided]) -> f64 {
        let passed = decided.iter().filter(|it| it.passed).map(|it| it.at_us);
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

    fn passed(decided: &[Decided]) -> u64 {
        decided.iter().filter(|it| it.passed).count() as u64
    }

    /// How often Redis is asked depends on how busy the machine is: it is printed here.
    #[test]
    fn two_workers_use_the_limit_as_one_does() {
        for workers in [1, 2] {
            let load = Load::start(workers);
            let before = load.calls();
            load.run(Duration::from_secs(5), || ());
            let calls = load.calls() - before;
            let decided = load.decided();
            judge(&decided);
            assert_share(&decided, 97.0);
            for id in load.nginx.worker_ids() {
                let spent = decided.iter().filter(|it| it.process == id && it.passed);
                let spent = spent.count();
                assert!(
                    spent > 0 || under_valgrind(),
                    "worker {id} has served nobody"
                );
            }
            assert_eq!(load.nginx.errors(), Vec::<String>::new());
            let passed = passed(&decided);
            let per = calls as f64 / passed as f64;
            println!("{workers} workers: {calls} calls, {passed} passed, {per:.4} calls each");
        }
    }

    #[test]
    fn killed_workers_do_not_break_the_limit_and_the_others_go_on() {
        let load = Load::start(2);
        let mut killed = Vec::new();
        load.run(Duration::from_secs(6), || {
            for round in 0..5 {
                std::thread::sleep(Duration::from_millis(700));
                let before = load.nginx.worker_ids();
                send_signal(before[round % 2], "KILL");
                killed.push(before[round % 2]);
                wait_for(|| {
                    let now = load.nginx.worker_ids();
                    (now.len() == 2 && !now.contains(&before[round % 2])).then_some(())
                });
            }
        });
        let decided = load.decided();
        judge(&decided);
        // What a killed worker had is lost for about a second at most.
        assert_share(&decided, 80.0);
        let alive = load.nginx.worker_ids();
        assert!(alive.iter().all(|id| !killed.contains(id)));
    }

    #[test]
    fn reload_under_load_keeps_the_limit() {
        let load = Load::start(2);
        load.run(Duration::from_secs(5), || {
            for _ in 0..5 {
                std::thread::sleep(Duration::from_millis(500));
                load.nginx.reload(&load.config);
            }
        });
        let decided = load.decided();
        judge(&decided);
        assert_share(&decided, 95.0);
        assert_eq!(load.nginx.errors(), Vec::<String>::new());
    }

    #[test]
    fn zone_may_change_its_mode_and_store_in_a_reload() {
        let (redis, other) = (Redis::start(), Redis::start());
        let config = |redis: &Redis, options: &str| {
            let zone = format!(
                "{} tidegate_zone z key=all rate=5r/d {options};",
                redis.store()
            );
            serving(&zone, "location / { tidegate z; }")
        };
        let nginx = Nginx::start_workers(2, &config(&redis, "mode=lease"));
        let statuses = |times| crate::client::statuses(nginx.port, "/", times);
        assert_eq!(statuses(6), [200, 200, 200, 200, 200, 429]);
        nginx.reload(&config(&redis, "mode=local size=2m"));
        assert_eq!(statuses(6), [200, 200, 200, 200, 200, 429]);
        nginx.reload(&config(&other, "mode=lease"));
        assert_eq!(statuses(6), [200, 200, 200, 200, 200, 429]);
        nginx.reload(&config(&redis, "mode=lease"));
        assert_eq!(statuses(1), [429]);
        assert_eq!(nginx.errors(), Vec::<String>::new());
    }
}
