//! Commands and what they say, as data.
//!
//! A file begins with shell functions that its cases share, beside `serve` of console.sh. A case is `--- ` and its title,
//! shell lines that prepare a folder of its own, and steps: `$ ` and a command, what it
//! prints, what it writes to standard error with `! ` before each line, and `? ` and its exit
//! code unless that is 0. `…` stands for anything in a line, and a line of `…` for any lines.
//! A line that begins with `# ` after an empty one is a heading.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Stdio;

use crate::process::{Folder, command, ended, without_environment};
use crate::tidegate::binary;

/// Runs the cases of a file. Commands find `tidegate` and these variables; what they print
/// has the name of a variable in place of its value. Panics with the cases that came out
/// otherwise, as they should read.
pub fn check(file: &str, least: usize, variables: &[(&str, &str)]) {
    let mut parts = file.split("\n--- ");
    let shared = include_str!("console.sh").to_owned() + parts.next().expect("a first part");
    let (mut cases, mut wrong) = (0, String::new());
    for case in parts {
        let case = case.split("\n\n# ").next().expect("a part").trim_end();
        let (first, rest) = case.split_once("\n$ ").expect(case);
        let folder = Folder::new();
        let run = |script: &str| shell(folder.root(), &format!("{shared}\n{script}"), variables);
        let before = first.split_once('\n').map_or("", |(_, before)| before);
        assert_eq!(run(before), "", "before the steps of {first}");
        let (mut shown, mut differs) = (format!("--- {first}\n"), false);
        for step in rest.split("\n$ ") {
            let (script, expected) = parted(step);
            let got = run(script);
            differs |= !is_like(&got, expected);
            let kept = if is_like(&got, expected) {
                expected
            } else {
                &got
            };
            write!(shown, "$ {script}\n{}\n", kept.trim_end()).expect("room");
        }
        if differs {
            wrong += &format!("{shown}\n");
        }
        cases += 1;
    }
    assert!(wrong.is_empty(), "otherwise than written:\n{wrong}");
    assert!(cases >= least, "only {cases} cases: is the file cut off?");
}

/// A command, which goes on in the next line after a backslash, and what stands below it.
pub fn parted(step: &str) -> (&str, &str) {
    let ends = step.match_indices('\n').map(|(at, _)| at);
    let end = ends.into_iter().find(|at| !step[..*at].ends_with('\\'));
    end.map_or((step, ""), |end| (&step[..end], &step[end + 1..]))
}

/// What a script says, in the form of a case.
pub fn shell(folder: &Path, script: &str, variables: &[(&str, &str)]) -> String {
    let mut paths = OsString::from(binary().parent().expect("a folder"));
    paths.push(":");
    paths.push(std::env::var_os("PATH").unwrap_or_default());
    let mut bash = command("bash", "KILL");
    without_environment(&mut bash)
        .env("PATH", paths)
        .envs(variables.iter().copied())
        .current_dir(folder)
        .stdin(Stdio::null())
        .args(["-c", script]);
    let (code, mut said, errors) = ended(bash.output().expect("bash"));
    if !said.is_empty() && !said.ends_with('\n') {
        said.push('\n');
    }
    for line in errors.lines() {
        writeln!(said, "! {line}").expect("room");
    }
    if code != 0 {
        writeln!(said, "? {code}").expect("room");
    }
    for (name, value) in variables.iter().filter(|(_, value)| value.len() > 4) {
        said = said.replace(value, &format!("${name}"));
    }
    said
}

/// Whether a text is as written, line by line: `…` stands for anything.
pub fn is_like(text: &str, pattern: &str) -> bool {
    let [text, pattern] =
        [text, pattern].map(|it| it.trim_end().lines().map(str::trim_end).collect::<Vec<_>>());
    all_like(&text, &pattern)
}

fn all_like(lines: &[&str], patterns: &[&str]) -> bool {
    match patterns {
        [] => lines.is_empty(),
        ["…", rest @ ..] => (0..=lines.len()).any(|skipped| all_like(&lines[skipped..], rest)),
        [pattern, rest @ ..] => lines
            .split_first()
            .is_some_and(|(line, others)| line_is_like(line, pattern) && all_like(others, rest)),
    }
}

fn line_is_like(line: &str, pattern: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('…') else {
        return line == pattern;
    };
    line.strip_prefix(start).is_some_and(|line| {
        let ends = line.char_indices().map(|(at, _)| at).chain([line.len()]);
        ends.into_iter().any(|at| line_is_like(&line[at..], rest))
    })
}
