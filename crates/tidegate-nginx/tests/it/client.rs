//! The least of an HTTP client.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::process::PATIENCE;

/// What came back.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
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
    try_exchange(port, &request(method, target, headers)).unwrap()
}

/// The bytes of a request without a body.
pub(crate) fn request(method: &str, target: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let headers = headers.iter();
    let headers: String = headers
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n")
        .into_bytes()
}

/// Sends bytes, and reads a response to the end of the connection.
pub(crate) fn try_exchange(port: u16, request: &[u8]) -> std::io::Result<Response> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request)?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let cut = || std::io::Error::other(format!("cut off: {text:?}"));
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(cut)?;
    let status = head.split(' ').nth(1).and_then(|it| it.parse().ok());
    Ok(Response {
        status: status.ok_or_else(cut)?,
        head: head.into(),
        body: body.into(),
    })
}

/// Sends requests for all these, without waiting, on one connection, and reads until it ends:
/// the head of each response.
pub(crate) fn pipelined(port: u16, targets: &[String]) -> std::io::Result<String> {
    let mut requests = String::new();
    for (number, target) in targets.iter().enumerate() {
        let end = match number + 1 == targets.len() {
            true => "Connection: close\r\n\r\n",
            false => "\r\n",
        };
        requests += &format!("HEAD {target} HTTP/1.1\r\nHost: localhost\r\n{end}");
    }
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(requests.as_bytes())?;
    let mut heads = String::new();
    stream.read_to_string(&mut heads)?;
    Ok(heads)
}
