//! Mistakes in where a store is, and in what only some stores have.

use super::{check, errors};

/// What every message about a wrong URL ends with.
const EXPECTED: &str = r#"expected "memory:", "redis://host:port/database", "rediss://user:password@host:port/database", "redis-sentinel://host:port,host:port/master", "redis-cluster://host:port,host:port", or "env:NAME""#;

/// The error message of a URL, without that end.
fn said(url: &str) -> String {
    let errors = errors(&format!("[stores.default]\nurl = {url}\nmax_keys = 5"));
    let start = "tidegate.toml:2:7: stores.default.url: ";
    let said = errors.strip_prefix(start).expect(&errors);
    said.strip_suffix(EXPECTED).expect(&errors).to_owned()
}

#[test]
fn what_is_wrong_with_a_url() {
    for (url, expected) in [
        // Not a text, and so not repeated.
        ("6379", "not a string: "),
        (r#"["redis://127.0.0.1"]"#, "not a string: "),
        // Other kinds.
        (r#""""#, r#""": "#),
        (r#""memory""#, r#""memory": "#),
        (r#""memory:1""#, r#""memory:…": "#),
        (r#""127.0.0.1:6379""#, r#""127.0.0.1:…": "#),
        (r#""postgres://db""#, r#""postgres:…": "#),
        (r#""Redis://127.0.0.1""#, r#""Redis:…": "#),
        (r#"" redis://127.0.0.1""#, r#"" redis:…": "#),
        (r#""redis:127.0.0.1""#, r#""redis:…": "#),
        (r#""env:""#, r#""env:": "#),
        // No cluster: it has one database, and every host a name.
        (r#""redis-cluster://""#, r#""redis-cluster://…": "#),
        (r#""redis-cluster://h1:1,""#, r#""redis-cluster://…": "#),
        (r#""redis-cluster://h1:1,h2:0""#, r#""redis-cluster://…": "#),
        (r#""redis-cluster://h1:1/1""#, r#""redis-cluster://…": "#),
        // No master.
        (r#""redis-sentinel://h1:1""#, r#""redis-sentinel://…": "#),
        (r#""redis-sentinel://h1:1/""#, r#""redis-sentinel://…": "#),
        (
            r#""redis-sentinel://h1:1/ma in""#,
            r#""redis-sentinel://…": "#,
        ),
        (
            r#""redis-sentinel://h1:1/main/x""#,
            r#""redis-sentinel://…": "#,
        ),
        (r#""rediss-sentinel:///main""#, r#""rediss-sentinel://…": "#),
        // No host.
        (r#""redis://""#, r#""redis://…": "#),
        (r#""redis:///0""#, r#""redis://…": "#),
        (r#""redis://:6379""#, r#""redis://…": "#),
        (r#""rediss://user:password@""#, r#""rediss://…": "#),
        (r#""redis://ho st""#, r#""redis://…": "#),
        (r#""redis://host\n""#, r#""redis://…": "#),
        (r#""redis://h1:1,h2:2""#, r#""redis://…": "#),
        (r#""redis://::1""#, r#""redis://…": "#),
        (r#""redis://[::1""#, r#""redis://…": "#),
        (r#""redis://[one]:6379""#, r#""redis://…": "#),
        // No port.
        (r#""redis://host:""#, r#""redis://…": "#),
        (r#""redis://host:0""#, r#""redis://…": "#),
        (r#""redis://host:65536""#, r#""redis://…": "#),
        (r#""redis://host:+1""#, r#""redis://…": "#),
        (r#""redis://host:port""#, r#""redis://…": "#),
        // No database.
        (r#""redis://host/one""#, r#""redis://…": "#),
        (r#""redis://host/-1""#, r#""redis://…": "#),
        (r#""redis://host/0/1""#, r#""redis://…": "#),
        (r#""redis://host/99999999999""#, r#""redis://…": "#),
        (r#""redis://host?db=1""#, r#""redis://…": "#),
        (r#""redis://host#0""#, r#""redis://…": "#),
        // In a password these are written as %2F, %3F and %23.
        (r#""redis://:pass/word@host""#, r#""redis://…": "#),
        (r#""redis://:pass?word@host""#, r#""redis://…": "#),
        (r#""redis://:pass#word@host""#, r#""redis://…": "#),
        (r#""redis://host/0@other""#, r#""redis://…": "#),
    ] {
        assert_eq!(said(url), expected, "{url}");
    }
}

#[test]
fn what_is_wrong_beside_a_url() {
    check(&[
        (
            "settings of a store in memory for Redis",
            r#"[stores.default]
url = "redis://127.0.0.1:6379/0"
max_keys = 5
when_full = "deny""#,
            r#"tidegate.toml:3:12: stores.default.max_keys: has no effect in Redis: expected it only with a memory store
tidegate.toml:4:13: stores.default.when_full: has no effect in Redis: expected it only with a memory store"#,
        ),
        (
            "the same for a URL that is not known yet",
            r#"[stores.default]
url = "env:REDIS_URL"
max_keys = 5"#,
            r#"tidegate.toml:3:12: stores.default.max_keys: has no effect in Redis: expected it only with a memory store"#,
        ),
        (
            "certificates in memory, said once each",
            r#"[stores.default]
tls_ca = "ca.pem"
tls_cert = "cert.pem""#,
            r#"tidegate.toml:2:10: stores.default.tls_ca: has no effect here: expected it only with a rediss:// store
tidegate.toml:3:12: stores.default.tls_cert: has no effect here: expected it only with a rediss:// store"#,
        ),
        (
            "certificates for a connection that is not encrypted",
            r#"[stores.default]
url = "redis://127.0.0.1"
tls_ca = "ca.pem"
tls_cert = "cert.pem"
tls_key = "key.pem""#,
            r#"tidegate.toml:3:10: stores.default.tls_ca: has no effect here: expected it only with a rediss:// store
tidegate.toml:4:12: stores.default.tls_cert: has no effect here: expected it only with a rediss:// store
tidegate.toml:5:11: stores.default.tls_key: has no effect here: expected it only with a rediss:// store"#,
        ),
        (
            "a certificate without its key",
            r#"[stores.default]
url = "rediss://127.0.0.1"
tls_cert = "cert.pem""#,
            r#"tidegate.toml:1:1: stores.default.tls_key: missing: expected it together with tls_cert = "cert.pem""#,
        ),
        (
            "a key without its certificate",
            r#"[stores.default]
url = "env:REDIS_URL"
tls_key = "key.pem""#,
            r#"tidegate.toml:1:1: stores.default.tls_cert: missing: expected it together with tls_key = "key.pem""#,
        ),
        (
            "paths that are none",
            r#"[stores.default]
url = "rediss://127.0.0.1"
tls_ca = ""
tls_cert = 1
tls_key = []"#,
            r#"tidegate.toml:3:10: stores.default.tls_ca: "": expected the path of a file
tidegate.toml:4:12: stores.default.tls_cert: 1: expected the path of a file
tidegate.toml:5:11: stores.default.tls_key: a list: expected the path of a file"#,
        ),
        (
            "a wrong URL hides errors of the other fields",
            r#"[stores.default]
url = "redis://"
tls_ca = "ca.pem"
max_keys = 5
timeout = "10ms"
[[policies]]
name = "custom"
algorithm = "script"
script = "mine.lua""#,
            r#"tidegate.toml:2:7: stores.default.url: "redis://…": expected "memory:", "redis://host:port/database", "rediss://user:password@host:port/database", "redis-sentinel://host:port,host:port/master", "redis-cluster://host:port,host:port", or "env:NAME""#,
        ),
    ]);
}

#[test]
fn what_is_wrong_with_a_login() {
    check(&[
        (
            "nothing behind the colon",
            "[stores.default]\nurl = \"redis://h\"\npassword = \"file:\"",
            "tidegate.toml:3:12: stores.default.password: \"file:\": expected \"file:PATH\", \"env:NAME\", or a password",
        ),
        (
            "a user alone",
            "[stores.default]\nurl = \"redis://h\"\nusername = \"tidegate\"",
            "tidegate.toml:1:1: stores.default.password: missing: expected it together with username",
        ),
        (
            "a second login in the URL",
            "[stores.default]\nurl = \"redis://u:p@h\"\npassword = \"env:P\"",
            "tidegate.toml:3:12: stores.default.password: the URL already has credentials: expected user and password in one place",
        ),
        (
            "nobody to log in to",
            "[stores.default]\npassword = \"env:P\"",
            "tidegate.toml:2:12: stores.default.password: has no effect in memory: expected it only with a Redis store",
        ),
    ]);
}
