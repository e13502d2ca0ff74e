//! Files that are not TOML, and files with several mistakes.

use super::check;

#[test]
fn what_is_not_toml() {
    check(&[
        (
            "a value that is not there",
            r#"[server]
http ="#,
            r#"tidegate.toml:2:7: toml: no value: expected one after the equals sign"#,
        ),
        (
            "a text without its end",
            r#"[[policies]]
name = "login
limit = "10r/s""#,
            r#"tidegate.toml:2:14: toml: invalid basic string, expected `"`"#,
        ),
        (
            "a text without quotes",
            r#"[[policies]]
name = login
limit = 10r/s"#,
            r#"tidegate.toml:2:8: toml: a string without quotes: expected it in quotes
tidegate.toml:3:9: toml: a string without quotes: expected it in quotes"#,
        ),
        (
            "a line without an equals sign",
            r#"[[policies]]
name "login""#,
            r#"tidegate.toml:2:6: toml: key with no value, expected `=`"#,
        ),
        (
            "a header without its end",
            r#"[[policies]
name = "login""#,
            r#"tidegate.toml:1:12: toml: unclosed array table, expected `]`"#,
        ),
        (
            "a header without its end, on the last line",
            r#"[server"#,
            r#"tidegate.toml:1:8: toml: unclosed table, expected `]`"#,
        ),
        (
            "a field twice",
            r#"[[policies]]
name = "login"
limit = "10r/s"
limit = "10r/s""#,
            r#"tidegate.toml:4:1: toml: "limit": twice: expected it once"#,
        ),
        (
            "a table twice",
            r#"[server]
http = "127.0.0.1:80"
[server]"#,
            r#"tidegate.toml:3:2: toml: "server": twice: expected it once"#,
        ),
        (
            "a table and a list of one name",
            r#"[policies]
[[policies]]"#,
            r#"tidegate.toml:2:3: toml: "policies": twice: expected it once"#,
        ),
        (
            "a list without its end",
            r#"[server]
gate_headers = ["ip""#,
            r#"tidegate.toml:2:21: toml: unclosed array, expected `]`"#,
        ),
        (
            "an inline table without its end",
            r#"[[policies]]
name = "login"
key = "{ip}"
limit = "10r/s"
[[policies.overrides]]
match = { ip = "1"
limit = "1r/s""#,
            r#"tidegate.toml:7:1: toml: missing comma between key-value pairs, expected `,`"#,
        ),
        (
            "an unknown escape",
            r#"[[policies]]
name = "login"
limit = "\q""#,
            r#"tidegate.toml:3:11: toml: missing escaped value, expected `b`, `e`, `f`, `n`, `r`, `\`, `"`, `x`, `u`, `U`"#,
        ),
        (
            "a number with a leading zero",
            r#"[[policies]]
name = "login"
limit = "10r/s"
burst = 010"#,
            r#"tidegate.toml:4:9: toml: unexpected leading zero"#,
        ),
        (
            "a control character",
            "[[policies]]\nname = \"login\"\nlimit = \"10r/s\"\nkey = \"a\u{1}b\"",
            r#"tidegate.toml:4:9: toml: invalid basic string, expected non-double-quote visible characters, `\`"#,
        ),
        (
            "JSON",
            r#"{"policies": [{"name": "login"}]}"#,
            r#"tidegate.toml:1:1: toml: invalid key-value pair, expected key"#,
        ),
        (
            "YAML",
            r#"policies:
  - name: login
    limit: 10r/s"#,
            r#"tidegate.toml:1:9: toml: invalid unquoted key, expected letters, numbers, `-`, `_`
tidegate.toml:2:5: toml: key with no value, expected `=`
tidegate.toml:3:12: toml: key with no value, expected `=`"#,
        ),
        (
            "two fields on one line",
            r#"[[policies]] name = "login""#,
            r#"tidegate.toml:1:14: toml: unexpected key or value, expected newline, `#`"#,
        ),
        (
            "a mistake of syntax hides what could not be judged",
            r#"[[policies]]
name = 5
limit = "#,
            r#"tidegate.toml:3:9: toml: no value: expected one after the equals sign"#,
        ),
        (
            "two mistakes of syntax",
            r#"[server]
http = 
[[policies]]
name = "#,
            r#"tidegate.toml:2:8: toml: no value: expected one after the equals sign
tidegate.toml:4:8: toml: no value: expected one after the equals sign"#,
        ),
    ]);
}

#[test]
fn several_mistakes_are_told_together_in_the_order_of_their_lines() {
    check(&[
        (
            "in the order of the lines",
            r#"[[policies]]
name = "b"
limit = "10"
burst = 0

[[policies]]
name = "b"
key = "{"
limit = "1r/s"
store = "none"

[stores.default]
max_keys = -1"#,
            r#"tidegate.toml:3:9: policies.b.limit: "10": expected a rate such as 100r/s, 100r/m, 100r/h or 100r/d, or a count per window such as 5/10s or 3/500ms
tidegate.toml:4:9: policies.b.burst: 0: expected a whole number from 1 to 4294967295
tidegate.toml:7:8: policies[1].name: "b": two policies have this name: expected different names
tidegate.toml:8:7: policies[1].key: "{": an unmatched brace: expected attributes in braces, such as "{ip}"
tidegate.toml:10:9: policies[1].store: "none": no such store: expected one of "default"
tidegate.toml:13:12: stores.default.max_keys: -1: expected a whole number from 1 to 1000000000"#,
        ),
        (
            "columns count characters, not bytes",
            r#"stores = { "größe" = {}, default = { when_full = "日本", max_keys = 0 } }"#,
            r#"tidegate.toml:1:12: stores: the name "größe": expected 1 to 64 of the characters A-Z a-z 0-9 _ -
tidegate.toml:1:50: stores.default.when_full: "日本": expected one of "evict", "deny"
tidegate.toml:1:67: stores.default.max_keys: 0: expected a whole number from 1 to 1000000000"#,
        ),
        (
            "dotted keys",
            r#"stores.default.max_keys = 0"#,
            r#"tidegate.toml:1:27: stores.default.max_keys: 0: expected a whole number from 1 to 1000000000"#,
        ),
        (
            "inline tables",
            r#"policies = [{ name = "login", limit = "100", burst = 0 }, { name = "api" }]"#,
            r#"tidegate.toml:1:39: policies.login.limit: "100": expected a rate such as 100r/s, 100r/m, 100r/h or 100r/d, or a count per window such as 5/10s or 3/500ms
tidegate.toml:1:54: policies.login.burst: 0: expected a whole number from 1 to 4294967295
tidegate.toml:1:59: policies.api.limit: missing: expected a rate such as "100r/s" or "5/10s", or block = true"#,
        ),
        (
            "all levels and overrides of a policy",
            r#"[[policies]]
name = "api"
mode = "quick"
[[policies.levels]]
name = "a"
limit = "5/0s"
[[policies.levels]]
limit = 3
limitt = 4
[[policies.overrides]]
match = { key = 1 }
burst = "x""#,
            r#"tidegate.toml:3:8: policies.api.mode: "quick": expected one of "exact", "lease", "background"
tidegate.toml:6:9: policies.api.levels.a.limit: "5/0s": a window of 0ns: expected 1ms to 366d, in whole microseconds
tidegate.toml:7:1: policies.api.levels[1].name: missing: expected a name in quotes
tidegate.toml:8:9: policies.api.levels[1].limit: 3: expected a rate in quotes, such as "100r/s" or "5/10s"
tidegate.toml:9:1: policies.api.levels[1].limitt: unknown field: did you mean "limit"?
tidegate.toml:11:17: policies.api.overrides[0].match: 1: expected a value in quotes
tidegate.toml:12:9: policies.api.overrides[0].burst: "x": expected a whole number from 1 to 4294967295"#,
        ),
    ]);
}
