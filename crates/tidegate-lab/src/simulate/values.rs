//! The attributes of one line: read into one buffer that is used again for the next.

/// What becomes of a field's text on its way to an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Nothing.
    AsIs,
    /// An address without port and brackets: `ip` is one.
    Address,
    /// A path without scheme, host, query and fragment: `path` is one.
    Path,
}

impl Shape {
    /// The shape of an attribute.
    pub(super) fn of(attribute: &str) -> Self {
        match attribute {
            "ip" => Self::Address,
            "path" => Self::Path,
            _ => Self::AsIs,
        }
    }

    fn apply(self, text: &[u8]) -> &[u8] {
        match self {
            Self::AsIs => text,
            Self::Address => without_port(text),
            Self::Path => path(text),
        }
    }
}

/// `192.0.2.1:80` and `[2001:db8::1]:80` without the port. Anything else stays.
fn without_port(text: &[u8]) -> &[u8] {
    let is_port = |text: &[u8]| text.is_empty() || text.iter().all(u8::is_ascii_digit);
    if let Some(rest) = text.strip_prefix(b"[") {
        let Some(end) = memchr::memchr(b']', rest) else {
            return text;
        };
        return match rest[end + 1..].strip_prefix(b":") {
            Some(port) if !is_port(port) => text,
            None if end + 1 < rest.len() => text,
            _ => &rest[..end],
        };
    }
    let Some(colon) = memchr::memchr(b':', text) else {
        return text;
    };
    let (address, port) = (&text[..colon], &text[colon + 1..]);
    let is_v4 = address
        .iter()
        .all(|byte| byte.is_ascii_digit() || *byte == b'.');
    match is_v4 && address.contains(&b'.') && is_port(port) {
        true => address,
        false => text,
    }
}

fn path(text: &[u8]) -> &[u8] {
    let end = memchr::memchr2(b'?', b'#', text).unwrap_or(text.len());
    let text = &text[..end];
    let host = text
        .strip_prefix(b"http://")
        .or_else(|| text.strip_prefix(b"https://"));
    let Some(host) = host else {
        return text;
    };
    match memchr::memchr(b'/', host) {
        Some(slash) => &host[slash..],
        None => b"/",
    }
}

/// The values of a line by slot, each of which is one attribute.
#[derive(Debug, Clone, Default)]
pub(super) struct Values {
    bytes: Vec<u8>,
    slots: Vec<Slot>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    start: usize,
    length: usize,
    /// How far down the list of fields this one stood; none where there is no value.
    rank: Option<u8>,
}

impl Values {
    /// Forgets the line before.
    pub(super) fn clear(&mut self, slots: usize) {
        self.bytes.clear();
        self.slots.clear();
        self.slots.resize(slots, Slot::default());
    }

    /// Sets a value, unless a field that comes first in the list has done so. `-` and an
    /// empty text are how logs write that there is none.
    pub(super) fn set(&mut self, slot: usize, rank: u8, shape: Shape, text: &[u8]) {
        let text = shape.apply(text);
        if text.is_empty() || text == b"-" {
            return;
        }
        if self.slots[slot].rank.is_some_and(|other| other <= rank) {
            return;
        }
        self.slots[slot] = Slot {
            start: self.bytes.len(),
            length: text.len(),
            rank: Some(rank),
        };
        self.bytes.extend_from_slice(text);
    }

    /// The values, in the order of the slots.
    pub(super) fn iter(&self) -> impl Iterator<Item = Option<&[u8]>> {
        self.slots.iter().map(|slot| {
            let value = &self.bytes[slot.start..slot.start + slot.length];
            slot.rank.map(|_| value)
        })
    }
}

#[cfg(test)]
mod tests {
    use tidegate_testkit::cases::rows;

    use super::*;

    #[test]
    fn addresses_lose_their_port_and_paths_their_query() {
        for (heading, shape) in [
            ("addresses without their port", Shape::Address),
            ("paths without their query", Shape::Path),
        ] {
            rows(include_str!("../rows.txt"), heading, |text| {
                String::from_utf8_lossy(shape.apply(text.as_bytes())).into()
            });
        }
    }

    #[test]
    fn first_field_of_a_list_wins_whatever_the_order_of_the_line() {
        let mut values = Values::default();
        for order in [[0, 1], [1, 0]] {
            values.clear(2);
            for rank in order {
                let text = [b"first", b"other"][usize::from(rank)];
                values.set(0, rank, Shape::AsIs, text);
            }
            values.set(1, 0, Shape::AsIs, b"-");
            assert!(values.iter().eq([Some(&b"first"[..]), None]));
        }
    }
}
