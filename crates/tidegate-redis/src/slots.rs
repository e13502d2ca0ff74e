//! Parses what cluster nodes report about slots: slot maps and redirections.

use redis::Value;

use crate::error::{ErrorKind, StoreError};

/// The slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// Slots that one server has, from the first to the last, and where it is.
pub(crate) type Range = (u16, u16, String);

/// Reads the answer to `CLUSTER SLOTS`: a range is its first and last slot, its master,
/// and its replicas. A master that does not know its own host is where it was asked.
pub(crate) fn ranges(slots: &Value, asked: &str) -> Vec<Range> {
    let Value::Array(slots) = slots else {
        return Vec::new();
    };
    let range = |range: &Value| {
        let Value::Array(parts) = range else {
            return None;
        };
        let [
            Value::Int(first),
            Value::Int(last),
            Value::Array(master),
            ..,
        ] = &parts[..]
        else {
            return None;
        };
        let [host, Value::Int(port), ..] = &master[..] else {
            return None;
        };
        let host = match host {
            Value::BulkString(host) => std::str::from_utf8(host).ok()?,
            Value::SimpleString(host) => host,
            _ => "",
        };
        Some((
            u16::try_from(*first).ok()?,
            u16::try_from(*last).ok()?,
            located(host, u16::try_from(*port).ok()?, asked),
        ))
    };
    let mut ranges: Vec<Range> = slots.iter().filter_map(range).collect();
    // Nodes tell them in an order of their own.
    ranges.sort_unstable();
    ranges
}

/// `host:port`, with an IPv6 address in brackets.
pub(crate) fn address(host: &str, port: u16) -> String {
    match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

fn located(host: &str, port: u16, asked: &str) -> String {
    let own = asked.rsplit_once(':').map_or(asked, |(host, _)| host);
    match host {
        "" | "?" => address(own, port),
        host => address(host, port),
    }
}

/// Where a server sends a question: `MOVED 3999 10.0.0.1:6379`. After `ASK`, it is only for
/// this question, as the slot is still on its way.
pub(crate) fn redirection(error: &StoreError, asked: &str) -> Option<(String, bool)> {
    if error.kind() != ErrorKind::Moved {
        return None;
    }
    let mut words = error.detail().split(' ');
    let is_asking = words.next()? == "ASK";
    let _slot = words.next()?;
    let (host, port) = words.next()?.rsplit_once(':')?;
    Some((located(host, port.parse().ok()?, asked), is_asking))
}

/// The slot of a key: of what stands between its first braces, if anything does.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let position = |bytes: &[u8], sign| bytes.iter().position(|byte| *byte == sign);
    let tag = position(key, b'{').and_then(|open| {
        let inside = &key[open + 1..];
        position(inside, b'}')
            .filter(|length| *length > 0)
            .map(|length| &inside[..length])
    });
    crc16::State::<crc16::XMODEM>::calculate(tag.unwrap_or(key)) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_slots_that_the_cluster_says() {
        // As `CLUSTER KEYSLOT` answers.
        for (key, expected) in [
            ("foo", 12_182),
            ("{foo}:x", 12_182),
            ("x{foo}{bar}", 12_182),
            ("", 0),
            ("{}foo", 9_500),
        ] {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
    }

    #[test]
    fn redirections_are_read() {
        let read = |kind, detail: &str| redirection(&StoreError::new(kind, detail), "h:1");
        let to = |address: &str, asking| Some((address.to_owned(), asking));
        let moved = ErrorKind::Moved;
        assert_eq!(
            read(moved, "MOVED 3999 10.0.0.1:7"),
            to("10.0.0.1:7", false)
        );
        assert_eq!(read(moved, "ASK 3999 ::1:7"), to("[::1]:7", true));
        assert_eq!(read(moved, "MOVED 3999 :7"), to("h:7", false));
        assert_eq!(read(moved, "MOVED"), None);
        assert_eq!(read(moved, "MOVED 3999 10.0.0.1:x"), None);
        assert_eq!(read(ErrorKind::Other, "MOVED 3999 10.0.0.1:7"), None);
    }

    #[test]
    fn the_map_is_read() {
        let bulk = |text: &str| Value::BulkString(text.into());
        let node = |host: Value, port| Value::Array(vec![host, Value::Int(port), bulk("id")]);
        let range =
            |first, last, node| Value::Array(vec![Value::Int(first), Value::Int(last), node]);
        let slots = Value::Array(vec![
            range(6, 9, node(bulk(""), 2)),
            range(0, 5, node(bulk("10.0.0.1"), 1)),
            range(10, 11, node(Value::Nil, 3)),
            range(12, 70_000, node(bulk("h"), 4)),
            Value::Nil,
        ]);
        let expected = [(0, 5, "10.0.0.1:1"), (6, 9, "asked:2"), (10, 11, "asked:3")];
        let expected = expected.map(|(first, last, address)| (first, last, address.to_owned()));
        assert_eq!(ranges(&slots, "asked:9"), expected);
    }
}
