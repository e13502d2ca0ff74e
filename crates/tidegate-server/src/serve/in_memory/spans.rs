//! A request has a span only where log lines show it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::Server;

/// Counts the spans of requests that are made at a level of the log.
struct Spans {
    level: Level,
    made: Arc<AtomicU64>,
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        if span.metadata().name() == "request" {
            self.made.fetch_add(1, Relaxed);
        }
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// How many spans two requests make, one with an id and one without.
async fn spans_at(level: Level) -> u64 {
    let made = Arc::new(AtomicU64::new(0));
    let spans = Spans {
        level,
        made: Arc::clone(&made),
    };
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
