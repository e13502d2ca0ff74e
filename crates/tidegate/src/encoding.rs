//! How values become a key: the only place where this is done, for every store.
//!
//! A key is a *tuple* of values, each encoded on its own and joined by `:`, which no
//! encoded value contains. So (`1:2`, `3`) is `1%3A2:3` and (`1`, `2:3`) is `1:2%3A3`,
//! and two different tuples of one length never become the same key.
//!
//! | value | encoded |
//! | --- | --- |
//! | `A-Z a-z 0-9 . _ ~ -` | as they are |
//! | any other byte | `%` and two upper-case hexadecimal digits |
//! | the empty value | `%` |
//! | more than 1,024 bytes | `%h` and the SHA-256 of the value in hexadecimal |
//!
//! The memory store hashes values one by one and does not encode them.
//!
//! An encoded value is never empty and contains no brace, so it can be a cluster's
//! hash tag; it is printable, so it can be logged.

use sha2::{Digest, Sha256};
use smallvec::SmallVec;

/// The longest value that is kept as it is.
const MAX_VALUE: usize = 1024;

/// Bytes that are not escaped.
const PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0_u8;
    loop {
        plain[byte as usize] =
            byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'~' | b'-');
        if byte == u8::MAX {
            break plain;
        }
        byte += 1;
    }
};

#[inline]
fn is_plain(byte: u8) -> bool {
    PLAIN[usize::from(byte)]
}

/// A value that is its own encoding, as text.
#[inline]
pub(crate) fn plain(value: &[u8]) -> Option<&str> {
    let plain = (1..=MAX_VALUE).contains(&value.len()) && value.iter().all(|byte| is_plain(*byte));
    plain.then(|| std::str::from_utf8(value).ok()).flatten()
}

/// Encoded values, one after the other: about a hundred bytes without allocating.
pub(crate) type KeyText = SmallVec<[u8; 128]>;

/// A tuple of values: each encoded, with a colon between them.
#[inline]
pub(crate) fn tuple(values: &[&[u8]]) -> KeyText {
    let mut text = KeyText::new();
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            text.push(b':');
        }
        push(&mut text, value);
    }
    text
}

fn push(text: &mut KeyText, value: &[u8]) {
    if value.is_empty() {
        text.push(b'%');
    } else if value.len() > MAX_VALUE {
        text.extend_from_slice(b"%h");
        push_digits(text, &Sha256::digest(value), b"0123456789abcdef");
    } else {
        let mut rest = value;
        while let Some(byte) = rest.first() {
            // What needs no encoding is copied as a whole.
            let plain = rest.iter().take_while(|byte| is_plain(**byte)).count();
            if plain == 0 {
                text.push(b'%');
                push_digits(text, &[*byte], b"0123456789ABCDEF");
            }
            text.extend_from_slice(&rest[..plain]);
            rest = &rest[plain.max(1)..];
        }
    }
}

/// Appends bytes in hexadecimal.
fn push_digits(text: &mut KeyText, bytes: &[u8], digits: &[u8; 16]) {
    let halves = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    text.extend(halves.map(|half| digits[usize::from(half)]));
}
