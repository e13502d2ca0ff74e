//! Encodes replies in the protocol version that the client chose.

use std::fmt::Display;

/// The version of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    /// RESP2, which every connection begins with.
    #[default]
    Two,
    /// RESP3, after `HELLO 3`: maps, nulls, booleans and doubles.
    Three,
}

/// Where replies are written.
#[derive(Debug, Default)]
pub(super) struct Replies {
    pub(super) bytes: Vec<u8>,
    pub(super) version: Version,
}

impl Replies {
    #[inline]
    fn line(&mut self, sign: u8, number: u64) {
        // Most numbers are flags and lengths of one digit.
        if let Ok(digit @ 0..=9) = u8::try_from(number) {
            self.bytes
                .extend_from_slice(&[sign, b'0' + digit, b'\r', b'\n']);
            return;
        }
        self.bytes.push(sign);
        let mut buffer = itoa::Buffer::new();
        self.bytes
            .extend_from_slice(buffer.format(number).as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    #[inline]
    pub(super) fn array(&mut self, length: usize) {
        self.line(b'*', length as u64);
    }

    /// A map of so many pairs: names and values follow in turns.
    pub(super) fn map(&mut self, pairs: usize) {
        match self.version {
            Version::Two => self.array(2 * pairs),
            Version::Three => self.line(b'%', pairs as u64),
        }
    }

    #[inline]
    pub(super) fn number(&mut self, number: u64) {
        self.line(b':', number);
    }

    /// Minus one: nothing, in lists of numbers.
    #[inline]
    pub(super) fn minus_one(&mut self) {
        self.bytes.extend_from_slice(b":-1\r\n");
    }

    pub(super) fn bulk(&mut self, text: impl AsRef<[u8]>) {
        let text = text.as_ref();
        self.line(b'$', text.len() as u64);
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(b"\r\n");
    }

    pub(super) fn null(&mut self) {
        let null: &[u8] = match self.version {
            Version::Two => b"$-1\r\n",
            Version::Three => b"_\r\n",
        };
        self.bytes.extend_from_slice(null);
    }

    pub(super) fn flag(&mut self, flag: bool) {
        let flag: &[u8] = match (self.version, flag) {
            (Version::Two, true) => b":1\r\n",
            (Version::Two, false) => b":0\r\n",
            (Version::Three, true) => b"#t\r\n",
            (Version::Three, false) => b"#f\r\n",
        };
        self.bytes.extend_from_slice(flag);
    }

    pub(super) fn simple(&mut self, text: &str) {
        self.bytes.push(b'+');
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    pub(super) fn ok(&mut self) {
        self.simple("OK");
    }

    /// An error: a code in capitals, and what is wrong. It is one line, whatever the
    /// message has in it.
    pub(super) fn error(&mut self, code: &str, message: impl Display) {
        let message = message.to_string().replace(['\r', '\n'], " ");
        self.bytes.push(b'-');
        self.bytes.extend_from_slice(code.as_bytes());
        self.bytes.push(b' ');
        self.bytes.extend_from_slice(message.as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Microseconds as a double of seconds; nothing is minus one.
    pub(super) fn seconds(&mut self, us: Option<u64>) {
        let text = match us {
            None => "-1".to_owned(),
            Some(us) if us.is_multiple_of(1_000_000) => (us / 1_000_000).to_string(),
            Some(us) => {
                let text = format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
                text.trim_end_matches('0').to_owned()
            }
        };
        match self.version {
            Version::Two => self.bulk(text),
            Version::Three => {
                self.bytes.push(b',');
                self.bytes.extend_from_slice(text.as_bytes());
                self.bytes.extend_from_slice(b"\r\n");
            }
        }
    }

    /// A number, or null.
    pub(super) fn number_or_null(&mut self, number: Option<u64>) {
        match number {
            Some(number) => self.number(number),
            None => self.null(),
        }
    }

    /// A text, or null.
    pub(super) fn bulk_or_null(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.bulk(text),
            None => self.null(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(version: Version, write: impl Fn(&mut Replies)) -> String {
        let mut replies = Replies {
            version,
            ..Replies::default()
        };
        write(&mut replies);
        String::from_utf8(replies.bytes).unwrap()
    }

    #[test]
    fn each_version_has_its_types() {
        let write = |replies: &mut Replies| {
            replies.map(1);
            replies.flag(true);
            replies.null();
            replies.seconds(Some(1_500_000));
            replies.seconds(None);
        };
        let two = written(Version::Two, write);
        assert_eq!(two, "*2\r\n:1\r\n$-1\r\n$3\r\n1.5\r\n$2\r\n-1\r\n");
        let three = written(Version::Three, write);
        assert_eq!(three, "%1\r\n#t\r\n_\r\n,1.5\r\n,-1\r\n");
    }

    #[test]
    fn error_is_one_line() {
        let text = written(Version::Two, |replies| {
            replies.error("ERR", "a\r\n+OK\r\nb")
        });
        assert_eq!(text, "-ERR a  +OK  b\r\n");
    }
}
