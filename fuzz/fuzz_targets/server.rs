//! Any bytes are the body of a check or an error that stays short; any text is a query or
//! such an error, and a query reads back from what it means.

#![no_main]

use std::fmt::Write;

use libfuzzer_sys::fuzz_target;
use tidegate_server::api::check::{self, Questions};
use tidegate_server::api::query::{MAX_ATTRIBUTES, Query};

/// Characters of the longest message about a body or a query.
const LONGEST: usize = 600;

fuzz_target!(|bytes: &[u8]| {
    match check::parse(bytes) {
        Ok(Questions::One(_)) => {}
        Ok(Questions::Many(questions)) => {
            assert!(questions.len() <= 1_000);
            for problem in questions.iter().filter_map(|question| question.as_ref().err()) {
                assert_short(problem);
            }
        }
        Err(problem) => assert_short(&problem),
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match Query::parse(text) {
        Ok(query) => {
            let attributes = query.attributes();
            assert!(attributes.len() <= MAX_ATTRIBUTES);
            let mut written = String::new();
            for (name, value) in attributes {
                escape(&mut written, name.as_bytes());
                written.push('=');
                escape(&mut written, value);
                written.push('&');
            }
            let read = Query::parse(&written).expect("what was written is right");
            assert_eq!(read.attributes(), attributes, "{written}");
        }
        Err(problem) => assert_short(&problem),
    }
});

fn assert_short(problem: &str) {
    assert!(problem.chars().count() <= LONGEST, "{problem}");
}

fn escape(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        write!(text, "%{byte:02X}").expect("a string takes everything");
    }
}
