//! Mistakes at the top of the file and in the stores.

use super::check;

#[test]
fn what_is_wrong_at_the_top() {
    check(&[
        (
            "an unknown table",
            r#"[sever]"#,
            r#"tidegate.toml:1:2: sever: unknown field: did you mean "server"?"#,
        ),
        (
            "an unknown field like nothing known",
            r#"colour = 1"#,
            r#"tidegate.toml:1:1: colour: unknown field: expected one of server, envoy, stores, policies"#,
        ),
        (
            "a section that is a value",
            r#"server = "127.0.0.1:8080""#,
            r#"tidegate.toml:1:10: server: not a table: expected a table, [server]"#,
        ),
        (
            "a section that is a list",
            r#"[[server]]
http = "127.0.0.1:8080""#,
            r#"tidegate.toml:1:1: server: not a table: expected a table, [server]"#,
        ),
    ]);
}

#[test]
fn what_is_wrong_in_the_stores() {
    check(&[
        (
            "stores that are a value",
            r#"stores = "memory:"
[[policies]]
name = "login"
limit = "10r/s"
store = "other""#,
            r#"tidegate.toml:1:10: stores: not a table: expected a table, [stores]"#,
        ),
        (
            "a store without a name of its own",
            r#"[stores]
url = "memory:""#,
            r#"tidegate.toml:2:1: stores.url: not a table: expected a table for each of the stores, such as [stores.default]"#,
        ),
        (
            "a store that is a value, and a policy that uses it",
            r#"[stores]
fast = "memory:"
[[policies]]
name = "login"
limit = "10r/s"
store = "fast""#,
            r#"tidegate.toml:2:1: stores.fast: not a table: expected a table for each of the stores, such as [stores.default]"#,
        ),
        (
            "a store with a wrong name",
            r#"[stores."a b"]
url = "memory:""#,
            r#"tidegate.toml:1:9: stores: the name "a b": expected 1 to 64 of the characters A-Z a-z 0-9 _ -"#,
        ),
        (
            "a prefix with a brace",
            r#"[stores.default]
prefix = "a{b""#,
            r#"tidegate.toml:2:10: stores.default.prefix: "a{b": expected 1 to 64 of the characters A-Z a-z 0-9 . _ : -"#,
        ),
        (
            "an empty prefix",
            r#"[stores.default]
prefix = """#,
            r#"tidegate.toml:2:10: stores.default.prefix: "": expected 1 to 64 of the characters A-Z a-z 0-9 . _ : -"#,
        ),
        (
            "settings of Redis for a store in memory",
            r#"[stores.default]
prefix = "other"
timeout = "10ms"
connections = 3
replica_acks = 1"#,
            r#"tidegate.toml:2:10: stores.default.prefix: has no effect in memory: expected it only with a Redis store
tidegate.toml:3:11: stores.default.timeout: has no effect in memory: expected it only with a Redis store
tidegate.toml:4:15: stores.default.connections: has no effect in memory: expected it only with a Redis store
tidegate.toml:5:16: stores.default.replica_acks: has no effect in memory: expected it only with a Redis store"#,
        ),
        (
            "a deadline without quotes",
            r#"[stores.default]
timeout = 50"#,
            r#"tidegate.toml:2:11: stores.default.timeout: 50: expected a duration in quotes, such as "50ms" or "1s", from 1ms to 1m"#,
        ),
        (
            "a deadline without a unit",
            r#"[stores.default]
timeout = "50""#,
            r#"tidegate.toml:2:11: stores.default.timeout: "50": expected a duration in quotes, such as "50ms" or "1s", from 1ms to 1m"#,
        ),
        (
            "a deadline that is too long",
            r#"[stores.default]
timeout = "61s""#,
            r#"tidegate.toml:2:11: stores.default.timeout: "61s": expected a duration in quotes, such as "50ms" or "1s", from 1ms to 1m"#,
        ),
        (
            "a deadline of nothing",
            r#"[stores.default]
timeout = "0s""#,
            r#"tidegate.toml:2:11: stores.default.timeout: "0s": expected a duration in quotes, such as "50ms" or "1s", from 1ms to 1m"#,
        ),
        (
            "no connections",
            r#"[stores.default]
connections = 0"#,
            r#"tidegate.toml:2:15: stores.default.connections: 0: expected a whole number from 1 to 1024"#,
        ),
        (
            "too many replicas",
            r#"[stores.default]
replica_acks = 17"#,
            r#"tidegate.toml:2:16: stores.default.replica_acks: 17: expected a whole number from 0 to 16"#,
        ),
        (
            "no keys",
            r#"[stores.default]
max_keys = 0"#,
            r#"tidegate.toml:2:12: stores.default.max_keys: 0: expected a whole number from 1 to 1000000000"#,
        ),
        (
            "too many keys",
            r#"[stores.default]
max_keys = 1_000_000_001"#,
            r#"tidegate.toml:2:12: stores.default.max_keys: 1_000_000_001: expected a whole number from 1 to 1000000000"#,
        ),
        (
            "keys that are a text",
            r#"[stores.default]
max_keys = "1000""#,
            r#"tidegate.toml:2:12: stores.default.max_keys: "1000": expected a whole number from 1 to 1000000000"#,
        ),
        (
            "a word that is not one of two",
            r#"[stores.default]
when_full = "drop""#,
            r#"tidegate.toml:2:13: stores.default.when_full: "drop": expected one of "evict", "deny""#,
        ),
        (
            "a word in capitals",
            r#"[stores.default]
when_full = "Evict""#,
            r#"tidegate.toml:2:13: stores.default.when_full: "Evict": expected one of "evict", "deny""#,
        ),
        (
            "an unknown field of a store, almost right",
            r#"[stores.default]
maxkeys = 5"#,
            r#"tidegate.toml:2:1: stores.default.maxkeys: unknown field: did you mean "max_keys"?"#,
        ),
        (
            "an unknown field of a store",
            r#"[stores.default]
colour = "hunter2""#,
            r#"tidegate.toml:2:1: stores.default.colour: unknown field: expected one of url, prefix, username, password, tls_ca, tls_cert, tls_key, timeout, connections, replica_acks, max_keys, when_full"#,
        ),
    ]);
}
