//! Two nginx that share one limit through Redis, in each mode, judged by the checker.

mod timing {
    use std::time::{Duration, Instant};

    use tidegate::audit::{Audit, Background, Record};
    use tidegate::{Cost, Limit, Source};

    use crate::client::get;
    use crate::nginx::{Nginx, under_valgrind};
    use crate::redis::Redis;

    const LIMIT: &str = "50r/s";
    const FORMAT: &str = "log_format t '$tidegate_decided_at $tidegate_source $status'; access_log FOLDER/t.log t; tidegate_headers off; tidegate_log_level info;";

    /// A line of an access log: when, who, and whether it passed.
    fn record(line: &str) -> (u64, Source, bool) {
        let [at_us, source, status] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("not a record: {line}");
        };
        let source = Source::ALL.into_iter().find(|it| it.as_str() == source);
        (at_us.parse().unwrap(), source.unwrap(), status == "200")
    }

    /// Two nginx of two workers under load for a while: what they decided.
    fn run(mode: &str) -> Vec<Vec<(u64, Source, bool)>> {
        let redis = Redis::start();
        let zones = format!(
            "{} tidegate_zone z key=all rate={LIMIT} burst=20 {mode}; {FORMAT}",
            redis.store()
        );
        let fleet = [(); 2].map(|()| Nginx::serve(2, &zones, "location / { tidegate z; }"));
        let until = Instant::now() + Duration::from_secs(3);
        std::thread::scope(|scope| {
            for nginx in &fleet {
                for _ in 0..2 {
                    scope.spawn(move || {
                        while Instant::now() < until {
                            let status = get(nginx.port, "/").status;
                            assert!(matches!(status, 200 | 429), "{status}");
                        }
                    });
                }
            }
        });
        let logs = fleet.iter().map(|nginx| nginx.read("t.log"));
        logs.map(|log| log.lines().map(record).collect()).collect()
    }

    fn judge(audit: Audit, fleet: &[Vec<(u64, Source, bool)>]) {
        let records = fleet.iter().flatten();
        let records: Vec<Record<'_>> = records
            .map(|&(at_us, source, allowed)| Record {
                key: b"all",
                at_us,
                cost: Cost::ONE,
                source,
                allowed,
            })
            .collect();
        let passed = records.iter().filter(|record| record.allowed).count();
        let refused = records.len() - passed;
        assert!(
            passed > 20 && refused > 0 || under_valgrind(),
            "{passed} passed, {refused} refused"
        );
        let failed = records
            .iter()
            .filter(|it| it.source == Source::ErrorPolicy)
            .count();
        assert!(failed == 0 || under_valgrind(), "the store was there");
        let verdict = audit.judge(records);
        assert!(verdict.held(), "{verdict:?}");
    }

    fn limit() -> Limit {
        Limit::parse(&format!("{LIMIT} burst=20")).unwrap()
    }

    #[test]
    fn exact_keeps_the_limit_over_two_instances() {
        judge(Audit::new(limit()), &run("mode=exact"));
    }

    #[test]
    fn lease_keeps_the_limit_over_two_instances() {
        judge(Audit::new(limit()), &run("mode=lease"));
    }

    #[test]
    fn background_keeps_its_formula_over_two_instances() {
        let fleet = run("mode=background");
        // Each worker is a node, which may have had all that its instance was offered in any
        // stretch of D; D allows for a machine that stalls for a second.
        let (interval, trip) = (Duration::from_millis(50), Duration::from_secs(1));
        let stale_us = 2 * 1_050_000 + 1_000_000;
        let offered = fleet.iter().flat_map(|records| {
            let mut times: Vec<u64> = records.iter().map(|(at_us, ..)| *at_us).collect();
            times.sort_unstable();
            let most = (0..times.len()).map(|first| {
                let end = times.partition_point(|at_us| *at_us <= times[first] + stale_us);
                (end - first) as u64
            });
            let most = most.max().unwrap_or(0);
            [most, most]
        });
        let nodes = Background::new(interval, trip, offered);
        judge(Audit::new(limit()).background(nodes), &fleet);
    }
}
