//! Any text is a limit or an error; a limit reads back from what it prints.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::Limit;

fuzz_target!(|text: &str| {
    match Limit::parse(text) {
        Ok(limit) => assert_eq!(Limit::parse(&limit.to_string()), Ok(limit)),
        Err(error) => assert!(!error.to_string().contains(char::is_control), "{error:?}"),
    }
});
