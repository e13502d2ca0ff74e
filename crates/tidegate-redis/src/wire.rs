//! The Redis protocol, as much of it as a lane needs: commands written into one buffer,
//! replies read where they lie.

/// Writes the head of a command of so many words.
pub(crate) fn command(out: &mut Vec<u8>, words: usize) {
    line(out, b'*', words);
}

/// Writes a word of a command.
pub(crate) fn word(out: &mut Vec<u8>, word: &[u8]) {
    line(out, b'$', word.len());
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

/// Writes a word of two parts.
pub(crate) fn word_of(out: &mut Vec<u8>, one: &[u8], other: &[u8]) {
    line(out, b'$', one.len() + other.len());
    out.extend_from_slice(one);
    out.extend_from_slice(other);
    out.extend_from_slice(b"\r\n");
}

/// Writes a number as a word.
pub(crate) fn number(out: &mut Vec<u8>, number: usize) {
    let (digits, first) = digits(number);
    word(out, &digits[first..]);
}

fn line(out: &mut Vec<u8>, kind: u8, number: usize) {
    let (digits, first) = digits(number);
    out.push(kind);
    out.extend_from_slice(&digits[first..]);
    out.extend_from_slice(b"\r\n");
}

/// The digits of a number, and where they begin.
fn digits(mut number: usize) -> ([u8; 20], usize) {
    let (mut digits, mut first) = ([0; 20], 20);
    loop {
        first -= 1;
        #[expect(clippy::cast_possible_truncation, reason = "a digit")]
        let digit = (number % 10) as u8;
        digits[first] = b'0' + digit;
        number /= 10;
        if number == 0 {
            return (digits, first);
        }
    }
}

/// A reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply<'b> {
    Text(&'b [u8]),
    Error(&'b [u8]),
    Number(i64),
    List(Vec<Reply<'b>>),
    Nothing,
}

/// What arrives is not the protocol.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Garbled;

/// How deep lists may be inside each other, and how long a reply may be. A script of the
/// user's own may answer anything.
const DEPTH: u32 = 16;
const LENGTH: usize = 64 << 20;

/// The first reply in a buffer, and how many bytes it has; `None` while it is not whole.
pub(crate) fn reply(buffer: &[u8]) -> Result<Option<(Reply<'_>, usize)>, Garbled> {
    match nested(buffer, DEPTH) {
        Ok(None) if buffer.len() > LENGTH => Err(Garbled),
        parsed => parsed,
    }
}

fn nested(buffer: &[u8], depth: u32) -> Result<Option<(Reply<'_>, usize)>, Garbled> {
    let Some(end) = buffer.iter().position(|byte| *byte == b'\r') else {
        return Ok(None);
    };
    if buffer.len() < end + 2 {
        return Ok(None);
    }
    let (kind, line) = (buffer[0], buffer.get(1..end).ok_or(Garbled)?);
    let after = end + 2;
    let reply = match kind {
        b'+' => Reply::Text(line),
        b'-' => Reply::Error(line),
        b':' => Reply::Number(integer(line)?),
        b'$' => {
            let Ok(length) = usize::try_from(integer(line)?) else {
                return Ok(Some((Reply::Nothing, after)));
            };
            if length > LENGTH {
                return Err(Garbled);
            }
            let text = buffer.get(after..after + length);
            let whole = text.filter(|_| buffer.len() >= after + length + 2);
            return Ok(whole.map(|text| (Reply::Text(text), after + length + 2)));
        }
        b'*' => {
            let Ok(length) = usize::try_from(integer(line)?) else {
                return Ok(Some((Reply::Nothing, after)));
            };
            let depth = depth.checked_sub(1).ok_or(Garbled)?;
            let (mut list, mut at) = (Vec::with_capacity(length.min(64)), after);
            for _ in 0..length {
                let Some((reply, length)) = nested(&buffer[at..], depth)? else {
                    return Ok(None);
                };
                list.push(reply);
                at += length;
            }
            return Ok(Some((Reply::List(list), at)));
        }
        _ => return Err(Garbled),
    };
    Ok(Some((reply, after)))
}

fn integer(line: &[u8]) -> Result<i64, Garbled> {
    let text = std::str::from_utf8(line).map_err(|_| Garbled)?;
    text.parse().map_err(|_| Garbled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_written_as_the_protocol_has_it() {
        let mut out = Vec::new();
        command(&mut out, 3);
        word(&mut out, b"SET");
        word(&mut out, b"");
        number(&mut out, 1_230);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$0\r\n\r\n$4\r\n1230\r\n");
    }

    #[test]
    fn every_kind_of_reply_is_read_once_it_is_whole() {
        let list = vec![
            Reply::Text(b"a"),
            Reply::Error(b"WRONGTYPE x"),
            Reply::List(vec![Reply::Number(1)]),
        ];
        let table: [(&[u8], Reply<'_>); 8] = [
            (b"+OK\r\n", Reply::Text(b"OK")),
            (b"-ERR no\r\n", Reply::Error(b"ERR no")),
            (b":-12\r\n", Reply::Number(-12)),
            (b"$4\r\na\r\nb\r\n", Reply::Text(b"a\r\nb")),
            (b"$-1\r\n", Reply::Nothing),
            (b"*-1\r\n", Reply::Nothing),
            (b"*0\r\n", Reply::List(Vec::new())),
            (
                b"*3\r\n$1\r\na\r\n-WRONGTYPE x\r\n*1\r\n:1\r\n",
                Reply::List(list),
            ),
        ];
        for (bytes, expected) in table {
            for length in 0..bytes.len() {
                assert_eq!(reply(&bytes[..length]), Ok(None), "{bytes:?}");
            }
            let more = [bytes, &b"more"[..]].concat();
            assert_eq!(reply(&more), Ok(Some((expected, bytes.len()))));
        }
    }

    #[test]
    fn nonsense_is_garbled() {
        let deep = [b"*1\r\n".repeat(20), b":1\r\n".to_vec()].concat();
        let all: [&[u8]; 6] = [
            b"HTTP/1.1 400\r\n",
            b"\r\n",
            b":x\r\n",
            b"$x\r\n",
            b"$99999999999\r\n",
            &deep,
        ];
        for bytes in all {
            assert_eq!(reply(bytes), Err(Garbled), "{bytes:?}");
        }
    }
}
