//! Files and what they mean: `right.txt` has each with the config that is printed for it,
//! `wrong.txt` each with the lines it is refused with. What is not a matter of one text follows.

use std::time::Duration;

use tidegate::{
    CustomScript, Limit, Mode, OnError, Policies, PoliciesError, Policy, PolicyBuilder,
};
use tidegate_config::{Config, ConfigErrors, RedisUrl, StoreConfig, StoreUrl};
use tidegate_testkit::cases;

/// The secret in texts that have one. No message and nothing that is printed repeats it.
const SECRET: &str = "hunter2";

/// Where errors are, and in which fields.
fn places(errors: ConfigErrors) -> Vec<(usize, usize, String)> {
    let errors = errors.as_slice().iter();
    let places = errors.map(|error| (error.line, error.column, error.field.clone()));
    places.collect()
}

/// What a file means, or what is wrong with it. Other line ends and a byte-order mark change
/// neither its meaning nor the places of errors. What is printed reads back, but for passwords.
fn answer(text: &str) -> String {
    let read = text.parse::<Config>();
    for same in [text.replace('\n', "\r\n"), format!("\u{feff}{text}")] {
        let same_read = same.parse().map_err(places);
        assert_eq!(same_read, read.clone().map_err(places), "{same:?}");
    }
    let (answer, inside) = match &read {
        Ok(config) => {
            let printed = config.to_string();
            let has_password = printed.contains("***@") || printed.contains("SET_ME");
            let again = printed.parse();
            assert!(again == read || has_password && again.is_ok(), "{printed}");
            let warnings = config.warnings().into_iter();
            let warnings: String = warnings.map(|line| format!("! {line}\n")).collect();
            (printed + &warnings, format!("{config:?}{config:#}"))
        }
        Err(errors) => (errors.to_string(), format!("{errors:?}")),
    };
    assert!(!(answer.clone() + &inside).contains(SECRET), "{inside}");
    answer.trim_end().to_owned()
}

#[test]
fn right_files_mean_what_they_say() {
    cases::check(include_str!("right.txt"), 55, answer);
}

#[test]
fn every_mistake_of_a_file_is_reported_with_its_place() {
    cases::check(include_str!("wrong.txt"), 235, answer);
}

/// The addresses in a URL, and the URL of the first server there: of a sentinel without a login.
#[test]
fn urls_name_their_servers() {
    for (url, addresses, server, sentinel) in [
        ("redis://h:1/2", "h:1", "redis://h:1/2", "redis://h:1"),
        (
            "redis-cluster://h1:1,[::1],h2",
            "h1:1 [::1]:6379 h2:6379",
            "redis://h1:1",
            "redis://h1:1",
        ),
        (
            "rediss-cluster://u:p%40@h1:1",
            "h1:1",
            "rediss://u:p%40@h1:1",
            "rediss://h1:1",
        ),
        (
            "redis-sentinel://:p@h1,h2:5/main/3",
            "h1:26379 h2:5",
            "redis://:p@h1:26379/3",
            "redis://h1:26379",
        ),
    ] {
        let parsed: RedisUrl = url.parse().expect(url);
        let all = parsed.addresses();
        assert_eq!(all.join(" "), addresses, "{url}");
        assert_eq!(parsed.server(&all[0]), server, "{url}");
        assert_eq!(parsed.sentinel(&all[0], false), sentinel, "{url}");
    }
    let url: RedisUrl = "redis-sentinel://:p@h1/main/3".parse().expect("a URL");
    assert_eq!(url.sentinel("h1:1", true), "redis://:p@h1:1");
}

#[test]
fn errors_name_the_file() {
    let error = Config::parse("\u{feff}colour = 1", "dir/my.toml").unwrap_err();
    assert!(error.to_string().starts_with("dir/my.toml:1:1: colour: "));
}

/// The config of a text that is right.
fn config(text: &str) -> Config {
    text.parse()
        .unwrap_or_else(|errors| panic!("{errors}\nin:\n{text}"))
}

/// Fields of limits are used by the cases of tidegate's `suite.txt`.
#[test]
fn fields_of_stores_and_modes_mean_what_the_builder_says() {
    let redis = StoreConfig {
        url: StoreUrl::Redis("rediss://127.0.0.1:6379/0".parse().unwrap()),
        tls_ca: Some("ca.pem".into()),
        tls_cert: Some("own.pem".into()),
        tls_key: Some("own.key".into()),
        prefix: "shop:tg".into(),
        timeout: Duration::from_millis(10),
        connections: 8,
        replica_acks: 1,
        ..StoreConfig::default()
    };
    let exact = Policy::builder("exact")
        .limit(Limit::per_second(10))
        .refusal_memory(Duration::from_micros(1500))
        .on_error(OnError::Local)
        .local_share(0.25);
    let background = Policy::builder("background")
        .limit(Limit::per_second(10))
        .mode(Mode::Background)
        .sync_interval(Duration::from_millis(20))
        .trial_of("exact");
    let lease = Policy::builder("lease")
        .limit(Limit::per_second(10))
        .mode(Mode::Lease)
        .on_error(OnError::Allow);
    let script = Policy::builder("script")
        .script(CustomScript::file("mine.lua").args(["10", "a"]))
        .on_error(OnError::Deny);
    let policies = [exact, background, lease, script];
    let expected = Config {
        stores: [("default".into(), redis)].into(),
        policies: policies.map(built).into(),
    };
    assert_eq!(config(include_str!("modes.toml")), expected);
    assert!(expected.policies[1].shadow(), "a trial only watches");
}

fn built(builder: PolicyBuilder) -> Policy {
    builder.build().expect("a policy that is right")
}

#[test]
fn a_limiter_in_memory_refuses_what_needs_redis() {
    let mixed = "stores.shared.url = 'env:REDIS_URL'
        policies = [{ name = 'here', limit = '1r/s' }, { name = 'there', limit = '1r/s', store = 'shared' }]";
    let here = config(&mixed.replace(", store = 'shared'", ""));
    let limiter = here.limiter().expect("a store nobody uses");
    let mixed = config(mixed);
    for refused in [mixed.limiter(), mixed.limiter_after(&limiter)] {
        let Err(PoliciesError::NotInMemory(policy)) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(policy, "there");
    }
    // A script runs nowhere but in Redis, and lets nothing through elsewhere.
    let script = built(Policy::builder("p").script(CustomScript::text("return {'allow'}")));
    assert_eq!(*script.levels()[0].limit(), Limit::block());
    let limiter = Policies::in_memory([script]);
    assert!(matches!(limiter, Err(PoliciesError::NotInMemory(_))));
}
