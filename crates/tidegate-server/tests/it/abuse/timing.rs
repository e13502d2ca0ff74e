//! What attackers can hold, and what others notice of them. Each test is one attack with the
//! same bounds: memory, `/healthz`, the checks of another client, and that all is given back.

use std::convert::Infallible;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{Scope, ScopedJoinHandle, sleep};
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::{iter, pending};
use http::Request;
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tidegate_server::quota::wire::{BucketName, Usage, UsageReports};
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;
use tonic::body::Body;

use super::open;
use crate::process::{PATIENCE, Start, Tidegate, until};
use crate::redis_server::Server as Redis;
use crate::{envoy, resp};

/// What a server may grow by, in kilobytes.
const MOST_KB: u64 = 300 << 10;

/// A program that is not optimized takes about ten times as long for everything, so it has
/// less to do.
const SLOWNESS: u32 = if cfg!(debug_assertions) { 10 } else { 1 };

/// How long `/healthz` may take.
const HEALTH: Duration = Duration::from_secs(1);

/// How long 99 of 100 checks of another client may take while attackers hold what they can.
const CHECK: Duration = Duration::from_millis(50);

/// How long that is looked at.
const HELD: Duration = Duration::from_secs(4);

/// A server with all doors.
struct Target {
    server: Tidegate,
    grpc: SocketAddr,
    resp: SocketAddr,
}

/// What attackers need, and what they hold.
struct Attackers {
    runtime: Runtime,
    sockets: Vec<TcpStream>,
    senders: Vec<SendRequest<Body>>,
    answers: Vec<http::Response<Incoming>>,
}

impl Target {
    /// With many policies, so that its descriptions are long. Their stores are `stores`.
    fn start(stores: &str) -> Self {
        let policies = (0..100 / SLOWNESS).map(|number| {
            format!(
                "[[policies]]\nname = \"policy-{number}\"\nkey = \"{{user}}\"\nlimit = \"100r/s\"\n"
            )
        });
        let policies: String = policies.collect();
        let default = "[[policies]]\nname = \"default\"\nlimit = \"1000000/1h\"\n";
        let config = format!("[envoy]\nquota = true\n{stores}{default}{policies}");
        let mut start = Start::new(&config);
        for flag in ["--grpc", "--resp"] {
            start = start.argument(flag).argument("127.0.0.1:0");
        }
        let server = start.start();
        let parse = |address: String| address.parse().expect("an address");
        Self {
            grpc: parse(envoy::address(&server)),
            resp: parse(resp::address(&server)),
            server,
        }
    }

    fn http(&self) -> SocketAddr {
        self.server.address().parse().expect("an address")
    }

    /// A thousand checks at once: a long request, and a response that is longer.
    fn batch(&self) -> u16 {
        self.server.check(&batch()).status
    }
}

fn batch() -> String {
    let check = "{\"policy\":\"default\",\"key\":\"k\"}";
    format!("[{}]", vec![check; 1_000].join(","))
}

/// Does something again and again in a thread until `over`, and says how long each time took.
fn repeat<'s>(
    scope: &'s Scope<'s, '_>,
    over: &'s AtomicBool,
    pause: Duration,
    mut work: impl FnMut() + Send + 's,
) -> ScopedJoinHandle<'s, Vec<Duration>> {
    scope.spawn(move || {
        let mut took = Vec::new();
        while !over.load(Relaxed) {
            let start = Instant::now();
            work();
            took.push(start.elapsed());
            sleep(pause);
        }
        took.sort_unstable();
        took
    })
}

/// Ends the threads of a test, also when it fails.
struct Over<'s>(&'s AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Asserts that a server survives an attack within the bounds.
fn survives<T>(target: &Target, attack: impl FnOnce(&mut Attackers) -> T) {
    assert_eq!(target.batch(), 200);
    let before = target.server.resident_kb();
    let (over, is_held) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let mut attackers = Attackers {
        runtime: runtime
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime"),
        sockets: Vec::new(),
        senders: Vec::new(),
        answers: Vec::new(),
    };
    let (health, memory, checks, held) = std::thread::scope(|scope| {
        let stop = Over(&over);
        let memory = scope.spawn(|| {
            let mut most = before;
            while !over.load(Relaxed) {
                most = most.max(target.server.resident_kb());
                sleep(Duration::from_millis(20));
            }
            most
        });
        let health = repeat(scope, &over, Duration::from_millis(100), || {
            assert_eq!(target.server.get("/healthz").status, 200);
        });
        let held = attack(&mut attackers);
        let checks = {
            let (_stop, over) = (Over(&is_held), &is_held);
            let mut client = target.server.connect();
            let check = br#"{"policy":"policy-0","attributes":{"user":"other"}}"#;
            // The attack has arrived.
            assert_eq!(client.ask("POST", "/v1/check", &[], check).status, 200);
            sleep(HELD / 4);
            let checks = repeat(scope, over, Duration::from_millis(2), move || {
                let answer = client.ask("POST", "/v1/check", &[], check);
                assert_eq!(answer.status, 200);
            });
            sleep(HELD);
            is_held.store(true, Relaxed);
            checks.join().expect("answers")
        };
        drop(stop);
        (
            health.join().expect("answers"),
            memory.join().expect("memory"),
            checks,
            held,
        )
    });
    let grown = memory.saturating_sub(before);
    let worst = health.last().expect("a time");
    let p99 = checks[checks.len() * 99 / 100];
    let figures = format!("{grown} kB, /healthz within {worst:?}, p99 of checks {p99:?}");
    assert!(grown <= MOST_KB, "{figures}");
    assert!(*worst <= HEALTH * SLOWNESS, "{figures}");
    assert!(p99 <= CHECK * SLOWNESS, "{figures}");
    drop(held);
    drop(attackers.sockets);
    attackers.runtime.shutdown_background();
    until("they are gone", || {
        (open(&target.server) <= 2.0).then_some(())
    });
    assert_eq!(target.batch(), 200);
}

impl Attackers {
    /// A connection of HTTP/2 whose streams have this window.
    fn http2(&mut self, address: SocketAddr, window: u32) -> SendRequest<Body> {
        let sender = self.runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await;
            let stream = TokioIo::new(stream.expect("a server"));
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder.initial_stream_window_size(window);
            let (sender, connection) = builder.handshake(stream).await.expect("HTTP/2");
            tokio::spawn(connection);
            sender
        });
        self.senders.push(sender.clone());
        sender
    }

    /// Sends requests on connections of HTTP/2 and goes on when all are sent: `streams` of
    /// them on each.
    fn request(
        &mut self,
        address: SocketAddr,
        connections: usize,
        streams: usize,
        window: u32,
        request: impl Fn(usize) -> Request<Body>,
    ) -> Vec<tokio::task::JoinHandle<hyper::Result<http::Response<Incoming>>>> {
        let mut sent = Vec::new();
        for connection in 0..connections {
            let sender = self.http2(address, window);
            for stream in 0..streams {
                let mut sender = sender.clone();
                let request = request(connection * streams + stream);
                let answer = async move { sender.send_request(request).await };
                sent.push(self.runtime.spawn(answer));
            }
        }
        sent
    }

    /// Connects from an address that takes as few bytes as it can, and sends these.
    fn send(&mut self, address: SocketAddr, count: usize, bytes: &[u8]) {
        for _ in 0..count {
            let stream = self.runtime.block_on(async {
                let socket = TcpSocket::new_v4().expect("a socket");
                socket.set_recv_buffer_size(1 << 10).expect("a socket");
                let connected = tokio::time::timeout(PATIENCE, socket.connect(address)).await;
                connected.expect("in time").expect("a place in the backlog")
            });
            let mut stream = stream.into_std().expect("a socket");
            // As much as the server takes.
            drop(stream.write(bytes));
            self.sockets.push(stream);
        }
    }
}

fn get(path: &str) -> Request<Body> {
    let request = Request::get(format!("http://localhost{path}"));
    request.body(Body::empty()).expect("a request")
}

/// A call that sends these messages or parts of them, and never ends.
fn call(path: &str, pieces: impl Iterator<Item = Bytes> + Send + 'static) -> Request<Body> {
    let frames = iter(pieces).map(|piece| Ok::<_, Infallible>(Frame::data(piece)));
    let body = Body::new(StreamBody::new(frames.chain(pending())));
    let request = Request::post(format!("http://localhost{path}"));
    let request = request.header("content-type", "application/grpc");
    request.body(body).expect("a request")
}

const RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const QUOTA: &str =
    "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";

#[test]
fn g5_batches_that_nobody_reads_hold_a_bounded_amount() {
    // G5: four clients with 100 batches each held 175 MiB.
    let target = Target::start("");
    assert_eq!(target.batch(), 200);
    let before = target.server.resident_kb();
    survives(&target, |attackers| {
        let sent = attackers.request(target.http(), 4, 100, 0, |_| {
            let body = Body::new(http_body_util::Full::from(batch()));
            let request = Request::post("http://localhost/v1/check");
            request.body(body).expect("a request")
        });
        let answered = attackers.runtime.block_on(join_all(sent));
        let heads = answered.into_iter();
        let heads = heads.map(|it| it.expect("no panic").expect("a head"));
        attackers.answers = heads.collect();
        let held = target.server.resident_kb().saturating_sub(before);
        let count = |status| {
            let answers = attackers.answers.iter();
            answers.filter(|answer| answer.status() == status).count()
        };
        let (taken, refused) = (count(200), count(503));
        assert_eq!(taken + refused, 400, "{taken} taken, {refused} refused");
        assert!(taken > 0 && refused > 0, "{taken} taken, {refused} refused");
        assert!(held < 80 << 10, "{held} kB for {taken} responses");
    });
}

/// `/metrics` is asked for 2,000 times by clients that read none of it.
fn unread_metrics(window: u32) {
    let target = Target::start("");
    survives(&target, |attackers| {
        let sent = attackers.request(target.http(), 20, 100, window, |_| get("/metrics"));
        let answered = attackers.runtime.block_on(join_all(sent));
        let heads = answered
            .into_iter()
            .filter_map(|it| it.expect("no panic").ok());
        attackers.answers = heads.collect();
    });
}

#[test]
fn s1_unread_metrics_without_a_window() {
    unread_metrics(0);
}

#[test]
fn unread_metrics_with_a_window_of_a_byte() {
    unread_metrics(1);
}

#[test]
fn s2_ten_thousand_calls_that_are_never_finished() {
    let target = Target::start("");
    let mut hello = PREFACE.to_vec();
    hello.extend(frame(SETTINGS, 0, 0, &[]));
    let path = "/grpc.health.v1.Health/Check";
    let mut block = vec![0x83, 0x86, 0x41, 1, b'x'];
    literal(&mut block, b":path", path.as_bytes());
    literal(&mut block, b"content-type", b"application/grpc");
    hello.extend(frame(HEADERS, END_HEADERS, 1, &block));
    survives(&target, |attackers| {
        attackers.send(target.grpc, 9_900, &hello)
    });
}

#[test]
fn half_sent_messages() {
    let target = Target::start("");
    survives(&target, |attackers| {
        attackers.request(target.grpc, 15, 100, 1 << 16, |_| {
            let mut half = BytesMut::from(&[0_u8][..]);
            half.put_u32(64 << 10);
            half.put_bytes(0, 60_000);
            call(RATE_LIMIT, std::iter::once(half.freeze()))
        })
    });
}

/// Messages of each stream, with 50 buckets each.
const MESSAGES: usize = if cfg!(debug_assertions) { 10 } else { 40 };

#[test]
fn s24_hundred_thousand_large_buckets() {
    let target = Target::start("");
    survives(&target, |attackers| {
        let sent = attackers.request(target.grpc, 50, 1, 1 << 16, |stream| {
            let messages = (0..MESSAGES).map(move |message| {
                let usages = (0..50).map(|bucket| {
                    let id = format!("{stream}-{message}-{bucket}-{}", "x".repeat(4_000));
                    let entries = [("user".into(), id.into_bytes())];
                    Usage {
                        bucket_id: Some(BucketName {
                            bucket: entries.into(),
                        }),
                        num_requests_allowed: 1,
                        ..Usage::default()
                    }
                });
                let reports = UsageReports {
                    domain: "policy-2".into(),
                    bucket_quota_usages: usages.collect(),
                };
                let mut bytes = BytesMut::from(&[0_u8][..]);
                bytes.put_u32(reports.encoded_len().try_into().expect("a length"));
                reports.encode(&mut bytes).expect("room");
                bytes.freeze()
            });
            call(QUOTA, messages)
        });
        attackers.runtime.block_on(join_all(sent))
    });
}

/// Each of them holds more than a megabyte where nothing bounds it.
const CLIENTS: usize = if cfg!(debug_assertions) { 1_000 } else { 9_900 };

#[test]
fn s3_ten_thousand_redis_clients_that_never_read() {
    let target = Target::start("");
    // Replies are a hundred times as long.
    let commands = b"COMMAND\r\n".repeat(1_000);
    survives(&target, |attackers| {
        attackers.send(target.resp, CLIENTS, &commands)
    });
}

#[test]
fn five_thousand_bodies_that_never_end() {
    let target = Target::start("");
    let head = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000\r\n\r\n";
    let half = [head.as_bytes(), &[b' '; 15_000]].concat();
    survives(&target, |attackers| {
        attackers.send(target.http(), 5_000, &half)
    });
}

#[test]
fn requests_with_1850_headers() {
    let target = Target::start("");
    survives(&target, |attackers| {
        let connections = if cfg!(debug_assertions) { 5 } else { 20 };
        let sent = attackers.request(target.http(), connections, 100, 1 << 16, |_| {
            let mut request = get("/v1/gate/policy-3?user=a");
            for _ in 0..1_850 {
                let value = http::HeaderValue::from_static("");
                request.headers_mut().append("a", value);
            }
            *request.body_mut() = call("/", std::iter::empty()).into_body();
            request
        });
        attackers.runtime.block_on(join_all(sent))
    });
}

#[test]
fn waiters_on_one_leased_key() {
    let redis = Redis::start();
    let stores = format!(
        "[stores.default]\n[stores.far]\nurl = \"{}\"\ntimeout = \"2s\"\n\
         [[policies]]\nname = \"leased\"\nlimit = \"1000r/s\"\nstore = \"far\"\nmode = \"lease\"\n",
        redis.url()
    );
    let target = Target::start(&stores);
    redis.signal("STOP");
    let checks = b"TG.CHECK leased\r\n".repeat(1_000);
    survives(&target, |attackers| {
        attackers.send(target.resp, 200, &checks)
    });
    redis.signal("CONT");
}

// HTTP/2 by hand: floods that no client library sends.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A header that is not indexed, of less than 127 bytes.
fn literal(block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    block.push(0);
    for text in [name, value] {
        block.push(text.len().try_into().expect("short"));
        block.extend(text);
    }
}

/// A thread that floods a server with these bytes until this is dropped, on a new connection
/// whenever the server ends one.
struct Flood(std::sync::Arc<AtomicBool>);

impl Flood {
    fn start(address: SocketAddr, bytes: Vec<u8>) -> Self {
        let over = std::sync::Arc::new(AtomicBool::new(false));
        let is_over = std::sync::Arc::clone(&over);
        std::thread::spawn(move || {
            while !is_over.load(Relaxed) {
                let Ok(mut stream) = TcpStream::connect(address) else {
                    return;
                };
                drop(stream.write_all(&bytes));
            }
        });
        Self(over)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn rapid_resets() {
    let target = Target::start("");
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    for stream in (1..20_000).step_by(2) {
        let block = [0x82, 0x86, 0x84, 0x41, 1, b'x'];
        bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &block));
        bytes.extend(frame(RESET, 0, stream, &8_u32.to_be_bytes()));
    }
    survives(&target, |_| Flood::start(target.http(), bytes));
}

#[test]
fn endless_continuations() {
    let target = Target::start("");
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    bytes.extend(frame(HEADERS, 0, 1, &[0x82, 0x86, 0x84, 0x41, 1, b'x']));
    let mut block = Vec::new();
    while block.len() < 16_000 {
        literal(&mut block, b"name", b"a value that is not indexed");
    }
    for _ in 0..500 {
        bytes.extend(frame(CONTINUATION, 0, 1, &block));
    }
    survives(&target, |_| Flood::start(target.http(), bytes));
}
