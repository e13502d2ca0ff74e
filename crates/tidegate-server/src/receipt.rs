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
    attributes: &(impl Attributes + ?Sized),
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
    for name in policy
        .levels()
        .iter()
        .flat_map(|level| level.key().attributes())
    {
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

/// Appends bytes as [`URL_SAFE_NO_PAD`] does. Nearly every answer has a receipt, and the
/// engine of the crate takes twice as long for so few bytes.
fn put_base64(text: &mut Vec<u8>, bytes: &[u8]) {
    let start = text.len();
    let length = (bytes.len() * 4).div_ceil(3);
    // Whole groups: what the last one has too much is cut off.
    text.resize(start + bytes.len().div_ceil(6) * 8, 0);
    let (groups, _) = text[start..].as_chunks_mut::<8>();
    let (sixes, rest) = bytes.as_chunks::<6>();
    for (group, [a, b, c, d, e, f]) in groups.iter_mut().zip(sixes) {
        *group = sextets(u64::from_be_bytes([0, 0, *a, *b, *c, *d, *e, *f]));
    }
    if let (false, Some(group)) = (rest.is_empty(), groups.last_mut()) {
        let mut six = [0; 8];
        six[2..2 + rest.len()].copy_from_slice(rest);
        *group = sextets(u64::from_be_bytes(six));
    }
    text.truncate(start + length);
    text[start..]
        .iter_mut()
        .for_each(|byte| *byte = digit(*byte));
}

/// The lower 48 bits, six to a byte.
fn sextets(bits: u64) -> [u8; 8] {
    // Halves that move apart, and their halves, and theirs.
    let bits = (bits & 0xFFFF_FF00_0000) << 8 | bits & 0xFF_FFFF;
    let bits = (bits & 0x00FF_F000_00FF_F000) << 4 | bits & 0x0000_0FFF_0000_0FFF;
    let bits = (bits & 0x0FC0_0FC0_0FC0_0FC0) << 2 | bits & 0x003F_003F_003F_003F;
    bits.to_be_bytes()
}

/// The character of six bits in URLs, without a table: so the compiler makes many at once.
fn digit(bits: u8) -> u8 {
    let after = |last: u8, step: u8| if bits > last { step } else { 0 };
    let letter = bits
        .wrapping_add(b'A')
        .wrapping_add(after(25, b'a' - b'Z' - 1));
    let number = letter.wrapping_sub(after(51, b'z' + 1 - b'0'));
    let minus = number.wrapping_sub(after(61, b'9' + 1 - b'-'));
    minus.wrapping_add(after(62, b'_' - b'-' - 1))
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
        let limiter = PolicyLimiter::in_memory([policy]).unwrap();
        let attributes = [
            ("resource", &b"1:2"[..]),
            ("consumer", b"\0\xff"),
            ("x", b""),
        ];
        let decision = limiter.check("api", &attributes, Cost::ONE).unwrap();
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
