//! Any text is a config or an error; a config reads back from what it prints.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_config::Secret;
use tidegate_server::settings::parse;

fuzz_target!(|text: &str| {
    match parse(text, "tidegate.toml", None) {
        Ok((server, config)) => {
            let printed = format!("{server}{config}");
            let read = parse(&printed, "tidegate.toml", None);
            let (mut read, stores_and_policies) = read.expect("what was printed is right");
            if let Some(Secret::Text(_)) = server.admin_token {
                // This is not printed.
                read.admin_token = server.admin_token.clone();
            }
            assert_eq!((read, stores_and_policies), (server, config), "{printed}");
        }
        Err(errors) => {
            let lines = text.split('\n').count();
            for error in errors.as_slice() {
                assert!((1..=lines).contains(&error.line()), "{error}");
                assert!(!error.to_string().contains(char::is_control), "{error:?}");
            }
        }
    }
});
