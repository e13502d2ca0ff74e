//! How values become a key: the one place where that is done, for every store.
//!
//! A key is a *tuple* of values, each encoded on its own and joined by `:`, which no
//! encoded value contains. So (`1:2`, `3`) is `1%3A2:3` and (`1`, `2:3`) is `1:2%3A3`,
//! and two different tuples of one length never meet.
//!
//! | value | encoded |
//! | --- | --- |
//! | `A-Z a-z 0-9 . _ ~ -` | as they are |
//! | any other byte | `%` and two upper-case hexadecimal digits |
//! | the empty value | `%` |
//! | more than 1,024 bytes | `%h` and the SHA-256 of the value in hexadecimal |
//!
//! An encoded value is never empty and contains no brace, so it can be a cluster's
//! hash tag; it is printable, so it can stand in a log line.

use sha2::{Digest, Sha256};
use smallvec::SmallVec;

/// The longest value that is kept as it is.
pub(crate) const MAX_VALUE: usize = 1024;

/// The text of keys: most fit without allocating.
pub(crate) type KeyText = SmallVec<[u8; 128]>;

const DIGITS: &[u8; 16] = b"0123456789ABCDEF";

/// Bytes that stand for themselves.
const PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "below 256")]
        let character = byte as u8;
        plain[byte] =
            character.is_ascii_alphanumeric() || matches!(character, b'.' | b'_' | b'~' | b'-');
        byte += 1;
    }
    plain
};

/// Whether a value is its own encoding.
#[inline]
pub(crate) fn is_plain(value: &[u8]) -> bool {
    !value.is_empty()
        && value.len() <= MAX_VALUE
        && value.iter().all(|&byte| PLAIN[usize::from(byte)])
}

/// Appends the encoding of a value.
pub(crate) fn encode(value: &[u8], text: &mut KeyText) {
    if is_plain(value) {
        text.extend_from_slice(value);
    } else if value.is_empty() {
        text.push(b'%');
    } else if value.len() > MAX_VALUE {
        text.extend_from_slice(b"%h");
        for byte in Sha256::digest(value) {
            text.extend_from_slice(&hexadecimal(byte).map(|digit| digit.to_ascii_lowercase()));
        }
    } else {
        for &byte in value {
            if PLAIN[usize::from(byte)] {
                text.push(byte);
            } else {
                text.push(b'%');
                text.extend_from_slice(&hexadecimal(byte));
            }
        }
    }
}

fn hexadecimal(byte: u8) -> [u8; 2] {
    [byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_encoded_as_the_table_says() {
        let long = [b'x'; MAX_VALUE + 1];
        let table: [(&[u8], &str); 9] = [
            (b"203.0.113.7", "203.0.113.7"),
            (b"a-b_c~D9", "a-b_c~D9"),
            (b"", "%"),
            (b"%", "%25"),
            (b"1:2", "1%3A2"),
            (b"}x{", "%7Dx%7B"),
            (b"\0\n\xff", "%00%0A%FF"),
            ("\u{e9}".as_bytes(), "%C3%A9"),
            (
                &long,
                "%hc6d8e9905300876046729949cc95c2385221270d389176f7234fe7ac00c4e430",
            ),
        ];
        for (value, expected) in table {
            let mut text = KeyText::new();
            encode(value, &mut text);
            assert_eq!(String::from_utf8_lossy(&text), expected);
            assert_eq!(is_plain(value), value == expected.as_bytes());
        }
    }
}
