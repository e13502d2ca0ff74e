//! The gRPC listener: transport, health, reflection, and clients that speak it badly.

use std::io::{Read, Write};
use std::net::TcpStream;

use tidegate_server::envoy::wire::Code;
use tonic::Code as Grpc;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use super::{Client, Served, address, codes, request};
use crate::certificates::Certificates;
use crate::process::{PATIENCE, Start, until};

const LOGIN: &str = r#"
    [[policies]]
    name = "login"
    key = "{user}"
    limit = "1/1h"
"#;

#[test]
fn unix_socket_is_asked_like_an_address() {
    let start = Start::new(LOGIN).argument("--grpc");
    let path = start.folder().path("grpc.sock");
    let server = start.argument(&format!("unix:{}", path.display())).start();
    server.line("listening on unix:");
    let client = Client::new(&format!("unix:{}", path.display()));
    let ask = || {
        client
            .ask(request("login", &[&[("user", "ann")]]))
            .expect("an answer")
    };
    assert_eq!(codes(&ask()), [Code::Ok; 2]);
    assert_eq!(codes(&ask()), [Code::OverLimit; 2]);
}

#[test]
fn tls_and_client_certificates() {
    let certificates = Certificates::make();
    let file = |name: &str| certificates.path(name);
    let config = format!(
        "[server]\ntls_cert = {:?}\ntls_key = {:?}\ntls_client_ca = {:?}\n{LOGIN}",
        file("server.crt"),
        file("server.key"),
        file("authority.crt"),
    );
    let server = Start::new(&config)
        .argument("--grpc")
        .argument("127.0.0.1:0");
    let server = server.start();
    let url = format!("https://{}", address(&server));
    let ca = Certificate::from_pem(certificates.read("authority.crt"));
    let plain = ClientTlsConfig::new().ca_certificate(ca);
    let shown = Identity::from_pem(
        certificates.read("client.crt"),
        certificates.read("client.key"),
    );
    let client = |tls: ClientTlsConfig| {
        let endpoint = Endpoint::from_shared(url.clone()).expect("a url");
        Client::of(endpoint.tls_config(tls).expect("certificates"))
    };
    let asked = || request("login", &[&[("user", "ann")]]);
    // Which error it is depends on what comes first: the alert, or the end of the
    // connection. The limit of one is not used up by it.
    let refused = client(plain.clone()).ask(asked());
    refused.expect_err("no certificate");
    let answer = client(plain.identity(shown))
        .ask(asked())
        .expect("an answer");
    assert_eq!(codes(&answer), [Code::Ok; 2]);
}

#[test]
fn health_is_known_for_the_server_and_the_service() {
    let served = Served::start(LOGIN);
    let check = |service: &str| {
        let service = service.to_owned();
        let path = "/grpc.health.v1.Health/Check";
        served
            .client
            .call::<_, HealthCheckResponse>(path, HealthCheckRequest { service })
    };
    until("ready", || {
        check("").is_ok_and(|it| it.status == 1).then_some(())
    });
    assert_eq!(check("ratelimit").expect("known").status, 1);
    let unknown = check("nope").expect_err("unknown");
    assert_eq!(unknown.code(), Grpc::NotFound);
}

#[test]
fn health_watch_says_when_the_server_stops() {
    let mut served = Served::start(LOGIN);
    let mut client = HealthClient::new(served.client.channel());
    let asked = HealthCheckRequest {
        service: "ratelimit".into(),
    };
    let mut stream = served
        .client
        .run(client.watch(asked))
        .expect("a stream")
        .into_inner();
    let mut next = || served.client.run(stream.message());
    let mut first = next().expect("a status").expect("a status").status;
    if first == 2 {
        // The stores had not been asked yet.
        first = next().expect("a status").expect("a status").status;
    }
    assert_eq!(first, 1);
    served.server.signal("TERM");
    assert_eq!(next().expect("a status").expect("a status").status, 2);
    assert!(next().is_ok_and(|last| last.is_none()));
    assert!(served.server.end().0.success());
}

#[test]
fn reflection_lists_the_services_and_their_messages() {
    let served = Served::start(LOGIN);
    let ask = |message: MessageRequest| -> MessageResponse {
        let mut client = ServerReflectionClient::new(served.client.channel());
        let asked = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(message),
        };
        let asked = futures_util::stream::iter([asked]);
        served.client.run(async {
            let stream = client
                .server_reflection_info(asked)
                .await
                .expect("a stream");
            let answer: Option<ServerReflectionResponse> =
                stream.into_inner().message().await.expect("an answer");
            answer
                .expect("an answer")
                .message_response
                .expect("an answer")
        })
    };
    let MessageResponse::ListServicesResponse(list) =
        ask(MessageRequest::ListServices(String::new()))
    else {
        panic!("no list");
    };
    let names: Vec<&str> = list.service.iter().map(|it| it.name.as_str()).collect();
    for name in [
        "envoy.service.ratelimit.v3.RateLimitService",
        "grpc.health.v1.Health",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
    let symbol = "envoy.service.ratelimit.v3.RateLimitResponse".to_owned();
    let answer = ask(MessageRequest::FileContainingSymbol(symbol));
    assert!(
        matches!(&answer, MessageResponse::FileDescriptorResponse(it) if it.file_descriptor_proto.len() == 1),
        "{answer:?}"
    );
}

#[test]
fn unknown_methods_and_long_messages_are_refused() {
    let served = Served::start(LOGIN);
    for path in [
        "/envoy.service.ratelimit.v3.RateLimitService/Nope",
        "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit",
        "/nope",
    ] {
        let asked = request("login", &[]);
        let status = served.client.call::<_, HealthCheckResponse>(path, asked);
        let status = status.expect_err(path);
        assert_eq!(status.code(), Grpc::Unimplemented, "{status}");
    }
    let long = "x".repeat(100 << 10);
    let status = served.ask(request("login", &[&[("user", &long)]]));
    let status = status.expect_err("too long");
    assert_eq!(status.code(), Grpc::OutOfRange, "{status}");
    assert_eq!(served.codes("login", &[&[("user", "ann")]]), [Code::Ok; 2]);
}

#[test]
fn bytes_that_are_not_http2_end_the_connection() {
    let served = Served::start(LOGIN);
    for bytes in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0xff; 64]] {
        let mut stream = TcpStream::connect(address(&served.server)).expect("a listener");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.write_all(bytes).expect("sent");
        let mut rest = Vec::new();
        // Closed, with or without a reset.
        drop(stream.read_to_end(&mut rest));
    }
    assert_eq!(served.codes("login", &[&[("user", "ann")]]), [Code::Ok; 2]);
}
