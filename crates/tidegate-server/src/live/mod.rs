//! The live stream: one message per second for any number of viewers.
//!
//! A task looks at the counters once per second. Without viewers it only notes which stores
//! are down. With viewers it makes one message and puts it where all of them take it: one
//! who is slow misses messages, and holds up neither memory nor others.

mod message;
mod outages;

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{Stream, unfold};
use hyper::body::Frame;
use tokio::sync::{Notify, watch};
use tokio::time::{MissedTickBehavior, interval};

use crate::engine::Engine;
use crate::serve::Connection;
use message::Sample;
use outages::Outages;

/// How often there is a message.
const PERIOD: Duration = Duration::from_secs(1);

/// The most viewers at once.
const MAX_VIEWERS: usize = 64;

/// The most viewers at once with the same address.
const MAX_OF_ADDRESS: usize = 16;

/// How soon a browser comes back when a stream has ended.
const RETRY: &[u8] = b"retry: 1000\n\n";

/// Where viewers take messages.
#[derive(Debug)]
pub(crate) struct Live {
    /// The last message; empty before the first, and when the server is about to end.
    last: watch::Sender<Bytes>,
    seats: Arc<Seats>,
    /// A viewer has come while there was none.
    came: Notify,
}

/// A viewer, until it is dropped.
struct Viewer {
    messages: watch::Receiver<Bytes>,
    is_new: bool,
    _seat: Seat,
}

/// The connections of all viewers: one viewer each.
type Seats = Mutex<Vec<Arc<Connection>>>;

/// A viewer's seat, until it is dropped.
struct Seat {
    seats: Arc<Seats>,
    connection: Arc<Connection>,
}

impl Live {
    pub(crate) fn new() -> Self {
        Self {
            last: watch::Sender::new(Bytes::new()),
            seats: Arc::default(),
            came: Notify::new(),
        }
    }

    /// The messages from now on, as server-sent events; `None` where there is no seat.
    pub(crate) fn watch(
        &self,
        connection: &Arc<Connection>,
    ) -> Option<impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + use<>> {
        let seat = Seat::take(&self.seats, connection)?;
        let viewer = Viewer {
            messages: self.last.subscribe(),
            is_new: true,
            _seat: seat,
        };
        self.came.notify_one();
        Some(unfold(viewer, |mut viewer| async move {
            let message = viewer.next().await?;
            Some((Ok(Frame::data(message)), viewer))
        }))
    }

    fn viewers(&self) -> usize {
        self.last.receiver_count()
    }
}

impl Seat {
    fn take(seats: &Arc<Seats>, connection: &Arc<Connection>) -> Option<Self> {
        let address = |of: &Connection| of.peer().map(|peer| peer.ip().to_canonical());
        let own = address(connection);
        let mut taken = lock(seats);
        let of_address = taken.iter().filter(|other| address(other) == own).count();
        // Clients of a unix socket have no address.
        let is_full = taken.len() >= MAX_VIEWERS
            || own.is_some() && of_address >= MAX_OF_ADDRESS
            || taken.iter().any(|other| Arc::ptr_eq(other, connection));
        if is_full {
            return None;
        }
        taken.push(Arc::clone(connection));
        Some(Self {
            seats: Arc::clone(seats),
            connection: Arc::clone(connection),
        })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        lock(&self.seats).retain(|other| !Arc::ptr_eq(other, &self.connection));
    }
}

fn lock(seats: &Seats) -> MutexGuard<'_, Vec<Arc<Connection>>> {
    seats.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Viewer {
    async fn next(&mut self) -> Option<Bytes> {
        if std::mem::take(&mut self.is_new) {
            let last = self.messages.borrow_and_update().clone();
            return Some([RETRY, &last].concat().into());
        }
        self.messages.changed().await.ok()?;
        let message = self.messages.borrow_and_update().clone();
        (!message.is_empty()).then_some(message)
    }
}

impl Engine {
    /// Does what has to be done once per second, for ever: the message for viewers,
    /// outages of stores, and requests that were not counted by key under a load that has
    /// ended.
    pub async fn keep_watch(self: Arc<Self>) {
        let mut tick = interval(PERIOD);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut outages, mut before) = (Outages::default(), None);
        loop {
            let live = &self.live;
            tokio::select! {
                _ = tick.tick() => {}
                // Later viewers find a message there.
                () = live.came.notified() => {
                    if before.is_some() {
                        continue;
                    }
                    // Rates need a whole period.
                    tick.reset();
                }
            }
            let current = self.current();
            current.tops().for_each(|top| top.relax());
            outages.look(&current);
            let is_over = self.is_draining();
            if is_over || live.viewers() == 0 {
                before = None;
                live.last.send_if_modified(|last| {
                    let had_one = !last.is_empty();
                    *last = Bytes::new();
                    had_one || is_over
                });
                continue;
            }
            let sample = Sample::take(&self, &current, &outages);
            let event = sample.event(before.as_ref());
            live.last.send_replace(event);
            before = Some(sample);
        }
    }
}
