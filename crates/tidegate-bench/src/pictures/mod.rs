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
    use std::collections::BTreeSet;

    use super::*;

    /// Drawn from measurements, which are never the same twice (`cargo xtask bench modes`), and
    /// from a simulation that a test has no time for.
    const MEASURED: [&str; 2] = ["modes.svg", "scale.svg"];

    #[test]
    fn docs_show_what_the_algorithms_draw() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures");
        let names = std::fs::read_dir(&folder).unwrap().map(|entry| {
            let name = entry.unwrap().file_name();
            name.into_string().unwrap()
        });
        let mut names: BTreeSet<String> = names.collect();
        for name in MEASURED {
            assert!(names.remove(name), "docs/pictures/{name} is missing");
        }
        // Screenshots, by `cargo xtask screenshots`.
        names.retain(|name| !name.ends_with(".png"));
        for picture in &PICTURES {
            let name = format!("{}.svg", picture.file);
            assert!(names.remove(&name), "docs/pictures/{name} is missing");
            let drawn = draw::picture(picture, &Run::of(picture.limit));
            assert!(
                std::fs::read_to_string(folder.join(&name)).unwrap() == drawn,
                "docs/pictures/{name} is not what the algorithm draws: run `cargo xtask \
                 pictures`, look at it, and see whether docs/algorithms.md is still right"
            );
        }
        assert!(names.is_empty(), "docs/pictures: nothing draws {names:?}");
    }

    #[test]
    fn a_picture_is_the_same_each_time_and_small() {
        for picture in &PICTURES {
            let draw = || draw::picture(picture, &Run::of(picture.limit));
            assert_eq!(draw(), draw());
            assert!(draw().len() < 60_000, "{}", picture.file);
        }
    }
}
