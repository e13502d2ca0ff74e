//! Every dialect over HTTP, as a parser reads it that knows nothing of us.

use sfv::{BareItem, List, ListEntry, Parser};

use crate::client::Answer;
use crate::process::Tidegate;

fn config(headers: &str) -> String {
    format!(
        "[[policies]]\nname = \"p\"\nlimit = \"2/1h\"\nalgorithm = \"fixed_window\"\nheaders = {headers}\n\
         [[policies]]\nname = \"two\"\nheaders = {headers}\n\
         [[policies.levels]]\nname = \"a\"\nkey = \"{{key}}\"\nlimit = \"3/500ms\"\n\
         [[policies.levels]]\nname = \"b\"\nkey = \"{{key}}\"\nlimit = \"1/1h\"\nalgorithm = \"sliding_log\"\n"
    )
}

/// The items of a list, each with its integer parameters.
fn items(answer: &Answer, name: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let text = answer
        .header(name)
        .unwrap_or_else(|| panic!("{name}: {answer:?}"));
    let list = Parser::new(text)
        .parse::<List>()
        .expect("a structured list");
    let items = list.into_iter().map(|entry| {
        let ListEntry::Item(item) = entry else {
            panic!("{text}: a list in a list");
        };
        let value = match item.bare_item {
            BareItem::String(text) => text.as_str().to_owned(),
            BareItem::Integer(number) => number.to_string(),
            other => panic!("{other:?}"),
        };
        let parameters = item.params.into_iter().map(|(name, value)| {
            let value = value.as_integer().expect("an integer");
            (name.as_str().to_owned(), i64::from(value))
        });
        (value, parameters.collect())
    });
    items.collect()
}

fn item(name: &str, parameters: &[(&str, i64)]) -> (String, Vec<(String, i64)>) {
    let parameters = parameters.iter();
    let parameters = parameters.map(|(name, value)| ((*name).to_owned(), *value));
    (name.to_owned(), parameters.collect())
}

fn number(answer: &Answer, name: &str) -> i64 {
    let text = answer
        .header(name)
        .unwrap_or_else(|| panic!("{name}: {answer:?}"));
    text.parse().expect("a number")
}

/// Headers that are about limits.
fn names(answer: &Answer) -> Vec<&str> {
    let names = answer.headers.iter().map(|(name, _)| name.as_str());
    let mut names: Vec<&str> = names
        .filter(|name| name.contains("limit") || name.contains("retry") || name.starts_with("my-"))
        .collect();
    names.sort_unstable();
    names
}

/// The gate and the check say the same, on a refusal and before it.
fn answers(server: &Tidegate, policy: &str) -> [Answer; 3] {
    let check = format!("{{\"policy\":\"{policy}\",\"key\":\"k\"}}");
    let gate = format!("/v1/gate/{policy}?key=k");
    let answers = [server.get(&gate), server.check(&check), server.get(&gate)];
    let refused = server.check(&check);
    assert_eq!(answers[2].status, 429);
    assert_eq!(names(&answers[2]), names(&refused));
    answers
}

#[test]
fn ietf() {
    let server = Tidegate::start(&config("\"ietf\""));
    let [first, second, refused] = answers(&server, "p");
    for (answer, remaining) in [(&first, 1), (&second, 0), (&refused, 0)] {
        assert_eq!(
            items(answer, "ratelimit-policy"),
            [item("p", &[("q", 2), ("w", 3600)])]
        );
        let state = items(answer, "ratelimit");
        let time = state[0].1[1].1;
        assert!((3_500..=3_600).contains(&time), "{time}");
        assert_eq!(state, [item("p", &[("r", remaining), ("t", time)])]);
    }
    assert_eq!(first.header("retry-after"), None);
    let time = items(&refused, "ratelimit")[0].1[1].1;
    assert_eq!(number(&refused, "retry-after"), time);

    let [first, ..] = answers(&server, "two");
    let policy = [
        item("two.a", &[("q", 6), ("w", 1)]),
        item("two.b", &[("q", 1), ("w", 3600)]),
    ];
    assert_eq!(items(&first, "ratelimit-policy"), policy);
    let state = items(&first, "ratelimit");
    assert_eq!(state[0], item("two.a", &[("r", 2), ("t", 1)]));
    assert_eq!(state[1].0, "two.b");
}

#[test]
fn x_ratelimit() {
    let server = Tidegate::start(&config("\"x-ratelimit\""));
    let [first, second, refused] = answers(&server, "p");
    for (answer, remaining) in [(&first, 1), (&second, 0), (&refused, 0)] {
        assert_eq!(number(answer, "x-ratelimit-limit"), 2);
        assert_eq!(number(answer, "x-ratelimit-remaining"), remaining);
        assert!((3_500..=3_600).contains(&number(answer, "x-ratelimit-reset")));
    }
    let mut expected = vec![
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
    ];
    assert_eq!(names(&first), expected);
    expected.insert(0, "retry-after");
    assert_eq!(names(&refused), expected);
}

#[test]
fn draft_06() {
    let server = Tidegate::start(&config("\"draft-06\""));
    let [first, _, refused] = answers(&server, "p");
    assert_eq!(number(&first, "ratelimit-limit"), 2);
    assert_eq!(number(&first, "ratelimit-remaining"), 1);
    assert!((3_500..=3_600).contains(&number(&first, "ratelimit-reset")));
    assert_eq!(
        items(&first, "ratelimit-policy"),
        [item("2", &[("w", 3600)])]
    );
    assert_eq!(first.header("ratelimit"), None);
    assert!(number(&refused, "retry-after") >= 1);
    let [first, ..] = answers(&server, "two");
    let policy = [item("6", &[("w", 1)]), item("1", &[("w", 3600)])];
    assert_eq!(items(&first, "ratelimit-policy"), policy);
}

#[test]
fn names_of_ones_own_and_none_at_all() {
    let server = Tidegate::start(&config("[\"my-limit\", \"my-reset\", \"my-remaining\"]"));
    let [first, _, refused] = answers(&server, "p");
    assert_eq!(names(&first), ["my-limit", "my-remaining", "my-reset"]);
    assert_eq!(number(&first, "my-limit"), 2);
    assert_eq!(number(&first, "my-remaining"), 1);
    assert!((3_500..=3_600).contains(&number(&first, "my-reset")));
    assert!(refused.header("retry-after").is_some());
    let server = Tidegate::start(&config("\"none\""));
    for answer in answers(&server, "p") {
        assert_eq!(names(&answer), [""; 0]);
    }
}

#[test]
fn names_that_would_break_the_answer_are_left_out() {
    let names = "[\"content-length\", \"Transfer-Encoding\", \"connection\"]";
    let server = Tidegate::start(&config(names));
    let mut connection = server.connect();
    for status in [200, 200, 429] {
        let answer = connection.ask("GET", "/v1/gate/p?key=k", &[], b"");
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("transfer-encoding"), None);
        assert_eq!(answer.header("connection"), None);
        assert_eq!(answer.body.is_empty(), status == 200);
    }
}
