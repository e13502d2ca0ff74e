//! The text form of receipts: the policy and attributes of a charge, and the charge itself.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use smallvec::SmallVec;
use tidegate::{Attributes, Policy, Receipt};

/// The layout, in the first byte.
const VERSION: u8 = 1;

/// Room for nearly every receipt before it is text.
const LENGTH: usize = 256;

/// A receipt that has come back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Returned {
    /// Who counted it; zero where that does not matter.
    pub(crate) instance: u64,
    pub(crate) policy: String,
    pub(crate) attributes: Vec<(String, Vec<u8>)>,
    pub(crate) receipt: Receipt,
}

/// Writes a receipt as text. `instance` says which process counted it, zero for a store
/// that many share.
pub(crate) fn encode(
    text: &mut Vec<u8>,
    instance: u64,
    policy: &Policy,
    attributes: &dyn Attributes,
    receipt: &Receipt,
) {
    // As bytes it stands where it will stand as text, and moves out of the way to become
    // that: for nearly all of them there is room on the stack.
    let start = text.len();
    let bytes = &mut *text;
    bytes.push(VERSION);
    bytes.extend_from_slice(&instance.to_le_bytes());
    push(bytes, policy.name().as_bytes());
    let mut names: SmallVec<[&str; 4]> = SmallVec::new();
    let levels = policy.levels().iter();
    let in_keys = levels.flat_map(|level| level.key().attributes());
    for name in in_keys.chain(policy.optional_attributes()) {
        if let (false, Some(value)) = (names.contains(&name), attributes.value(name)) {
            names.push(name);
            push(bytes, name.as_bytes());
            push(bytes, value);
        }
    }
    // An empty name ends them.
    push(bytes, b"");
    receipt.write(bytes);
    let bytes: SmallVec<[u8; LENGTH]> = SmallVec::from_slice(&text[start..]);
    text.truncate(start);
    put_base64(text, &bytes);
}

/// The characters of base64 in URLs.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Appends bytes as [`URL_SAFE_NO_PAD`] does. Nearly every answer has a receipt, and the
/// engine of the crate takes half as long again for so few bytes.
fn put_base64(text: &mut Vec<u8>, bytes: &[u8]) {
    let digit = |number: u32, shift: u32| DIGITS[(number >> shift & 63) as usize];
    let start = text.len();
    text.resize(start + bytes.len() / 3 * 4, 0);
    let (threes, rest) = bytes.as_chunks::<3>();
    let (fours, _) = text[start..].as_chunks_mut::<4>();
    for (four, [a, b, c]) in fours.iter_mut().zip(threes) {
        let number = u32::from_be_bytes([0, *a, *b, *c]);
        *four = [18, 12, 6, 0].map(|shift| digit(number, shift));
    }
    match *rest {
        [a] => {
            let number = u32::from_be_bytes([0, a, 0, 0]);
            text.extend([18, 12].map(|shift| digit(number, shift)));
        }
        [a, b] => {
            let number = u32::from_be_bytes([0, a, b, 0]);
            text.extend([18, 12, 6].map(|shift| digit(number, shift)));
        }
        _ => {}
    }
}

/// What [`encode`] has made; `None` for anything else.
pub(crate) fn decode(text: &str) -> Option<Returned> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let rest = bytes.strip_prefix(&[VERSION])?;
    let (instance, mut rest) = rest.split_first_chunk()?;
    let policy = String::from_utf8(pull(&mut rest)?.into()).ok()?;
    let mut attributes = Vec::new();
    loop {
        let name = pull(&mut rest)?;
        if name.is_empty() {
            break;
        }
        let value = pull(&mut rest)?;
        attributes.push((String::from_utf8(name.into()).ok()?, value.into()));
    }
    Some(Returned {
        instance: u64::from_le_bytes(*instance),
        policy,
        attributes,
        receipt: Receipt::from_bytes(rest)?,
    })
}

fn push(bytes: &mut Vec<u8>, part: &[u8]) {
    // The body of a request is far shorter than what this can say.
    let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(part);
}

fn pull<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, more) = rest.split_first_chunk()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (part, more) = more.split_at_checked(length)?;
    *rest = more;
    Some(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::{Cost, Limit, PolicyLimiter};

    #[test]
    fn base64_is_that_of_the_crate() {
        let bytes: Vec<u8> = (0..=255).rev().cycle().take(700).collect();
        for length in 0..bytes.len() {
            let mut text = b"before".to_vec();
            put_base64(&mut text, &bytes[..length]);
            let expected = URL_SAFE_NO_PAD.encode(&bytes[..length]);
            assert_eq!(text, format!("before{expected}").into_bytes());
        }
    }

    #[test]
    fn a_receipt_comes_back_as_it_went() {
        let policy = Policy::builder("api")
            .level("resource", "{resource}", Limit::per_second(5))
            .level("both", "{resource}:{consumer}", Limit::per_second(5))
            .build()
            .unwrap();
        let limiter = PolicyLimiter::in_memory(policy).unwrap();
        let attributes = [
            ("resource", &b"1:2"[..]),
            ("consumer", b"\0\xff"),
            ("x", b""),
        ];
        let decision = limiter.check(&attributes, Cost::ONE).unwrap();
        let receipt = decision.receipt().unwrap();
        let mut text = Vec::new();
        encode(&mut text, 7, decision.policy(), &attributes, &receipt);
        let text = String::from_utf8(text).unwrap();
        let expected = Returned {
            instance: 7,
            policy: "api".into(),
            attributes: vec![
                ("resource".into(), b"1:2".to_vec()),
                ("consumer".into(), b"\0\xff".to_vec()),
            ],
            receipt,
        };
        assert_eq!(decode(&text), Some(expected));
        for length in 0..text.len() {
            // A shorter receipt may be one of fewer levels, and never a panic.
            let _ = decode(&text[..length]);
        }
        assert_eq!(decode("AQ"), None);
        assert_eq!(decode("no receipt"), None);
    }
}
