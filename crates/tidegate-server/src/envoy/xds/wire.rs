//! The messages of the aggregated discovery service, and of the limits that it brings, as
//! far as they are used here.

use prost::Message;
use prost_types::{Any, Struct};

use crate::envoy::wire::Unit;

/// The type of the resources.
pub const CONFIG: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// The method that is called.
pub const METHOD: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

/// `envoy.service.discovery.v3.DiscoveryRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct DiscoveryRequest {
    /// The version that is in force here; empty for none.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// Who asks.
    #[prost(message, optional, tag = "2")]
    pub node: Option<Node>,
    /// The type of the resources.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// Which response this is about; empty at the beginning of a stream.
    #[prost(string, tag = "5")]
    pub response_nonce: String,
    /// Why that response is not in force.
    #[prost(message, optional, tag = "6")]
    pub error_detail: Option<Status>,
}

/// `envoy.config.core.v3.Node`.
#[derive(Clone, PartialEq, Message)]
pub struct Node {
    /// By which name the control plane knows it.
    #[prost(string, tag = "1")]
    pub id: String,
    /// What else it is told.
    #[prost(message, optional, tag = "3")]
    pub metadata: Option<Struct>,
    /// The program.
    #[prost(string, tag = "6")]
    pub user_agent_name: String,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Status {
    /// A code of gRPC.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// What is wrong.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// `envoy.service.discovery.v3.DiscoveryResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct DiscoveryResponse {
    /// The version of the resources.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// All of them: those that are not there are gone.
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<Any>,
    /// Their type.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// The name of this response, for the answer to it.
    #[prost(string, tag = "5")]
    pub nonce: String,
}

/// `ratelimit.config.ratelimit.v3.RateLimitConfig`: the limits of a domain.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RateLimitConfig {
    /// The name of the resource.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The domain.
    #[prost(string, tag = "2")]
    pub domain: String,
    /// Its descriptors, in order.
    #[prost(message, repeated, tag = "3")]
    pub descriptors: Vec<RateLimitDescriptor>,
}

/// `ratelimit.config.ratelimit.v3.RateLimitDescriptor`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RateLimitDescriptor {
    /// The key of the entry it is about.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value of that entry; empty for any.
    #[prost(string, tag = "2")]
    pub value: String,
    /// Its limit.
    #[prost(message, optional, tag = "3")]
    pub rate_limit: Option<RateLimitPolicy>,
    /// The descriptors of the next entry.
    #[prost(message, repeated, tag = "4")]
    pub descriptors: Vec<Self>,
    /// The limit only counts.
    #[prost(bool, tag = "5")]
    pub shadow_mode: bool,
    /// Statistics have the values of the request.
    #[prost(bool, tag = "6")]
    pub detailed_metric: bool,
    /// The limit is a quota.
    #[prost(bool, tag = "7")]
    pub quota_mode: bool,
}

/// `ratelimit.config.ratelimit.v3.RateLimitPolicy`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RateLimitPolicy {
    /// In so much time.
    #[prost(enumeration = "Unit", tag = "1")]
    pub unit: i32,
    /// So many requests.
    #[prost(uint32, tag = "2")]
    pub requests_per_unit: u32,
    /// There is no limit.
    #[prost(bool, tag = "3")]
    pub unlimited: bool,
    /// Its name.
    #[prost(string, tag = "4")]
    pub name: String,
    /// The limits it takes the place of.
    #[prost(message, repeated, tag = "5")]
    pub replaces: Vec<Replace>,
}

/// `ratelimit.config.ratelimit.v3.RateLimitReplace`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Replace {
    /// The name of the limit that is replaced.
    #[prost(string, tag = "1")]
    pub name: String,
}
