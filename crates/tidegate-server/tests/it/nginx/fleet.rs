//! Several nginx and several tidegates on one Redis are one limiter.

use super::proxy::Nginx;
use super::tidegate::{Tidegate, default_policy};
use tidegate_testkit::http::statuses;
use tidegate_testkit::redis::Server;

#[test]
fn two_nginx_and_two_tidegates_on_one_redis_share_one_limit() {
    let redis = Server::start();
    let url = redis.url();
    let store = format!("[stores.default]\nurl = \"{url}0\"\ntimeout = \"10s\"\n");
    let config = store + &default_policy("{ip}", "40r/h");
    let tidegates = [(); 2].map(|()| Tidegate::start(&config));
    let fleet = tidegates.each_ref().map(Nginx::start);
    let all: Vec<u16> = std::thread::scope(|scope| {
        let clients = [0, 1, 0, 1, 0, 1, 0, 1].map(|nginx: usize| {
            let port = fleet[nginx].port();
            scope.spawn(move || statuses(port, "/", 25))
        });
        let all = clients.into_iter().flat_map(|it| it.join().unwrap());
        all.collect()
    });
    let count = |status| all.iter().filter(|&&it| it == status).count();
    assert_eq!([count(200), count(429)], [40, 160], "bound broken");
}
