//! With axum, through real sockets.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tidegate::{Limit, Policy};
use tidegate_testkit::http::{self, Answer};
use tidegate_tower::{Key, RateLimitLayer};
use tokio::net::TcpListener;

use crate::support::{limiter, yearly};

async fn hello() -> &'static str {
    "hello"
}

/// Serves on a free port until the test ends.
pub(crate) async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Requests `/`, or another path, on a connection of its own.
pub(crate) fn ask(address: SocketAddr, path: &str) -> Answer {
    http::send(address.port(), "GET", path, &[])
}

/// How many requests of this many at once, each on a connection of its own, pass.
pub(crate) fn admitted_at_once(addresses: &[SocketAddr], requests: usize) -> usize {
    thread::scope(|scope| {
        let calls = (0..requests).map(|index| {
            let address = addresses[index % addresses.len()];
            scope.spawn(move || ask(address, "/").status)
        });
        let calls: Vec<_> = calls.collect();
        let statuses = calls
            .into_iter()
            .map(|call| call.join().expect("an answer"));
        let statuses: Vec<u16> = statuses.collect();
        let known = statuses.iter().all(|status| [200, 429].contains(status));
        assert!(known, "{statuses:?}");
        statuses.iter().filter(|status| **status == 200).count()
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_connections_share_one_limit() {
    // Five at once, and nothing more for as long as the test can take.
    let limit = Limit::per(5, Duration::from_secs(3_600)).fixed_window();
    let app = Router::new().route("/", get(hello));
    let address = serve(app.layer(RateLimitLayer::new(limit, Key::address()))).await;
    assert_eq!(admitted_at_once(&[address], 40), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routes_have_limits_of_their_own() {
    let address = limiter(Policy::builder("address").key("{ip}").limit(yearly(4)));
    let address_limit = RateLimitLayer::builder(address)
        .key("ip", Key::address())
        .build();
    let user = limiter(Policy::builder("user").key("{user}").limit(yearly(1)));
    let user_limit = RateLimitLayer::builder(user)
        .key("user", Key::path_parameter("/users/{id}", "id"))
        .build();
    let app = Router::new()
        .route(
            "/users/{id}",
            get(hello).layer(user_limit.expect("a layer")),
        )
        .route("/", get(hello))
        .layer(address_limit.expect("a layer"));
    let address = serve(app).await;
    let paths = ["/users/1", "/users/%31", "/users/2", "/", "/"];
    let statuses = paths.map(|path| ask(address, path).status);
    assert_eq!(statuses, [200, 429, 200, 200, 429]);
}
