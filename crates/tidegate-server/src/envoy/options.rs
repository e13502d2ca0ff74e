//! How limits in the form of envoyproxy/ratelimit are answered: the settings that it takes
//! from its environment.

/// Settings of the answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Responses have headers about the tightest limit (`LIMIT_RESPONSE_HEADERS_ENABLED`).
    pub response_headers: bool,
    /// The name of the header with the limit (`LIMIT_LIMIT_HEADER`).
    pub limit_header: String,
    /// The name of the header with what is left (`LIMIT_REMAINING_HEADER`).
    pub remaining_header: String,
    /// The name of the header with the seconds until a new window (`LIMIT_RESET_HEADER`).
    pub reset_header: String,
    /// No request is refused, whatever its descriptors say (`SHADOW_MODE`).
    pub shadow_mode: bool,
    /// All limits are quotas (`QUOTA_MODE`).
    pub quota_mode: bool,
    /// From this share of a limit on, hits count as near it (`NEAR_LIMIT_RATIO`).
    pub near_limit_ratio: f32,
    /// Responses have dynamic metadata (`RESPONSE_DYNAMIC_METADATA`).
    pub dynamic_metadata: bool,
    /// When one descriptor goes over its limit, the others are not charged
    /// (`STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`).
    pub stop_increment_when_over: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            response_headers: false,
            limit_header: "RateLimit-Limit".into(),
            remaining_header: "RateLimit-Remaining".into(),
            reset_header: "RateLimit-Reset".into(),
            shadow_mode: false,
            quota_mode: false,
            near_limit_ratio: 0.8,
            dynamic_metadata: false,
            stop_increment_when_over: false,
        }
    }
}
