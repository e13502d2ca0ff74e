//! Bearer tokens, and hashes of what should not be seen.

use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};

use crate::head::RequestHead;
use crate::value::Text;

/// The token in `Authorization: Bearer ...`, if there is one.
pub(crate) fn bearer<'r>(head: &RequestHead<'r>) -> Option<&'r [u8]> {
    let value = head.headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at(value.iter().position(|byte| *byte == b' ')?);
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer") && !token.is_empty()).then_some(token)
}

/// The SHA-256 of a value, in hexadecimal: what a store may see of a secret.
pub(crate) fn hashed(value: &[u8]) -> Text {
    let digits = b"0123456789abcdef";
    let hash = Sha256::digest(value);
    let digit = |byte: u8| digits[usize::from(byte)];
    let pairs = hash.iter().map(|byte| [digit(byte >> 4), digit(byte & 15)]);
    pairs.flatten().collect()
}
