//! Viewers of the dashboard: connections that read `/v1/live` while something else is
//! measured.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread::JoinHandle;

use super::process::Process;

/// Viewers, until they are dropped.
pub(super) struct Viewers(Vec<(TcpStream, JoinHandle<usize>)>);

impl Viewers {
    /// Opens the stream of events for each viewer.
    pub(super) fn watch(server: &Process, count: usize) -> Self {
        let viewers = (0..count).map(|_| {
            let mut stream =
                TcpStream::connect(("127.0.0.1", server.port())).expect("a server that listens");
            let question = b"GET /v1/live HTTP/1.1\r\nhost: localhost\r\n\r\n";
            stream.write_all(question).expect("a server that reads");
            let mut reading = stream.try_clone().expect("a socket");
            let read = move || {
                let mut buffer = [0; 16 << 10];
                let mut bytes = 0;
                while let Ok(length @ 1..) = reading.read(&mut buffer) {
                    bytes += length;
                }
                bytes
            };
            (stream, std::thread::spawn(read))
        });
        Self(viewers.collect())
    }
}

impl Drop for Viewers {
    fn drop(&mut self) {
        for (stream, reader) in self.0.drain(..) {
            drop(stream.shutdown(Shutdown::Both));
            let bytes = reader.join().expect("a viewer");
            assert!(bytes > 0, "a viewer has received nothing");
        }
    }
}
