//! Texts and what is said to them, as data: a case is `--- ` and its title, a text, `=>`, and
//! the answer. A line that begins with `# ` after an empty one is a heading. Control characters
//! stand as their pictures (U+2400 and following).

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
