//! The body of a refusal, and what neither it nor a header may hold.

use serde_json::{Value, json};
use tidegate::{Cost, Dialect, Limit, Policy};

use super::{Client, custom, login};
use crate::support::KEY;

const TYPE: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

fn parsed(body: &str) -> Value {
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{body}: {error}"))
}

#[test]
fn a_problem_names_its_type_its_status_and_the_policy() {
    let client = Client::new([login("1r/m")]);
    let _ = client.login(1);
    let refused = client.login(1);
    for status in [403, 429, 503] {
        assert_eq!(
            parsed(&refused.problem(status)),
            json!({
                "type": TYPE,
                "title": "Request cannot be satisfied as assigned quota has been exceeded",
                "status": status,
                "violated-policies": ["login"],
            })
        );
    }
}

#[test]
fn a_problem_names_exactly_the_levels_that_refuse() {
    let policy = Policy::builder("api")
        .level("one", "{a}", Limit::per_minute(1).fixed_window())
        .level("two", "{a}", Limit::per_minute(2).sliding_log())
        .level("ten", "{b}", Limit::per_minute(10));
    let client = Client::new([policy]);
    let violated = |a: &str, cost| {
        let asked = [("a", a), ("b", KEY)];
        let decision = client.limiter.check("api", &asked, Cost::of(cost));
        parsed(&decision.expect("good input").problem(429))["violated-policies"].clone()
    };
    assert_eq!(violated("x", 1), json!([]));
    assert_eq!(violated("x", 1), json!(["api.one"]));
    assert_eq!(violated("x", 2), json!(["api.one", "api.two"]));
    assert_eq!(violated("y", 2), json!(["api.one"]));
    assert_eq!(violated("y", 11), json!(["api.one", "api.two", "api.ten"]));
}

#[test]
fn of_several_policies_only_the_one_that_refuses_is_named() {
    let policy = |name: &str, limit| Policy::builder(name).limit(limit);
    let client = Client::new([
        policy("watch", Limit::per_minute(1)).shadow(true),
        policy("site", Limit::per_minute(100)),
        policy("login", Limit::per_minute(1)),
    ]);
    let ask = || {
        let names = ["watch", "site", "login"];
        let decisions = client.limiter.check_all(&names, &[("key", KEY)], Cost::ONE);
        parsed(&decisions.expect("good input").problem(429))["violated-policies"].clone()
    };
    assert_eq!(ask(), json!([]));
    assert_eq!(ask(), json!(["login"]));
}

#[test]
fn keys_appear_in_no_header_and_no_body() {
    let secret = "sesame\r\nSet-Cookie: a=\"b\"";
    let dialects = [
        Dialect::Ietf,
        Dialect::Draft06,
        Dialect::XRateLimit,
        custom(["x-limit", "x-reset", "x-remaining"]),
    ];
    for dialect in dialects {
        let client = Client::new([login("1r/m").headers(dialect)]);
        for _ in 0..2 {
            let decision = client
                .limiter
                .check("login", &[("key", secret)], Cost::ONE)
                .expect("good input");
            let mut texts = vec![decision.problem(429)];
            for (name, value) in decision.headers().iter() {
                texts.extend([name.to_owned(), value.to_owned()]);
            }
            for text in texts {
                assert!(
                    !text.contains("sesame") && !text.contains("Cookie"),
                    "{text}"
                );
                assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
            }
        }
    }
}

#[test]
fn the_longest_names_are_structured_fields_and_json_all_the_same() {
    let name = format!("{}_-{}", "A".repeat(31), "9".repeat(31));
    let policy = Policy::builder(&name)
        .level(&name, "", Limit::per_minute(1))
        .level("b", "", Limit::per_minute(1));
    let client = Client::new([policy]);
    for _ in 0..2 {
        let decision = client.limiter.check(&name, &(), Cost::ONE);
        let decision = decision.expect("good input");
        let items = super::strings(decision.headers().get("RateLimit").expect("its state"));
        let names: Vec<String> = items.into_iter().map(|(name, _)| name).collect();
        let expected = [format!("{name}.{name}"), format!("{name}.b")];
        assert_eq!(names, expected);
        if !decision.allowed() {
            let body = parsed(&decision.problem(429));
            assert_eq!(body["violated-policies"], json!(expected));
        }
    }
}
