//! The ways in: TCP, unix sockets and TLS; HTTP/1.1 with everything that clients do
//! with it, and HTTP/2.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, StatusCode, Version};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use crate::certificates::Certificates;
use crate::client::{Connection, request};
use crate::process::{Start, Tidegate};

const QUESTION: &str = "{\"policy\":\"default\",\"key\":\"k\"}";

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = Tidegate::start("[[policies]]\nname = \"default\"\nlimit = \"1000/1h\"\n");
    let mut connection = server.connect();
    let one = request("POST", "/v1/check", &[], QUESTION.as_bytes());
    connection.send(&one.repeat(200));
    for remaining in (800..1_000).rev() {
        let answer = connection.receive("POST").expect("an answer");
        assert_eq!(answer.json()["remaining"], remaining);
    }
}

#[test]
fn an_answer_does_not_wait_for_the_rest_of_the_next_request() {
    let server = Tidegate::start("");
    let mut connection = server.connect();
    let one = request("POST", "/v1/check", &[], QUESTION.as_bytes());
    for end in [1, one.len() / 2, one.len() - 1] {
        connection.send(&[&one, &one[..end]].concat());
        assert_eq!(connection.receive("POST").expect("an answer").status, 200);
        connection.send(&one[end..]);
        assert_eq!(connection.receive("POST").expect("an answer").status, 200);
    }
}

#[test]
fn bodies_may_come_in_chunks_or_byte_by_byte_or_after_a_go_ahead() {
    let server = Tidegate::start("");
    let mut connection = server.connect();
    let mut chunked =
        b"POST /v1/check HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n"
            .to_vec();
    for byte in QUESTION.bytes() {
        chunked.extend([b"1\r\n", &[byte][..], b"\r\n"].concat());
    }
    chunked.extend(b"0\r\nx: y\r\n\r\n");
    connection.send(&chunked);
    assert_eq!(connection.receive("POST").expect("an answer").status, 200);

    for byte in request("POST", "/v1/check", &[], QUESTION.as_bytes()) {
        connection.send(&[byte]);
    }
    assert_eq!(connection.receive("POST").expect("an answer").status, 200);

    let whole = request(
        "POST",
        "/v1/check",
        &[("Expect", "100-continue")],
        QUESTION.as_bytes(),
    );
    let (head, body) = whole.split_at(whole.len() - QUESTION.len());
    connection.send(head);
    assert_eq!(connection.receive("POST").expect("go ahead").status, 100);
    connection.send(body);
    assert_eq!(connection.receive("POST").expect("an answer").status, 200);

    // Where the body does not matter, nobody asks for it.
    let head = "GET /v1/gate/default?key=k HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    connection.send(head.as_bytes());
    assert_eq!(connection.receive("GET").expect("an answer").status, 200);
}

#[tokio::test]
async fn loopback_refuses_foreign_hosts_over_http2_as_well() {
    let server = Tidegate::start("");
    let stream = TcpStream::connect(server.address()).await;
    let mut sender = connect_http2(stream.expect("a server")).await;
    for (host, status) in [("localhost", 200), ("evil.example", 421)] {
        let request = Request::get(format!("http://{host}/healthz"));
        let request = request.body(Full::<Bytes>::default()).expect("a request");
        let answer = sender.send_request(request).await.expect("an answer");
        assert_eq!(answer.status().as_u16(), status, "{host}");
    }
}

#[test]
fn a_unix_socket_speaks_the_same_and_goes_with_the_server() {
    let start = Start::configured("[server]\nhttp = [\"unix:tidegate.sock\", \"127.0.0.1:0\"]\n");
    let path = start.folder().path("tidegate.sock");
    let mut server = start.argument("--drain").argument("0").start();
    assert_eq!(server.url(), "unix:tidegate.sock");
    let mut connection = Connection::unix(path.to_str().expect("text"));
    let answer = connection.ask("POST", "/v1/check", &[], QUESTION.as_bytes());
    assert_eq!(answer.json()["remaining"], 9);
    // The same counts by the other way.
    let line = server.line("listening on http://");
    let address = line.split("http://").nth(1).expect("an address").trim();
    let answer = Connection::tcp(address).ask("POST", "/v1/check", &[], QUESTION.as_bytes());
    assert_eq!(answer.json()["allowed"], true);
    drop(connection);
    server.signal("TERM");
    assert!(server.end().0.success());
    assert!(!path.exists(), "the socket is left behind");
}

/// Asks over HTTP/2: the status, and the body.
async fn ask_http2(
    mut sender: SendRequest<Full<Bytes>>,
    method: &str,
    path: &str,
    body: &'static str,
) -> hyper::Result<(u16, Bytes)> {
    let url = format!("http://localhost{path}");
    let request = Request::builder().method(method).uri(url);
    let request = request.body(Full::new(Bytes::from(body)));
    let answer = sender.send_request(request.expect("a request")).await?;
    assert_eq!(answer.version(), Version::HTTP_2);
    let status = answer.status().as_u16();
    Ok((status, answer.into_body().collect().await?.to_bytes()))
}

async fn connect_http2(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> SendRequest<Full<Bytes>> {
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (sender, connection) = handshake.await.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

/// Sends ten requests over a connection at once.
async fn ten_over_http2(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let sender = connect_http2(stream).await;
    let asked = (0..10).map(|_| {
        let sender = sender.clone();
        tokio::spawn(ask_http2(sender, "POST", "/v1/check", QUESTION))
    });
    let mut remaining = Vec::new();
    for answer in asked.collect::<Vec<_>>() {
        let (status, body) = answer.await.expect("no panic").expect("an answer");
        assert_eq!(status, 200);
        let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        remaining.push(body["remaining"].as_u64().expect("a number"));
    }
    remaining.sort_unstable();
    assert_eq!(remaining, Vec::from_iter(0..10));
    for (method, path, status) in [
        ("HEAD", "/v1/gate/default?key=k", 429),
        ("GET", "/nowhere", 404),
    ] {
        let answer = ask_http2(sender.clone(), method, path, "").await;
        let answer = answer.expect("an answer");
        assert_eq!(answer.0, status, "{path}");
        assert_eq!(answer.1.is_empty(), method == "HEAD");
    }
}

const TEN: &str = "[[policies]]\nname = \"default\"\nlimit = \"10/1h\"\n";

#[tokio::test]
async fn http2_in_the_clear() {
    let server = Tidegate::start(TEN);
    let stream = TcpStream::connect(server.address()).await;
    ten_over_http2(stream.expect("a server")).await;
}

/// Opens a connection that trusts this authority.
async fn connect_securely(
    server: &Tidegate,
    authority: &[u8],
    protocol: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(authority).expect("a certificate");
    roots.add(authority).expect("a certificate");
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions();
    let config = config.expect("versions").with_root_certificates(roots);
    let mut config = config.with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(server.address()).await?;
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream);
    let stream = stream.await?;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(protocol));
    Ok(stream)
}

#[tokio::test]
async fn tls_with_http2_and_http1_and_certificates_that_change() {
    let certificates = Certificates::make();
    let start = Start::new(&format!(
        "[server]\ntls_cert = \"server.crt\"\ntls_key = \"server.key\"\n{TEN}"
    ));
    for file in ["server.crt", "server.key"] {
        start.folder().write(file, certificates.read(file));
    }
    let server = start.start();
    assert!(server.url().starts_with("https://"));
    let authority = certificates.read("authority.crt");
    let connect = async |protocol| connect_securely(&server, &authority, protocol).await;
    ten_over_http2(connect(b"h2").await.expect("a handshake")).await;
    let stream = connect(b"http/1.1").await.expect("a handshake");
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.expect("HTTP/1.1");
    tokio::spawn(connection);
    let request = Request::get("/v1/gate/default?key=other").header("host", "localhost");
    let request = request.body(Full::<Bytes>::default()).expect("a request");
    let answer = sender.send_request(request).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::OK);
    // A client without TLS gets no answer, and does no harm.
    let mut plain = Connection::tcp(server.address());
    plain.send(b"GET /healthz HTTP/1.1\r\n\r\n");
    plain.finish();
    assert!(!plain.has_ended(), "an alert");
    // New files are for new connections.
    let others = Certificates::make();
    for file in ["server.crt", "server.key"] {
        server.folder().write(file, others.read(file));
    }
    server.line("the config is in force");
    let authority = others.read("authority.crt");
    let connected = connect_securely(&server, &authority, b"h2").await;
    drop(connected.expect("the new certificate"));
    assert!(connect(b"h2").await.is_err(), "the old authority");
    sender.ready().await.expect("the old connection goes on");
}

/// A client has to ask twice before the drain is over.
mod timing {
    use super::*;

    #[tokio::test]
    async fn http2_gets_goaway_and_is_answered_until_then() {
        let mut server = Start::new("").argument("--drain").argument("3").start();
        let stream = TcpStream::connect(server.address()).await;
        let mut sender = connect_http2(stream.expect("a server")).await;
        server.signal("TERM");
        server.line("shutting down");
        let mut answered = 0;
        // After GOAWAY, a client opens no more requests on this connection.
        while sender.ready().await.is_ok() && !sender.is_closed() {
            match ask_http2(sender.clone(), "POST", "/v1/check", QUESTION).await {
                Ok((status, _)) => assert_eq!(status, 200),
                // It was told just then, and has not sent it.
                Err(error) if error.is_canceled() => break,
                Err(error) => panic!("{error}"),
            }
            answered += 1;
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert!(answered > 1, "{answered}");
        assert!(server.end().0.success());
    }
}
