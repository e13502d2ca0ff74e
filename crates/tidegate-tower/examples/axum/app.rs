//! The application: what is limited, by what, and where it is counted.

use std::error::Error;
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use tidegate::{Limit, Policies, Policy};
use tidegate_redis::{RedisOptions, RedisStore};
use tidegate_tower::{AnyLimiter, Key, RateLimitLayer};

/// A limiter that counts in this process, or in Redis together with other instances. `deadline`
/// is how long Redis may take to answer.
pub(crate) fn limiter(
    redis: Option<&str>,
    deadline: Duration,
) -> Result<AnyLimiter, Box<dyn Error>> {
    let policies = [
        // Every address.
        Policy::builder("address")
            .key("{ip}")
            .limit(Limit::per_minute(5))
            .build()?,
        // Every token.
        Policy::builder("token")
            .key("{token}")
            .limit(Limit::per_minute(3))
            .build()?,
        // Two levels: a report, and a token's share of it.
        Policy::builder("report")
            .level("all", "{report}", Limit::per_minute(4))
            .level("token", "{report}:{token}", Limit::per_minute(2))
            .build()?,
    ];
    Ok(match redis {
        None => Policies::in_memory(policies)?.into(),
        Some(url) => {
            let store = RedisStore::new(url, RedisOptions::default().timeout(deadline))?;
            tidegate_redis::Policies::new([("default", store)], policies)?.into()
        }
    })
}

/// The routes, each with its limits.
pub(crate) fn router(limiter: &AnyLimiter) -> Result<Router, Box<dyn Error>> {
    let by_address = RateLimitLayer::builder(limiter.clone())
        .policy("address")
        .key("ip", Key::address())
        .build()?;
    let by_token = RateLimitLayer::builder(limiter.clone())
        .policy("token")
        .key("token", Key::bearer_token().or_refuse())
        .build()?;
    let by_report = RateLimitLayer::builder(limiter.clone())
        .policy("report")
        .key("report", Key::path_parameter("/reports/{id}", "id"))
        .key("token", Key::bearer_token())
        .build()?;
    Ok(Router::new()
        .route("/", get(hello).layer(by_address))
        .route("/items", get(hello).layer(by_token))
        .route("/reports/{id}", get(report).layer(by_report))
        .route("/health", get(hello)))
}

async fn hello() -> &'static str {
    "hello\n"
}

async fn report(Path(id): Path<String>) -> String {
    format!("report {id}\n")
}
