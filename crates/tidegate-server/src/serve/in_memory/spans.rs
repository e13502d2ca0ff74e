//! A request has a span only where log lines show it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tracing::span::{Attributes, Id};
use tracing::{Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use super::Server;

/// Counts the spans of requests.
struct Spans(Arc<AtomicU64>);

impl<S: Subscriber> Layer<S> for Spans {
    fn on_new_span(&self, span: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        if span.metadata().name() == "request" {
            self.0.fetch_add(1, Relaxed);
        }
    }
}

/// How many spans two requests make, one with an id and one without.
async fn spans_at(level: Level) -> u64 {
    let made = Arc::new(AtomicU64::new(0));
    let spans = tracing_subscriber::registry()
        .with(LevelFilter::from_level(level))
        .with(Spans(Arc::clone(&made)));
    // For this thread, on which all tasks of the test run.
    let _logging = tracing::subscriber::set_default(spans);
    let mut client = Server::start().connect();
    let path = "/v1/gate/default?key=k";
    let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nX-Request-Id: id-4711\r\n\r\n");
    client.send(head.as_bytes()).await;
    let answer = client.answer().await.expect("an answer");
    assert!(answer.head.contains("x-request-id: id-4711\r\n"));
    assert_eq!(client.get(path).await.status, 200);
    made.load(Relaxed)
}

#[tokio::test(start_paused = true)]
async fn request_has_a_span_only_where_lines_show_it() {
    assert_eq!(spans_at(Level::INFO).await, 0);
    assert_eq!(spans_at(Level::DEBUG).await, 1);
}
