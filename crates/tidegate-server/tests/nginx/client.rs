//! The least of an HTTP client: it sends what it is told, however wrong, and shows all
//! that comes back.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// What came back.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Response {
    /// All values of a header.
    pub(crate) fn headers(&self, name: &str) -> Vec<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let lines = lines.filter(|(other, _)| other.eq_ignore_ascii_case(name));
        lines.map(|(_, value)| value).collect()
    }

    /// The only value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        match self.headers(name)[..] {
            [] => None,
            [value] => Some(value),
            _ => panic!("{name} twice: {}", self.head),
        }
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }
}

/// `GET` something.
pub(crate) fn get(port: u16, target: &str) -> Response {
    send(port, "GET", target, &[])
}

/// Sends the same `GET` several times, and returns the statuses.
pub(crate) fn statuses(port: u16, target: &str, times: usize) -> Vec<u16> {
    (0..times).map(|_| get(port, target).status).collect()
}

/// Sends a request without a body, on a connection of its own.
pub(crate) fn send(port: u16, method: &str, target: &str, headers: &[(&str, &str)]) -> Response {
    let headers = headers.iter();
    let headers: String = headers
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let request = format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n"
    );
    exchange(port, request.as_bytes())
}

/// Sends bytes, and reads a response to the end of the connection.
pub(crate) fn exchange(port: u16, request: &[u8]) -> Response {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a server that listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("a time that is not zero");
    stream.write_all(request).expect("a server that reads");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("an answer in time");
    let text = String::from_utf8(bytes).expect("an answer in UTF-8");
    let (head, body) = text.split_once("\r\n\r\n").expect("a whole head");
    let status = head.split(' ').nth(1).expect("a status");
    Response {
        status: status.parse().expect("a status that is a number"),
        head: head.into(),
        body: body.into(),
    }
}
