//! Random configs, as odd as they can be and still be right.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use tidegate::{CustomScript, Dialect, Limit, OnError, Override, Policy, PolicyBuilder, WhenFull};
use tidegate_config::{Config, StoreConfig, StoreUrl};

use tidegate_testkit::cases::controls;
use tidegate_testkit::limits;

const STORES: [&str; 4] = ["default", "other", "url", "1-_"];
/// Names of levels; one is the name of a policy.
const LEVELS: [&str; 4] = ["resource", "overrides", "c", "login"];

pub(super) fn configs() -> impl Strategy<Value = Config> {
    let names = subsequence(vec!["login", "levels", "X-_9"], 0..=3);
    let policies = names.prop_flat_map(|names| names.into_iter().map(policy).collect::<Vec<_>>());
    let shared = in_redis();
    let parts = (stores(), shared, policies);
    parts.prop_map(|(mut stores, shared, policies)| {
        for name in ["default"]
            .into_iter()
            .chain(policies.iter().map(Policy::store))
        {
            stores.entry(name.into()).or_default();
        }
        // Scripts run in Redis only.
        for policy in policies.iter().filter(|policy| policy.script().is_some()) {
            let store = stores.entry(policy.store().into()).or_default();
            if store.url == StoreUrl::Memory {
                *store = shared.clone();
            }
        }
        Config { stores, policies }
    })
}

/// Pieces of a file, and texts that are hard to write down.
pub(super) fn pieces() -> impl Strategy<Value = String> {
    const INVISIBLE: [&str; 7] = [
        "",
        "\u{7f}",
        "\u{85}",
        "\u{feff}",
        "\u{202e}",
        "\u{2028}",
        "\u{10ffff}",
    ];
    let visible = include_str!("pieces.txt").lines();
    let pieces: Vec<&str> = visible.chain(INVISIBLE).collect();
    select(pieces).prop_map(controls)
}

fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        pieces(),
        any::<String>(),
        (pieces(), pieces()).prop_map(|(a, b)| a + &b),
    ]
}

fn stores() -> impl Strategy<Value = BTreeMap<String, StoreConfig>> {
    let name = select(&STORES[..]).prop_map(String::from);
    let store = prop_oneof![in_memory(), in_redis()];
    prop::collection::btree_map(name, store, 0..4)
}

fn in_memory() -> impl Strategy<Value = StoreConfig> {
    let max_keys = prop_oneof![Just(1_000_000), 1..=1_000_000_000_usize];
    let when_full = select(vec![WhenFull::Deny, WhenFull::Evict]);
    (max_keys, when_full).prop_map(|(max_keys, when_full)| StoreConfig {
        max_keys,
        when_full,
        ..StoreConfig::default()
    })
}

/// Stores without a password, which would not be printed.
fn in_redis() -> impl Strategy<Value = StoreConfig> {
    const PLACES: &[&str] = &["h", "127.0.0.1:6379", "[::1]:1/0", "a-b.c_d/15", "h/"];
    let at = |scheme: &'static str| {
        select(PLACES).prop_map(move |place| format!("{scheme}{place}").parse().expect(place))
    };
    let variable = full_texts().prop_map(StoreUrl::Env);
    let url = prop_oneof![at("redis://"), at("rediss://"), variable];
    let own = prop::option::of((full_texts(), full_texts()));
    let files = (prop::option::of(full_texts()), own);
    let prefix = prop_oneof![Just("tg".to_owned()), "[A-Za-z0-9._:-]{1,64}"];
    let timeout_us = prop_oneof![Just(50_000), 1_000..=60_000_000_u64];
    let connections = prop_oneof![Just(2), 1..=1024_u32];
    (url, files, prefix, timeout_us, connections).prop_map(
        |(url, (tls_ca, own), prefix, timeout_us, connections)| {
            let is_plain = url.to_string().starts_with("redis://");
            let (tls_cert, tls_key) = own.filter(|_| !is_plain).unzip();
            StoreConfig {
                url,
                tls_ca: tls_ca.filter(|_| !is_plain),
                tls_cert,
                tls_key,
                prefix,
                timeout: Duration::from_micros(timeout_us),
                connections,
                ..StoreConfig::default()
            }
        },
    )
}

/// Texts that are not empty.
fn full_texts() -> impl Strategy<Value = String> {
    texts().prop_filter("a text", |text| !text.is_empty())
}

fn policy(name: &'static str) -> impl Strategy<Value = Policy> {
    prop_oneof![4 => limited(name), 1 => scripted(name)]
}

fn scripted(name: &'static str) -> impl Strategy<Value = Policy> {
    let arguments = prop::collection::vec(texts(), 0..5);
    let script = (full_texts(), arguments)
        .prop_map(|(path, arguments)| CustomScript::file(path).args(arguments));
    let keys = prop::collection::vec(keys(), 1..=3);
    let on_error = select(vec![OnError::Allow, OnError::Deny]);
    (script, keys, any::<bool>(), settings(name), on_error).prop_map(
        move |(script, keys, short, builder, on_error)| {
            let builder = builder.count_denied(false).on_error(on_error);
            let mut builder = builder.local_share(1.0).script(script);
            match &keys[..] {
                [key] if short => builder = builder.key(key),
                keys => {
                    for (name, key) in LEVELS.into_iter().zip(keys) {
                        builder = builder.script_key(name, key);
                    }
                }
            }
            builder.build().expect("a policy that is right")
        },
    )
}

fn limited(name: &'static str) -> impl Strategy<Value = Policy> {
    let levels = prop::collection::vec((keys(), any_limit()), 1..=4);
    let overrides = prop::collection::vec(overrides(), 0..5);
    let tag = prop::option::of(texts());
    (levels, overrides, any::<bool>(), tag, settings(name)).prop_filter_map(
        "a policy that is right",
        move |(levels, overrides, short, tag, mut builder)| {
            match &levels[..] {
                [(key, limit)] if short => builder = builder.key(key).limit(*limit),
                levels => {
                    for (name, (key, limit)) in LEVELS.into_iter().zip(levels) {
                        builder = builder.level(name, key, *limit);
                    }
                }
            }
            // Every key has the attribute `a`.
            if let Some(text) = tag {
                builder = builder.tag(format!("{}{{a}}", plain(&text)));
            }
            let overrides = overrides.into_iter();
            overrides
                .fold(builder, PolicyBuilder::overrides)
                .build()
                .ok()
        },
    )
}

/// A text without braces, which would mean something.
fn plain(text: &str) -> String {
    text.replace(['{', '}'], "")
}

/// Some attributes, in any order, with odd texts between them.
fn keys() -> impl Strategy<Value = String> {
    let names = subsequence(vec!["b", "key", "user-id", "C_3"], 0..=4);
    let between = prop::collection::vec(texts(), 6);
    (names.prop_shuffle(), between, 0..5_usize).prop_map(|(mut names, between, at)| {
        names.insert(at.min(names.len()), "a");
        let parts = names.iter().zip(&between);
        let parts = parts.map(|(name, text)| format!("{}{{{name}}}", plain(text)));
        parts.chain([plain(&between[5])]).collect()
    })
}

fn any_limit() -> impl Strategy<Value = Limit> {
    prop_oneof![9 => limits::any(), 1 => Just(Limit::block())]
}

fn overrides() -> impl Strategy<Value = Override> {
    let others = prop::collection::btree_map(select(vec!["b", "key"]), texts(), 0..=2);
    let level = prop::option::weighted(0.2, select(vec!["resource", "overrides", "login"]));
    let limit = prop::option::weighted(0.8, any_limit());
    (texts(), others, level, limit).prop_map(|(value, others, level, limit)| {
        let mut change = Override::of("a", value);
        for (name, value) in others {
            change = change.and(name, value);
        }
        if let Some(level) = level {
            change = change.level(level);
        }
        match limit {
            Some(limit) => change.limit(limit),
            None => change.exempt(),
        }
    })
}

/// A policy with everything that is not a limit.
fn settings(name: &'static str) -> impl Strategy<Value = PolicyBuilder> {
    let on_error = prop_oneof![
        Just((OnError::Allow, 1.0)),
        Just((OnError::Deny, 1.0)),
        (f64::MIN_POSITIVE..=1.0).prop_map(|share| (OnError::Local, share)),
        Just((OnError::Local, f64::from_bits(1))),
    ];
    let memory_us = prop_oneof![select(vec![0, 1_000_000]), 0..=60_000_000_u64];
    let names = ["a", "!#$%&'*+-.^_`|~", "x-left"].map(Box::from);
    let headers = select(vec![
        Dialect::Ietf,
        Dialect::XRateLimit,
        Dialect::Draft06,
        Dialect::None,
        Dialect::Custom(names),
    ]);
    let flags = any::<[bool; 3]>();
    (on_error, memory_us, flags, headers, select(&STORES[..])).prop_map(
        move |((on_error, share), memory_us, [count_denied, shadow, enabled], headers, store)| {
            Policy::builder(name)
                .on_error(on_error)
                .local_share(share)
                .refusal_memory(Duration::from_micros(memory_us))
                .count_denied(count_denied)
                .shadow(shadow)
                .enabled(enabled)
                .headers(headers)
                .store(store)
        },
    )
}
