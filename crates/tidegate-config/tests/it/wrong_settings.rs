//! Mistakes in how a policy is asked and what its clients see.

use super::check;

#[test]
fn what_is_wrong_in_the_settings_of_a_policy() {
    check(&[
        (
            "an unknown mode",
            r#"[[policies]]
name = "login"
limit = "10r/s"
mode = "fast""#,
            r#"tidegate.toml:4:8: policies.login.mode: "fast": expected one of "exact", "lease", "background""#,
        ),
        (
            "an unknown mode, with a setting of a known one",
            r#"[[policies]]
name = "login"
limit = "10r/s"
mode = "backgrund"
sync_interval = "10ms""#,
            r#"tidegate.toml:4:8: policies.login.mode: "backgrund": expected one of "exact", "lease", "background""#,
        ),
        (
            "refusals counted by nodes that decide alone",
            r#"[[policies]]
name = "login"
limit = "10r/s"
mode = "background"
sync_interval = "10ms"
count_denied = true"#,
            r#"tidegate.toml:4:8: policies.login.mode: "background" with count_denied = true: expected "exact", which counts refusals"#,
        ),
        (
            "a user-defined script that is never called",
            r#"[stores.default]
url = "redis://127.0.0.1"
[[policies]]
name = "login"
algorithm = "script"
script = "mine.lua"
mode = "background""#,
            r#"tidegate.toml:7:8: policies.login.mode: "background" with a script: expected "exact""#,
        ),
        (
            "a lease of a log",
            r#"[[policies]]
name = "login"
limit = "10r/s"
mode = "lease"
algorithm = "sliding_log""#,
            r#"tidegate.toml:4:8: policies.login.mode: "lease" with sliding_log: only token_bucket and fixed_window can lease"#,
        ),
        (
            "an interval without its mode",
            r#"[[policies]]
name = "login"
limit = "10r/s"
sync_interval = "10ms""#,
            r#"tidegate.toml:4:17: policies.login.sync_interval: 10ms: only mode = "background" has one"#,
        ),
        (
            "an interval of nothing",
            r#"[[policies]]
name = "login"
limit = "10r/s"
sync_interval = "0s""#,
            r#"tidegate.toml:4:17: policies.login.sync_interval: "0s": expected a duration in quotes, such as "50ms" or "1s", from 1ms to 1m"#,
        ),
        (
            "a memory of refusals in another mode",
            r#"[[policies]]
name = "login"
limit = "10r/s"
mode = "background"
refusal_memory = "2s""#,
            r#"tidegate.toml:5:18: policies.login.refusal_memory: 2s: only mode = "exact" has one"#,
        ),
        (
            "a memory of refusals that is too long",
            r#"[[policies]]
name = "login"
limit = "10r/s"
refusal_memory = "2m""#,
            r#"tidegate.toml:4:18: policies.login.refusal_memory: "2m": expected a duration in quotes, such as "50ms" or "1s", from 0s to 1m"#,
        ),
        (
            "a memory of refusals without a unit",
            r#"[[policies]]
name = "login"
limit = "10r/s"
refusal_memory = 0"#,
            r#"tidegate.toml:4:18: policies.login.refusal_memory: 0: expected a duration in quotes, such as "50ms" or "1s", from 0s to 1m"#,
        ),
        (
            "an unknown answer to an error",
            r#"[[policies]]
name = "login"
limit = "10r/s"
on_error = "ignore""#,
            r#"tidegate.toml:4:12: policies.login.on_error: "ignore": expected one of "allow", "deny", "local""#,
        ),
        (
            "an unknown answer to an error, with a share",
            r#"[[policies]]
name = "login"
limit = "10r/s"
on_error = "lokal"
local_share = 0.5"#,
            r#"tidegate.toml:4:12: policies.login.on_error: "lokal": expected one of "allow", "deny", "local""#,
        ),
        (
            "a share without its answer",
            r#"[[policies]]
name = "login"
limit = "10r/s"
local_share = 0.5"#,
            r#"tidegate.toml:4:15: policies.login.local_share: 0.5: only on_error = "local" has one"#,
        ),
        (
            "a share of nothing",
            r#"[[policies]]
name = "login"
limit = "10r/s"
on_error = "local"
local_share = 0"#,
            r#"tidegate.toml:5:15: policies.login.local_share: 0.0: expected more than 0 and at most 1"#,
        ),
        (
            "a share above one",
            r#"[[policies]]
name = "login"
limit = "10r/s"
on_error = "local"
local_share = 1.5"#,
            r#"tidegate.toml:5:15: policies.login.local_share: 1.5: expected more than 0 and at most 1"#,
        ),
        (
            "a share that is no number",
            r#"[[policies]]
name = "login"
limit = "10r/s"
on_error = "local"
local_share = nan"#,
            r#"tidegate.toml:5:15: policies.login.local_share: NaN: expected more than 0 and at most 1"#,
        ),
        (
            "a share without end",
            r#"[[policies]]
name = "login"
limit = "10r/s"
on_error = "local"
local_share = -inf"#,
            r#"tidegate.toml:5:15: policies.login.local_share: -inf: expected more than 0 and at most 1"#,
        ),
        (
            "a share in quotes",
            r#"[[policies]]
name = "login"
limit = "10r/s"
on_error = "local"
local_share = "0.5""#,
            r#"tidegate.toml:5:15: policies.login.local_share: "0.5": expected a number such as 0.5"#,
        ),
        (
            "flags that are not true or false",
            r#"[[policies]]
name = "login"
limit = "10r/s"
count_denied = 1
shadow = "true"
enabled = "no"
block = 0"#,
            r#"tidegate.toml:4:16: policies.login.count_denied: 1: expected true or false
tidegate.toml:5:10: policies.login.shadow: "true": expected true or false
tidegate.toml:6:11: policies.login.enabled: "no": expected true or false
tidegate.toml:7:9: policies.login.block: 0: expected true or false"#,
        ),
        (
            "headers of no known dialect",
            r#"[[policies]]
name = "login"
limit = "10r/s"
headers = "x-rate-limit""#,
            r#"tidegate.toml:4:11: policies.login.headers: "x-rate-limit": expected "ietf", "x-ratelimit", "draft-06", "none", or a list of three names for limit, reset and remaining"#,
        ),
        (
            "headers that are two names",
            r#"[[policies]]
name = "login"
limit = "10r/s"
headers = ["a", "b"]"#,
            r#"tidegate.toml:4:11: policies.login.headers: a list of 2: expected "ietf", "x-ratelimit", "draft-06", "none", or a list of three names for limit, reset and remaining"#,
        ),
        (
            "headers that are a number",
            r#"[[policies]]
name = "login"
limit = "10r/s"
headers = 3"#,
            r#"tidegate.toml:4:11: policies.login.headers: 3: expected "ietf", "x-ratelimit", "draft-06", "none", or a list of three names for limit, reset and remaining"#,
        ),
        (
            "headers, one of them a number",
            r#"[[policies]]
name = "login"
limit = "10r/s"
headers = ["a", 2, "c"]"#,
            r#"tidegate.toml:4:17: policies.login.headers: 2: expected "ietf", "x-ratelimit", "draft-06", "none", or a list of three names for limit, reset and remaining"#,
        ),
        (
            "a header that is no name",
            r#"[[policies]]
name = "login"
limit = "10r/s"
headers = ["x limit", "x-reset", "x-remaining"]"#,
            r#"tidegate.toml:4:11: policies.login.headers: "x limit": expected the name of a header, such as "x-ratelimit-limit""#,
        ),
        (
            "a header twice",
            r#"[[policies]]
name = "login"
limit = "10r/s"
headers = ["x-limit", "x-reset", "X-Limit"]"#,
            r#"tidegate.toml:4:11: policies.login.headers: "X-Limit": used twice: expected three different names"#,
        ),
        (
            "a header that is always sent",
            r#"[[policies]]
name = "login"
limit = "10r/s"
headers = ["x-limit", "retry-after", "x-remaining"]"#,
            r#"tidegate.toml:4:11: policies.login.headers: "retry-after": used twice: expected three different names"#,
        ),
        (
            "a store that is not there",
            r#"[stores.fast]
url = "memory:"
[[policies]]
name = "login"
limit = "10r/s"
store = "slow""#,
            r#"tidegate.toml:6:9: policies.login.store: "slow": no such store: expected one of "default", "fast""#,
        ),
        (
            "a store that is a number",
            r#"[[policies]]
name = "login"
limit = "10r/s"
store = 1"#,
            r#"tidegate.toml:4:9: policies.login.store: 1: expected the name of a store"#,
        ),
        (
            "a blocked policy that is not enabled",
            r#"[[policies]]
name = "login"
block = true
enabled = false"#,
            r#"tidegate.toml:3:9: policies.login.block: true: with enabled = false, which allows everything: expected one of the two"#,
        ),
    ]);
}
