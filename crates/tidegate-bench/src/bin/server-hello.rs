//! The ceiling of the server's benchmark: a handler that answers without a look at the
//! request, on the same HTTP stack and with the same settings as `tidegate serve`.
//!
//! `server-hello PORT` listens there until it is killed. It is a program of its own
//! because `tidegate-bench` counts what is allocated, which takes time.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Response;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tokio::net::TcpListener;

/// What `tidegate serve` answers to an admitted check, as of some moment.
const BODY: &[u8] = br#"{"allowed":true,"policy":"api","denied_by":null,"limit":1000000,"remaining":999998,"rate":1.9998333,"retry_after_ms":0,"reset_after_ms":1199900,"source":"store","shadow":false,"would_deny":false,"decided_at_us":1794800199703590,"receipt":"ASBKwLA_hUcKAwAAAGFwaQMAAABrZXkMAAAAMDAwMDAwMDAwMDAyAAAAACacWHxcYAYAAAAAAAEAAAABAAAAJpxYfFxgBgA","levels":[{"name":"api","limit":1000000,"remaining":999998,"rate":1.9998333,"retry_after_ms":0,"reset_after_ms":1199900}]}"#;

fn main() {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok());
    let port: u16 = port.expect("usage: server-hello PORT");
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.enable_all().build().expect("a runtime");
    runtime.block_on(serve(port));
}

async fn serve(port: u16) {
    let listener = TcpListener::bind(("127.0.0.1", port)).await;
    let listener = listener.expect("a free port");
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        stream.set_nodelay(true).expect("a socket");
        tokio::spawn(async {
            let service = service_fn(async |_| Ok::<_, Infallible>(hello()));
            let mut builder = Builder::new(TokioExecutor::new());
            builder.http1().max_buf_size(64 << 10).pipeline_flush(true);
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            // A client that is done closes the connection, which may look like an error.
            drop(connection.await);
        });
    }
}

fn hello() -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::from_static(BODY)));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
