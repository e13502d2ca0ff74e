//! With axum, through real sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use tidegate::{Limit, Policy};
use tidegate_tower::{Key, RateLimitLayer};
use tokio::net::TcpListener;

use crate::http1::{self, Connection};
use crate::support::{limiter, one_policy, yearly};

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

/// How many of so many requests at once, each on a connection of its own, pass.
pub(crate) async fn admitted_at_once(addresses: &[SocketAddr], requests: usize) -> usize {
    let calls = (0..requests).map(|index| {
        let address = addresses[index % addresses.len()];
        tokio::spawn(async move { http1::get(address, "/", &[]).await.status })
    });
    let mut admitted = 0;
    for call in calls.collect::<Vec<_>>() {
        let status = call.await.expect("no panic");
        assert!([200, 429].contains(&status.as_u16()), "{status}");
        admitted += usize::from(status == 200);
    }
    admitted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_connections_share_one_limit() {
    // Five at once, and nothing more for as long as the test can take.
    let limit = Limit::per(5, Duration::from_secs(3_600)).fixed_window();
    let app = Router::new().route("/", get(hello));
    let address = serve(app.layer(RateLimitLayer::new(limit, Key::address()))).await;
    assert_eq!(admitted_at_once(&[address], 40).await, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_per_second_pass_five_in_a_second() {
    let limit = Limit::per_second(5).sliding_log();
    let app = Router::new().route("/", get(hello));
    let address = serve(app.layer(RateLimitLayer::new(limit, Key::address()))).await;
    let mut connection = Connection::open(address).await;
    // Whatever the machine does meanwhile: no window of a second holds more than five.
    let mut passed = Vec::new();
    let start = Instant::now();
    while passed.len() < 10 {
        let sent = start.elapsed();
        if connection.get("/", &[]).await.status == 200 {
            passed.push((sent, start.elapsed()));
        }
    }
    for six in passed.windows(6) {
        let (first_sent, last_answered) = (six[0].0, six[5].1);
        let apart = last_answered - first_sent;
        assert!(apart >= Duration::from_secs(1), "{apart:?}");
    }
}

#[tokio::test]
async fn routes_have_limits_of_their_own() {
    let limiter = limiter([
        Policy::builder("address").key("{ip}").limit(yearly(4)),
        Policy::builder("user").key("{user}").limit(yearly(1)),
    ]);
    let address_limit = RateLimitLayer::builder(limiter.clone())
        .policy("address")
        .key("ip", Key::address())
        .build();
    let user_limit = RateLimitLayer::builder(limiter)
        .policy("user")
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
    let mut statuses = Vec::new();
    for path in ["/users/1", "/users/%31", "/users/2", "/", "/"] {
        statuses.push(http1::get(address, path, &[]).await.status.as_u16());
    }
    assert_eq!(statuses, [200, 429, 200, 200, 429]);
}

#[tokio::test]
async fn requests_without_connection_info_share_a_key() {
    let limiter: Arc<_> = one_policy(2);
    let layer = RateLimitLayer::builder(limiter.clone())
        .policy("p")
        .key("k", Key::address());
    let app = Router::new().route("/", get(hello));
    let app = app.layer(layer.build().expect("a layer"));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(http1::get(address, "/", &[]).await.status.as_u16());
    }
    assert_eq!(statuses, [200, 200, 429]);
}
