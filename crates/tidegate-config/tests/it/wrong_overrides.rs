//! Mistakes in the overrides of a policy.

use super::check;

#[test]
fn what_is_wrong_with_overrides() {
    check(&[
        (
            "overrides that are one table",
            r#"[[policies]]
name = "login"
limit = "10r/s"
[policies.overrides]
limit = "1r/s""#,
            r#"tidegate.toml:4:1: policies.login.overrides: a table: expected tables, each headed [[policies.overrides]]"#,
        ),
        (
            "an override without anything",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "10r/s"
[[policies.overrides]]"#,
            r#"tidegate.toml:5:1: policies.login.overrides[0].match: missing: expected attributes and their values, such as { ip = "10.1.2.3" }
tidegate.toml:5:1: policies.login.overrides[0].limit: missing: expected a limit, or block = true, or enabled = false"#,
        ),
        (
            "an override without a match",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "10r/s"
[[policies.overrides]]
limit = "1r/s""#,
            r#"tidegate.toml:5:1: policies.login.overrides[0].match: missing: expected attributes and their values, such as { ip = "10.1.2.3" }"#,
        ),
        (
            "an override of nothing",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "10r/s"
[[policies.overrides]]
match = { ip = "10.1.2.3" }"#,
            r#"tidegate.toml:5:1: policies.login.overrides[0].limit: missing: expected a limit, or block = true, or enabled = false"#,
        ),
        (
            "an empty match",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "10r/s"
[[policies.overrides]]
match = {}
limit = "1r/s""#,
            r#"tidegate.toml:6:9: policies.login.overrides[0].match: empty: expected at least one attribute and its value"#,
        ),
        (
            "a match that is a text",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "10r/s"
[[policies.overrides]]
match = "10.1.2.3"
limit = "1r/s""#,
            r#"tidegate.toml:6:9: policies.login.overrides[0].match: "10.1.2.3": expected attributes and their values, such as { ip = "10.1.2.3" }"#,
        ),
        (
            "a match with a number",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "10r/s"
[[policies.overrides]]
match = { ip = 42 }
limit = "1r/s""#,
            r#"tidegate.toml:6:16: policies.login.overrides[0].match: 42: expected a value in quotes"#,
        ),
        (
            "a match with a list",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "10r/s"
[[policies.overrides]]
match = { ip = ["10.1.2.3"] }
limit = "1r/s""#,
            r#"tidegate.toml:6:16: policies.login.overrides[0].match: a list: expected a value in quotes"#,
        ),
        (
            "a match on what is not in the key",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "10r/s"
[[policies.overrides]]
match = { ip = "10.1.2.3", user = "7" }
limit = "1r/s""#,
            r#"tidegate.toml:6:9: policies.login.overrides[0].match: "user": not in the key "{ip}": expected attributes of the key"#,
        ),
        (
            "a match with a typo",
            r#"[[policies]]
name = "api"
[[policies.levels]]
name = "total"
key = ""
limit = "5/10s"
[[policies.levels]]
name = "client"
key = "{tier}:{client}"
limit = "3/10s"
[[policies.overrides]]
match = { teir = "pro" }
limit = "1r/s""#,
            r#"tidegate.toml:12:9: policies.api.overrides[0].match: no level's key has "teir": did you mean "tier"?"#,
        ),
        (
            "a match for a total",
            r#"[[policies]]
name = "api"
[[policies.levels]]
name = "total"
key = ""
limit = "5/10s"
[[policies.levels]]
name = "client"
key = "{tier}:{client}"
limit = "3/10s"
[[policies.overrides]]
match = { tier = "pro" }
level = "total"
limit = "1r/s""#,
            r#"tidegate.toml:12:9: policies.api.overrides[0].match: level "total" has key "" (one counter for all), so it cannot match "tier""#,
        ),
        (
            "an exemption of what cannot be an attribute",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "10r/s"
[[policies.overrides]]
match = { "ro le" = "admin" }
enabled = false"#,
            r#"tidegate.toml:6:9: policies.login.overrides[0].match: "ro le": expected 1 to 64 of the characters A-Z a-z 0-9 _ -"#,
        ),
        (
            "a match on what one level does not have",
            r#"[[policies]]
name = "api"
[[policies.levels]]
name = "a"
key = "{a}"
limit = "5/10s"
[[policies.levels]]
name = "b"
key = "{a}:{b}"
limit = "3/10s"
[[policies.overrides]]
match = { b = "1" }
level = "a"
limit = "1r/s""#,
            r#"tidegate.toml:12:9: policies.api.overrides[0].match: "b": not in the key "{a}": expected attributes of the key"#,
        ),
        (
            "a match on what no level has",
            r#"[[policies]]
name = "api"
[[policies.levels]]
name = "a"
key = "{a}"
limit = "5/10s"
[[policies.levels]]
name = "b"
key = "{a}:{b}"
limit = "3/10s"
[[policies.overrides]]
match = { a = "1", c = "1" }
limit = "1r/s""#,
            r#"tidegate.toml:12:9: policies.api.overrides[0].match: no level's key has "c": expected attributes of one key"#,
        ),
        (
            "a match on a name with a line break",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "10r/s"
[[policies.overrides]]
match = { "i\np" = "1" }
limit = "1r/s""#,
            r#"tidegate.toml:6:9: policies.login.overrides[0].match: no level's key has "i\np": did you mean "ip"?"#,
        ),
        (
            "a match beside a key that cannot be read",
            r#"[[policies]]
name = "login"
key = 5
limit = "10r/s"
[[policies.overrides]]
match = { user = "1" }
limit = "1r/s""#,
            r#"tidegate.toml:3:7: policies.login.key: 5: expected a template such as "{ip}""#,
        ),
        (
            "a level that is not there",
            r#"[[policies]]
name = "api"
[[policies.levels]]
name = "a"
key = "{a}"
limit = "5/10s"
[[policies.levels]]
name = "b"
key = "{a}:{b}"
limit = "3/10s"
[[policies.overrides]]
match = { a = "1" }
level = "c"
limit = "1r/s""#,
            r#"tidegate.toml:13:9: policies.api.overrides[0].level: "c": no such level: expected one of "a", "b""#,
        ),
        (
            "a level of a policy without levels",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "10r/s"
[[policies.overrides]]
match = { ip = "10.1.2.3" }
level = "ip"
limit = "1r/s""#,
            r#"tidegate.toml:7:9: policies.login.overrides[0].level: "ip": no such level: expected one of "login""#,
        ),
        (
            "a level that is a number",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "10r/s"
[[policies.overrides]]
match = { ip = "10.1.2.3" }
level = 1
limit = "1r/s""#,
            r#"tidegate.toml:7:9: policies.login.overrides[0].level: 1: expected the name of a level"#,
        ),
        (
            "a level whose name could not be read",
            r#"[[policies]]
name = "api"
[[policies.levels]]
name = 1
key = "{a}"
limit = "5/10s"
[[policies.overrides]]
match = { a = "1" }
level = "a"
limit = "1r/s""#,
            r#"tidegate.toml:4:8: policies.api.levels[0].name: 1: expected a name in quotes"#,
        ),
        (
            "a wrong limit",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "10r/s"
[[policies.overrides]]
match = { ip = "10.1.2.3" }
limit = "1000""#,
            r#"tidegate.toml:7:9: policies.login.overrides[0].limit: "1000": expected a rate such as 100r/s, 100r/m, 100r/h or 100r/d, or a count per window such as 5/10s or 3/500ms"#,
        ),
        (
            "no burst",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "10r/s"
[[policies.overrides]]
match = { ip = "10.1.2.3" }
burst = 0"#,
            r#"tidegate.toml:7:9: policies.login.overrides[0].burst: 0: expected a whole number from 1 to 4294967295"#,
        ),
        (
            "blocked and not enabled",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "10r/s"
[[policies.overrides]]
match = { ip = "10.1.2.3" }
block = true
enabled = false"#,
            r#"tidegate.toml:7:9: policies.login.overrides[0].block: true: with enabled = false, which allows everything: expected one of the two"#,
        ),
        (
            "not enabled, with a limit that would have no effect",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "10r/s"
[[policies.overrides]]
match = { ip = "10.1.2.3" }
enabled = false
limit = "1r/s""#,
            r#"tidegate.toml:8:9: policies.login.overrides[0].limit: with enabled = false, which counts nothing: expected one of the two"#,
        ),
        (
            "enabled that is a text",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "10r/s"
[[policies.overrides]]
match = { ip = "10.1.2.3" }
enabled = "false""#,
            r#"tidegate.toml:7:11: policies.login.overrides[0].enabled: "false": expected true or false"#,
        ),
        (
            "a burst for a policy that has none",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "10r/s"
algorithm = "sliding_log"
[[policies.overrides]]
match = { ip = "10.1.2.3" }
burst = 5"#,
            r#"tidegate.toml:8:9: policies.login.overrides[0].burst: burst 5 with sliding_log: only token_bucket has a burst"#,
        ),
        (
            "fewer requests than the strict policy's burst",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "100r/s"
burst = 20
strict = true
[[policies.overrides]]
match = { ip = "10.1.2.3" }
limit = "10r/s""#,
            r#"tidegate.toml:7:1: policies.login.overrides[0].strict: strict with burst 20 of 10 requests: expected a burst below 10 (fields that an override leaves out keep the policy's value)"#,
        ),
        (
            "right, but of a policy with a wrong limit",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "100"
[[policies.overrides]]
match = { ip = "10.1.2.3" }
burst = 5"#,
            r#"tidegate.toml:4:9: policies.login.limit: "100": expected a rate such as 100r/s, 100r/m, 100r/h or 100r/d, or a count per window such as 5/10s or 3/500ms"#,
        ),
        (
            "right, but of a policy with a wrong burst",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "10r/s"
burst = 0
[[policies.overrides]]
match = { ip = "10.1.2.3" }
strict = true"#,
            r#"tidegate.toml:5:9: policies.login.burst: 0: expected a whole number from 1 to 4294967295"#,
        ),
        (
            "wrong in the same way for two levels",
            r#"[[policies]]
name = "api"
[[policies.levels]]
name = "a"
key = "{a}"
limit = "5/10s"
[[policies.levels]]
name = "b"
key = "{a}:{b}"
limit = "3/10s"
[[policies.overrides]]
match = { a = "1" }
strict = true"#,
            r#"tidegate.toml:13:10: policies.api.overrides[0].strict: true without a burst: expected a burst below 5"#,
        ),
        (
            "fields of a policy",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "10r/s"
[[policies.overrides]]
match = { ip = "10.1.2.3" }
limit = "1r/s"
key = "{ip}"
shadow = true"#,
            r#"tidegate.toml:8:1: policies.login.overrides[0].key: unknown field: expected it in the policy, not here
tidegate.toml:9:1: policies.login.overrides[0].shadow: unknown field: expected it in the policy, not here"#,
        ),
        (
            "unknown fields",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "10r/s"
[[policies.overrides]]
match = { ip = "10.1.2.3" }
limit = "1r/s"
reason = "partner"
matches = 1"#,
            r#"tidegate.toml:8:1: policies.login.overrides[0].reason: unknown field: expected one of match, level, limit, algorithm, burst, strict, align, block, enabled
tidegate.toml:9:1: policies.login.overrides[0].matches: unknown field: did you mean "match"?"#,
        ),
        (
            "two overrides, each with its own mistake",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "10r/s"
[[policies.overrides]]
match = { ip = "10.1.2.3" }
limit = "1r/w"
[[policies.overrides]]
match = { ip = 1 }
burst = 1"#,
            r#"tidegate.toml:7:9: policies.login.overrides[0].limit: "1r/w": expected a rate such as 100r/s, 100r/m, 100r/h or 100r/d, or a count per window such as 5/10s or 3/500ms
tidegate.toml:9:16: policies.login.overrides[1].match: 1: expected a value in quotes"#,
        ),
    ]);
}
