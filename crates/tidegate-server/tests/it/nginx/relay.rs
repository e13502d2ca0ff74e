//! Stands between nginx and a tidegate, and counts the connections.

use std::io::copy;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub(crate) struct Relay {
    port: u16,
    count: Arc<AtomicUsize>,
}

impl Relay {
    /// In front of a port.
    pub(crate) fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("a port that was bound").port();
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.expect("a connection");
                counted.fetch_add(1, Relaxed);
                let server =
                    TcpStream::connect(("127.0.0.1", to)).expect("a tidegate that listens");
                pass(
                    client.try_clone().expect("another handle"),
                    server.try_clone().expect("another handle"),
                );
                pass(server, client);
            }
        });
        Self { port, count }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Connections so far.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Relaxed)
    }
}

/// Passes everything on, and the end, too.
fn pass(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        drop(copy(&mut from, &mut to));
        drop(to.shutdown(Shutdown::Write));
    });
}
