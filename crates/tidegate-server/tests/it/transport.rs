//! The ways in: TCP, unix sockets and TLS, HTTP/1.1 in pieces, and HTTP/2. Forms of a request
//! are in `requests/forms.txt`.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use crate::certificates::Certificates;
use crate::client::{Connection, request};
use crate::http2::{self, Sender};
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
fn bodies_may_come_byte_by_byte_or_after_a_go_ahead() {
    let server = Tidegate::start("");
    let mut connection = server.connect();
    for byte in request("POST", "/v1/check", &[], QUESTION.as_bytes()) {
        connection.send(&[byte]);
    }
    assert_eq!(connection.receive("POST").expect("an answer").status, 200);
    let expect = [("Expect", "100-continue")];
    let whole = request("POST", "/v1/check", &expect, QUESTION.as_bytes());
    let (head, body) = whole.split_at(whole.len() - QUESTION.len());
    connection.send(head);
    assert_eq!(connection.receive("POST").expect("go ahead").status, 100);
    connection.send(body);
    assert_eq!(connection.receive("POST").expect("an answer").status, 200);
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

/// Sends ten requests over a connection at once.
async fn ten_at_once(sender: Sender) {
    let asked = (0..10).map(|_| {
        let sender = sender.clone();
        tokio::spawn(async move { http2::ask(&sender, "POST", "/v1/check", QUESTION).await })
    });
    let mut remaining = Vec::new();
    for answer in asked.collect::<Vec<_>>() {
        let answer = answer.await.expect("no panic").expect("an answer");
        remaining.push(answer.json()["remaining"].as_u64().expect("a number"));
    }
    remaining.sort_unstable();
    assert_eq!(remaining, Vec::from_iter(0..10));
    for (method, path, status) in [
        ("HEAD", "/v1/gate/default?key=k", 429),
        ("GET", "/nowhere", 404),
        ("GET", "http://evil.example/healthz", 421),
    ] {
        let answer = http2::ask(&sender, method, path, "").await;
        let answer = answer.expect("an answer");
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(answer.body.is_empty(), method == "HEAD");
    }
}

const TEN: &str = "[[policies]]\nname = \"default\"\nlimit = \"10/1h\"\n";

#[tokio::test]
async fn http2_in_the_clear() {
    let server = Tidegate::start(TEN);
    ten_at_once(http2::connect(&server).await).await;
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
    let stream = connect(b"h2").await.expect("a handshake");
    ten_at_once(http2::over(stream).await).await;
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
        let mut sender = http2::connect(&server).await;
        server.signal("TERM");
        server.line("shutting down");
        let mut answered = 0;
        // After GOAWAY, a client opens no more requests on this connection.
        while sender.ready().await.is_ok() && !sender.is_closed() {
            match http2::ask(&sender, "POST", "/v1/check", QUESTION).await {
                Ok(answer) => assert_eq!(answer.status, 200),
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
