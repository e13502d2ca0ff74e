//! Why there is no layer: everything is checked when it is built, nothing when it runs.

/// What is wrong with the settings of a layer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// No policy was named.
    #[error("no policy: expected the name of at least one")]
    NoPolicy,
    /// The limiter has no such policy.
    #[error("the limiter has no policy of the name {0:?}")]
    UnknownPolicy(String),
    /// A policy was named twice: it would charge twice.
    #[error("policy {0:?} stands there twice: expected it once")]
    DuplicatePolicy(String),
    /// A policy counts by an attribute that no key gives a value.
    #[error("policy {policy:?} counts by {{{attribute}}}: expected a key of that name")]
    NoKey {
        /// The policy's name.
        policy: String,
        /// The name of the attribute.
        attribute: String,
    },
    /// Two keys have one name.
    #[error("two keys of the name {0:?}: expected different names")]
    DuplicateKey(String),
    /// No policy counts by this key.
    #[error("no policy counts by the key {0:?}: expected it in a template, as {{{0}}}")]
    UnusedKey(String),
    /// Not an address, and not a network.
    #[error("{0:?} is no network: expected one such as \"10.0.0.0/8\", or an address")]
    Network(String),
    /// Not a prefix of IPv6 addresses.
    #[error("a prefix of {0} bits: expected 1 to 128")]
    Prefix(u8),
    /// Not a template of paths.
    #[error("the path {path:?}: {problem}")]
    Path {
        /// The template.
        path: String,
        /// What is wrong with it, and what was expected.
        problem: String,
    },
    /// Waiting asks again and again, which such a policy would count.
    #[error("policy {0:?} counts refused requests: expected it without `wait`")]
    WaitCountsDenied(String),
    /// A script decides that is not told what a request costs.
    #[error(
        "policy {0:?} is decided by a script without \"{{cost}}\" among its args: \
         expected it without `cost`"
    )]
    CostNotTold(String),
}
