//! Every mistake that was found in other limiters or in our own has one test: a function whose
//! name begins with the ids that it tests, or a row of data whose title does.

use std::collections::BTreeMap;
use std::path::Path;

use crate::command::root;

/// In published limiters.
const PUBLISHED: &str = "a1 a2 a3 a4 a5 a6 b1 b2 b3 b4 b5 b7 b8 b9 c1 c2 c3 c4 c5 c6 c7 c9 \
    d1 d2 d3 d4 d5 d6 e1 e2 e3 e4 e5 e7 e8 e9 e10 e11 f1 f2 f3 k1 k2 l1 p1 p2 p3 p4 p5 p6 t1 t2";
/// In our own first version, and in the second: in use, by attack, and by reading.
const OWN: &str = "g1 g2 g3 g4 g5 g6 g7 g8 u1 u2 u3 u4 u5 u7 u8 u9 u10 u11 u12 u13 \
    v3 v4 v6 v7 v8 v9 s4 s6 s7 s8 s9 s10 s11 s12 s13 s14 s15 s16 s17 s18 s19 s20 s21 s22 s23 \
    s25 r1 r2 r3 r4 r5 r6 r7 r8 r9 r10 r11";
/// Those of several parts: an outage in nginx, too, and a list of wrong words.
const SEVERAL: [&str; 2] = ["u1", "u9"];

fn is_id(word: &str) -> bool {
    let digits = word.trim_start_matches(|letter: char| letter.is_ascii_lowercase());
    digits.len() + 1 == word.len() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// The ids at the beginning of a name or a title.
fn ids(name: &str) -> impl Iterator<Item = &str> {
    name.split(['_', ' ', ':']).take_while(|word| is_id(word))
}

/// What a line names: a test, or a row.
fn named(line: &str, is_data: bool) -> Option<&str> {
    let line = line.trim_start();
    match is_data {
        true => line.strip_prefix("# ").or(line.strip_prefix("--- ")),
        false => line.strip_prefix("async fn ").or(line.strip_prefix("fn ")),
    }
}

/// Which tests and rows are of each id. Rows of a file count once.
fn read(folder: &Path, found: &mut BTreeMap<String, Vec<String>>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        let end = path.extension().and_then(|end| end.to_str()).unwrap_or("");
        if path.is_dir() {
            read(&path, found);
        } else if ["rs", "txt"].contains(&end) {
            let text = std::fs::read_to_string(&path).expect("text");
            for name in text.lines().filter_map(|line| named(line, end == "txt")) {
                for id in ids(name) {
                    let place = match end {
                        "txt" => path.display().to_string(),
                        _ => format!("{}: {name}", path.display()),
                    };
                    let places = found.entry(id.to_owned()).or_default();
                    if !places.contains(&place) {
                        places.push(place);
                    }
                }
            }
        }
    }
}

#[test]
fn every_pitfall_has_one_test() {
    let mut found = BTreeMap::new();
    for folder in ["crates", "xtask/src"] {
        read(&root().join(folder), &mut found);
    }
    for id in PUBLISHED.split_whitespace().chain(OWN.split_whitespace()) {
        let places = found.get(id).map_or(&[][..], Vec::as_slice);
        let is_right = places.len() == 1 || SEVERAL.contains(&id) && !places.is_empty();
        assert!(is_right, "{id}: {places:#?}");
    }
}
