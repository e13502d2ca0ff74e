//! Any text is a config or an error; a config reads back from what it prints.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::{Config, Secret};

fuzz_target!(|text: &str| {
    match text.parse::<Config>() {
        Ok(config) => {
            let printed = config.to_string();
            let mut read: Config = printed.parse().expect("what was printed is right");
            if let Some(Secret::Text(_)) = config.server.admin_token {
                // This is not printed.
                read.server.admin_token = config.server.admin_token.clone();
            }
            assert_eq!(read, config, "{printed}");
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
