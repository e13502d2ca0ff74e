//! In the place of envoyproxy/ratelimit: its environment variables.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`environment`] | what they say, which of them are not supported, and what is wrong with them |
//! | `variables` | the values that they can have, as Go reads them |

pub mod environment;
mod variables;
