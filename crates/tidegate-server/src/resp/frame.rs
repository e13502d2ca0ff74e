//! Where one command ends and the next begins, in bytes as they arrive.
//!
//! A command is an array of bulk strings (`*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n`), or a line of
//! words as a person types it. Its arguments are slices of the buffer. Every length is
//! checked before anything is done about it, so no claim of a client costs memory.

use std::fmt;

use smallvec::SmallVec;

use super::text::shown;

/// The longest command, in bytes.
pub const MAX_COMMAND: usize = 64 << 10;

/// The most arguments of a command, its name included.
pub const MAX_ARGUMENTS: usize = 1_024;

/// The longest line that announces a length: a sign, ten digits, and the line's end.
const MAX_HEADER: usize = 16;

/// What a client begins a TLS handshake with.
const TLS_HANDSHAKE: u8 = 0x16;

/// The arguments of a command; none for an empty line.
pub type Arguments<'b> = SmallVec<[&'b [u8]; 8]>;

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// A command of so many bytes, whose arguments were found.
    Command(usize),
    /// A line of so many bytes, whose words [`words`] finds.
    Line(usize),
    /// The beginning of a command, or nothing.
    Partial,
}

/// Bytes that are no command. What follows them cannot be read either.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrameError {
    /// The number of arguments is none, or too large.
    Arguments(String),
    /// The length of an argument is none, or too large.
    Length(String),
    /// Something else where an argument should begin.
    Bulk(u8),
    /// No line end where one must be.
    LineEnd,
    /// The command is too long.
    TooLong,
    /// A line opens a quote and does not close it.
    Quotes,
    /// A TLS handshake, on a listener without TLS.
    Tls,
    /// A request of HTTP.
    Http,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Protocol error: ")?;
        match self {
            Self::Arguments(text) => write!(
                f,
                "invalid multibulk length: {text}: expected a number up to {MAX_ARGUMENTS}"
            ),
            Self::Length(text) => write!(
                f,
                "invalid bulk length: {text}: expected a number up to {MAX_COMMAND}"
            ),
            Self::Bulk(byte) => write!(f, "expected '$', got {}", shown(&[*byte])),
            Self::LineEnd => f.write_str("expected \\r\\n after a length or an argument"),
            Self::TooLong => write!(
                f,
                "the command is too long: expected at most {MAX_COMMAND} bytes"
            ),
            Self::Quotes => f.write_str("unbalanced quotes in request"),
            Self::Tls => f.write_str("a TLS handshake: this address does not speak TLS"),
            Self::Http => f.write_str("an HTTP request: this address speaks the Redis protocol"),
        }
    }
}

/// Finds the first command in these bytes, and its arguments.
#[inline]
pub fn next<'b>(bytes: &'b [u8], arguments: &mut Arguments<'b>) -> Result<Next, FrameError> {
    arguments.clear();
    match bytes.first() {
        Some(b'*') => array(bytes, arguments),
        Some(_) => line(bytes),
        None => Ok(Next::Partial),
    }
}

#[inline]
fn array<'b>(bytes: &'b [u8], arguments: &mut Arguments<'b>) -> Result<Next, FrameError> {
    // An empty array is no command, as in Redis; so is one of "no" elements.
    let (count, mut at) = match short(bytes, 0, b'*') {
        Some(short) => short,
        None => match header(bytes, 1)? {
            None => return Ok(Next::Partial),
            Some((count, at)) => match count.number(MAX_ARGUMENTS) {
                Some(count) => (count, at),
                None => return Err(FrameError::Arguments(shown(count.0))),
            },
        },
    };
    for _ in 0..count {
        let (length, start) = match short(bytes, at, b'$') {
            Some(short) => short,
            None => match bytes.get(at) {
                Some(b'$') => match header(bytes, at + 1)? {
                    None => return partial(bytes),
                    Some((length, start)) => match length.number(MAX_COMMAND) {
                        Some(number) if length.0[0] != b'-' => (number, start),
                        _ => return Err(FrameError::Length(shown(length.0))),
                    },
                },
                Some(other) => return Err(FrameError::Bulk(*other)),
                None => return partial(bytes),
            },
        };
        let end = start + length;
        if end + 2 > MAX_COMMAND {
            return Err(FrameError::TooLong);
        }
        match bytes.get(end..end + 2) {
            Some(b"\r\n") => {}
            Some(_) => return Err(FrameError::LineEnd),
            None => return Ok(Next::Partial),
        }
        arguments.push(&bytes[start..end]);
        at = end + 2;
    }
    Ok(Next::Command(at))
}

/// A command that has not ended yet, and may still.
fn partial(bytes: &[u8]) -> Result<Next, FrameError> {
    match bytes.len() < MAX_COMMAND {
        true => Ok(Next::Partial),
        false => Err(FrameError::TooLong),
    }
}

/// The text of a length.
#[derive(Clone, Copy)]
struct Digits<'b>(&'b [u8]);

impl Digits<'_> {
    /// The number, if it is one and not above `most`. A negative one is nothing: 0.
    fn number(self, most: usize) -> Option<usize> {
        let (is_negative, digits) = match self.0.strip_prefix(b"-") {
            Some(digits) => (true, digits),
            None => (false, self.0),
        };
        let mut number = 0_usize;
        for digit in digits {
            if !digit.is_ascii_digit() {
                return None;
            }
            number = number * 10 + usize::from(digit - b'0');
        }
        match is_negative {
            true => Some(0),
            false => (number <= most).then_some(number),
        }
        .filter(|_| !digits.is_empty())
    }
}

/// A length of one or two digits behind its mark, as nearly all are, and where what follows
/// it begins.
#[inline]
fn short(bytes: &[u8], at: usize, mark: u8) -> Option<(usize, usize)> {
    let digit = |byte: u8| Some(usize::from(byte.wrapping_sub(b'0'))).filter(|it| *it <= 9);
    match *bytes.get(at..at + 5)? {
        [first, one, b'\r', b'\n', _] if first == mark => Some((digit(one)?, at + 4)),
        [first, ten, one, b'\r', b'\n'] if first == mark => {
            Some((digit(ten)? * 10 + digit(one)?, at + 5))
        }
        _ => None,
    }
}

/// The length that begins at `start`, and where what follows it begins.
fn header(bytes: &[u8], start: usize) -> Result<Option<(Digits<'_>, usize)>, FrameError> {
    let rest = &bytes[start..bytes.len().min(start + MAX_HEADER)];
    let Some(end) = rest.iter().position(|byte| *byte == b'\r') else {
        // A length is short, and has no other end.
        let is_over = rest.len() == MAX_HEADER || rest.contains(&b'\n');
        return match is_over {
            true => Err(FrameError::LineEnd),
            false => Ok(None),
        };
    };
    match rest.get(end + 1) {
        Some(b'\n') => Ok(Some((Digits(&rest[..end]), start + end + 2))),
        Some(_) => Err(FrameError::LineEnd),
        None => Ok(None),
    }
}

fn line(bytes: &[u8]) -> Result<Next, FrameError> {
    if bytes[0] == TLS_HANDSHAKE {
        return Err(FrameError::Tls);
    }
    let within = &bytes[..bytes.len().min(MAX_COMMAND)];
    match within.iter().position(|byte| *byte == b'\n') {
        Some(end) => Ok(Next::Line(end + 1)),
        None => partial(bytes),
    }
}

/// The words of a line. Those in quotes may hold spaces and, in double quotes, escapes:
/// `\n`, `\r`, `\t`, `\b`, `\a`, `\xHH`.
pub fn words(line: &[u8]) -> Result<Vec<Vec<u8>>, FrameError> {
    let mut words: Vec<Vec<u8>> = Vec::new();
    let mut rest = line.trim_ascii();
    while let Some(first) = rest.first() {
        if words.len() == MAX_ARGUMENTS {
            let count = format!("more than {MAX_ARGUMENTS} words");
            return Err(FrameError::Arguments(count));
        }
        let (word, after) = match first {
            b'"' => double_quoted(&rest[1..])?,
            b'\'' => single_quoted(&rest[1..])?,
            _ => {
                let end = rest.iter().position(u8::is_ascii_whitespace);
                let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
                (word.to_vec(), after)
            }
        };
        words.push(word);
        if after
            .first()
            .is_some_and(|byte| !byte.is_ascii_whitespace())
        {
            return Err(FrameError::Quotes);
        }
        rest = after.trim_ascii_start();
    }
    let is_http = words
        .last()
        .is_some_and(|last| last.starts_with(b"HTTP/1."));
    match is_http && words.len() == 3 {
        true => Err(FrameError::Http),
        false => Ok(words),
    }
}

fn double_quoted(mut rest: &[u8]) -> Result<(Vec<u8>, &[u8]), FrameError> {
    let mut word = Vec::new();
    loop {
        rest = match rest {
            [b'"', after @ ..] => return Ok((word, after)),
            [b'\\', b'x', high, low, after @ ..]
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                word.push(digit(*high) << 4 | digit(*low));
                after
            }
            [b'\\', escaped, after @ ..] => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                after
            }
            [byte, after @ ..] => {
                word.push(*byte);
                after
            }
            [] => return Err(FrameError::Quotes),
        };
    }
}

fn single_quoted(mut rest: &[u8]) -> Result<(Vec<u8>, &[u8]), FrameError> {
    let mut word = Vec::new();
    loop {
        rest = match rest {
            [b'\'', after @ ..] => return Ok((word, after)),
            [b'\\', b'\'', after @ ..] => {
                word.push(b'\'');
                after
            }
            [byte, after @ ..] => {
                word.push(*byte);
                after
            }
            [] => return Err(FrameError::Quotes),
        };
    }
}

fn digit(hexadecimal: u8) -> u8 {
    match hexadecimal {
        b'0'..=b'9' => hexadecimal - b'0',
        _ => (hexadecimal | 0x20) - b'a' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(bytes: &[u8]) -> Result<(Next, Vec<Vec<u8>>), FrameError> {
        let mut arguments = Arguments::new();
        let next = next(bytes, &mut arguments)?;
        Ok((next, arguments.iter().map(|it| it.to_vec()).collect()))
    }

    #[test]
    fn command_is_found_when_its_last_byte_is_there() {
        let whole = b"*2\r\n$4\r\nECHO\r\n$3\r\na\0b\r\n";
        for length in 0..whole.len() {
            let (next, _) = parsed(&whole[..length]).unwrap();
            assert_eq!(next, Next::Partial, "{length}");
        }
        let more = [&whole[..], b"*1\r\n"].concat();
        let (next, arguments) = parsed(&more).unwrap();
        assert_eq!(next, Next::Command(whole.len()));
        assert_eq!(arguments, [b"ECHO".to_vec(), b"a\0b".to_vec()]);
    }

    #[test]
    fn empty_arrays_are_no_commands() {
        for empty in ["*0\r\n", "*-1\r\n"] {
            let found = parsed(empty.as_bytes()).unwrap();
            assert_eq!(found, (Next::Command(empty.len()), vec![]));
        }
    }

    #[test]
    fn words_of_a_line() {
        let file = include_str!("texts.txt");
        tidegate_testkit::cases::rows(file, "words of a line", |line| {
            match words(line.as_bytes()) {
                Ok(words) => {
                    let words = words
                        .iter()
                        .map(|word| format!("<{}>", word.escape_ascii()));
                    words.collect()
                }
                Err(error) => format!("{error:?}"),
            }
        });
    }
}
