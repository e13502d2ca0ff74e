//! Limits as they are written and made: what a text means, what is refused and why.

use std::fmt::Write as _;
use std::time::Duration;

use tidegate::{Algorithm, Cost, Limit, LimitError, LimitSpec, Rate};
use tidegate_testkit::cases;

const TEXTS: &str = include_str!("limits.txt");

const RATE: &str = "expected a rate such as 100r/s, 100r/m, 100r/h or 100r/d, \
                    or a count per window such as 5/10s or 3/500ms";
/// What may follow a rate.
fn option() -> String {
    let names = Algorithm::names(|_| true).join(", ");
    format!("expected a rate, then any of {names}, burst=N, strict, align=epoch, each once")
}

fn meaning(text: &str) -> String {
    let limit = match Limit::parse(text) {
        Ok(limit) => limit,
        Err(error) => {
            let error = error.to_string();
            let why = error.strip_prefix(&format!("{text:?}: ")).expect(&error);
            return match why {
                RATE => "not a rate".to_owned(),
                why if why == option() => "not an option".to_owned(),
                why => why.to_owned(),
            };
        }
    };
    let Some(spec) = limit.spec() else {
        return "nothing".to_owned();
    };
    let window = Duration::from_micros(spec.rate.window_us());
    let mut meaning = format!("{} in {window:?}", spec.rate.requests());
    let printed = limit.to_string();
    assert_eq!(Limit::parse(&printed), Ok(limit));
    if printed != text {
        write!(meaning, ", printed as {printed}").expect("text");
    }
    meaning
}

#[test]
fn texts_mean_what_they_say() {
    let headings = TEXTS.split("\n# ").skip(1);
    let headings = headings.filter_map(|part| part.lines().next());
    for heading in headings.clone() {
        cases::rows(TEXTS, heading, meaning);
    }
    assert!(headings.count() > 5, "is limits.txt cut off?");
    // A long text is not repeated at length.
    let error = Limit::parse(&"9".repeat(100_000)).unwrap_err().to_string();
    assert!(
        error.starts_with("\"9999") && error.len() < 300,
        "{}",
        error.len()
    );
}

#[test]
fn p1_names_mean_what_they_say() {
    for (limit, text) in [
        (Limit::per_second(3), "3r/s"),
        (Limit::per_minute(3), "3r/m"),
        (Limit::per_hour(3), "3r/h"),
        (Limit::per_day(3), "3r/d"),
        (Limit::per(3, Duration::from_secs(7)), "3/7s"),
    ] {
        assert_eq!(Limit::parse(text), Ok(limit));
    }
}

#[test]
fn numbers_out_of_range_are_named() {
    for cost in [0, 1 << 32, u64::MAX] {
        assert_eq!(Cost::new(cost), Err(LimitError::Cost(cost)));
    }
    for nanos in [0, 1, 1_000_000_001, 1_000_500] {
        let window = Duration::from_nanos(nanos);
        assert_eq!(Rate::new(1, window), Err(LimitError::Window(window)));
    }
    assert!(Rate::new(1, Duration::MAX).is_err());
    let second = Duration::from_secs(1);
    assert_eq!(Rate::new(0, second), Err(LimitError::Requests(0)));
    let burst = Some(0);
    let spec = LimitSpec::new(Rate::new(5, second).unwrap());
    let spec = LimitSpec { burst, ..spec };
    assert_eq!(spec.build(), Err(LimitError::Burst(0)));
}

#[test]
#[should_panic(expected = "requests out of range")]
fn a_limit_of_nothing_in_the_source_does_not_pass() {
    let _ = Limit::per_second(0);
}

#[test]
#[should_panic(expected = "window out of range")]
fn a_window_of_nothing_in_the_source_does_not_pass() {
    let _ = Limit::per(1, Duration::ZERO);
}
