//! x
pub mod algorithm;
mod clock;
mod cost;
mod decision;
mod error;
mod limit;
mod limiter;
mod memory;
mod rate;
pub use clock::{Clock, ManualClock};
pub use cost::Cost;
pub use decision::{Decision, LevelDecision, Receipt, Source};
pub use error::{LimitError, ParseError};
pub use limit::{Algorithm, Align, Kind, Limit, LimitSpec};
pub use limiter::{Limiter, LimiterBuilder, WaitError};
pub use memory::{
    Charge, Check, Level, MemoryStore, MemoryStoreBuilder, Stats, TooManyLimits, WhenFull,
};
pub use rate::{MAX_WINDOW, MIN_WINDOW, Rate};
