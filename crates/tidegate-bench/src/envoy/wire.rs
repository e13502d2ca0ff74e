//! Calls of the rate limit service as bytes: HTTP/2 frames, laid out beforehand, in which
//! only the stream and the digits of the key change.
//!
//! The headers are sent as Envoy sends them: in full with the first call of a connection,
//! and by their places in the table of headers from then on.

use crate::keys::write_digits;

/// Where a call has the digits of its key.
const DIGITS: &[u8; 12] = b"999999999999";

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Kinds of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW: u8 = 8;

/// Flags of frames.
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// The length of a frame's head.
const HEAD: usize = 9;

/// Bytes of answers after which the server gets as much room again.
const ROOM: u32 = 1 << 20;

/// One connection's side of the protocol.
pub(super) struct Wire {
    call: Vec<u8>,
    is_first: bool,
    next: u32,
    received: u32,
}

/// What a frame says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// The call on this stream is admitted.
    Admitted(u32),
    /// The call on this stream is over.
    Ended(u32),
    /// Nothing about a call.
    Nothing,
}

impl Wire {
    /// A connection, and the bytes that it begins with.
    pub(super) fn open() -> (Self, Vec<u8>) {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        frame(&mut bytes, SETTINGS, 0, 0, &[]);
        let room = (1_u32 << 31) - 1 - 65_535;
        frame(&mut bytes, WINDOW, 0, 0, &room.to_be_bytes());
        let entry = field(1, b"key").chain(field(2, DIGITS));
        let descriptor = message(1, entry.collect());
        let request = field(1, b"api").chain(message(2, descriptor));
        let request: Vec<u8> = request.collect();
        let length = u32::try_from(request.len()).expect("a short message");
        let mut call = vec![0];
        call.extend(length.to_be_bytes());
        call.extend(request);
        let wire = Self {
            call,
            is_first: true,
            next: 1,
            received: 0,
        };
        (wire, bytes)
    }

    /// Adds a call for a key; its stream.
    pub(super) fn call(&mut self, key: usize, bytes: &mut Vec<u8>) -> u32 {
        let stream = self.next;
        self.next += 2;
        let headers: &[u8] = match self.is_first {
            true => &first_headers(),
            false => &[0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe],
        };
        self.is_first = false;
        frame(bytes, HEADERS, END_HEADERS, stream, headers);
        let digits = self.call.len() - DIGITS.len();
        write_digits(&mut self.call[digits..], key);
        frame(bytes, DATA, END_STREAM, stream, &self.call);
        stream
    }

    /// Reads the first frame of what has come: what it says, and its length. What has to be
    /// answered is added to `reply`.
    pub(super) fn read(&mut self, bytes: &[u8], reply: &mut Vec<u8>) -> Option<(Said, usize)> {
        let head = bytes.get(..HEAD)?;
        let number = |part: &[u8]| part.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
        let (length, kind, flags) = (number(&head[..3]), head[3], head[4]);
        let stream = number(&head[5..]) & (u32::MAX >> 1);
        let end = HEAD + length as usize;
        let payload = bytes.get(HEAD..end)?;
        let said = match kind {
            DATA if length == 0 => Said::Nothing,
            DATA => {
                // A message that begins with `overall_code: OK`.
                let code = payload.get(5..7);
                assert_eq!(code, Some(&[8, 1][..]), "{}", payload.escape_ascii());
                self.received += length;
                if self.received > ROOM {
                    frame(reply, WINDOW, 0, 0, &self.received.to_be_bytes());
                    self.received = 0;
                }
                Said::Admitted(stream)
            }
            HEADERS if flags & END_STREAM != 0 => Said::Ended(stream),
            SETTINGS if flags & ACK == 0 => {
                frame(reply, SETTINGS, ACK, 0, &[]);
                Said::Nothing
            }
            PING if flags & ACK == 0 => {
                frame(reply, PING, ACK, 0, payload);
                Said::Nothing
            }
            RESET | GO_AWAY => panic!("the server ends a call: {}", payload.escape_ascii()),
            _ => Said::Nothing,
        };
        Some((said, end))
    }
}

fn frame(bytes: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).expect("a short frame");
    bytes.extend(&length.to_be_bytes()[1..]);
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
}

/// A field of a message, with less than 128 bytes.
fn field(tag: u8, value: &[u8]) -> impl Iterator<Item = u8> {
    let length = u8::try_from(value.len()).expect("a short field");
    [tag << 3 | 2, length].into_iter().chain(value.to_vec())
}

/// The same for a message in a message.
fn message(tag: u8, value: Vec<u8>) -> Vec<u8> {
    field(tag, &value).collect()
}

/// The headers of the first call: what is not in HPACK's own table goes into that of the
/// connection.
fn first_headers() -> Vec<u8> {
    let mut bytes = vec![0x83, 0x86];
    let mut add = |start: &[u8], value: &str| {
        bytes.extend(start);
        bytes.push(u8::try_from(value.len()).expect("less than 127 bytes"));
        bytes.extend(value.as_bytes());
    };
    add(&[0x44], PATH);
    add(&[0x41], "tidegate");
    add(&[0x5f], "application/grpc");
    add(b"\x40\x02te", "trailers");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_differ_in_stream_and_key() {
        let (mut wire, _) = Wire::open();
        let mut bytes = Vec::new();
        assert_eq!(wire.call(7, &mut bytes), 1);
        bytes.clear();
        assert_eq!(wire.call(1_234, &mut bytes), 3);
        assert!(bytes.ends_with(b"key\x12\x0c000000001234"), "{bytes:?}");
        let second = bytes.len();
        wire.call(5, &mut bytes);
        assert_eq!(bytes.len(), 2 * second);
    }

    #[test]
    fn frames_are_read_when_they_are_whole() {
        let (mut wire, _) = Wire::open();
        let mut bytes = Vec::new();
        frame(&mut bytes, DATA, 0, 3, &[0, 0, 0, 0, 2, 8, 1]);
        frame(&mut bytes, HEADERS, END_HEADERS | END_STREAM, 3, b"x");
        let mut reply = Vec::new();
        assert_eq!(wire.read(&bytes[..15], &mut reply), None);
        let read = wire.read(&bytes, &mut reply);
        assert_eq!(read, Some((Said::Admitted(3), 16)));
        let read = wire.read(&bytes[16..], &mut reply);
        assert_eq!(read, Some((Said::Ended(3), 10)));
        assert!(reply.is_empty());
    }

    #[test]
    #[should_panic(expected = "\\x08\\x02")]
    fn refusal_ends_the_run() {
        let (mut wire, _) = Wire::open();
        let mut bytes = Vec::new();
        frame(&mut bytes, DATA, 0, 3, &[0, 0, 0, 0, 2, 8, 2]);
        wire.read(&bytes, &mut Vec::new());
    }
}
