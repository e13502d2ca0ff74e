//! The Redis protocol: replies, read out of what has arrived.

use redis::Value;

/// What arrives is not the protocol.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Garbled;

/// How deep lists may be inside each other, and how long a reply may be. A script of the
/// user's own may answer anything.
const DEPTH: u32 = 16;
const LENGTH: usize = 64 << 20;

/// The first reply in a buffer, and how many bytes it has; `None` while it is not whole.
pub(crate) fn reply(buffer: &[u8]) -> Result<Option<(Value, usize)>, Garbled> {
    match nested(buffer, DEPTH) {
        Ok(None) if buffer.len() > LENGTH => Err(Garbled),
        parsed => parsed,
    }
}

fn nested(buffer: &[u8], depth: u32) -> Result<Option<(Value, usize)>, Garbled> {
    let Some(end) = buffer.iter().position(|byte| *byte == b'\r') else {
        return Ok(None);
    };
    if buffer.len() < end + 2 {
        return Ok(None);
    }
    let (kind, line) = (buffer[0], buffer.get(1..end).ok_or(Garbled)?);
    let after = end + 2;
    let value = match kind {
        b'+' => Value::SimpleString(String::from_utf8_lossy(line).into()),
        b'-' => {
            let line = format!("-{}\r\n", String::from_utf8_lossy(line));
            redis::parse_redis_value(line.as_bytes()).map_err(|_| Garbled)?
        }
        b':' => Value::Int(integer(line)?),
        b'$' => {
            let Ok(length) = usize::try_from(integer(line)?) else {
                return Ok(Some((Value::Nil, after)));
            };
            if length > LENGTH {
                return Err(Garbled);
            }
            let text = buffer.get(after..after + length);
            let whole = text.filter(|_| buffer.len() >= after + length + 2);
            let whole = whole.map(|text| Value::BulkString(text.into()));
            return Ok(whole.map(|text| (text, after + length + 2)));
        }
        b'*' => {
            let Ok(length) = usize::try_from(integer(line)?) else {
                return Ok(Some((Value::Nil, after)));
            };
            let depth = depth.checked_sub(1).ok_or(Garbled)?;
            let (mut list, mut at) = (Vec::with_capacity(length.min(64)), after);
            for _ in 0..length {
                let Some((value, length)) = nested(&buffer[at..], depth)? else {
                    return Ok(None);
                };
                list.push(value);
                at += length;
            }
            return Ok(Some((Value::Array(list), at)));
        }
        _ => return Err(Garbled),
    };
    Ok(Some((value, after)))
}

fn integer(line: &[u8]) -> Result<i64, Garbled> {
    let text = std::str::from_utf8(line).map_err(|_| Garbled)?;
    text.parse().map_err(|_| Garbled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_reply_is_read_once_it_is_whole() {
        let bulk = |text: &str| Value::BulkString(text.into());
        let error = |line: &[u8]| redis::parse_redis_value(line).expect("an error");
        let list = vec![
            bulk("a"),
            error(b"-WRONGTYPE x\r\n"),
            Value::Array(vec![Value::Int(1)]),
        ];
        let table: [(&[u8], Value); 8] = [
            (b"+OK\r\n", Value::SimpleString("OK".into())),
            (b"-ERR no\r\n", error(b"-ERR no\r\n")),
            (b":-12\r\n", Value::Int(-12)),
            (b"$4\r\na\r\nb\r\n", bulk("a\r\nb")),
            (b"$-1\r\n", Value::Nil),
            (b"*-1\r\n", Value::Nil),
            (b"*0\r\n", Value::Array(Vec::new())),
            (
                b"*3\r\n$1\r\na\r\n-WRONGTYPE x\r\n*1\r\n:1\r\n",
                Value::Array(list),
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
