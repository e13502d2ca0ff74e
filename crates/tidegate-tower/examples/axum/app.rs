//! The application: what is limited, by what, and where it is counted.

use std::error::Error;
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use tidegate::{Limit, MemoryStore, Policy};
use tidegate_redis::{AnyStore, PolicyLimiter, RedisOptions, RedisStore};
use tidegate_tower::{Key, RateLimitLayer};

/// A store in this process, or in Redis together with other instances. `deadline` is how long
/// Redis may take to answer.
pub(crate) fn store(redis: Option<&str>, deadline: Duration) -> Result<AnyStore, Box<dyn Error>> {
    Ok(match redis {
        None => MemoryStore::new().into(),
        Some(url) => RedisStore::new(url, RedisOptions::default().timeout(deadline))?.into(),
    })
}

/// The routes, each with its limits.
pub(crate) fn router(store: &AnyStore) -> Result<Router, Box<dyn Error>> {
    // Every address.
    let address = Policy::builder("address")
        .key("{ip}")
        .limit(Limit::per_minute(5))
        .build()?;
    let by_address = RateLimitLayer::builder(PolicyLimiter::over(store.clone(), address)?)
        .key("ip", Key::address())
        .build()?;
    // Every token.
    let token = Policy::builder("token")
        .key("{token}")
        .limit(Limit::per_minute(3))
        .build()?;
    let by_token = RateLimitLayer::builder(PolicyLimiter::over(store.clone(), token)?)
        .key("token", Key::bearer_token().or_refuse())
        .build()?;
    // Two levels: a report, and a token's share of it.
    let report = Policy::builder("report")
        .level("all", "{report}", Limit::per_minute(4))
        .level("token", "{report}:{token}", Limit::per_minute(2))
        .build()?;
    let by_report = RateLimitLayer::builder(PolicyLimiter::over(store.clone(), report)?)
        .key("report", Key::path_parameter("/reports/{id}", "id"))
        .key("token", Key::bearer_token())
        .build()?;
    Ok(Router::new()
        .route("/", get(hello).layer(by_address))
        .route("/items", get(hello).layer(by_token))
        .route("/reports/{id}", get(read).layer(by_report))
        .route("/health", get(hello)))
}

async fn hello() -> &'static str {
    "hello\n"
}

async fn read(Path(id): Path<String>) -> String {
    format!("report {id}\n")
}
