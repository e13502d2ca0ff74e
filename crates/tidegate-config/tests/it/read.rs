//! Files that are right: what they mean, in the words of the builder.

use std::time::Duration;

use tidegate::{
    Align, Cost, CustomScript, Dialect, Limit, OnError, Override, PoliciesError, Policy,
    PolicyBuilder, PolicyLimiter, WhenFull,
};
use tidegate_config::{Config, Store, StoreUrl};

use super::config;

/// The example of the documentation, with every field.
const EXAMPLE: &str = r#"
[server]
http = "127.0.0.1:8080"            # or "unix:/run/tidegate.sock", or a list of both
admin_token = "env:TIDEGATE_ADMIN_TOKEN"   # needed by anything that changes state over HTTP; without it those answer 403
gate_headers = ["ip"]              # attributes the gate may also read from X-Tidegate-<Name> headers; default none

[stores.default]                   # absent: url = "memory:"
url = "redis://127.0.0.1:6379/0"   # memory: | redis:// | rediss:// | redis-cluster://h1:p1,h2:p2 | redis-sentinel://h1:p1,h2:p2/master-name
prefix = "tg"
timeout = "50ms"                   # the deadline of a check, retries included
connections = 2
replica_acks = 0
max_keys = 1000000                 # memory: only
when_full = "evict"                # memory: only: evict | deny

[[policies]]
name = "login"
key = "{ip}"                       # a template over the check's attributes; "{key}" when absent
limit = "100r/s"                   # 100r/s 100r/m 100r/h 100r/d, or 5/10s, 1000/1h, 3/500ms
burst = 20                         # token_bucket
strict = false                     # token_bucket: never more than the limit in any window
align = "first"                    # fixed_window: first | epoch
algorithm = "token_bucket"         # token_bucket (default) | fixed_window | sliding_window | sliding_log | script
mode = "exact"                     # exact | lease | background
sync_interval = "50ms"             # background
refusal_memory = "1s"              # exact; "0s" turns it off
on_error = "local"                 # local | allow | deny
local_share = 1.0
count_denied = false
shadow = false                     # true: always allowed, but measured, counted and logged as it would have been
enabled = true
block = false
headers = "ietf"                   # ietf | x-ratelimit | draft-06 | none, or a list of your own three names (limit, reset, remaining)
store = "default"
[[policies.overrides]]             # of the policy above: other numbers for some keys
match = { ip = "10.1.2.3" }
limit = "1000r/s"

[[policies]]
name = "api"
tag = "{resource}"                 # only attributes that every level has; this is also the default here
[[policies.levels]]                # instead of key/limit above: several levels, all charged or none
name = "resource"
key = "{resource}"
limit = "5/10s"
algorithm = "sliding_log"
[[policies.levels]]
name = "consumer"
key = "{resource}:{consumer}"
limit = "3/10s"
algorithm = "sliding_log"

[[policies]]
name = "custom"
algorithm = "script"
script = "scripts/mine.lua"        # relative to this file
args = [10, 60]
headers = ["x-ratelimit-limit", "x-ratelimit-reset", "x-ratelimit-remaining"]
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
    let names = [
        "x-ratelimit-limit",
        "x-ratelimit-reset",
        "x-ratelimit-remaining",
    ];
    let custom = Policy::builder("custom")
        .script(CustomScript::file("scripts/mine.lua").args(["10", "60"]))
        .headers(Dialect::Custom(names.map(Box::from)));
    let store = Store {
        url: redis("redis://127.0.0.1:6379/0"),
        ..Store::default()
    };
    let expected = Config {
        stores: [("default".into(), store)].into(),
        policies: vec![built(login), built(api), built(custom)],
    };
    let config = config(EXAMPLE);
    assert_eq!(config, expected);
    assert_eq!(config.to_string().parse(), Ok(expected));
    assert!(config.warnings().is_empty());
}

fn redis(url: &str) -> StoreUrl {
    StoreUrl::Redis(url.parse().expect(url))
}

#[test]
fn a_limiter_in_memory_refuses_what_needs_redis() {
    let refused = |config: &Config| match config.limiter() {
        Err(PoliciesError::NotInMemory(policy)) => policy,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&config(EXAMPLE)), "login");
    let mixed = r#"
        [stores.shared]
        url = "env:REDIS_URL"
        [[policies]]
        name = "here"
        limit = "1r/s"
        [[policies]]
        name = "there"
        limit = "1r/s"
        store = "shared"
    "#;
    assert_eq!(refused(&config(mixed)), "there");
    let here = config(&mixed.replace("store = \"shared\"", ""));
    let limiter = here.limiter().expect("a store nobody uses");
    assert!(matches!(
        config(mixed).limiter_after(&limiter),
        Err(PoliciesError::NotInMemory(_))
    ));
    // A script runs nowhere but in Redis, and lets nothing through elsewhere.
    let script = built(Policy::builder("p").script(CustomScript::text("return {'allow'}")));
    assert_eq!(*script.levels()[0].limit(), Limit::block());
    let limiter = PolicyLimiter::in_memory([script]);
    assert!(matches!(limiter, Err(PoliciesError::NotInMemory(_))));
}

#[test]
fn where_stores_can_be() {
    for url in [
        "redis://127.0.0.1",
        "redis://127.0.0.1/",
        "redis://localhost:6379/15",
        "rediss://redis_1.example-host.com:6380",
        "redis://[::1]",
        "redis://[2001:db8::7]:6379/1",
        "redis://:password@host",
        "redis://user:password@host:1/0",
        "redis://user@host",
        "redis://user:p%2Fss@word@host:65535",
    ] {
        let config = config(&format!("[stores.default]\nurl = \"{url}\""));
        assert_eq!(config.stores["default"].url, redis(url));
        assert!(config.stores["default"].in_memory().is_none());
    }
    let config = config(
        r#"
        [stores.default]
        url = "env:REDIS_URL"
        tls_ca = "ca.pem"
        tls_cert = "own.pem"
        tls_key = "own.key"
        prefix = "shop:tg"
        timeout = "10ms"
        connections = 8
        [stores.here]
        url = "memory:"
        "#,
    );
    let expected = Store {
        url: StoreUrl::Env("REDIS_URL".into()),
        tls_ca: Some("ca.pem".into()),
        tls_cert: Some("own.pem".into()),
        tls_key: Some("own.key".into()),
        prefix: "shop:tg".into(),
        timeout: Duration::from_millis(10),
        connections: 8,
        ..Store::default()
    };
    assert_eq!(config.stores["default"], expected);
    assert_eq!(config.stores["here"], Store::default());
    assert_eq!(config.to_string().parse(), Ok(config));
}

#[test]
fn scripts_have_their_arguments_as_text() {
    let config = config(
        r#"
        [stores.default]
        url = "redis://127.0.0.1"
        [[policies]]
        name = "custom"
        algorithm = "script"
        script = "/etc/mine.lua"
        args = [10, -1, 1_000, 0.5, true, "text", "", "é\n"]
        shadow = true
        on_error = "deny"
        [[policies.levels]]
        name = "user"
        key = "{tenant}/{user}"
        [[policies.levels]]
        name = "tenant"
        key = "{tenant}"
        "#,
    );
    let args = ["10", "-1", "1000", "0.5", "true", "text", "", "é\n"];
    let expected = Policy::builder("custom")
        .script(CustomScript::file("/etc/mine.lua").args(args))
        .script_key("user", "{tenant}/{user}")
        .script_key("tenant", "{tenant}")
        .shadow(true)
        .on_error(OnError::Deny);
    assert_eq!(config.policies, [built(expected)]);
    assert_eq!(config.policies[0].tag().collect::<Vec<_>>(), ["tenant"]);
    assert_eq!(config.to_string().parse(), Ok(config));
}

#[test]
fn scripts_in_code_are_checked_like_those_of_a_file() {
    let builder = Policy::builder("p")
        .script(CustomScript::text("").args(["1"; 65]))
        .script_key("a", "{a}")
        .level("b", "{b}", Limit::block());
    assert_eq!(
        builder.build().unwrap_err().to_string(),
        "policy \"p\": script: \"\": expected the text of a script; \
         args: 65 of them: expected at most 64; \
         levels[1].block: cannot be combined with a script: expected none"
    );
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
        ("on_error = \"allow\"", policy().on_error(OnError::Allow)),
        ("on_error = \"local\"", policy()),
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
fn trial_reads_back_and_only_watches() {
    let policy = |name: &str| Policy::builder(name).limit(Limit::per_second(10));
    let config = config(
        "[[policies]]\nname = \"next\"\nlimit = \"10r/s\"\ntrial_of = \"p\"\n\
         [[policies]]\nname = \"p\"\nlimit = \"10r/s\"\n",
    );
    let expected = [built(policy("next").trial_of("p")), built(policy("p"))];
    assert_eq!(config.policies, expected);
    assert_eq!(config.policies[0].trial_of(), Some("p"));
    assert!(config.policies[0].shadow());
    assert_eq!(config.to_string().parse(), Ok(config));
}

#[test]
fn every_field_of_a_store_has_its_meaning() {
    let config = config("[stores.a]\nmax_keys = 5\n[stores.b]\nwhen_full = \"deny\"");
    assert_eq!(config.stores.len(), 3);
    assert_eq!(config.stores["default"], Store::default());
    assert_eq!(config.stores["a"].max_keys, 5);
    assert_eq!(config.stores["b"].when_full, WhenFull::Deny);
}

#[test]
fn the_section_of_the_server_is_left_to_the_server() {
    let policies = "[[policies]]\nname = \"p\"\nlimit = \"1r/s\"\n";
    let expected = config(policies);
    let server = "[server]\nhttp = 1\ncolour = \"blue\"\n";
    assert_eq!(config(&format!("{server}{policies}")), expected);
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
            stores = { default = { url = "redis://127.0.0.1:6379/0" } }
            policies = [
                { name = "login", key = "{ip}", limit = "100r/s", burst = 20, overrides = [
                    { match.ip = "10.1.2.3", limit = "1000r/s" },
                ] },
                { name = "api", tag = "{resource}", levels = [
                    { name = "resource", key = "{resource}", limit = "5/10s", algorithm = "sliding_log" },
                    { name = "consumer", key = "{resource}:{consumer}", limit = "3/10s", algorithm = "sliding_log" },
                ] },
                { name = "custom", algorithm = "script", script = "scripts/mine.lua", args = ["10", 60], headers = [
                    "x-ratelimit-limit", "x-ratelimit-reset", "x-ratelimit-remaining"
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
fn likely_mistakes_are_warned_about() {
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
    let limiter = config.limiter().unwrap();
    for (ip, admitted) in [("anyone", 2), ("blocked", 0), ("exempt", 9)] {
        let allowed = |_: &i32| {
            let decision = limiter.check("login", &[("ip", ip)], Cost::ONE);
            decision.expect("a policy that is there").allowed()
        };
        assert_eq!((0..9).filter(allowed).count(), admitted, "{ip}");
    }
}
