//! The lanes that are compared: one handler, with different layers around it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tidegate::{Dialect, Limit, Policy, PolicyLimiter};
use tidegate_tower::{Key, RateLimitLayer};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

use crate::limiters::Load;

/// What is around the handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// Nothing.
    Bare,
    /// tidegate-tower without headers on responses that go on.
    Quiet,
    /// With limit, remaining and reset as `X-RateLimit-...`.
    Numbers,
    /// As it comes: `RateLimit-Policy` and `RateLimit`.
    Usual,
    /// tower_governor as it comes: without headers on responses that go on.
    Governor,
    /// With limit and remaining as `X-RateLimit-...`.
    GovernorHeaders,
}

impl Lane {
    pub(super) const ALL: [Self; 6] = [
        Self::Bare,
        Self::Quiet,
        Self::Numbers,
        Self::Usual,
        Self::Governor,
        Self::GovernorHeaders,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Quiet => "tidegate",
            Self::Numbers => "tidegate-numbers",
            Self::Usual => "tidegate-ietf",
            Self::Governor => "governor",
            Self::GovernorHeaders => "governor-headers",
        }
    }

    /// The handler of the example, with this around it.
    pub(super) fn router(self, load: Load) -> Router {
        let router = Router::new().route("/", get(async || "hello\n"));
        let mut config = GovernorConfigBuilder::default();
        config.period(load.period()).burst_size(load.burst());
        match self {
            Self::Bare => router,
            Self::Quiet => router.layer(tidegate(load, Dialect::None)),
            Self::Numbers => router.layer(tidegate(load, Dialect::XRateLimit)),
            Self::Usual => router.layer(tidegate(load, Dialect::Ietf)),
            Self::Governor => {
                let config = config.finish().expect("a period and a burst");
                router.layer(GovernorLayer::new(config))
            }
            Self::GovernorHeaders => {
                let config = config.use_headers().finish();
                router.layer(GovernorLayer::new(config.expect("a period and a burst")))
            }
        }
    }

    /// Whether a client's second request has to be refused.
    pub(super) fn refuses(self, load: Load) -> bool {
        self != Self::Bare && load == Load::Refused
    }
}

fn tidegate(load: Load, dialect: Dialect) -> RateLimitLayer {
    let limit = Limit::per(1, load.period()).burst(load.burst());
    let policy = Policy::builder("address").key("{ip}").limit(limit);
    let policy = policy.headers(dialect).build().expect("a policy");
    let limiter = PolicyLimiter::in_memory(policy).expect("a policy without a script");
    let layer = RateLimitLayer::builder(limiter).key("ip", Key::address());
    layer.build().expect("a layer")
}

/// One of a thousand clients.
pub(super) fn client(number: usize) -> SocketAddr {
    let bits = u32::from_be_bytes([203, 0, 0, 0]) + u32::try_from(number % 1_000).unwrap_or(0);
    SocketAddr::new(IpAddr::V4(Ipv4Addr::from_bits(bits)), 40_000)
}

/// As long as a measurement may take at most.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
