//! `POST /v1/check` over HTTP/2.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use super::{Answer, Door, Question, body, from_answer};

pub(super) struct Http2 {
    runtime: Runtime,
    sender: SendRequest<Full<Bytes>>,
}

impl Http2 {
    pub(super) fn connect(address: &str) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let sender = runtime.block_on(async {
            let stream = TcpStream::connect(address).await.expect("a server");
            let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
            let (sender, connection) = handshake.await.expect("HTTP/2");
            tokio::spawn(connection);
            sender
        });
        Self { runtime, sender }
    }
}

impl Door for Http2 {
    fn ask(&mut self, question: &Question) -> Option<String> {
        let request = Request::post("http://localhost/v1/check");
        let request = request.body(Full::new(Bytes::from(body(question).to_string())));
        let sent = self.sender.send_request(request.expect("a request"));
        let answer = self.runtime.block_on(async {
            let answer = sent.await.expect("an answer");
            let headers = answer.headers().iter();
            let text = |value: &http::HeaderValue| value.to_str().expect("text").to_owned();
            Answer {
                status: answer.status().as_u16(),
                headers: headers
                    .map(|(name, value)| (name.to_string(), text(value)))
                    .collect(),
                body: answer.collect().await.expect("a body").to_bytes().to_vec(),
            }
        });
        Some(from_answer(&answer))
    }
}
