//! What is asked: the bytes of a request, in which only the digits of the key change,
//! and what its answer must begin with.

use std::ops::Range;

use memchr::memmem;

use crate::keys::write_digits;

/// Where a request has the digits of its key.
const DIGITS: &str = "999999999999";

/// A request, laid out beforehand.
#[derive(Debug, Clone)]
pub(super) struct Request {
    bytes: Vec<u8>,
    digits: Range<usize>,
    status: &'static [u8; 3],
    /// How the body of the answer begins.
    body: &'static [u8],
}

impl Request {
    /// A check in JSON, for a policy of tidegate's that admits everything. The ceiling
    /// gets the same, and does not look at it.
    pub(super) fn check() -> Self {
        let body = format!(r#"{{"policy":"api","key":"{DIGITS}"}}"#);
        Self::new(&post("/v1/check", &body), b"200", br#"{"allowed":true"#)
    }

    /// The same for throttlecrab, whose requests bring their limit.
    pub(super) fn throttle() -> Self {
        let body = format!(
            r#"{{"key":"{DIGITS}","max_burst":1000000,"count_per_period":1,"period":600}}"#
        );
        Self::new(&post("/throttle", &body), b"200", br#"{"allowed":true"#)
    }

    /// What a proxy asks.
    pub(super) fn gate() -> Self {
        Self::new(&get("/v1/gate/api"), b"200", b"")
    }

    /// The same of a policy that admits the first request of each key.
    pub(super) fn first() -> Self {
        Self::new(&get("/v1/gate/once"), b"200", b"")
    }

    /// The first request for a key of another: one that is admitted, whatever comes after.
    pub(super) fn first_of(request: &Self) -> Self {
        match request.status {
            b"429" => Self::first(),
            _ => request.clone(),
        }
    }

    /// And for another request of that key.
    pub(super) fn refused() -> Self {
        Self::new(&get("/v1/gate/once"), b"429", br#"{"type""#)
    }

    fn new(text: &str, status: &'static [u8; 3], body: &'static [u8]) -> Self {
        let at = text.find(DIGITS).expect("a request with a key");
        Self {
            bytes: text.into(),
            digits: at..at + DIGITS.len(),
            status,
            body,
        }
    }

    /// The request for a key.
    pub(super) fn of(&mut self, key: usize) -> &[u8] {
        write_digits(&mut self.bytes[self.digits.clone()], key);
        &self.bytes
    }

    /// Whether an answer is all there; it must be the right one.
    pub(super) fn is_answered_by(&self, answer: &[u8]) -> bool {
        let Some(end) = memmem::find(answer, b"\r\n\r\n") else {
            return false;
        };
        let (head, body) = answer.split_at(end + 4);
        if body.len() < content_length(head) {
            return false;
        }
        let status = head.get(9..12);
        let is_right = status == Some(self.status) && body.starts_with(self.body);
        assert!(is_right, "a wrong answer: {}", answer.escape_ascii());
        true
    }
}

fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
}

fn get(path: &str) -> String {
    format!("GET {path}?key={DIGITS} HTTP/1.1\r\nhost: localhost\r\n\r\n")
}

fn content_length(head: &[u8]) -> usize {
    const NAME: &[u8] = b"\r\ncontent-length: ";
    let at = memmem::find(head, NAME).expect("an answer that says how long it is");
    let digits = head[at + NAME.len()..].iter();
    let digits = digits.take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, digit| number * 10 + usize::from(digit - b'0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_changes() {
        let mut request = Request::check();
        let text = String::from_utf8(request.of(1_234).to_vec()).unwrap();
        assert!(
            text.ends_with(
                "content-length: 37\r\n\r\n{\"policy\":\"api\",\"key\":\"000000001234\"}"
            )
        );
        assert_eq!(request.of(5).len(), text.len());
    }

    #[test]
    fn an_answer_is_whole_when_its_body_is() {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 16\r\ndate: x\r\n\r\n{\"allowed\":true}";
        let request = Request::check();
        for length in 0..answer.len() {
            assert!(!request.is_answered_by(&answer[..length]));
        }
        assert!(request.is_answered_by(answer));
    }

    #[test]
    #[should_panic(expected = "a wrong answer: HTTP/1.1 429")]
    fn a_wrong_answer_ends_the_run() {
        Request::gate().is_answered_by(b"HTTP/1.1 429 No\r\ncontent-length: 0\r\n\r\n");
    }
}
