//! The pictures of `docs/algorithms.md`: each algorithm under the same traffic.
//!
//! Nothing in them is drawn by hand. [`traffic`] says which requests come and when,
//! [`run`] asks a real limiter on a clock of its own, [`draw`] lays out what it
//! answered, and [`svg`] writes that down. The same code always draws the same bytes.

mod draw;
#[cfg(test)]
mod page;
mod run;
pub(crate) mod svg;
mod traffic;

use std::io;
use std::path::Path;
use std::time::Duration;

use tidegate::{Align, Limit};

use run::Run;

/// One picture: a limit, and what to call it.
struct Picture {
    /// The name of the file, without its ending.
    file: &'static str,
    title: &'static str,
    limit: Limit,
    /// Whether the algorithm counts in windows that lie between multiples of ten
    /// seconds.
    aligned: bool,
}

const LIMIT: Limit = Limit::per(
    traffic::REQUESTS,
    Duration::from_millis(traffic::WINDOW_MS as u64),
);

const PICTURES: [Picture; 5] = [
    Picture {
        file: "token_bucket",
        title: "Token bucket",
        limit: LIMIT,
        aligned: false,
    },
    Picture {
        file: "token_bucket_strict",
        title: "Token bucket, strict",
        limit: LIMIT.burst(5).strict(),
        aligned: false,
    },
    Picture {
        file: "fixed_window",
        title: "Fixed window",
        limit: LIMIT.fixed_window().align(Align::Epoch),
        aligned: true,
    },
    Picture {
        file: "sliding_window",
        title: "Sliding window",
        limit: LIMIT.sliding_window(),
        aligned: true,
    },
    Picture {
        file: "sliding_log",
        title: "Sliding log",
        limit: LIMIT.sliding_log(),
        aligned: false,
    },
];

/// Draws all pictures into a folder, which is made if it is not there.
pub(crate) fn write(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for picture in &PICTURES {
        let run = Run::of(picture.limit);
        let file = folder.join(picture.file).with_extension("svg");
        std::fs::write(file, draw::picture(picture, &run))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_the_same_each_time_and_small() {
        for picture in &PICTURES {
            let draw = || draw::picture(picture, &Run::of(picture.limit));
            assert_eq!(draw(), draw());
            assert!(draw().len() < 60_000, "{}", picture.file);
        }
    }
}
