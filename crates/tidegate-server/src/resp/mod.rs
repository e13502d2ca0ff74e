//! The Redis protocol: any Redis client can ask for decisions.
//!
//! ```text
//! bytes -> frame (commands) -> command (a question) -> engine (one pass) -> reply (bytes)
//! ```
//!
//! All complete commands of a read are decided together and answered with one write.
//! `connection` moves the bytes, `pass` decides what lies between them.

mod command;
mod connection;
#[cfg(test)]
mod differential;
pub mod frame;
mod housekeeping;
mod pass;
mod policy;
mod reply;
mod session;
mod text;
pub mod throttle;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::engine::Engine;
use crate::serve::{Connection, Protocol, Serving, Stream};

pub use pass::Pass;
pub use reply::Version;
pub use session::Session;
pub use throttle::Dialect;

/// The protocol, for a listener.
pub struct Resp(Arc<Shared>);

/// What all connections share.
struct Shared {
    engine: Arc<Engine>,
    /// The number of the last connection.
    last: AtomicU64,
}

impl Resp {
    /// Lets this engine decide.
    #[must_use]
    pub fn new(engine: Arc<Engine>) -> Arc<Self> {
        Arc::new(Self(Arc::new(Shared {
            engine,
            last: AtomicU64::new(0),
        })))
    }
}

impl Protocol for Resp {
    fn serve(&self, stream: Stream, connection: Arc<Connection>) -> Serving {
        let shared = Arc::clone(&self.0);
        Box::pin(connection::serve(shared, stream, connection))
    }

    fn schemes(&self) -> [&'static str; 2] {
        ["redis", "rediss"]
    }
}
