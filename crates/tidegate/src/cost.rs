//! What one request costs.

use std::num::NonZeroU32;

use crate::error::LimitError;

/// How many requests' worth one check takes: 1 to 4,294,967,295, one unless
/// said otherwise.
///
/// ```
/// use tidegate::Cost;
///
/// const UPLOAD: Cost = Cost::of(10);
/// assert_eq!(UPLOAD.get(), 10);
/// assert_eq!(Cost::default(), Cost::ONE);
/// // Numbers from outside get an answer instead of a panic.
/// assert!(Cost::new(0).is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(NonZeroU32);

impl Cost {
    /// The cost of an ordinary request.
    pub const ONE: Self = Self(NonZeroU32::MIN);

    /// The highest cost.
    pub const MAX: Self = Self(NonZeroU32::MAX);

    /// A cost written in the source.
    ///
    /// # Panics
    /// When `cost` is 0: at compile time in a `const`.
    pub const fn of(cost: u32) -> Self {
        match Self::new(cost as u64) {
            Ok(cost) => cost,
            Err(error) => error.panic(),
        }
    }

    /// A cost that comes from outside.
    pub const fn new(cost: u64) -> Result<Self, LimitError> {
        if cost == 0 || cost > u32::MAX as u64 {
            return Err(LimitError::Cost(cost));
        }
        #[expect(clippy::cast_possible_truncation, reason = "just found to fit")]
        match NonZeroU32::new(cost as u32) {
            Some(cost) => Ok(Self(cost)),
            None => Err(LimitError::Cost(cost)),
        }
    }

    /// The cost as a number.
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

impl Default for Cost {
    fn default() -> Self {
        Self::ONE
    }
}
