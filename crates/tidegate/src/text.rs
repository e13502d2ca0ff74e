//! How names, durations and wrong values are written, for programs that read or print
//! fields of their own beside those of policies.

pub use crate::duration::{Text as DurationText, duration};
pub use crate::policy::name::{EXPECTED as NAME, is_name, listed, shown};
