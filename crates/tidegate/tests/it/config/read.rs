//! Files that are right: what they mean, in the words of the builder.

use std::time::Duration;

use tidegate::{
    Address, Align, Config, Cost, Dialect, Limit, OnError, Override, Policy, PolicyBuilder,
    PolicyLimiter, Secret, Server, Store, WhenFull,
};

use super::config;

/// The example of the documentation.
const EXAMPLE: &str = r#"
[server]
http = "127.0.0.1:8080"            # or "unix:/run/tidegate.sock", or a list of both
admin_token = "env:TIDEGATE_ADMIN_TOKEN"
gate_headers = ["ip"]

[stores.default]
url = "memory:"
prefix = "tg"
timeout = "50ms"
connections = 2
replica_acks = 0
max_keys = 1000000
when_full = "evict"

[[policies]]
name = "login"
key = "{ip}"
limit = "100r/s"
burst = 20
strict = false
align = "first"
algorithm = "token_bucket"
mode = "exact"
sync_interval = "50ms"
refusal_memory = "1s"
on_error = "allow"
local_share = 1.0
count_denied = false
shadow = false
enabled = true
block = false
headers = "ietf"
store = "default"
[[policies.overrides]]
match = { ip = "10.1.2.3" }
limit = "1000r/s"

[[policies]]
name = "api"
tag = "{resource}"
[[policies.levels]]
name = "resource"
key = "{resource}"
limit = "5/10s"
algorithm = "sliding_log"
[[policies.levels]]
name = "consumer"
key = "{resource}:{consumer}"
limit = "3/10s"
algorithm = "sliding_log"
"#;

fn built(builder: PolicyBuilder) -> Policy {
    builder.build().expect("a policy that is right")
}

fn ten_seconds(requests: u32) -> Limit {
    Limit::per(requests, Duration::from_secs(10)).sliding_log()
}

#[test]
fn the_example_means_what_it_says() {
    let login = Policy::builder("login")
        .key("{ip}")
        .limit(Limit::per_second(100).burst(20))
        .overrides(Override::of("ip", "10.1.2.3").limit(Limit::per_second(1000).burst(20)));
    let api = Policy::builder("api")
        .level("resource", "{resource}", ten_seconds(5))
        .level("consumer", "{resource}:{consumer}", ten_seconds(3))
        .tag("{resource}");
    let expected = Config {
        server: Server {
            admin_token: Some(Secret::Env("TIDEGATE_ADMIN_TOKEN".into())),
            gate_headers: vec!["ip".into()],
            ..Server::default()
        },
        policies: vec![built(login), built(api)],
        ..Config::default()
    };
    let config = config(EXAMPLE);
    assert_eq!(config, expected);
    assert_eq!(config.to_string().parse(), Ok(expected));
    assert!(config.warnings().is_empty());
    assert!(PolicyLimiter::from_config(&config).is_ok());
}

#[test]
fn a_file_without_policies_has_the_default_policy() {
    for text in [
        "",
        "\n",
        "# nothing\n",
        "[server]\n",
        "[stores]\n",
        "\u{feff}",
    ] {
        assert_eq!(config(text), Config::default(), "{text:?}");
    }
    let config = Config::default();
    let default = Policy::builder("default").limit(Limit::per_second(10));
    assert_eq!(config.policies, [built(default)]);
    assert_eq!(config.to_string().parse(), Ok(config.clone()));
    assert_eq!(config.stores["default"], Store::default());
}

#[test]
fn every_field_of_a_policy_has_its_meaning() {
    let limit = Limit::per_second(10);
    let minute = Limit::per_minute(10);
    let policy = || Policy::builder("p").limit(limit);
    let local = || policy().on_error(OnError::Local);
    for (fields, expected) in [
        ("key = \"{a} and {b}\"", policy().key("{a} and {b}")),
        ("key = \"\"", policy().key("")),
        (
            "key = \"{key}\"\ntag = \"{key}\"",
            policy().tag("{key}").key("{key}"),
        ),
        ("burst = 20", policy().limit(limit.burst(20))),
        ("burst = 0x14", policy().limit(limit.burst(20))),
        ("burst = 1_000", policy().limit(limit.burst(1000))),
        (
            "burst = +3\nstrict = true",
            policy().limit(limit.burst(3).strict()),
        ),
        (
            "algorithm = \"fixed_window\"",
            policy().limit(limit.fixed_window()),
        ),
        (
            "algorithm = \"fixed_window\"\nalign = \"epoch\"",
            policy().limit(limit.fixed_window().align(Align::Epoch)),
        ),
        (
            "algorithm = \"sliding_window\"",
            policy().limit(limit.sliding_window()),
        ),
        (
            "algorithm = \"sliding_log\"",
            policy().limit(limit.sliding_log()),
        ),
        ("block = true", policy().block(true)),
        (
            "refusal_memory = \"0s\"",
            policy().refusal_memory(Duration::ZERO),
        ),
        (
            "refusal_memory = \"1500us\"",
            policy().refusal_memory(Duration::from_micros(1500)),
        ),
        ("on_error = \"deny\"", policy().on_error(OnError::Deny)),
        ("on_error = \"local\"", local()),
        (
            "on_error = \"local\"\nlocal_share = 0.25",
            local().local_share(0.25),
        ),
        ("on_error = \"local\"\nlocal_share = 1", local()),
        ("count_denied = true", policy().count_denied(true)),
        ("shadow = true", policy().shadow(true)),
        ("enabled = false", policy().enabled(false)),
        (
            "headers = \"x-ratelimit\"",
            policy().headers(Dialect::XRateLimit),
        ),
        ("headers = \"draft-06\"", policy().headers(Dialect::Draft06)),
        ("headers = \"none\"", policy().headers(Dialect::None)),
        (
            "headers = [\"x-l\", \"x-reset\", \"x-left\"]",
            policy().headers(Dialect::Custom(["x-l", "x-reset", "x-left"].map(Box::from))),
        ),
        ("store = \"other\"", policy().store("other")),
        (
            "[[policies.overrides]]\nmatch = { key = \"a\" }\nblock = true",
            policy().overrides(Override::of("key", "a").block()),
        ),
        (
            "[[policies.overrides]]\nmatch = { key = \"a\" }\nenabled = false",
            policy().overrides(Override::of("key", "a").exempt()),
        ),
        (
            "[[policies.overrides]]\nmatch.key = \"a\"\nlevel = \"p\"\nlimit = \"10r/m\"",
            policy().overrides(Override::of("key", "a").level("p").limit(minute)),
        ),
        // What an override does not say stays, but for what belongs to another algorithm.
        (
            "burst = 20\n[[policies.overrides]]\nmatch.key = \"a\"\nlimit = \"10r/m\"",
            policy()
                .limit(limit.burst(20))
                .overrides(Override::of("key", "a").limit(minute.burst(20))),
        ),
        (
            "burst = 20\n[[policies.overrides]]\nmatch.key = \"a\"\nalgorithm = \"token_bucket\"",
            policy()
                .limit(limit.burst(20))
                .overrides(Override::of("key", "a").limit(limit.burst(20))),
        ),
        (
            "burst = 20\n[[policies.overrides]]\nmatch.key = \"a\"\nalgorithm = \"sliding_log\"",
            policy()
                .limit(limit.burst(20))
                .overrides(Override::of("key", "a").limit(limit.sliding_log())),
        ),
    ] {
        let text =
            format!("[stores.other]\n[[policies]]\nname = \"p\"\nlimit = \"10r/s\"\n{fields}\n");
        let config = config(&text);
        assert_eq!(config.policies, [built(expected)], "{fields}");
        assert_eq!(config.to_string().parse(), Ok(config), "{fields}");
    }
}

#[test]
fn every_field_of_the_sections_has_its_meaning() {
    let tcp = |text: &str| Address::Tcp(text.into());
    for (fields, expected) in [
        ("http = \"[::1]:0\"", vec![tcp("[::1]:0")]),
        (
            "http = [\"localhost:80\", \"unix:/run/tidegate.sock\"]",
            vec![
                tcp("localhost:80"),
                Address::Unix("/run/tidegate.sock".into()),
            ],
        ),
    ] {
        let config = config(&format!("[server]\n{fields}"));
        assert_eq!(config.server.http, expected, "{fields}");
        assert_eq!(config.to_string().parse(), Ok(config), "{fields}");
    }
    let server = config("[server]\nadmin_token = \"s3cret\"").server;
    assert_eq!(server.admin_token, Some(Secret::Text("s3cret".into())));
    let config = config("[stores.a]\nmax_keys = 5\n[stores.b]\nwhen_full = \"deny\"");
    assert_eq!(config.stores.len(), 3);
    assert_eq!(config.stores["default"], Store::default());
    assert_eq!(config.stores["a"].max_keys, 5);
    assert_eq!(config.stores["b"].when_full, WhenFull::Deny);
}

#[test]
fn a_file_may_be_written_in_several_ways() {
    let expected = config(EXAMPLE);
    let same: [(&str, String); 4] = [
        ("line ends of Windows", EXAMPLE.replace('\n', "\r\n")),
        ("a byte-order mark", format!("\u{feff}{EXAMPLE}")),
        ("both", format!("\u{feff}{}", EXAMPLE.replace('\n', "\r\n"))),
        (
            "dotted keys and inline tables",
            r#"
            server.admin_token = "env:TIDEGATE_ADMIN_TOKEN"
            server.gate_headers = ["ip"]
            stores = { default = { url = "memory:" } }
            policies = [
                { name = "login", key = "{ip}", limit = "100r/s", burst = 20, overrides = [
                    { match.ip = "10.1.2.3", limit = "1000r/s" },
                ] },
                { name = "api", tag = "{resource}", levels = [
                    { name = "resource", key = "{resource}", limit = "5/10s", algorithm = "sliding_log" },
                    { name = "consumer", key = "{resource}:{consumer}", limit = "3/10s", algorithm = "sliding_log" },
                ] },
            ]
            "#
            .into(),
        ),
    ];
    for (what, text) in same {
        assert_eq!(config(&text), expected, "{what}");
    }
}

#[test]
fn line_ends_and_a_byte_order_mark_do_not_move_an_error() {
    for text in [
        "# größer: 日本語\n[[policies]]\nname = \"é\" # naïve\nlimit = 1",
        "\u{feff}# größer: 日本語\n[[policies]]\nname = \"é\" # naïve\nlimit = 1",
        "# größer: 日本語\r\n[[policies]]\r\nname = \"é\" # naïve\r\nlimit = 1\r\n",
    ] {
        let errors = Config::parse(text, "dir/my.toml").unwrap_err().to_string();
        assert_eq!(
            errors,
            "dir/my.toml:3:8: policies[0].name: \"é\": expected 1 to 64 of the characters A-Z a-z 0-9 _ -\n\
             dir/my.toml:4:9: policies[0].limit: 1: expected a rate in quotes, such as \"100r/s\" or \"5/10s\""
        );
    }
    // On the first line, too, a mark is no column.
    let errors = "\u{feff}colour = 1".parse::<Config>().unwrap_err();
    assert_eq!(errors.as_slice()[0].column(), 1);
}

#[test]
fn what_looks_like_a_mistake_is_told() {
    let config = config(
        r#"
        policies = [
            { name = "one", limit = "1r/s", key = "ip" },
            { name = "all", limit = "1r/s", key = "" },
            { name = "two", levels = [
                { name = "a", key = "{ip}", limit = "1r/s" },
                { name = "b", key = "all", limit = "1r/s" },
            ] },
        ]
        "#,
    );
    let shared = "has no attribute in braces, so all requests share one counter";
    assert_eq!(
        config.warnings(),
        [
            format!("policy \"one\", level \"one\": the key \"ip\" {shared}"),
            format!("policy \"two\", level \"b\": the key \"all\" {shared}"),
        ]
    );
}

#[test]
fn a_limiter_decides_by_what_was_read() {
    let config = config(
        r#"
        [[policies]]
        name = "login"
        key = "{ip}"
        limit = "2r/h"
        [[policies.overrides]]
        match = { ip = "blocked" }
        block = true
        [[policies.overrides]]
        match = { ip = "exempt" }
        enabled = false
        "#,
    );
    let limiter = PolicyLimiter::from_config(&config).unwrap();
    for (ip, admitted) in [("anyone", 2), ("blocked", 0), ("exempt", 9)] {
        let allowed = |_: &i32| {
            let decision = limiter.check("login", &[("ip", ip)], Cost::ONE);
            decision.expect("a policy that is there").allowed()
        };
        assert_eq!((0..9).filter(allowed).count(), admitted, "{ip}");
    }
}
