//! The format of names, durations and invalid values, for programs that read or print their
//! own fields next to those of policies.

pub use crate::duration::{Text as DurationText, duration};
pub use crate::policy::template::{NAME, is_name, listed, shown};
