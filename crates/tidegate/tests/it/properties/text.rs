//! Limits as text: what is printed reads back, and nothing that is read panics.

use proptest::prelude::*;
use tidegate::{Limit, Rate};

use super::{config, limits};

proptest! {
    #![proptest_config(config())]

    #[test]
    fn what_is_printed_reads_back(limit in limits::any()) {
        let text = limit.to_string();
        prop_assert_eq!(Limit::parse(&text), Ok(limit), "{}", text);
        let spec = limit.spec().expect("not blocked");
        prop_assert_eq!(spec.build(), Ok(limit));
        prop_assert_eq!(spec.rate.to_string().parse::<Rate>(), Ok(spec.rate));
    }

    #[test]
    fn any_text_is_a_limit_or_an_error_that_names_it(text in any::<String>()) {
        reads_or_says_why(&text)?;
    }

    #[test]
    fn almost_a_limit_is_a_limit_or_an_error_that_names_it(
        text in "[0-9]{0,21}r?/[0-9]{0,21}(us|ms|s|m|h|d|)( (burst=[0-9]{0,11}|strict|align=epoch|fixed_window|sliding_log|sliding_window|token_bucket|)){0,3}",
    ) {
        reads_or_says_why(&text)?;
    }
}

fn reads_or_says_why(text: &str) -> Result<(), TestCaseError> {
    match Limit::parse(text) {
        Ok(limit) => prop_assert_eq!(Limit::parse(&limit.to_string()), Ok(limit)),
        Err(error) => {
            let start: String = text.chars().take(20).collect();
            let quoted = format!("{start:?}");
            let shown = quoted.strip_suffix('"').expect("quoted");
            prop_assert!(error.to_string().starts_with(shown), "{} {}", text, error);
        }
    }
    Ok(())
}
