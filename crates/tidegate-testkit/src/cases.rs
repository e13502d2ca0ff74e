//! Texts and what is said to them, as data: a case is `--- ` and its title, a text, `=>`, and
//! the answer. A line that begins with `# ` after an empty one is a heading. Control characters
//! stand as their pictures (U+2400 and following). Where both are short, a row is
//! `text => answer`, below a heading.

use crate::console::is_like;

/// Checks each case: `answer` says what comes of a text. Panics with the cases that came out
/// otherwise, as they should read.
pub fn check(file: &str, least: usize, answer: impl Fn(&str) -> String) {
    let (mut cases, mut wrong) = (0, String::new());
    for case in file.split("\n--- ").skip(1) {
        let case = case.split("\n\n# ").next().expect("a part").trim_end();
        let (title, case) = case.split_once('\n').expect(case);
        let (text, expected) = case.split_once("\n=>\n").expect(title);
        let got = answer(&controls(text));
        if got != controls(expected) {
            wrong += &format!("--- {title}\n{text}\n=>\n{got}\n\n   instead of\n{expected}\n\n");
        }
        cases += 1;
    }
    assert!(wrong.is_empty(), "otherwise than written:\n{wrong}");
    assert!(cases >= least, "only {cases} cases: is the file cut off?");
}

/// Control characters and spaces in place of their pictures.
pub fn controls(text: &str) -> String {
    let control = |picture: char| match u32::from(picture) {
        code @ 0x2400..=0x2420 => char::from_u32(code - 0x2400).expect("ASCII"),
        _ => picture,
    };
    text.chars().map(control).collect()
}

/// Checks each row below a heading of a file: `answer` says what comes of a text, and `…` in
/// a row stands for anything. Panics with the rows that came out otherwise, as they should read.
pub fn rows(file: &str, heading: &str, mut answer: impl FnMut(&str) -> String) {
    let (_, rows) = file.split_once(&format!("\n# {heading}\n")).expect(heading);
    let rows = rows.split("\n# ").next().expect("a part");
    let (mut count, mut wrong) = (0, String::new());
    for row in rows.lines().filter(|row| !row.is_empty()) {
        let (text, expected) = row.split_once("=>").expect(row);
        let text = text.strip_suffix(' ').unwrap_or(text);
        let expected = expected.strip_prefix(' ').unwrap_or(expected);
        let got = pictures(&answer(&controls(text)));
        if !is_like(&got, expected) {
            wrong += &format!("{text} => {got}\n   instead of {expected}\n");
        }
        count += 1;
    }
    assert!(
        wrong.is_empty(),
        "{heading}, otherwise than written:\n{wrong}"
    );
    assert!(count > 1, "{heading}: is the file cut off?");
}

/// Pictures in place of control characters.
pub fn pictures(text: &str) -> String {
    let picture = |sign: char| match u32::from(sign) {
        code @ 0..0x20 => char::from_u32(code + 0x2400).expect("a picture"),
        _ => sign,
    };
    text.chars().map(picture).collect()
}
