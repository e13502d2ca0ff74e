//! Mistakes in the levels of a policy.

use super::check;

#[test]
fn what_is_wrong_with_levels() {
    check(&[
        (
            "levels that are one table",
            r#"[[policies]]
name = "api"
[policies.levels]
name = "a"
limit = "5/10s""#,
            r#"tidegate.toml:3:1: policies.api.levels: a table: expected tables, each headed [[policies.levels]]"#,
        ),
        (
            "levels that are texts",
            r#"[[policies]]
name = "api"
levels = ["a"]"#,
            r#"tidegate.toml:3:11: policies.api.levels: "a": expected tables, each headed [[policies.levels]]"#,
        ),
        (
            "levels before their policy",
            r#"[[policies.levels]]
name = "a"
limit = "5/10s""#,
            r#"tidegate.toml:1:3: policies: a table: expected tables, each headed [[policies]]"#,
        ),
        (
            "a level without anything",
            r#"[[policies]]
name = "api"
[[policies.levels]]"#,
            r#"tidegate.toml:3:1: policies.api.levels[0].name: missing: expected a name in quotes
tidegate.toml:3:1: policies.api.levels[0].limit: missing: expected a rate such as "100r/s" or "5/10s", or block = true"#,
        ),
        (
            "a level without a name",
            r#"[[policies]]
name = "api"
[[policies.levels]]
limit = "5/10s"
[[policies.levels]]
name = "b"
key = "{a}:{b}"
limit = "3/10s""#,
            r#"tidegate.toml:3:1: policies.api.levels[0].name: missing: expected a name in quotes"#,
        ),
        (
            "a level with an empty name",
            r#"[[policies]]
name = "api"
[[policies.levels]]
name = ""
limit = "5/10s""#,
            r#"tidegate.toml:4:8: policies.api.levels[0].name: "": expected 1 to 64 of the characters A-Z a-z 0-9 _ -"#,
        ),
        (
            "a level with a wrong name",
            r#"[[policies]]
name = "api"
[[policies.levels]]
name = "a.b"
limit = "5/10s"
[[policies.levels]]
name = "b"
key = "{a}:{b}"
limit = "3/10s""#,
            r#"tidegate.toml:4:8: policies.api.levels[0].name: "a.b": expected 1 to 64 of the characters A-Z a-z 0-9 _ -"#,
        ),
        (
            "two levels of one name",
            r#"[[policies]]
name = "api"
[[policies.levels]]
name = "a"
key = "{a}"
limit = "5/10s"
[[policies.levels]]
name = "a"
key = "{a}"
limit = "5/10s""#,
            r#"tidegate.toml:8:8: policies.api.levels[1].name: "a": two levels have this name: expected different names"#,
        ),
        (
            "a level without a limit",
            r#"[[policies]]
name = "api"
[[policies.levels]]
name = "a"
[[policies.levels]]
name = "b"
key = "{a}:{b}"
limit = "3/10s""#,
            r#"tidegate.toml:3:1: policies.api.levels.a.limit: missing: expected a rate such as "100r/s" or "5/10s", or block = true"#,
        ),
        (
            "a level with a wrong limit, and one with a wrong key",
            r#"[[policies]]
name = "api"
[[policies.levels]]
name = "a"
limit = "5"
[[policies.levels]]
name = "b"
limit = "5/10s"
key = "{""#,
            r#"tidegate.toml:5:9: policies.api.levels.a.limit: "5": expected a rate such as 100r/s, 100r/m, 100r/h or 100r/d, or a count per window such as 5/10s or 3/500ms
tidegate.toml:9:7: policies.api.levels.b.key: "{": an unmatched brace: expected attributes in braces, such as "{ip}""#,
        ),
        (
            "fields of a level beside levels",
            r#"[[policies]]
name = "api"
key = "{a}"
limit = "10r/s"
algorithm = "fixed_window"
align = "first"
[[policies.levels]]
name = "a"
key = "{a}"
limit = "5/10s""#,
            r#"tidegate.toml:3:7: policies.api.key: cannot be combined with levels: expected it in each level instead
tidegate.toml:4:9: policies.api.limit: cannot be combined with levels: expected it in each level instead
tidegate.toml:5:13: policies.api.algorithm: cannot be combined with levels: expected it in each level instead
tidegate.toml:6:9: policies.api.align: cannot be combined with levels: expected it in each level instead"#,
        ),
        (
            "fields of a bucket beside levels",
            r#"[[policies]]
name = "api"
burst = 5
strict = false
[[policies.levels]]
name = "a"
key = "{a}"
limit = "5/10s""#,
            r#"tidegate.toml:3:9: policies.api.burst: cannot be combined with levels: expected it in each level instead
tidegate.toml:4:10: policies.api.strict: cannot be combined with levels: expected it in each level instead"#,
        ),
        (
            "fields of a policy in a level",
            r#"[[policies]]
name = "api"
[[policies.levels]]
name = "a"
key = "{a}"
limit = "5/10s"
mode = "exact"
store = "default"
headers = "none"
shadow = true
enabled = false
tag = "{a}""#,
            r#"tidegate.toml:7:1: policies.api.levels.a.mode: unknown field: expected it in the policy, not here
tidegate.toml:8:1: policies.api.levels.a.store: unknown field: expected it in the policy, not here
tidegate.toml:9:1: policies.api.levels.a.headers: unknown field: expected it in the policy, not here
tidegate.toml:10:1: policies.api.levels.a.shadow: unknown field: expected it in the policy, not here
tidegate.toml:11:1: policies.api.levels.a.enabled: unknown field: expected it in the policy, not here
tidegate.toml:12:1: policies.api.levels.a.tag: unknown field: expected it in the policy, not here"#,
        ),
        (
            "an unknown field of a level",
            r#"[[policies]]
name = "api"
[[policies.levels]]
name = "a"
key = "{a}"
limit = "5/10s"
window = "1m""#,
            r#"tidegate.toml:7:1: policies.api.levels.a.window: unknown field: expected one of name, key, limit, algorithm, burst, strict, align, block"#,
        ),
        (
            "an unknown field of a level, almost right",
            r#"[[policies]]
name = "api"
[[policies.levels]]
name = "a"
key = "{a}"
limit = "5/10s"
algoritm = "sliding_log""#,
            r#"tidegate.toml:7:1: policies.api.levels.a.algoritm: unknown field: did you mean "algorithm"?"#,
        ),
        (
            "overrides inside of a level",
            r#"[[policies]]
name = "api"
[[policies.levels]]
name = "a"
key = "{a}"
limit = "5/10s"
[[policies.levels.overrides]]
match = { a = "1" }
block = true"#,
            r#"tidegate.toml:7:19: policies.api.levels.a.overrides: unknown field: expected it in the policy, not here"#,
        ),
        (
            "a tag that one level does not have",
            r#"[[policies]]
name = "api"
tag = "{b}"
[[policies.levels]]
name = "a"
key = "{a}"
limit = "5/10s"
[[policies.levels]]
name = "b"
key = "{a}:{b}"
limit = "3/10s""#,
            r#"tidegate.toml:3:7: policies.api.tag: "{b}": the attribute "b" is not in the key of every level: one counter would be in several cluster slots"#,
        ),
        (
            "a lease with a log in one level",
            r#"[[policies]]
name = "api"
mode = "lease"
[[policies.levels]]
name = "a"
key = "{a}"
limit = "5/10s"
[[policies.levels]]
name = "b"
key = "{a}:{b}"
limit = "3/10s"
algorithm = "sliding_log""#,
            r#"tidegate.toml:3:8: policies.api.mode: "lease" with sliding_log: only token_bucket and fixed_window can lease"#,
        ),
        (
            "too many levels",
            r#"[[policies]]
name = "api"
[[policies.levels]]
name = "l0"
limit = "1r/s"
[[policies.levels]]
name = "l1"
limit = "1r/s"
[[policies.levels]]
name = "l2"
limit = "1r/s"
[[policies.levels]]
name = "l3"
limit = "1r/s"
[[policies.levels]]
name = "l4"
limit = "1r/s"
[[policies.levels]]
name = "l5"
limit = "1r/s"
[[policies.levels]]
name = "l6"
limit = "1r/s"
[[policies.levels]]
name = "l7"
limit = "1r/s"
[[policies.levels]]
name = "l8"
limit = "1r/s"
[[policies.levels]]
name = "l9"
limit = "1r/s"
[[policies.levels]]
name = "l10"
limit = "1r/s"
[[policies.levels]]
name = "l11"
limit = "1r/s"
[[policies.levels]]
name = "l12"
limit = "1r/s"
[[policies.levels]]
name = "l13"
limit = "1r/s"
[[policies.levels]]
name = "l14"
limit = "1r/s"
[[policies.levels]]
name = "l15"
limit = "1r/s"
[[policies.levels]]
name = "l16"
limit = "1r/s""#,
            r#"tidegate.toml:3:1: policies.api.levels: 17 levels: expected at most 16"#,
        ),
        (
            "a level with a script",
            r#"[[policies]]
name = "api"
[[policies.levels]]
name = "a"
algorithm = "script"
script = "mine.lua""#,
            r#"tidegate.toml:5:13: policies.api.levels.a.algorithm: "script": expected it in the policy, which it decides as a whole
tidegate.toml:6:1: policies.api.levels.a.script: unknown field: expected it in the policy, not here"#,
        ),
    ]);
}
