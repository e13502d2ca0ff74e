//! The gRPC listener: transport, health, reflection, and clients that speak it badly.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::LazyLock;

use tonic::Code as Grpc;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use super::{Client, Served, address, request};
use crate::certificates::Certificates;
use crate::process::{PATIENCE, Start, until};

const LOGIN: &str = r#"
    [[policies]]
    name = "login"
    key = "{user}"
    limit = "1/1h"
"#;

/// The server of all tests that do not stop it.
static SERVED: LazyLock<Served> = LazyLock::new(|| Served::start(LOGIN));

#[test]
fn unix_socket_is_asked_like_an_address() {
    let start = Start::new(LOGIN).argument("--grpc");
    let path = start.folder().path("grpc.sock");
    let server = start.argument(&format!("unix:{}", path.display())).start();
    server.line("listening on unix:");
    let client = Client::new(&format!("unix:{}", path.display()));
    assert_eq!(client.say("login: user=ann"), "OK: OK 0/1");
    assert_eq!(client.say("login: user=ann"), "OVER: OVER 0/1");
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
    let client = |shows| Client::secure(&address(&server), &certificates, shows);
    // Which error it is depends on what comes first: the alert, or the end of the
    // connection. The limit of one is not used up by it.
    let refused = client(false).say("login: user=ann");
    assert!(!refused.starts_with("OK"), "{refused}");
    let answer = client(true).say("login: user=ann");
    assert_eq!(answer, "OK: OK 0/1");
}

#[test]
fn health_is_known_for_the_server_and_the_service() {
    let check = |service| health(&SERVED.client, service);
    until("ready", || (check("") == Ok(1)).then_some(()));
    assert_eq!(check("ratelimit"), Ok(1));
    assert_eq!(check("nope"), Err(Grpc::NotFound));
}

/// The status of a service, in numbers.
pub(super) fn health(client: &Client, service: &str) -> Result<i32, Grpc> {
    let service = service.to_owned();
    let path = "/grpc.health.v1.Health/Check";
    let answer: Result<HealthCheckResponse, _> = client.call(path, HealthCheckRequest { service });
    let status = answer.map(|answer| answer.status);
    status.map_err(|status| status.code())
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
    let mut next = || {
        let message = served.client.run(stream.message());
        message.expect("a stream that goes on").map(|it| it.status)
    };
    let mut first = next();
    if first == Some(2) {
        // The stores had not been asked yet.
        first = next();
    }
    assert_eq!(first, Some(1));
    served.server.signal("TERM");
    assert_eq!((next(), next()), (Some(2), None));
    assert!(served.server.end().0.success());
}

#[test]
fn reflection_lists_the_services_and_their_messages() {
    let ask = |message: MessageRequest| -> MessageResponse {
        let mut client = ServerReflectionClient::new(SERVED.client.channel());
        let request = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(message),
        };
        let requests = futures_util::stream::iter([request]);
        let answer = SERVED.client.run(async {
            let stream = client.server_reflection_info(requests).await?;
            stream.into_inner().message().await
        });
        let answer: Option<ServerReflectionResponse> = answer.expect("a stream");
        let message = answer.and_then(|answer| answer.message_response);
        message.expect("an answer")
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
fn unknown_methods_long_messages_and_other_bytes_are_refused() {
    for path in [
        "/envoy.service.ratelimit.v3.RateLimitService/Nope",
        "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit",
        "/nope",
    ] {
        let message = request("login", &[]);
        let answer = SERVED.client.call::<_, HealthCheckResponse>(path, message);
        assert_eq!(answer.expect_err(path).code(), Grpc::Unimplemented);
    }
    let long = SERVED.say(&format!("login: user={}", "x".repeat(100 << 10)));
    assert!(long.starts_with("OutOfRange: "), "{long}");
    for bytes in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0xff; 64]] {
        let mut stream = TcpStream::connect(address(&SERVED.server)).expect("a listener");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.write_all(bytes).expect("a connection");
        // Closed, with or without a reset.
        drop(stream.read_to_end(&mut Vec::new()));
    }
    assert_eq!(SERVED.say("login: user=ann"), "OK: OK 0/1");
}
