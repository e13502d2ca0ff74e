//! What `docs/algorithms.md` says, held against the code: the numbers it names come
//! from the runs it shows, and its config lines and its Rust mean the same limits.

use std::fmt::Write;
use std::time::Duration;

use tidegate::{Algorithm, Align, Limit};

use super::PICTURES;
use super::run::Run;

const PAGE: &str = include_str!("../../../../docs/algorithms.md");

fn assert_page_has(text: &str) {
    assert!(PAGE.contains(text), "docs/algorithms.md lacks:\n{text}");
}

fn run(file: &str) -> Run {
    let picture = PICTURES.iter().find(|picture| picture.file == file);
    Run::of(picture.unwrap().limit)
}

/// What was admitted in the window before an instant, and what remains then.
fn at(run: &Run, at_ms: u32) -> (u32, u32) {
    let past = run
        .samples
        .iter()
        .rev()
        .find(|sample| sample.at_ms <= at_ms);
    past.map(|sample| (sample.admitted_in_window, sample.remaining))
        .unwrap()
}

/// When the requests of a phase were admitted.
fn admitted(run: &Run, phase: usize) -> Vec<u32> {
    let admitted = run.requests.iter().filter(|request| request.admitted);
    let of_phase = admitted.filter(|request| request.phase == phase);
    of_phase.map(|request| request.at_ms).collect()
}

/// How far apart those were.
fn apart(run: &Run, phase: usize) -> Vec<u32> {
    let admitted = admitted(run, phase);
    admitted.windows(2).map(|two| two[1] - two[0]).collect()
}

/// The most admitted in any window, and when that was reached.
fn most(run: &Run) -> (u32, u32) {
    let most = run.most();
    (most.admitted_in_window, most.at_ms)
}

#[test]
fn the_table_is_what_the_runs_show() {
    for picture in &PICTURES {
        let run = Run::of(picture.limit);
        let name = picture.title.to_lowercase();
        let anchor = name.replace(',', "").replace(' ', "-");
        let mut row = format!("| [{name}](#{anchor}) |");
        for admitted in run.admitted() {
            write!(row, " {admitted} |").unwrap();
        }
        writeln!(row, " {} |", run.most().admitted_in_window).unwrap();
        assert_page_has(&row);
        assert_page_has(&format!("\n## {}\n", picture.title));
        assert_page_has(&format!("](pictures/{}.svg)\n", picture.file));
    }
}

#[test]
fn token_bucket() {
    let run = run("token_bucket");
    assert_eq!(run.admitted(), [4, 11, 11, 9]);
    assert_eq!(at(&run, 6_990), (4, 10), "light traffic leaves no trace");
    assert_eq!(at(&run, 8_000).0, 15);
    assert_eq!(at(&run, 29_190), (0, 10));
    assert_eq!(apart(&run, 3), [1_000; 8]);
    assert_eq!(most(&run).0, 19);
}

#[test]
fn token_bucket_strict() {
    let run = run("token_bucket_strict");
    assert_eq!(run.admitted(), [4, 5, 5, 5]);
    assert_eq!(apart(&run, 3), [2_000; 4]);
    assert_eq!(most(&run).0, 9);
}

#[test]
fn fixed_window() {
    let run = run("fixed_window");
    assert_eq!(run.admitted(), [4, 6, 20, 0]);
    let blast = admitted(&run, 2);
    assert_eq!(blast.iter().filter(|&&at_ms| at_ms < 30_000).count(), 10);
    assert_eq!(blast[19] - blast[0], 1_520);
    assert_eq!(most(&run), (20, blast[19]));
    assert_eq!(
        at(&run, 10_000),
        (10, 10),
        "full, and yet it reports all of its quota"
    );
    assert_eq!(at(&run, 39_990).1, 0);
}

#[test]
fn sliding_window() {
    let run = run("sliding_window");
    assert_eq!(run.admitted(), [4, 6, 10, 9]);
    assert!(admitted(&run, 2).iter().all(|&at_ms| at_ms < 30_000));
    assert_eq!(apart(&run, 3), [1_000; 8]);
    assert_eq!(most(&run), (19, 39_000));
    assert_eq!(at(&run, 18_000), (0, 8), "nothing there, and yet not new");
}

#[test]
fn sliding_log() {
    let run = run("sliding_log");
    assert_eq!(run.admitted(), [4, 6, 10, 1]);
    assert_eq!(admitted(&run, 3), [39_500]);
    assert_eq!(most(&run).0, 10);
    for sample in &run.samples {
        assert_eq!(sample.remaining, 10 - sample.admitted_in_window);
    }
}

/// A limit, and how it is written in the source.
macro_rules! written {
    ($limit:expr) => {
        (stringify!($limit), $limit)
    };
}

#[test]
fn config_lines_text_and_rust_mean_the_same_limit() {
    let limits = [
        written!(Limit::per_second(100).burst(20)),
        written!(Limit::per_minute(15).burst(3).strict()),
        written!(Limit::per_hour(1000).fixed_window().align(Align::Epoch)),
        written!(Limit::per_minute(100).sliding_window()),
        written!(Limit::per(5, Duration::from_secs(10)).sliding_log()),
    ];
    for (rust, limit) in limits {
        assert_eq!(Limit::parse(&limit.to_string()), Ok(limit));
        assert_page_has(&format!(
            "```toml\n{}```\n\n```rust\n{rust}  // or Limit::parse(\"{limit}\")?\n```\n",
            config_lines(&limit)
        ));
    }
}

/// The limit as lines of a config file, without what is the default.
fn config_lines(limit: &Limit) -> String {
    let spec = limit.spec().unwrap();
    let mut lines = format!("limit = \"{}\"\n", spec.rate);
    if spec.algorithm != Algorithm::TokenBucket {
        writeln!(lines, "algorithm = \"{}\"", spec.algorithm).unwrap();
    }
    if let Some(burst) = spec.burst {
        writeln!(lines, "burst = {burst}").unwrap();
    }
    if spec.strict {
        lines.push_str("strict = true\n");
    }
    if spec.align == Align::Epoch {
        lines.push_str("align = \"epoch\"\n");
    }
    lines
}
