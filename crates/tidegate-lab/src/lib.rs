//! Trying limits out, and holding them to their word: what the commands `tidegate bench`,
//! `tidegate verify`, `tidegate simulate` and `tidegate top` do, apart from the server.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`mod@bench`] | load for a store or a server, and whether the limit held |
//! | [`verify`] | whether limits held, from what servers have recorded |
//! | [`simulate`] | what limits would have done to the requests of access logs |
//! | [`mod@line`] | one line of such a record |
//! | [`top`] | a live view of a running server in a terminal |
//! | [`client`] | one question to a running server |

pub mod bench;
pub mod client;
mod figures;
pub mod line;
mod offered;
pub mod simulate;
pub mod top;
pub mod verify;

use std::io::Write;

/// The exit code of whatever could not be done.
pub const FAILED: u8 = 2;

/// Says something to the user of a command, on standard output.
pub fn say(text: &str) {
    // The reader may have heard enough, as `head` does.
    drop(writeln!(std::io::stdout(), "{}", text.trim_end()));
}
