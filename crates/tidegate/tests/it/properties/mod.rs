//! What holds for any limit and any trace, tried on thousands of random ones for
//! each algorithm.

pub(crate) use tidegate_testkit::limits;
mod trace;

mod audit;
mod bounds;
mod changes;
mod clocks;
mod exact;
mod levels;
mod numbers;
mod refunds;
mod table;
mod text;

use proptest::prelude::*;

pub(crate) use trace::window_us;
use trace::{Case, Run, Step, Take, admitted, cases};

/// Cases of each property of each algorithm.
const CASES: u32 = 2_000;

pub(crate) fn config() -> ProptestConfig {
    ProptestConfig {
        max_shrink_iters: 2_000,
        ..ProptestConfig::with_cases(CASES)
    }
}

/// Runs a property of a [`Case`] as one test for each algorithm.
macro_rules! for_each_algorithm {
    ($($property:ident),+ $(,)?) => { $(
        mod $property {
            use proptest::prelude::*;
            use crate::properties::{cases, config, limits};

            proptest! {
                #![proptest_config(config())]

                #[test]
                fn token_bucket(case in cases(limits::token_bucket())) {
                    super::$property(&case)?;
                }

                #[test]
                fn strict_token_bucket(case in cases(limits::strict())) {
                    super::$property(&case)?;
                }

                #[test]
                fn fixed_window_from_the_first(case in cases(limits::fixed_first())) {
                    super::$property(&case)?;
                }

                #[test]
                fn fixed_window_from_the_epoch(case in cases(limits::fixed_epoch())) {
                    super::$property(&case)?;
                }

                #[test]
                fn sliding_window(case in cases(limits::sliding_window())) {
                    super::$property(&case)?;
                }

                #[test]
                fn sliding_log(case in cases(limits::sliding_log())) {
                    super::$property(&case)?;
                }
            }
        }
    )+ };
}
pub(crate) use for_each_algorithm;
