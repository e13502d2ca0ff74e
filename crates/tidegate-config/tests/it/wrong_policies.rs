//! Mistakes in the names, keys and tags of policies.

use super::check;

#[test]
fn what_is_wrong_with_the_list_of_policies() {
    check(&[
        (
            "policies that are one table",
            r#"[policies]
name = "login""#,
            r#"tidegate.toml:1:1: policies: a table: expected tables, each headed [[policies]]"#,
        ),
        (
            "policies by their names",
            r#"[policies.login]
limit = "10r/s""#,
            r#"tidegate.toml:1:2: policies: a table: expected tables, each headed [[policies]]"#,
        ),
        (
            "policies that are texts",
            r#"policies = ["login"]"#,
            r#"tidegate.toml:1:13: policies: "login": expected tables, each headed [[policies]]"#,
        ),
        (
            "one policy in the singular",
            r#"[[policy]]
name = "login""#,
            r#"tidegate.toml:1:3: policy: unknown field: did you mean "policies"?"#,
        ),
    ]);
}

#[test]
fn what_is_wrong_with_a_policy() {
    check(&[
        (
            "a policy without anything",
            r#"[[policies]]"#,
            r#"tidegate.toml:1:1: policies[0].name: missing: expected a name in quotes
tidegate.toml:1:1: policies[0].limit: missing: expected a rate such as "100r/s" or "5/10s", or block = true"#,
        ),
        (
            "a policy without a name",
            r#"[[policies]]
limit = "10r/s""#,
            r#"tidegate.toml:1:1: policies[0].name: missing: expected a name in quotes"#,
        ),
        (
            "a name that is a number",
            r#"[[policies]]
name = 7
limit = "10r/s""#,
            r#"tidegate.toml:2:8: policies[0].name: 7: expected a name in quotes"#,
        ),
        (
            "an empty name",
            r#"[[policies]]
name = ""
limit = "10r/s""#,
            r#"tidegate.toml:2:8: policies[0].name: "": expected 1 to 64 of the characters A-Z a-z 0-9 _ -"#,
        ),
        (
            "a name with a space",
            r#"[[policies]]
name = "log in"
limit = "10r/s""#,
            r#"tidegate.toml:2:8: policies[0].name: "log in": expected 1 to 64 of the characters A-Z a-z 0-9 _ -"#,
        ),
        (
            "two policies of one name",
            r#"[[policies]]
name = "login"
limit = "10r/s"
[[policies]]
name = "login"
limit = "10r/s""#,
            r#"tidegate.toml:5:8: policies[1].name: "login": two policies have this name: expected different names"#,
        ),
        (
            "three policies of one name, one of them wrong",
            r#"[[policies]]
name = "login"
limit = "10r/s"
[[policies]]
name = "login"
limit = "100"
[[policies]]
name = "login"
burst = 1"#,
            r#"tidegate.toml:5:8: policies[1].name: "login": two policies have this name: expected different names
tidegate.toml:6:9: policies[1].limit: "100": expected a rate such as 100r/s, 100r/m, 100r/h or 100r/d, or a count per window such as 5/10s or 3/500ms
tidegate.toml:7:1: policies[2].limit: missing: expected a rate such as "100r/s" or "5/10s", or block = true
tidegate.toml:8:8: policies[2].name: "login": two policies have this name: expected different names"#,
        ),
        (
            "a policy without a limit",
            r#"[[policies]]
name = "login"
key = "{ip}""#,
            r#"tidegate.toml:1:1: policies.login.limit: missing: expected a rate such as "100r/s" or "5/10s", or block = true"#,
        ),
        (
            "a policy without a limit and with a wrong burst",
            r#"[[policies]]
name = "login"
burst = 0"#,
            r#"tidegate.toml:1:1: policies.login.limit: missing: expected a rate such as "100r/s" or "5/10s", or block = true
tidegate.toml:3:9: policies.login.burst: 0: expected a whole number from 1 to 4294967295"#,
        ),
        (
            "a key that is not UTF-8",
            r#"[[policies]]
name = "login"
limit = "10r/s"
key = 5"#,
            r#"tidegate.toml:4:7: policies.login.key: 5: expected a template such as "{ip}""#,
        ),
        (
            "a key that is no text, a wrong limit and a wrong name",
            r#"[[policies]]
name = "log in"
key = 5
limit = "100""#,
            r#"tidegate.toml:2:8: policies[0].name: "log in": expected 1 to 64 of the characters A-Z a-z 0-9 _ -
tidegate.toml:3:7: policies[0].key: 5: expected a template such as "{ip}"
tidegate.toml:4:9: policies[0].limit: "100": expected a rate such as 100r/s, 100r/m, 100r/h or 100r/d, or a count per window such as 5/10s or 3/500ms"#,
        ),
        (
            "an unmatched brace",
            r#"[[policies]]
name = "login"
limit = "10r/s"
key = "{ip""#,
            r#"tidegate.toml:4:7: policies.login.key: "{ip": an unmatched brace: expected attributes in braces, such as "{ip}""#,
        ),
        (
            "a closing brace first",
            r#"[[policies]]
name = "login"
limit = "10r/s"
key = "ip}""#,
            r#"tidegate.toml:4:7: policies.login.key: "ip}": an unmatched brace: expected attributes in braces, such as "{ip}""#,
        ),
        (
            "braces without a name",
            r#"[[policies]]
name = "login"
limit = "10r/s"
key = "{}""#,
            r#"tidegate.toml:4:7: policies.login.key: "{}": the attribute "": expected 1 to 64 of the characters A-Z a-z 0-9 _ -"#,
        ),
        (
            "braces in braces",
            r#"[[policies]]
name = "login"
limit = "10r/s"
key = "{{ip}}""#,
            r#"tidegate.toml:4:7: policies.login.key: "{{ip}}": the attribute "{ip": expected 1 to 64 of the characters A-Z a-z 0-9 _ -"#,
        ),
        (
            "an attribute with a space",
            r#"[[policies]]
name = "login"
limit = "10r/s"
key = "{ip} {user id}""#,
            r#"tidegate.toml:4:7: policies.login.key: "{ip} {user id}": the attribute "user id": expected 1 to 64 of the characters A-Z a-z 0-9 _ -"#,
        ),
        (
            "an attribute twice",
            r#"[[policies]]
name = "login"
limit = "10r/s"
key = "{ip}:{ip}""#,
            r#"tidegate.toml:4:7: policies.login.key: "{ip}:{ip}": the attribute "ip" appears twice: expected it once"#,
        ),
        (
            "too many attributes",
            r#"[[policies]]
name = "login"
limit = "10r/s"
key = "{a0}{a1}{a2}{a3}{a4}{a5}{a6}{a7}{a8}{a9}{a10}{a11}{a12}{a13}{a14}{a15}{a16}""#,
            r#"tidegate.toml:4:7: policies.login.key: "{a0}{a1}{a2}{a3}{a4}{a5}{a6}{a7}{a8}{a9}{a10}{a11}{a12}{a13}{a14…": 17 attributes: expected at most 16"#,
        ),
        (
            "a tag of nothing",
            r#"[[policies]]
name = "login"
limit = "10r/s"
key = "{ip}"
tag = "all""#,
            r#"tidegate.toml:5:7: policies.login.tag: "all": no attribute: expected one that every level has in its key"#,
        ),
        (
            "a tag that is not in the key",
            r#"[[policies]]
name = "login"
limit = "10r/s"
key = "{ip}"
tag = "{user}""#,
            r#"tidegate.toml:5:7: policies.login.tag: "{user}": the attribute "user" is not in the key of every level: one counter would be in several cluster slots"#,
        ),
        (
            "a tag that is a number, and one with a lone brace",
            r#"[[policies]]
name = "login"
limit = "10r/s"
tag = 1
[[policies]]
name = "api"
limit = "10r/s"
tag = "{""#,
            r#"tidegate.toml:4:7: policies.login.tag: 1: expected a template such as "{ip}"
tidegate.toml:8:7: policies.api.tag: "{": an unmatched brace: expected attributes in braces, such as "{ip}""#,
        ),
        (
            "a tag beside a key that cannot be read",
            r#"[[policies]]
name = "login"
limit = "10r/s"
key = 1
tag = "{user}""#,
            r#"tidegate.toml:4:7: policies.login.key: 1: expected a template such as "{ip}""#,
        ),
        (
            "trials of policies that are not there, of themselves and of trials",
            r#"[[policies]]
name = "api"
limit = "10r/s"
[[policies]]
name = "a"
limit = "10r/s"
trial_of = "apo"
[[policies]]
name = "b"
limit = "10r/s"
trial_of = "b"
[[policies]]
name = "c"
limit = "10r/s"
trial_of = "api"
[[policies]]
name = "d"
limit = "10r/s"
trial_of = "c"
[[policies]]
name = "e"
limit = "10r/s"
trial_of = 1"#,
            r#"tidegate.toml:7:12: policies.a.trial_of: "apo": no policy of this name: expected one of "api", "e"
tidegate.toml:11:12: policies.b.trial_of: "b": the policy itself: expected another policy
tidegate.toml:19:12: policies.d.trial_of: "c": a trial itself: expected a policy that is not
tidegate.toml:23:12: policies.e.trial_of: 1: expected the name of a policy"#,
        ),
        (
            "trials with attributes that the other policy does not have",
            r#"[[policies]]
name = "api"
key = "{resource}:{consumer}"
limit = "10r/s"
[[policies]]
name = "one"
key = ""
limit = "10r/s"
[[policies]]
name = "fewer"
trial_of = "api"
key = "{consumer}"
limit = "10r/s"
[[policies]]
name = "more"
trial_of = "api"
limit = "10r/s"
key = "{ip}:{consumer}:{path}"
[[policies]]
name = "any"
trial_of = "one"
limit = "10r/s""#,
            r#"tidegate.toml:16:12: policies.more.trial_of: "api": has no "ip", "path" in its keys: expected only "resource", "consumer" in the keys of its trial
tidegate.toml:21:12: policies.any.trial_of: "one": has no attributes in its keys: expected no "key" in the keys of its trial"#,
        ),
        (
            "an unknown field of a policy",
            r#"[[policies]]
name = "login"
limit = "10r/s"
colour = "red""#,
            r#"tidegate.toml:4:1: policies.login.colour: unknown field: expected one of levels, overrides, name, key, limit, algorithm, burst, strict, align, block, script, args, tag, headers, mode, sync_interval, refusal_memory, on_error, local_share, count_denied, shadow, trial_of, enabled, store"#,
        ),
        (
            "an unknown field of a policy, almost right",
            r#"[[policies]]
name = "login"
limit = "10r/s"
refusal-memory = "1s"
count_deny = true
Limit = "1r/s""#,
            r#"tidegate.toml:4:1: policies.login.refusal-memory: unknown field: did you mean "refusal_memory"?
tidegate.toml:5:1: policies.login.count_deny: unknown field: did you mean "count_denied"?
tidegate.toml:6:1: policies.login.Limit: unknown field: did you mean "limit"?"#,
        ),
    ]);
}
