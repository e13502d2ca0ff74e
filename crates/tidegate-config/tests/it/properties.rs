//! What holds for any config and any text, tried on random ones.

use proptest::prelude::*;
use proptest::sample::Index;
use tidegate_config::Config;

use super::random::{configs, pieces};

proptest! {
    #![proptest_config(ProptestConfig {
        max_shrink_iters: 2_000,
        ..ProptestConfig::with_cases(2_000)
    })]

    #[test]
    fn what_is_printed_reads_back(config in configs()) {
        let text = config.to_string();
        let read = text.parse::<Config>();
        prop_assert_eq!(read.as_ref(), Ok(&config), "{}", text);
        prop_assert_eq!(read.unwrap().to_string(), text);
    }

    #[test]
    fn what_is_printed_in_full_means_the_same(config in configs()) {
        let text = format!("{config:#}");
        let read = text.parse::<Config>();
        prop_assert!(read.is_ok(), "{}\n{}", text, read.unwrap_err());
        prop_assert_eq!(format!("{:#}", read.unwrap()), text);
    }

    #[test]
    fn any_text_is_a_config_or_an_error_inside_of_it(text in any::<String>()) {
        reads_or_says_where(&text)?;
    }

    #[test]
    fn almost_a_config_is_a_config_or_an_error_inside_of_it(words in prop::collection::vec(words(), 0..40)) {
        reads_or_says_where(&words.concat())?;
    }

    #[test]
    fn a_config_with_changes_is_a_config_or_an_error_inside_of_it(
        config in configs(),
        changes in prop::collection::vec(changes(), 1..6),
    ) {
        let text = changes.into_iter().fold(config.to_string(), |text, change| change.apply(&text));
        reads_or_says_where(&text)?;
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
        let place = (error.line(), error.column());
        prop_assert!(before <= place, "{}", errors);
        before = place;
        let line = lines.get(error.line() - 1);
        let columns = line.map_or(0, |line| line.chars().count() + 1);
        let is_inside = (1..=columns).contains(&error.column());
        prop_assert!(is_inside, "{} {:?}", error, text);
        prop_assert!(!error.to_string().contains(char::is_control), "{}", error);
        prop_assert!(!error.field().is_empty() && !error.message().is_empty());
    }
    prop_assert_eq!(errors.to_string().lines().count(), errors.as_slice().len());
    Ok(())
}

/// A piece of a file.
fn words() -> impl Strategy<Value = String> {
    prop_oneof![8 => pieces(), 1 => any::<String>()]
}

/// Something that happens to a file.
#[derive(Debug, Clone)]
enum Change {
    Byte(Index, u8),
    Cut(Index),
    Drop(Index),
    Double(Index),
    /// Two lines get each other's values.
    Swap(Index, Index),
    Insert(Index, String),
}

fn changes() -> impl Strategy<Value = Change> {
    let index = any::<Index>;
    prop_oneof![
        (index(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        index().prop_map(Change::Cut),
        index().prop_map(Change::Drop),
        index().prop_map(Change::Double),
        (index(), index()).prop_map(|(a, b)| Change::Swap(a, b)),
        (index(), words()).prop_map(|(at, word)| Change::Insert(at, word)),
    ]
}

impl Change {
    fn apply(self, text: &str) -> String {
        let mut bytes = text.as_bytes().to_vec();
        let mut lines: Vec<String> = text.split('\n').map(String::from).collect();
        let count = lines.len();
        let line = |at: Index| at.index(count);
        match self {
            Self::Byte(at, byte) if !text.is_empty() => bytes[at.index(text.len())] ^= byte,
            Self::Byte(..) => {}
            Self::Cut(at) => bytes.truncate(at.index(text.len() + 1)),
            Self::Drop(at) => drop(lines.remove(line(at))),
            Self::Double(at) => lines.insert(line(at), lines[line(at)].clone()),
            Self::Swap(a, b) => {
                let (a, b) = (line(a), line(b));
                let parts = |at: usize| lines[at].split_once(" = ");
                if let (Some((a_name, a_value)), Some((b_name, b_value))) = (parts(a), parts(b)) {
                    let swapped = (
                        format!("{a_name} = {b_value}"),
                        format!("{b_name} = {a_value}"),
                    );
                    (lines[a], lines[b]) = swapped;
                }
            }
            Self::Insert(at, word) => lines[line(at)] += &word,
        }
        match bytes == text.as_bytes() {
            true => lines.join("\n"),
            false => String::from_utf8_lossy(&bytes).into_owned(),
        }
    }
}
