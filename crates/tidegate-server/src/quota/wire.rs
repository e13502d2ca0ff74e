//! The messages of Envoy's rate limit quota service, version 3, as far as they are used here.
//!
//! Values of a bucket id are bytes on this side: a header of a request may hold any.

use std::collections::BTreeMap;

use prost::{Enumeration, Message, Oneof};
use prost_types::Duration;

/// `envoy.service.rate_limit_quota.v3.RateLimitQuotaUsageReports`.
#[derive(Clone, PartialEq, Message)]
pub struct UsageReports {
    /// The domain; only the first report of a stream has to have it.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// One report per bucket.
    #[prost(message, repeated, tag = "2")]
    pub bucket_quota_usages: Vec<Usage>,
}

/// What was admitted and refused for a bucket since its last report.
#[derive(Clone, PartialEq, Message)]
pub struct Usage {
    /// The bucket.
    #[prost(message, optional, tag = "1")]
    pub bucket_id: Option<BucketName>,
    /// How long that is, in whole seconds.
    #[prost(message, optional, tag = "2")]
    pub time_elapsed: Option<Duration>,
    /// Requests that were admitted.
    #[prost(uint64, tag = "3")]
    pub num_requests_allowed: u64,
    /// Requests that were refused.
    #[prost(uint64, tag = "4")]
    pub num_requests_denied: u64,
}

/// `envoy.service.rate_limit_quota.v3.BucketId`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Message)]
pub struct BucketName {
    /// Its entries.
    #[prost(btree_map = "string, bytes", tag = "1")]
    pub bucket: BTreeMap<String, Vec<u8>>,
}

/// `envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct QuotaResponse {
    /// One action per bucket.
    #[prost(message, repeated, tag = "1")]
    pub bucket_action: Vec<BucketAction>,
}

/// What an Envoy should do with a bucket.
#[derive(Clone, PartialEq, Message)]
pub struct BucketAction {
    /// The bucket.
    #[prost(message, optional, tag = "1")]
    pub bucket_id: Option<BucketName>,
    /// What to do.
    #[prost(oneof = "Todo", tags = "2, 3")]
    pub todo: Option<Todo>,
}

/// One of these.
#[derive(Clone, PartialEq, Oneof)]
pub enum Todo {
    /// Decide by this.
    #[prost(message, tag = "2")]
    Assign(QuotaAssignment),
    /// Forget the bucket.
    #[prost(message, tag = "3")]
    Abandon(Abandon),
}

/// An assignment.
#[derive(Clone, PartialEq, Message)]
pub struct QuotaAssignment {
    /// How long it lasts.
    #[prost(message, optional, tag = "2")]
    pub assignment_time_to_live: Option<Duration>,
    /// What it says.
    #[prost(message, optional, tag = "3")]
    pub rate_limit_strategy: Option<Strategy>,
}

/// Nothing more to say.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Abandon {}

/// `envoy.type.v3.RateLimitStrategy`.
#[derive(Clone, PartialEq, Message)]
pub struct Strategy {
    /// How requests are decided.
    #[prost(oneof = "Rule", tags = "1, 3")]
    pub rule: Option<Rule>,
}

/// One of these.
#[derive(Clone, PartialEq, Oneof)]
pub enum Rule {
    /// All alike.
    #[prost(enumeration = "Blanket", tag = "1")]
    Blanket(i32),
    /// By a token bucket.
    #[prost(message, tag = "3")]
    TokenBucket(TokenBucket),
}

/// What becomes of all requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub enum Blanket {
    /// All are admitted.
    AllowAll = 0,
    /// All are refused.
    DenyAll = 1,
}

/// `envoy.type.v3.TokenBucket`.
#[derive(Clone, PartialEq, Message)]
pub struct TokenBucket {
    /// Its size.
    #[prost(uint32, tag = "1")]
    pub max_tokens: u32,
    /// Tokens that come in per interval.
    #[prost(message, optional, tag = "2")]
    pub tokens_per_fill: Option<u32>,
    /// The interval.
    #[prost(message, optional, tag = "3")]
    pub fill_interval: Option<Duration>,
}
