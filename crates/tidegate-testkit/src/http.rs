//! A client that hides nothing: bytes into a socket, and the answers that come out.

use std::io::{Error, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::process::PATIENCE;

/// What came back.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    /// Names in small letters.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// A connection, kept alive as long as the server likes.
pub struct Connection {
    stream: Stream,
    /// What has come and was not looked at.
    rest: Vec<u8>,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Answer {
    /// The only value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        match self.headers(name)[..] {
            [] => None,
            [value] => Some(value),
            _ => panic!("{name} twice: {self:?}"),
        }
    }

    /// All values of a header.
    pub fn headers(&self, name: &str) -> Vec<&str> {
        let values = self.headers.iter();
        let values = values.filter(|(other, _)| other.eq_ignore_ascii_case(name));
        values.map(|(_, value)| value.as_str()).collect()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    pub fn json(&self) -> Value {
        let json = serde_json::from_slice(&self.body);
        json.unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(&self.body)))
    }

    /// What is wrong, of a problem that is whole.
    pub fn detail(&self) -> String {
        let body = self.json();
        let kind = self.header("content-type");
        assert_eq!(kind, Some("application/problem+json"), "{self:?}");
        assert_eq!(body["status"], self.status, "{self:?}");
        assert_eq!(body["type"], "about:blank", "{self:?}");
        assert!(body["title"].is_string(), "{self:?}");
        body["detail"].as_str().expect("a detail").to_owned()
    }
}

impl Connection {
    pub fn tcp(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("a server that listens");
        stream.set_nodelay(true).expect("a socket");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
        Self::new(Stream::Tcp(stream))
    }

    pub fn unix(path: &str) -> Self {
        let stream = UnixStream::connect(path).expect("a server that listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        Self::new(Stream::Unix(stream))
    }

    fn new(stream: Stream) -> Self {
        Self {
            stream,
            rest: Vec::new(),
        }
    }

    pub fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        self.send(&request(method, path, headers, body));
        self.receive(method)
            .unwrap_or_else(|| panic!("{method} {path}: no answer"))
    }

    /// Sends bytes. A server that stops reading has closed the connection.
    pub fn send(&mut self, bytes: &[u8]) {
        let sent = match &mut self.stream {
            Stream::Tcp(stream) => stream.write_all(bytes),
            Stream::Unix(stream) => stream.write_all(bytes),
        };
        if let Err(error) = sent {
            let ended = matches!(
                error.kind(),
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
            );
            assert!(ended, "{error}");
        }
    }

    /// Says that there is no more to come.
    pub fn finish(&mut self) {
        let done = match &self.stream {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
        // The other end may have ended it all before.
        if let Err(error) = done {
            assert_eq!(error.kind(), ErrorKind::NotConnected, "{error}");
        }
    }

    /// The next answer, to a request of this method; `None` when the connection has
    /// ended before it began.
    pub fn receive(&mut self, method: &str) -> Option<Answer> {
        let end = loop {
            if let Some(end) = find(&self.rest, b"\r\n\r\n") {
                break end;
            }
            if !self.read() {
                let rest = String::from_utf8_lossy(&self.rest);
                assert!(rest.is_empty(), "cut off: {rest:?}");
                return None;
            }
        };
        let head: Vec<u8> = self.rest.drain(..end + 4).collect();
        let head = std::str::from_utf8(&head).expect("a head in ASCII");
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1));
        let status = status.and_then(|status| status.parse().ok());
        let headers = lines.map(|line| {
            let (name, value) = line.split_once(':').expect("a header");
            (name.to_ascii_lowercase(), value.trim().to_owned())
        });
        let mut answer = Answer {
            status: status.expect("a status"),
            headers: headers.collect(),
            body: Vec::new(),
        };
        let length = answer.header("content-length");
        let ends = length.is_none() && answer.header("connection") == Some("close");
        let length = length.map_or(0, |length| length.parse().expect("a length"));
        if method != "HEAD" && ends {
            while self.read() {}
            answer.body = std::mem::take(&mut self.rest);
        } else if method != "HEAD" {
            while self.rest.len() < length {
                assert!(self.read(), "the body is cut off");
            }
            answer.body = self.rest.drain(..length).collect();
        }
        Some(answer)
    }

    /// Whether the connection ends without another byte.
    pub fn has_ended(&mut self) -> bool {
        self.rest.is_empty() && !self.read()
    }

    fn read(&mut self) -> bool {
        let mut buffer = [0; 64 << 10];
        let read = loop {
            let read = match &mut self.stream {
                Stream::Tcp(stream) => stream.read(&mut buffer),
                Stream::Unix(stream) => stream.read(&mut buffer),
            };
            // A process that was stopped and goes on is interrupted, where it waits for a
            // limited time.
            let interrupted = |error: &Error| error.kind() == ErrorKind::Interrupted;
            if !read.as_ref().is_err_and(interrupted) {
                break read;
            }
        };
        match read {
            Ok(count) => {
                self.rest.extend(&buffer[..count]);
                count > 0
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => panic!("{error}"),
        }
    }
}

/// `GET` something, on a connection of its own.
pub fn get(port: u16, target: &str) -> Answer {
    send(port, "GET", target, &[])
}

/// The statuses of several such requests.
pub fn statuses(port: u16, target: &str, times: usize) -> Vec<u16> {
    (0..times).map(|_| get(port, target).status).collect()
}

/// Sends a request without a body, on a connection of its own.
pub fn send(port: u16, method: &str, target: &str, headers: &[(&str, &str)]) -> Answer {
    let headers = [&[("Connection", "close")], headers].concat();
    Connection::tcp(&format!("127.0.0.1:{port}")).ask(method, target, &headers, &[])
}

/// Sends bytes on a connection of its own, and reads what comes back.
pub fn exchange(port: u16, request: &[u8]) -> Answer {
    let mut connection = Connection::tcp(&format!("127.0.0.1:{port}"));
    connection.send(request);
    connection.receive("GET").expect("an answer")
}

/// A request as it is sent.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() || method == "POST" {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    [head.as_bytes(), body].concat()
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}
