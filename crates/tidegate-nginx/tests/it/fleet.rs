//! Two nginx of two workers share one limit through Redis, in each mode, judged by the checker.

mod timing {
    use std::time::Duration;

    use tidegate::Limit;
    use tidegate::audit::{Audit, Background};
    use tidegate_testkit::nginx::Nginx;
    use tidegate_testkit::redis::Server;

    use crate::decisions::{Decision, LOG, judge, read};
    use crate::nginx::{Load, serving, start, store};

    const LIMIT: &str = "rate=50r/s burst=20";

    fn audit() -> Audit {
        let limit = LIMIT.strip_prefix("rate=").unwrap();
        Audit::new(Limit::parse(limit).unwrap())
    }

    /// So many nginx under load for three seconds: what they decided.
    fn run<const N: usize>(mode: &str) -> [Vec<Decision>; N] {
        let redis = Server::start();
        let zone = format!("tidegate_zone z key=all {LIMIT} mode={mode}; {LOG}");
        let config = serving(
            &(store(&redis, "10s") + &zone),
            "location / { tidegate z; }",
        );
        let fleet: [Nginx; N] = [(); N].map(|()| start(2, &config));
        std::thread::scope(|scope| {
            for nginx in &fleet {
                scope.spawn(|| {
                    Load::run(nginx.port(), &["/"], &[200, 429], |_| {
                        std::thread::sleep(Duration::from_secs(3));
                    })
                });
            }
        });
        fleet.each_ref().map(|nginx| read(nginx, 0))
    }

    #[test]
    fn local_keeps_the_limit_over_two_workers() {
        judge(audit(), run::<1>("local").iter().flatten());
    }

    #[test]
    fn exact_keeps_the_limit_over_two_instances() {
        judge(audit(), run::<2>("exact").iter().flatten());
    }

    #[test]
    fn lease_keeps_the_limit_over_two_instances() {
        judge(audit(), run::<2>("lease").iter().flatten());
    }

    #[test]
    fn background_keeps_its_formula_over_two_instances() {
        let fleet = run::<2>("background");
        // Each worker is a node, which may have had all that its instance was offered in any
        // stretch of D; D allows for a machine that stalls for a second.
        let (interval, trip) = (Duration::from_millis(50), Duration::from_secs(1));
        let stale_us = 2 * 1_050_000 + 1_000_000;
        let offered = fleet.iter().flat_map(|decisions| {
            let mut times: Vec<u64> = decisions.iter().map(|it| it.at_us).collect();
            times.sort_unstable();
            let most = (0..times.len()).map(|first| {
                let end = times.partition_point(|at_us| *at_us <= times[first] + stale_us);
                (end - first) as u64
            });
            let most = most.max().unwrap_or(0);
            [most, most]
        });
        let nodes = Background::new(interval, trip, offered);
        judge(audit().background(nodes), fleet.iter().flatten());
    }
}
