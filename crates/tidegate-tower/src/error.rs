//! Errors in the settings of a layer. All of them are found by `build`, none on a request.

/// What is wrong with the settings of a layer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// A policy was added twice: it would charge twice.
    #[error("policy {0:?} appears twice: expected it once")]
    DuplicatePolicy(String),
    /// A policy uses an attribute that has no key.
    #[error("policy {policy:?} counts by {{{attribute}}}: expected a key with that name")]
    NoKey {
        /// The policy's name.
        policy: String,
        /// The name of the attribute.
        attribute: String,
    },
    /// Two keys have the same name.
    #[error("two keys are named {0:?}: expected different names")]
    DuplicateKey(String),
    /// No policy uses this key.
    #[error("no policy counts by the key {0:?}: expected it in a template, as {{{0}}}")]
    UnusedKey(String),
    /// Neither an address nor a network.
    #[error("{0:?} is not a network: expected one such as \"10.0.0.0/8\", or an address")]
    Network(String),
    /// Not a valid prefix length for IPv6 addresses.
    #[error("a prefix of {0} bits: expected 1 to 128")]
    Prefix(u8),
    /// Not a valid path template.
    #[error("the path {path:?}: {problem}")]
    Path {
        /// The template.
        path: String,
        /// What is wrong with it, and what was expected.
        problem: String,
    },
    /// Waiting retries, and this policy would count each retry.
    #[error("policy {0:?} counts refused requests: expected it without `wait`")]
    WaitCountsDenied(String),
    /// The policy's script does not use the cost of a request.
    #[error(
        "policy {0:?} is decided by a script without \"{{cost}}\" among its args: \
         expected it without `cost`"
    )]
    CostNotTold(String),
}
