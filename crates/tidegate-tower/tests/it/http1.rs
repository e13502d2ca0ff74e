//! A client that is as simple as can be: HTTP/1.1 over a socket, one request after the
//! other on a connection, or one connection each.

use std::net::SocketAddr;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::support::Answer;

/// A connection to a server.
pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("a server");
        Self(BufReader::new(stream))
    }

    pub(crate) async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut text = format!("GET {path} HTTP/1.1\r\nhost: test\r\n");
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        self.0.write_all(text.as_bytes()).await.expect("a request");
        let status = self.line().await;
        let status = status.split(' ').nth(1).expect("a status");
        let status = StatusCode::from_bytes(status.as_bytes()).expect("a status");
        let mut headers = HeaderMap::new();
        loop {
            let line = self.line().await;
            let Some((name, value)) = line.split_once(": ") else {
                break;
            };
            let name: HeaderName = name.parse().expect("a name");
            headers.append(name, HeaderValue::from_str(value).expect("a value"));
        }
        let length = headers.get("content-length").expect("a length");
        let length = length.to_str().expect("text").parse().expect("a number");
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await.expect("a body");
        Answer {
            status,
            headers,
            body: String::from_utf8(body).expect("text"),
        }
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).await.expect("a line");
        line.trim_end().to_owned()
    }
}

/// One request on a connection of its own.
pub(crate) async fn get(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Answer {
    Connection::open(address).await.get(path, headers).await
}
