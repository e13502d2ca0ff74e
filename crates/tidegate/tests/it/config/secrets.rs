//! What is secret in a file is in no message and in nothing that is printed.

use tidegate::Config;

/// The secret of every file here.
const SECRET: &str = "hunter2";

#[test]
fn no_error_repeats_a_secret() {
    for text in [
        "[server]\nadmin_token = [\"hunter2\"]",
        "[server]\nadmin_token = { value = \"hunter2\" }",
        "[server]\nadmin_tokn = \"hunter2\"",
        "[server]\nadmin_token = \"hunter2\"\ncolour = 1",
        "[server]\nadmin_token = \"hunter2",
        "[server]\nadmin_token = hunter2",
        "[server]\nadmin_token = \"hunter2\"\nadmin_token = \"hunter2\"",
        "[stores.default]\nurl = \"redis://:hunter2@127.0.0.1:6379/0\"",
        "[stores.default]\nurl = \"rediss://user:hunter2@127.0.0.1:6379/0\"",
        "[stores.default]\nurl = \"REDIS://user:hunter2@127.0.0.1\"",
        "[stores.default]\nurl = \"redis-cluster://user:hunter2@h1:1,h2:2\"",
        "[stores.default]\nurl = \"redis-sentinel://user:hunter2@h1:1/main\"",
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
fn a_token_that_is_a_number_is_not_repeated() {
    let errors = super::errors("[server]\nadmin_token = 271828");
    assert_eq!(
        errors,
        "tidegate.toml:2:15: server.admin_token: not a text: \
         expected a token, or \"env:NAME\" for that of an environment variable"
    );
}

#[test]
fn a_config_does_not_print_its_token() {
    let config = super::config("[server]\nadmin_token = \"hunter2\"");
    let printed = config.to_string();
    assert!(!printed.contains(SECRET), "{printed}");
    assert!(printed.contains("# admin_token is set, and not shown"));
    assert!(printed.parse::<Config>().is_ok());
    assert!(!format!("{config:?}").contains(SECRET));
    // The name of a variable is no secret.
    let config = super::config("[server]\nadmin_token = \"env:TOKEN\"");
    assert!(config.to_string().contains("\"env:TOKEN\""));
    assert!(format!("{config:?}").contains("env:TOKEN"));
}
