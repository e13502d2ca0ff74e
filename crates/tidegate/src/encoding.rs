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

/// The longest value that is kept as it is.
const MAX_VALUE: usize = 1024;

/// The most bytes that one byte of a value becomes.
const WIDEST: usize = 3;

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

fn escaped(byte: u8) -> [u8; WIDEST] {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let digit = |digit: u8| DIGITS[usize::from(digit)];
    [b'%', digit(byte >> 4), digit(byte & 15)]
}

/// Encoded values, one after the other: about a hundred bytes without allocating.
#[derive(Debug, Clone)]
pub(crate) struct KeyText {
    short: [u8; Self::SHORT],
    /// What is used instead of `short` when that is full.
    long: Vec<u8>,
    length: usize,
}

impl KeyText {
    const SHORT: usize = 128;

    #[inline]
    pub(crate) fn new() -> Self {
        Self {
            short: [0; Self::SHORT],
            long: Vec::new(),
            length: 0,
        }
    }

    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        let bytes = if self.long.is_empty() {
            &self.short[..]
        } else {
            &self.long[..]
        };
        &bytes[..self.length]
    }

    /// Appends values, each encoded, with a colon between them.
    #[inline]
    pub(crate) fn push_tuple<'v>(&mut self, values: impl IntoIterator<Item = &'v [u8]>) {
        for (index, value) in values.into_iter().enumerate() {
            if index > 0 {
                self.room(1)[0] = b':';
                self.length += 1;
            }
            self.push(value);
        }
    }

    fn push(&mut self, value: &[u8]) {
        if value.is_empty() {
            self.room(1)[0] = b'%';
            self.length += 1;
        } else if value.len() > MAX_VALUE {
            self.push_digest(value);
        } else {
            let mut rest = value;
            while let Some(byte) = rest.first() {
                // What needs no encoding is copied as a whole.
                let plain = rest.iter().take_while(|byte| is_plain(**byte)).count();
                let (taken, written) = match plain {
                    0 => (1, self.write(&escaped(*byte))),
                    plain => (plain, self.write(&rest[..plain])),
                };
                self.length += written;
                rest = &rest[taken..];
            }
        }
    }

    /// Writes bytes at the end, and returns how many.
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> usize {
        self.room(bytes.len()).copy_from_slice(bytes);
        bytes.len()
    }

    fn push_digest(&mut self, value: &[u8]) {
        let digest = Sha256::digest(value);
        let digits = digest
            .iter()
            .flat_map(|byte| [byte >> 4, byte & 15])
            .filter_map(|digit| char::from_digit(digit.into(), 16));
        let text: String = "%h".chars().chain(digits).collect();
        self.room(text.len()).copy_from_slice(text.as_bytes());
        self.length += text.len();
    }

    /// Room for this many bytes, at the end.
    #[inline]
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        let end = self.length + bytes;
        if self.long.is_empty() && end <= Self::SHORT {
            return &mut self.short[self.length..end];
        }
        self.long_room(end)
    }

    #[cold]
    fn long_room(&mut self, end: usize) -> &mut [u8] {
        if self.long.is_empty() {
            self.long.extend_from_slice(&self.short[..self.length]);
        }
        self.long.resize(end, 0);
        &mut self.long[self.length..]
    }
}
