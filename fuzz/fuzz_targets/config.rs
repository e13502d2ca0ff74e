//! Any text is a config or an error; a config reads back from what it prints.

#![no_main]

#[path = "../properties/config.rs"]
mod property;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| property::check(text));
