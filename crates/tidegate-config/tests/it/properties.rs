//! What holds for any config and any text, tried on random ones.

use proptest::prelude::*;
use proptest::sample::Index;
use tidegate_config::Config;

use super::random::{configs, pieces};

/// How many random texts a property is tried on: `TIDEGATE_SEEDS=100` for a long search.
fn cases() -> ProptestConfig {
    let more = std::env::var("TIDEGATE_SEEDS").ok();
    let more: u32 = more.map_or(1, |more| more.parse().expect("a number"));
    ProptestConfig {
        max_shrink_iters: 2_000,
        ..ProptestConfig::with_cases(500 * more)
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn what_is_printed_reads_back_and_with_changes_says_where_it_is_wrong(
        config in configs(),
        changes in prop::collection::vec(changes(), 1..6),
    ) {
        let text = config.to_string();
        let read = text.parse::<Config>();
        prop_assert_eq!(read.as_ref(), Ok(&config), "{}", text);
        prop_assert_eq!(read.unwrap().to_string(), &*text);

        let full = format!("{config:#}");
        let read = full.parse::<Config>();
        prop_assert!(read.is_ok(), "{}\n{}", full, read.unwrap_err());
        prop_assert_eq!(format!("{:#}", read.unwrap()), full);

        reads_or_says_where(&changes.into_iter().fold(text, change))?;
    }

    #[test]
    fn any_text_is_a_config_or_an_error_inside_of_it(text in any::<String>()) {
        reads_or_says_where(&text)?;
    }

    #[test]
    fn almost_a_config_is_a_config_or_an_error_inside_of_it(words in prop::collection::vec(words(), 0..40)) {
        reads_or_says_where(&words.concat())?;
    }
}

fn reads_or_says_where(text: &str) -> Result<(), TestCaseError> {
    let errors = match text.parse::<Config>() {
        Ok(config) => {
            let printed = config.to_string();
            let mut stores = config.stores.values();
            let hidden = stores.any(|store| store.url.to_string().contains("***@"));
            let read = printed.parse::<Config>();
            prop_assert!(hidden && read.is_ok() || read == Ok(config), "{}", printed);
            return Ok(());
        }
        Err(errors) => errors,
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines: Vec<&str> = text.split('\n').collect();
    let mut before = (1, 1);
    for error in errors.as_slice() {
        let place = (error.line, error.column);
        prop_assert!(before <= place, "{}", errors);
        before = place;
        let line = lines.get(error.line - 1);
        let columns = line.map_or(0, |line| line.chars().count() + 1);
        let is_inside = (1..=columns).contains(&error.column);
        prop_assert!(is_inside, "{} {:?}", error, text);
        prop_assert!(!error.to_string().contains(char::is_control), "{}", error);
        prop_assert!(!error.field.is_empty() && !error.message.is_empty());
    }
    prop_assert_eq!(errors.to_string().lines().count(), errors.as_slice().len());
    Ok(())
}

/// A piece of a file.
fn words() -> impl Strategy<Value = String> {
    prop_oneof![8 => pieces(), 1 => any::<String>()]
}

/// Something that happens to a file: which, where, and with what.
type Change = (u8, Index, Index, String);

fn changes() -> impl Strategy<Value = Change> {
    (0..6_u8, any::<Index>(), any::<Index>(), words())
}

fn change(text: String, (kind, a, b, word): Change) -> String {
    let mut lines: Vec<String> = text.split('\n').map(String::from).collect();
    let (line, other) = (a.index(lines.len()), b.index(lines.len()));
    match kind {
        // The end is cut off, or another byte stands there.
        0 | 1 => {
            let mut bytes = text.into_bytes();
            let rest = bytes.split_off(a.index(bytes.len() + 1));
            if let (1, [first, rest @ ..]) = (kind, &rest[..]) {
                bytes.push(first ^ u8::try_from(b.index(256)).expect("a byte"));
                bytes.extend(rest);
            }
            return String::from_utf8_lossy(&bytes).into_owned();
        }
        2 => drop(lines.remove(line)),
        3 => lines.insert(line, lines[line].clone()),
        // Two lines get each other's values.
        4 => {
            let parts = |at: usize| lines[at].split_once(" = ");
            if let (Some((name, value)), Some((other_name, other_value))) =
                (parts(line), parts(other))
            {
                let swapped = [
                    format!("{name} = {other_value}"),
                    format!("{other_name} = {value}"),
                ];
                [lines[line], lines[other]] = swapped;
            }
        }
        _ => lines[line] += &word,
    }
    lines.join("\n")
}
