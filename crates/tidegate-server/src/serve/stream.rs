//! The bytes of a connection, whatever they travel by. Reads and writes are reported to
//! the [`Connection`], which is how the reaper knows what its client does.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use super::connection::Connection;

/// The bytes of a connection.
#[derive(Debug)]
pub struct Stream {
    io: Io,
    connection: Arc<Connection>,
    /// Bytes that were read and put back.
    unread: Bytes,
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
        Self {
            io,
            connection,
            unread: Bytes::new(),
        }
    }

    /// Whether the connection begins with these bytes. They stay to be read.
    pub async fn begins_with(&mut self, expected: &[u8]) -> io::Result<bool> {
        let mut read = BytesMut::with_capacity(expected.len());
        while read.len() < expected.len() && expected.starts_with(&read) {
            let mut rest = (&mut *self).take((expected.len() - read.len()) as u64);
            if rest.read_buf(&mut read).await? == 0 {
                break;
            }
        }
        let begins = *read == *expected;
        self.unread = read.freeze();
        Ok(begins)
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
        if !this.unread.is_empty() {
            let length = this.unread.len().min(buffer.remaining());
            buffer.put_slice(&this.unread[..length]);
            this.unread.advance(length);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        ready!(on!(&mut this.io, io => Pin::new(io).poll_read(cx, buffer)))?;
        if buffer.filled().len() > before {
            this.connection.heard();
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
