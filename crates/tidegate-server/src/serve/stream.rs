//! The bytes of a connection, whatever they travel by. Reads and writes are reported to
//! the [`Connection`], which is how the reaper knows what its client does.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use super::connection::Connection;

/// The bytes of a connection.
#[derive(Debug)]
pub struct Stream {
    io: Io,
    connection: Arc<Connection>,
}

/// What they travel by.
#[derive(Debug)]
pub(super) enum Io {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
    /// A test holds the other end.
    #[cfg(test)]
    Memory(tokio::io::DuplexStream),
}

/// The same call, whatever the bytes travel by.
macro_rules! on {
    ($io:expr, $stream:ident => $call:expr) => {
        match $io {
            Io::Tcp($stream) => $call,
            Io::Unix($stream) => $call,
            Io::Tls($stream) => $call,
            #[cfg(test)]
            Io::Memory($stream) => $call,
        }
    };
}

impl Stream {
    pub(super) fn new(io: Io, connection: Arc<Connection>) -> Self {
        Self { io, connection }
    }
}

impl AsyncRead for Stream {
    #[inline]
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        ready!(on!(&mut this.io, io => Pin::new(io).poll_read(cx, buffer)))?;
        let read = &buffer.filled()[before..];
        if !read.is_empty() {
            this.connection.heard(read);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    #[inline]
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let written = on!(&mut this.io, io => Pin::new(io).poll_write(cx, bytes));
        this.connection.wrote(written.is_pending());
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let written = on!(&mut this.io, io => Pin::new(io).poll_write_vectored(cx, slices));
        this.connection.wrote(written.is_pending());
        written
    }

    fn is_write_vectored(&self) -> bool {
        on!(&self.io, io => io.is_write_vectored())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = match &mut self.io {
            Io::Tls(io) => Pin::new(io).poll_flush(cx),
            // A socket has nothing to flush.
            _ => return Poll::Ready(Ok(())),
        };
        self.connection.wrote(flushed.is_pending());
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on!(&mut self.io, io => Pin::new(io).poll_shutdown(cx))
    }
}
