//! A client of HTTP/2.

use bytes::Bytes;
use http::{Request, Version};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::client::Answer;
use crate::process::Tidegate;

pub(crate) type Sender = SendRequest<Full<Bytes>>;

pub(crate) async fn connect(server: &Tidegate) -> Sender {
    let stream = TcpStream::connect(server.address()).await;
    over(stream.expect("a server")).await
}

/// Over a connection that is open.
pub(crate) async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Sender {
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (sender, connection) = handshake.await.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

/// Asks for a path of localhost, or for a URL.
pub(crate) async fn ask(
    sender: &Sender,
    method: &str,
    path: &str,
    body: impl Into<Bytes>,
) -> hyper::Result<Answer> {
    let url = match path.starts_with('/') {
        true => format!("http://localhost{path}"),
        false => path.to_owned(),
    };
    let request = Request::builder().method(method).uri(url);
    let request = request.body(Full::new(body.into())).expect("a request");
    let answer = sender.clone().send_request(request).await?;
    assert_eq!(answer.version(), Version::HTTP_2);
    let text = |value: &http::HeaderValue| value.to_str().expect("text").to_owned();
    let headers = answer.headers().iter();
    Ok(Answer {
        status: answer.status().as_u16(),
        headers: headers
            .map(|(name, value)| (name.to_string(), text(value)))
            .collect(),
        body: answer.into_body().collect().await?.to_bytes().to_vec(),
    })
}
