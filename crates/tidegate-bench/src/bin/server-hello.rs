//! The ceiling of the server's benchmark: a handler that answers without a look at the
//! request, behind the same listener, workers and HTTP settings as `tidegate serve`: they
//! are the server's own.
//!
//! `server-hello PORT` listens there until it is killed. It is a program of its own
//! because `tidegate-bench` counts what is allocated, which takes time.

use std::sync::Arc;

use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response};
use tidegate_server::api::door::{Asked, Handler, Http};
use tidegate_server::api::request::RequestBody;
use tidegate_server::api::response::ResponseBody;
use tidegate_server::engine::Engine;
use tidegate_server::section::Address;
use tidegate_server::serve::{self, Listener, Room, Signals};
use tidegate_server::settings::Settings;

/// What `tidegate serve` answers to an admitted check, as of some moment.
const BODY: &[u8] = br#"{"allowed":true,"policy":"api","denied_by":null,"limit":1000000,"remaining":999998,"rate":1.9998333,"retry_after_ms":0,"reset_after_ms":1199900,"source":"store","shadow":false,"would_deny":false,"decided_at_us":1794800199703590,"receipt":"ASBKwLA_hUcKAwAAAGFwaQMAAABrZXkMAAAAMDAwMDAwMDAwMDAyAAAAACacWHxcYAYAAAAAAAEAAAABAAAAJpxYfFxgBgA","levels":[{"name":"api","limit":1000000,"remaining":999998,"rate":1.9998333,"retry_after_ms":0,"reset_after_ms":1199900}]}"#;

struct Hello;

impl Handler for Hello {
    async fn answer(_: Arc<Asked<Self>>, _: Request<RequestBody>) -> Response<ResponseBody> {
        let mut answer = Response::new(ResponseBody::from(BODY));
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        answer
    }
}

fn main() {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok());
    let port: u16 = port.expect("usage: server-hello PORT");
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.enable_all().build().expect("a runtime");
    runtime.block_on(run(port));
}

async fn run(port: u16) {
    let loaded = Settings::default().load();
    let engine = Engine::new(loaded.expect("the default config"));
    let engine = Arc::new(engine.expect("the default policy"));
    let address = Address::Tcp(format!("127.0.0.1:{port}"));
    let room = Room::new(serve::MAX_CONNECTIONS, serve::SPARE_CONNECTIONS);
    let listener = Listener::open(&address, "PORT", Http::new(Hello), Arc::new(|| None), room);
    let listener = listener.await.expect("a free port");
    let signals = Signals::new().expect("signals");
    let served = serve::run(engine, vec![listener], signals);
    served.await.expect("workers");
}
