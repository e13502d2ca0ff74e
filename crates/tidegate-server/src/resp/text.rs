//! Parses numbers and text from clients, and formats them in errors.

/// The most characters of a client's text that an error repeats.
const MOST: usize = 64;

/// What a client has sent, in quotes, escaped, and not all of it where it is long.
#[must_use]
pub(super) fn shown(bytes: &[u8]) -> String {
    let mut text = String::from("\"");
    for byte in bytes.iter().take(MOST) {
        text.extend(byte.escape_ascii().map(char::from));
    }
    text.push('"');
    if bytes.len() > MOST {
        text.push_str("...");
    }
    text
}

/// A whole number of at most 19 digits.
#[inline]
pub(super) fn number(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() || bytes.len() > 19 {
        return None;
    }
    let mut number = 0_u64;
    for byte in bytes {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number * 10 + u64::from(digit);
    }
    Some(number)
}

/// Seconds as a whole number or a decimal fraction, in microseconds.
pub(super) fn seconds_us(bytes: &[u8]) -> Option<u64> {
    if let Some(seconds) = number(bytes) {
        return seconds.checked_mul(1_000_000);
    }
    let dot = bytes.iter().position(|byte| *byte == b'.')?;
    let (whole, fraction) = (&bytes[..dot], &bytes[dot + 1..]);
    let digits = fraction.len();
    if digits > 6 {
        return None;
    }
    let scale = 10_u64.pow(u32::try_from(6 - digits).ok()?);
    let fraction_us = number(fraction)?.checked_mul(scale)?;
    number(whole)?
        .checked_mul(1_000_000)?
        .checked_add(fraction_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_may_have_a_fraction() {
        let file = include_str!("texts.txt");
        tidegate_testkit::cases::rows(file, "seconds in microseconds", |text| {
            seconds_us(text.as_bytes()).map_or("none".into(), |it| it.to_string())
        });
    }

    #[test]
    fn long_text_is_cut_and_bytes_are_escaped() {
        assert_eq!(shown(b"a\r\n\xff\""), r#""a\r\n\xff\"""#);
        assert_eq!(shown(&[b'x'; 1_000]).len(), MOST + 5);
    }
}
