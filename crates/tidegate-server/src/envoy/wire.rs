//! The messages of Envoy's rate limit service, version 3, as far as they are used here.
//!
//! Keys and values of descriptors are bytes on this side: a header of a request may hold
//! any, and a limit has to count it all the same.

use bytes::Bytes;
use prost::{Enumeration, Message};
use prost_types::{Duration, Struct};

/// `envoy.service.ratelimit.v3.RateLimitRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitRequest {
    /// The application, or the part of it, that the limits are of.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// What the request is, in each of the ways that limits know it by.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<Descriptor>,
    /// What it costs; 0 means 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub struct Descriptor {
    /// Its entries, in order.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
    /// A limit that takes the place of the configured one.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<LimitOverride>,
    /// What the request costs here; 0 only looks.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<u64>,
    /// The cost is given back.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

/// An entry of a descriptor.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Entry {
    /// What it says.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// Of this request.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// A limit in a request.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LimitOverride {
    /// So many requests.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// In so much time: a unit of `envoy.type.v3.RateLimitUnit`, whose numbers are those
    /// of [`Unit`].
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
}

/// `envoy.service.ratelimit.v3.RateLimitResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitResponse {
    /// What becomes of the request.
    #[prost(enumeration = "Code", tag = "1")]
    pub overall_code: i32,
    /// What each of its descriptors says, in their order.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// Headers for the client.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// Headers for the service behind Envoy.
    #[prost(message, repeated, tag = "4")]
    pub request_headers_to_add: Vec<HeaderValue>,
    /// The body of a refusal.
    #[prost(bytes = "bytes", tag = "5")]
    pub raw_body: Bytes,
    /// What Envoy's access log and other filters can read.
    #[prost(message, optional, tag = "6")]
    pub dynamic_metadata: Option<Struct>,
}

/// What a descriptor says.
#[derive(Clone, PartialEq, Message)]
pub struct DescriptorStatus {
    /// Whether it admits the request.
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// The limit it has found.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<RateLimit>,
    /// What is left of it.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// When the window ends.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<Duration>,
}

/// A limit.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RateLimit {
    /// So many requests.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// In so much time.
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
    /// Its name.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// A header to add.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HeaderValue {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// Whether a request is admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum Code {
    /// Nobody can say.
    Unknown = 0,
    /// It may.
    Ok = 1,
    /// It may not.
    OverLimit = 2,
}

/// A unit of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum Unit {
    /// None of these.
    Unknown = 0,
    /// One second.
    Second = 1,
    /// 60 s.
    Minute = 2,
    /// 60 minutes.
    Hour = 3,
    /// 24 hours.
    Day = 4,
    /// 30 days.
    Month = 5,
    /// 365 days.
    Year = 6,
    /// 7 days.
    Week = 7,
}

impl Unit {
    /// All of them, shortest first, with their names.
    pub const ALL: [(&'static str, Self); 7] = [
        ("second", Self::Second),
        ("minute", Self::Minute),
        ("hour", Self::Hour),
        ("day", Self::Day),
        ("week", Self::Week),
        ("month", Self::Month),
        ("year", Self::Year),
    ];

    /// How long it is.
    #[must_use]
    pub const fn seconds(self) -> u64 {
        const DAY: u64 = 24 * 60 * 60;
        match self {
            Self::Unknown => 0,
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 60 * 60,
            Self::Day => DAY,
            Self::Week => 7 * DAY,
            Self::Month => 30 * DAY,
            Self::Year => 365 * DAY,
        }
    }

    /// The unit that is so long, if there is one.
    #[must_use]
    pub fn of(window_us: u64) -> Self {
        let is_it = |unit: &Self| unit.seconds() * 1_000_000 == window_us;
        let found = Self::ALL.iter().map(|(_, unit)| *unit).find(is_it);
        found.unwrap_or(Self::Unknown)
    }
}
