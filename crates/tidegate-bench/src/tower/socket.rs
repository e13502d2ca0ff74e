//! Requests through a socket: a server on a thread of its own, and a client that writes
//! many requests before it reads their responses, so that most of the time is the
//! server's.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use axum::serve::ListenerExt;

use super::lanes::{Lane, PATIENCE};
use crate::limiters::Load;

/// Requests on their way at once.
const BATCH: usize = 50;

/// Batches of one round.
const BATCHES: usize = 400;

/// A lane that measures nanoseconds a request.
pub(super) fn lane(lane: Lane, load: Load) -> Box<dyn FnMut() -> f64> {
    let address = serve(lane, load);
    let refuses = lane.refuses(load);
    let mut client = Client::connect(address);
    if refuses {
        // The one request that this client has.
        client.round(1, "200");
    }
    let expected = if refuses { "429" } else { "200" };
    Box::new(move || {
        let start = Instant::now();
        for _ in 0..BATCHES {
            client.round(BATCH, expected);
        }
        start.elapsed().as_secs_f64() * 1e9 / (BATCHES * BATCH) as f64
    })
}

/// Serves until the program ends.
fn serve(lane: Lane, load: Load) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    listener.set_nonblocking(true).expect("a socket");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            // Or acknowledgements would be waited for, 40 ms at a time.
            let listener = listener.tap_io(|stream| {
                stream.set_nodelay(true).expect("a socket");
            });
            let service = lane.router(load);
            let service = service.into_make_service_with_connect_info::<SocketAddr>();
            axum::serve(listener, service).await
        })
    });
    address
}

struct Client {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("a server");
        stream.set_nodelay(true).expect("a socket");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        Self {
            stream,
            read: vec![0; 64 * 1_024],
        }
    }

    /// Writes so many requests, and reads until all responses are there.
    fn round(&mut self, requests: usize, status: &str) {
        let request = "GET / HTTP/1.1\r\nhost: bench\r\n\r\n".repeat(requests);
        self.stream.write_all(request.as_bytes()).expect("a server");
        let start = format!("HTTP/1.1 {status} ");
        let (mut length, mut complete, mut counted) = (0, 0, 0);
        while counted < requests {
            assert!(length < self.read.len(), "responses fit");
            let more = self.stream.read(&mut self.read[length..]);
            let more = more.expect("responses");
            assert!(more > 0, "the server has closed the connection");
            length += more;
            while let Some(end) = end(&self.read[complete..length], &start) {
                complete += end;
                counted += 1;
            }
        }
    }
}

/// Where a response ends that is complete, and of the status expected.
fn end(text: &[u8], start: &str) -> Option<usize> {
    let head = text.windows(4).position(|end| end == b"\r\n\r\n")?;
    assert!(
        text.starts_with(start.as_bytes()),
        "a response of another status"
    );
    let lines = std::str::from_utf8(&text[..head]).expect("headers are text");
    let length = lines
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.and_then(|it| it.parse().ok()).expect("a length");
    Some(head + 4 + length).filter(|end| *end <= text.len())
}
