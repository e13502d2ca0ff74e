//! Other numbers for some keys.

use std::fmt::Write;

use tidegate::{Limit, Override, Policy};

use super::Timed;
use crate::support::{HOUR, MINUTE};

/// The limit in force and what one request leaves of it.
fn numbers(timed: &Timed, policy: &str, attributes: &[(&str, &str)]) -> Vec<(u32, u32)> {
    let decision = timed.check(policy, attributes);
    let levels = decision.levels();
    levels
        .map(|level| (level.numbers().limit(), level.numbers().remaining()))
        .collect()
}

#[test]
fn the_first_that_fits_is_taken() {
    let timed = Timed::read(
        r#"
        [[policies]]
        name = "p"
        key = "{ip}:{user}"
        limit = "10r/m"
        [[policies.overrides]]
        match = { ip = "1", user = "ann" }
        limit = "20r/m"
        [[policies.overrides]]
        match = { user = "ann" }
        limit = "30r/m"
        [[policies.overrides]]
        match = { ip = "1" }
        limit = "40r/m"
        [[policies.overrides]]
        match = { ip = "1", user = "bob" }
        limit = "50r/m"
        [[policies.overrides]]
        match = { user = "" }
        limit = "60r/m"
        "#,
    );
    for (ip, user, limit, by) in [
        ("1", "ann", 20, Some(0)),
        ("2", "ann", 30, Some(1)),
        ("1", "bob", 40, Some(2)),
        ("1", "", 40, Some(2)),
        ("2", "", 60, Some(4)),
        ("2", "bob", 10, None),
        ("2", "Ann", 10, None),
        ("2", "ann ", 10, None),
        ("2", "%", 10, None),
    ] {
        let attributes = [("ip", ip), ("user", user)];
        assert_eq!(
            numbers(&timed, "p", &attributes),
            [(limit, limit - 1)],
            "{attributes:?}"
        );
        let explained = timed.limiter.explain("p", &attributes).expect("good input");
        assert_eq!(explained[0].overridden_by, by, "{attributes:?}");
        assert_eq!(explained[0].limit, Some(&Limit::per_minute(limit)));
    }
}

#[test]
fn an_override_is_for_the_levels_that_have_its_attributes_or_for_the_one_named() {
    let timed = Timed::read(
        r#"
        [[policies]]
        name = "api"
        [[policies.levels]]
        name = "resource"
        key = "{resource}"
        limit = "100r/m"
        [[policies.levels]]
        name = "consumer"
        key = "{resource}:{consumer}"
        limit = "10r/m"
        [[policies.overrides]]
        match = { resource = "big" }
        level = "resource"
        limit = "1000r/m"
        [[policies.overrides]]
        match = { consumer = "vip" }
        limit = "50r/m"
        [[policies.overrides]]
        match = { resource = "small" }
        limit = "5r/m"
        "#,
    );
    for (resource, consumer, expected) in [
        ("x", "y", [100, 10]),
        ("big", "y", [1_000, 10]),
        ("big", "vip", [1_000, 50]),
        ("small", "y", [5, 5]),
        ("small", "vip", [5, 50]),
    ] {
        let attributes = [("resource", resource), ("consumer", consumer)];
        let decision = timed.peek("api", &attributes);
        let limits: Vec<u32> = decision
            .levels()
            .map(|level| level.numbers().limit())
            .collect();
        assert_eq!(limits, expected, "{attributes:?}");
    }
}

#[test]
fn what_an_override_does_not_say_is_inherited() {
    let timed = Timed::read(
        r#"
        [[policies]]
        name = "bucket"
        limit = "100r/s"
        burst = 20
        [[policies.overrides]]
        match = { key = "rate" }
        limit = "1000r/s"
        [[policies.overrides]]
        match = { key = "burst" }
        burst = 50
        [[policies.overrides]]
        match = { key = "algorithm" }
        algorithm = "fixed_window"
        [[policies.overrides]]
        match = { key = "named" }
        algorithm = "token_bucket"
        limit = "7r/s"
        [[policies.overrides]]
        match = { key = "strict" }
        strict = true

        [[policies]]
        name = "window"
        limit = "5r/m"
        algorithm = "fixed_window"
        align = "epoch"
        [[policies.overrides]]
        match = { key = "rate" }
        limit = "9r/m"
        [[policies.overrides]]
        match = { key = "first" }
        align = "first"
        "#,
    );
    for (policy, key, expected) in [
        ("bucket", "other", "100r/s burst=20"),
        ("bucket", "rate", "1000r/s burst=20"),
        ("bucket", "burst", "100r/s burst=50"),
        ("bucket", "algorithm", "100r/s fixed_window"),
        ("bucket", "named", "7r/s burst=20"),
        ("bucket", "strict", "100r/s burst=20 strict"),
        ("window", "other", "5r/m fixed_window align=epoch"),
        ("window", "rate", "9r/m fixed_window align=epoch"),
        ("window", "first", "5r/m fixed_window"),
    ] {
        let attributes = [("key", key)];
        let explained = timed
            .limiter
            .explain(policy, &attributes)
            .expect("good input");
        let limit = explained[0].limit.expect("it counts");
        assert_eq!(limit.to_string(), expected, "{policy} {key}");
        let decision = timed.check(policy, &attributes);
        let reported = decision.reported().expect("it counts");
        assert_eq!(reported.limit(), limit, "{policy} {key}");
    }
    // And at run time: the burst that was inherited.
    timed.at(HOUR);
    for (key, at_once) in [
        ("other", 20),
        ("rate", 20),
        ("burst", 50),
        ("algorithm", 100),
    ] {
        assert_eq!(
            timed.admitted_of(200, "bucket", &[("key", key)]),
            at_once,
            "{key}"
        );
    }
}

#[test]
fn u5_an_exemption_matches_any_attribute_and_is_from_the_whole_policy() {
    const POLICY: &str = r#"
        [[policies]]
        name = "p"
        [[policies.levels]]
        name = "total"
        key = ""
        limit = "10r/m"
        algorithm = "fixed_window"
        [[policies.levels]]
        name = "each"
        key = "{ip}"
        limit = "2r/m"
        algorithm = "fixed_window"
        [[policies.overrides]]
        match = { ip = "bad" }
        block = true
        [[policies.overrides]]
        match = { ip = "good" }
        enabled = false
        [[policies.overrides]]
        match = { role = "admin" }
        enabled = false
        [[policies.overrides]]
        match = { ip = "half" }
        level = "each"
        enabled = false
        [[policies.overrides]]
        match = { ipp = "1" }
        enabled = false
        "#;
    let timed = Timed::read(POLICY);
    let admin = [("role", "admin"), ("ip", "any")];
    for exempt in [&[("ip", "good")][..], &admin] {
        assert_eq!(timed.admitted_of(100, "p", exempt), 100);
        let decision = timed.check_cost("p", exempt, u32::MAX);
        assert_eq!((decision.allowed(), decision.denied_by()), (true, None));
        assert_eq!((decision.levels().len(), timed.keys()), (0, 0));
        assert!(decision.reported().is_none() && decision.receipt().is_none());
        // Both levels are explained, without numbers.
        let explained = timed.limiter.explain("p", exempt).expect("good input");
        let numbers = explained.iter().map(|it| (it.limit, it.numbers));
        assert_eq!(numbers.collect::<Vec<_>>(), [(None, None); 2]);
    }
    let policy = timed.limiter.policy("p").expect("it was read");
    assert_eq!(
        policy.optional_attributes().collect::<Vec<_>>(),
        ["ipp", "role"]
    );
    // The first that matches wins, for each level.
    let bad = timed.check("p", &[("role", "admin"), ("ip", "bad")]);
    assert_eq!(
        (bad.allowed(), bad.denied_by(), bad.retry_after()),
        (false, Some("each"), None)
    );
    assert_eq!(timed.remaining("p", &[("ip", "bad")]), [10, 0]);
    // Everybody else is counted, and so is the level that an exemption does not name.
    let user = [("role", "user"), ("ip", "other")];
    assert_eq!(timed.admitted_of(8, "p", &user), 2);
    assert_eq!(timed.remaining("p", &[("ip", "half")]), [8]);
    assert_eq!(timed.admitted_of(20, "p", &[("ip", "half")]), 8);
    assert_eq!(timed.check("p", &user).denied_by(), Some("total"));
    assert!(timed.check("p", &admin).allowed());

    let config: tidegate_config::Config = POLICY.parse().expect("a valid config");
    assert_eq!(
        config.warnings(),
        [
            r#"policy "p", override (ipp = "1"): no level's key has "ipp": did you mean "ip"?"#,
            r#"policy "p", override (ip = "half"): level "total" still counts these checks: leave out `level` to exempt them from the whole policy"#,
        ]
    );
    let printed: tidegate_config::Config = config.to_string().parse().expect("as it was");
    assert_eq!(printed, config, "{config}");
}

#[test]
fn an_override_that_is_added_or_removed_keeps_what_was_used() {
    let policy = |change: Option<Limit>| {
        let policy = Policy::builder("p").limit(Limit::per_hour(10).fixed_window());
        match change {
            Some(limit) => policy.overrides(Override::of("key", "x").limit(limit)),
            None => policy,
        }
    };
    let timed = Timed::of([policy(None)]);
    let key = [("key", "x")];
    let _ = timed.check_cost("p", &key, 4);
    let timed = timed.changed([policy(Some(Limit::per_hour(100).fixed_window()))]);
    assert_eq!(timed.remaining("p", &key), [96]);
    let _ = timed.check_cost("p", &key, 20);
    let timed = timed.changed([policy(None)]);
    assert!(!timed.check("p", &key).allowed());
    assert_eq!(timed.remaining("p", &key), [0]);
}

#[test]
fn thousands_of_overrides_are_told_apart() {
    const COUNT: u32 = 5_000;
    let mut text = String::from("[[policies]]\nname = \"p\"\nlimit = \"1/1h\"\n");
    for number in 1..=COUNT {
        write!(
            text,
            "[[policies.overrides]]\nmatch = {{ key = \"user-{number}\" }}\nlimit = \"{}/1h\"\n",
            number + 1
        )
        .expect("a string takes everything");
        // One that comes too late.
        if number % 1_000 == 0 {
            write!(
                text,
                "[[policies.overrides]]\nmatch = {{ key = \"user-{number}\" }}\nblock = true\n"
            )
            .expect("a string takes everything");
        }
    }
    let timed = Timed::read(&text);
    for number in 1..=COUNT {
        let key = format!("user-{number}");
        let decision = timed.check("p", &[("key", &key)]);
        assert_eq!(
            (decision.allowed(), decision.limit()),
            (true, number + 1),
            "{key}"
        );
        assert_eq!(decision.remaining(), number);
    }
    assert_eq!(timed.check("p", &[("key", "user-0")]).limit(), 1);
    assert_eq!(timed.at(MINUTE).keys(), COUNT as usize + 1);
}
