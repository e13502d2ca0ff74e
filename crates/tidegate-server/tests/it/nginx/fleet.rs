//! Several nginx and several tidegates on one Redis are one limiter.

use super::proxy::Nginx;
use super::store;
use super::tidegate::{Tidegate, default_policy};
use tidegate_testkit::http::statuses;
use tidegate_testkit::redis::Server;

#[test]
fn two_nginx_and_two_tidegates_on_one_redis_share_one_limit() {
    let redis = Server::start();
    let config = store(&redis) + &default_policy("{ip}", "40r/h");
    let tidegates = [(); 2].map(|()| Tidegate::start(&config));
    let fleet: Vec<Nginx> = tidegates.iter().map(Nginx::start).collect();
    let passed: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|number| {
                let port = fleet[number % 2].port();
                scope.spawn(move || statuses(port, "/", 25))
            })
            .collect();
        let all = clients.into_iter().map(|client| client.join().unwrap());
        all.map(|statuses| {
            assert!(statuses.iter().all(|status| matches!(status, 200 | 429)));
            statuses.iter().filter(|&&status| status == 200).count()
        })
        .sum()
    });
    assert_eq!(passed, 40, "bound broken: of 200");
    for tidegate in &tidegates {
        let asked = tidegate.metric("tidegate_decisions_total", "");
        assert!(asked >= 100.0, "each has answered for its nginx: {asked}");
        assert_eq!(tidegate.metric("tidegate_store_errors_total", ""), 0.0);
    }
}
