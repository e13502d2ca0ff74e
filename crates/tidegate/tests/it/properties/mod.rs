//! What holds for any limit and any trace, tried on thousands of random ones.

pub(crate) use tidegate_testkit::limits;
mod trace;

mod audit;
mod changes;
mod clocks;
mod exact;
pub(crate) mod levels;
mod numbers;
mod refunds;
mod table;
mod text;

use proptest::prelude::*;

pub(crate) use trace::window_us;
use trace::{Case, Run, Take, cases};

/// How many random cases a property is tried on: `TIDEGATE_SEEDS=100` for a long search.
pub(crate) fn config() -> ProptestConfig {
    let more = std::env::var("TIDEGATE_SEEDS").ok();
    let more: u32 = more.map_or(1, |more| more.parse().expect("a number"));
    ProptestConfig {
        max_shrink_iters: 2_000,
        ..ProptestConfig::with_cases(1_000 * more)
    }
}

/// Makes tests of properties of a [`Case`], each under limits of every algorithm.
macro_rules! for_each_algorithm {
    ($($property:ident),+ $(,)?) => { $(
        mod $property {
            use proptest::prelude::*;
            use crate::properties::{cases, config, limits};

            proptest! {
                #![proptest_config(ProptestConfig { cases: 3 * config().cases, ..config() })]

                #[test]
                fn under_any_limit(case in cases(limits::any())) {
                    super::$property(&case)?;
                }
            }
        }
    )+ };
}
pub(crate) use for_each_algorithm;
