//! What is secret in a file is in no message and in nothing that is printed.

use tidegate_config::Config;

/// The secret of every file here.
const SECRET: &str = "hunter2";

#[test]
fn no_error_repeats_a_secret() {
    for text in [
        "[server]\nadmin_token = \"hunter2",
        "[server]\nadmin_token = hunter2",
        "[server]\nadmin_token = \"hunter2\"\nadmin_token = \"hunter2\"",
        "[stores.default]\nurl = \"redis://:hunter2@127.0.0.1:6379/zero\"",
        "[stores.default]\nurl = \"rediss://user:hunter2@:6379/0\"",
        "[stores.default]\nurl = \"redis://user:hunter2/@127.0.0.1\"",
        "[stores.default]\nurl = \"redis://user:hunter2#@127.0.0.1\"",
        "[stores.default]\nurl = \"redis://user@hunter2@\"",
        "[stores.default]\nurl = \"redis://127.0.0.1/0?password=hunter2\"",
        "[stores.default]\nurl = \"redis://:hunter2@127.0.0.1\"\nmax_keys = 5\nreplica_acks = 1",
        "[stores.default]\nurl = \"redis://:hunter2@127.0.0.1\"\ntls_ca = \"ca.pem\"",
        "[stores.default]\nurl = \"redis://:hunter2@127.0.0.1\"\nurl = \"redis://:hunter2@127.0.0.1\"",
        "[stores.default]\nurl = \"redis://:hunter2@127.0.0.1",
        "[stores.default]\nurl = redis://:hunter2@127.0.0.1",
        "[stores.default]\nurl = \"env:\"\npassword = \"hunter2\"",
        "[stores.default]\nurl = \"REDIS://user:hunter2@127.0.0.1\"",
        "[stores.default]\nurl = \"redis-cluster://user:hunter2@h1:1,h2:0\"",
        "[stores.default]\nurl = \"redis-sentinel://user:hunter2@h1:1\"",
        "[stores.default]\nurl = \"redis:/user:hunter2@127.0.0.1\"",
        "[stores.default]\nurl = \"redis//user:hunter2@127.0.0.1\"",
        "[stores.default]\nurl = \"user:hunter2@127.0.0.1\"",
        "[stores.default]\nurl = \"hunter2@127.0.0.1\"",
        "[stores.default]\nurl = \"hunter2@127.0.0.1:6379\"",
        "[stores.default]\nurl = \" redis://127.0.0.1?password=hunter2\"",
        "[stores.default]\nurl = [\"redis://:hunter2@127.0.0.1\"]",
        "[stores.default]\nurl = { password = \"hunter2\" }",
        "[stores.default]\nurl = \"memory:\"\npassword = \"hunter2\"",
        "[stores]\ndefault = \"redis://:hunter2@127.0.0.1\"",
        "[stores]\nurl = \"redis://:hunter2@127.0.0.1\"",
        "stores = \"redis://:hunter2@127.0.0.1\"",
        "[[policies]]\nname = \"p\"\nlimit = \"1r/s\"\nstore = \"redis://:hunter2@127.0.0.1\"",
        "store = \"redis://:hunter2@127.0.0.1\"",
    ] {
        let errors = text.parse::<Config>().expect_err(text);
        assert!(!errors.to_string().contains(SECRET), "{errors}");
        assert!(!format!("{errors:?}").contains(SECRET), "{errors:?}");
    }
}

#[test]
fn where_a_password_is_may_be_printed_and_the_password_not() {
    for (password, printed) in [
        (
            "file:/run/secrets/redis",
            "password = \"file:/run/secrets/redis\"\n",
        ),
        ("env:REDIS_PASSWORD", "password = \"env:REDIS_PASSWORD\"\n"),
        ("hunter2", "password = \"env:SET_ME\"\n"),
    ] {
        let text =
            format!("[stores.s]\nurl = \"redis://h\"\nusername = \"u\"\npassword = \"{password}\"");
        let config = super::config(&text);
        let text = format!("{config:#}");
        assert!(
            text.contains("username = \"u\"\n") && text.contains(printed),
            "{text}"
        );
        assert!(
            !text.contains(SECRET) && !format!("{config:?}").contains(SECRET),
            "{text}"
        );
    }
}

#[test]
fn a_config_does_not_print_the_password_of_a_store() {
    for (url, printed) in [
        ("redis://:hunter2@h", "redis://***@h"),
        (
            "rediss://user:hunter2@h.example:6380/3",
            "rediss://***@h.example:6380/3",
        ),
        ("redis://hunter2@[::1]:6379/", "redis://***@[::1]:6379/"),
        ("redis://user:a@hunter2@h", "redis://***@h"),
        ("redis://user:hunter2:@h", "redis://***@h"),
        ("redis://h:6379/0", "redis://h:6379/0"),
        // The name of a variable is no secret.
        ("env:REDIS_URL", "env:REDIS_URL"),
        ("memory:", "memory:"),
    ] {
        let config = super::config(&format!("[stores.s]\nurl = \"{url}\""));
        let store = &config.stores["s"];
        assert_eq!(store.url.to_string(), printed);
        assert_eq!(format!("{:?}", store.url), format!("{printed:?}"));
        let text = config.to_string();
        assert!(text.contains(&format!("url = \"{printed}\"\n")), "{text}");
        assert!(text.parse::<Config>().is_ok(), "{text}");
        for text in [text, format!("{config:?}"), format!("{store:?}")] {
            assert!(!text.contains(SECRET), "{text}");
        }
    }
}
