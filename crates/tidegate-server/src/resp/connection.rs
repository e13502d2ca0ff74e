//! Reads and writes the bytes of a connection.
//!
//! A client may send any number of commands before it reads a reply. Unread replies and the
//! beginning of a command are on the budget: without room for more replies, nothing more is
//! read from the client. The reaper drops a client that reads nothing at all.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::yield_now;

use super::Shared;
use super::frame::MAX_COMMAND;
use super::pass::Pass;
use super::session::Session;
use crate::serve::{Connection, NoRoom, Reserved, Stream};

/// Bytes that one read takes at most: a whole command always has room.
const READ: usize = MAX_COMMAND;

/// Bytes that the replies to one read may take.
const REPLIES: usize = 1 << 20;

/// Room for replies that a connection keeps when it has nothing to send.
const KEPT: usize = 16 << 10;

/// Bytes that are read, and forgotten, after the last reply.
const LINGER: usize = 1 << 20;

/// Buffers that a worker keeps for its connections.
const BUFFERS: usize = 16;

thread_local! {
    /// Most connections have nothing in the middle of being read: a few buffers are enough
    /// for all connections of a worker.
    static FREE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// Bytes that were read, and are not used yet.
struct Buffer {
    bytes: Box<[u8]>,
    end: usize,
}

impl Buffer {
    /// A buffer that begins with these bytes.
    fn new(rest: &[u8]) -> Self {
        let free = FREE.with_borrow_mut(Vec::pop);
        let mut bytes = free.unwrap_or_else(|| vec![0; READ].into());
        bytes[..rest.len()].copy_from_slice(rest);
        Self {
            bytes,
            end: rest.len(),
        }
    }

    fn filled(&self) -> &[u8] {
        &self.bytes[..self.end]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        FREE.with_borrow_mut(|free| {
            if free.len() < BUFFERS {
                free.push(bytes);
            }
        });
    }
}

/// A client.
struct Client {
    stream: Stream,
    connection: Arc<Connection>,
    pass: Pass,
    /// The beginning of a command, or commands that were not reached yet.
    rest: Vec<u8>,
    /// There may be whole commands in it.
    has_more: bool,
    /// How much of the replies was sent.
    sent: usize,
    /// What is reserved for the replies, and for the beginning of a command.
    room: Reserved,
    /// The client sends no more, or is not heard any more.
    is_over: bool,
}

pub(super) async fn serve(shared: Arc<Shared>, stream: Stream, connection: Arc<Connection>) {
    let Ok(room) = connection.reserve(0) else {
        return;
    };
    let id = shared.last.fetch_add(1, Relaxed) + 1;
    let mut client = Client {
        pass: Pass::new(Arc::clone(&shared.engine), Session::new(id)),
        stream,
        connection,
        rest: Vec::new(),
        has_more: false,
        sent: 0,
        room,
        is_over: false,
    };
    if client.connection.is_spare() {
        client.pass.refuse("max number of clients reached");
        client.is_over = true;
    }
    while let Some(buffer) = poll_fn(|cx| client.poll(cx)).await {
        client.take(&buffer).await;
        if client.has_more {
            // It is the turn of other clients.
            yield_now().await;
        }
    }
    // Ends the stream, so that the client does not wait for more.
    drop(poll_fn(|cx| Pin::new(&mut client.stream).poll_shutdown(cx)).await);
    let mut left = LINGER;
    while client.pass.is_over() && left > 0 {
        match poll_fn(|cx| client.discard(cx)).await {
            0 => break,
            length => left = left.saturating_sub(length),
        }
    }
}

impl Client {
    /// Decides what was read.
    async fn take(&mut self, buffer: &Buffer) {
        let bytes = buffer.filled();
        let connection = &self.connection;
        let (used, has_more) = self.pass.run(bytes, || connection.in_progress()).await;
        self.has_more = has_more;
        self.is_over |= self.pass.is_over();
        self.rest.clear();
        if self.is_over {
            return;
        }
        match &bytes[used..] {
            // Most connections have nothing here, and then no room for it either.
            [] => self.rest = Vec::new(),
            rest => self.rest.extend_from_slice(rest),
        }
    }

    /// Sends replies and reads commands, whichever can be done: bytes to decide, or nothing
    /// when the connection is over.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Buffer>> {
        if self.send(cx).is_err() {
            return Poll::Ready(None);
        }
        let unsent = self.unsent();
        if self.reserve(0).is_err() {
            tracing::debug!("closing a connection: {NoRoom}");
            return Poll::Ready(None);
        }
        if self.is_over {
            return match unsent {
                0 => Poll::Ready(None),
                _ => Poll::Pending,
            };
        }
        if self.reserve(REPLIES).is_err() {
            return Poll::Pending;
        }
        let mut buffer = Buffer::new(&self.rest);
        if self.has_more {
            return Poll::Ready(Some(buffer));
        }
        let mut free = ReadBuf::new(&mut buffer.bytes[buffer.end..]);
        match Pin::new(&mut self.stream).poll_read(cx, &mut free) {
            Poll::Ready(Ok(())) => {
                let length = free.filled().len();
                if length > 0 {
                    buffer.end += length;
                    return Poll::Ready(Some(buffer));
                }
                // The client may still want its replies.
                self.is_over = true;
                match unsent {
                    0 => Poll::Ready(None),
                    _ => Poll::Pending,
                }
            }
            Poll::Ready(Err(_)) => Poll::Ready(None),
            Poll::Pending if unsent == 0 && self.connection.is_ending() => Poll::Ready(None),
            Poll::Pending => {
                self.room.shrink_to(self.waiting());
                Poll::Pending
            }
        }
    }

    /// Reads what the client sends after the last reply, and forgets it: a connection that
    /// is closed with bytes unread takes the last reply with it.
    fn discard(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        let mut buffer = Buffer::new(&[]);
        let mut free = ReadBuf::new(&mut buffer.bytes);
        match Pin::new(&mut self.stream).poll_read(cx, &mut free) {
            Poll::Ready(Ok(())) => Poll::Ready(free.filled().len()),
            Poll::Ready(Err(_)) => Poll::Ready(0),
            Poll::Pending if self.connection.is_ending() => Poll::Ready(0),
            Poll::Pending => Poll::Pending,
        }
    }

    fn unsent(&self) -> usize {
        self.pass.replies().len() - self.sent
    }

    /// Bytes that wait for the client to read, or to send the rest of a command.
    fn waiting(&self) -> usize {
        self.pass.replies().len() + self.rest.len()
    }

    /// Reserves what waits for the client, and more replies. A client that has read all
    /// replies and has commands here waits for nothing.
    fn reserve(&self, more: usize) -> Result<(), NoRoom> {
        match self.unsent() {
            0 if self.has_more => self.room.resize(0),
            0 => self.room.resize(self.waiting()),
            _ => self.room.resize(self.waiting() + more),
        }
    }

    /// Sends as much as the client takes.
    fn send(&mut self, cx: &mut Context<'_>) -> Result<(), ()> {
        let mut has_sent = false;
        while self.sent < self.pass.replies().len() {
            let rest = &self.pass.replies()[self.sent..];
            match Pin::new(&mut self.stream).poll_write(cx, rest) {
                Poll::Ready(Ok(0) | Err(_)) => return Err(()),
                Poll::Ready(Ok(length)) => self.sent += length,
                Poll::Pending => break,
            }
            has_sent = true;
        }
        if has_sent && let Poll::Ready(Err(_)) = Pin::new(&mut self.stream).poll_flush(cx) {
            return Err(());
        }
        // Moves no byte more than once on average.
        if self.sent >= self.unsent() {
            self.pass.forget(self.sent, KEPT);
            self.sent = 0;
        }
        Ok(())
    }
}
