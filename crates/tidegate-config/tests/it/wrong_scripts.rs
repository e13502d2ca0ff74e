//! Mistakes in user-defined scripts.

use super::check;

#[test]
fn what_is_wrong_with_a_script() {
    check(&[
        (
            "a script without a file",
            r#"[stores.default]
url = "redis://127.0.0.1"
[[policies]]
name = "custom"
algorithm = "script""#,
            r#"tidegate.toml:3:1: policies.custom.script: missing: expected the path of a Lua script, relative to this file"#,
        ),
        (
            "a script that is a number, and one that is empty",
            r#"[stores.default]
url = "redis://127.0.0.1"
[[policies]]
name = "custom"
algorithm = "script"
script = 5
[[policies]]
name = "other"
algorithm = "script"
script = """#,
            r#"tidegate.toml:6:10: policies.custom.script: 5: expected the path of a Lua script, relative to this file
tidegate.toml:10:10: policies.other.script: "": expected the path of a script"#,
        ),
        (
            "a script in memory",
            r#"[[policies]]
name = "custom"
algorithm = "script"
script = "scripts/mine.lua"
args = [10, 60]"#,
            r#"tidegate.toml:3:13: policies.custom.algorithm: "script" needs a Redis store, which runs it: expected another algorithm, or store = the name of one"#,
        ),
        (
            "a script in memory by name",
            r#"[stores.default]
url = "redis://127.0.0.1"
[stores.small]
[[policies]]
name = "custom"
algorithm = "script"
script = "scripts/mine.lua"
store = "small""#,
            r#"tidegate.toml:6:13: policies.custom.algorithm: "script" needs a Redis store, which runs it: expected another algorithm, or store = the name of one"#,
        ),
        (
            "a script in a store that is not there",
            r#"[[policies]]
name = "custom"
algorithm = "script"
script = "scripts/mine.lua"
store = "other""#,
            r#"tidegate.toml:5:9: policies.custom.store: "other": no such store: expected one of "default""#,
        ),
        (
            "arguments that are no list",
            r#"[stores.default]
url = "redis://127.0.0.1"
[[policies]]
name = "custom"
algorithm = "script"
script = "mine.lua"
args = 10"#,
            r#"tidegate.toml:7:8: policies.custom.args: 10: expected a list of strings and decimal numbers, such as [10, 60]"#,
        ),
        (
            "arguments of other types, each where it stands",
            r#"[stores.default]
url = "redis://127.0.0.1"
[[policies]]
name = "custom"
algorithm = "script"
script = "mine.lua"
args = [10, [60], { a = 1 }, 0x10, 2024-01-01, "right"]"#,
            r#"tidegate.toml:7:13: policies.custom.args: a list: expected a list of strings and decimal numbers, such as [10, 60]
tidegate.toml:7:19: policies.custom.args: a table: expected a list of strings and decimal numbers, such as [10, 60]
tidegate.toml:7:30: policies.custom.args: 0x10: expected a list of strings and decimal numbers, such as [10, 60]
tidegate.toml:7:36: policies.custom.args: 2024-01-01: expected a list of strings and decimal numbers, such as [10, 60]"#,
        ),
        (
            "a script without its algorithm",
            r#"[[policies]]
name = "login"
limit = "10r/s"
script = "scripts/mine.lua"
args = [10, 60]"#,
            r#"tidegate.toml:4:10: policies.login.script: only algorithm = "script" has this
tidegate.toml:5:8: policies.login.args: only algorithm = "script" has this"#,
        ),
        (
            "a script without its algorithm, and wrong itself",
            r#"[[policies]]
name = "login"
limit = "10r/s"
script = 1
args = 2"#,
            r#"tidegate.toml:4:10: policies.login.script: 1: expected the path of a Lua script, relative to this file
tidegate.toml:5:8: policies.login.args: 2: expected a list of strings and decimal numbers, such as [10, 60]"#,
        ),
        (
            "a script under an algorithm that is wrong",
            r#"[[policies]]
name = "login"
algorithm = "scripts"
script = "scripts/mine.lua""#,
            r#"tidegate.toml:3:13: policies.login.algorithm: "scripts": expected one of "token_bucket", "fixed_window", "sliding_window", "sliding_log", "script""#,
        ),
    ]);
}

#[test]
fn what_is_wrong_beside_a_script() {
    check(&[
        (
            "limits beside a script",
            r#"[stores.default]
url = "redis://127.0.0.1"
[[policies]]
name = "custom"
algorithm = "script"
script = "mine.lua"
limit = "10r/s"
burst = 5
strict = false
align = "first"
block = true
count_denied = true
on_error = "local""#,
            r#"tidegate.toml:7:9: policies.custom.limit: cannot be combined with a script: expected none
tidegate.toml:8:9: policies.custom.burst: cannot be combined with a script: expected none
tidegate.toml:9:10: policies.custom.strict: cannot be combined with a script: expected none
tidegate.toml:10:9: policies.custom.align: cannot be combined with a script: expected none
tidegate.toml:11:9: policies.custom.block: cannot be combined with a script: expected none
tidegate.toml:12:16: policies.custom.count_denied: cannot be combined with a script: expected none
tidegate.toml:13:12: policies.custom.on_error: "local" with a script, which this process cannot run: expected "allow" or "deny""#,
        ),
        (
            "overrides beside a script",
            r#"[stores.default]
url = "redis://127.0.0.1"
[[policies]]
name = "custom"
algorithm = "script"
script = "mine.lua"
[[policies.overrides]]
match = { key = "a" }
block = true"#,
            r#"tidegate.toml:7:1: policies.custom.overrides: cannot be combined with a script: expected none"#,
        ),
        (
            "limits in the levels of a script, and beside them",
            r#"[stores.default]
url = "redis://127.0.0.1"
[[policies]]
name = "custom"
algorithm = "script"
script = "mine.lua"
limit = "10r/s"
[[policies.levels]]
name = "a"
key = "{a}"
limit = "10r/s"
[[policies.levels]]
name = "b"
key = "{b}"
block = true
[[policies.levels]]
name = "c"
key = "{c}""#,
            r#"tidegate.toml:7:9: policies.custom.limit: cannot be combined with a script: expected none
tidegate.toml:11:9: policies.custom.levels.a.limit: cannot be combined with a script: expected none
tidegate.toml:15:9: policies.custom.levels.b.block: cannot be combined with a script: expected none"#,
        ),
        (
            "a script in an override",
            r#"[stores.default]
url = "redis://127.0.0.1"
[[policies]]
name = "api"
limit = "10r/s"
[[policies.overrides]]
match = { key = "a" }
algorithm = "script"
args = []"#,
            r#"tidegate.toml:8:13: policies.api.overrides[0].algorithm: "script": expected it in the policy, which it decides as a whole
tidegate.toml:9:1: policies.api.overrides[0].args: unknown field: expected it in the policy, not here"#,
        ),
    ]);
}

#[test]
fn so_many_arguments_are_read_and_no_more() {
    let file = |count: usize| {
        format!(
            "[stores.default]\nurl = \"redis://127.0.0.1\"\n\
             [[policies]]\nname = \"custom\"\nalgorithm = \"script\"\nscript = \"mine.lua\"\n\
             args = [{}]\n",
            "1, ".repeat(count)
        )
    };
    let config = super::config(&file(64));
    let script = config.policies[0].script().expect("a script");
    assert_eq!(script.arguments().len(), 64);
    assert_eq!(
        super::errors(&file(65)),
        "tidegate.toml:7:8: policies.custom.args: 65 of them: expected at most 64"
    );
}
