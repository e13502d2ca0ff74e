//! The tests, with a second try for those that drive real servers against the clock. A
//! machine that stops for a second fails such a test, and says nothing about the code:
//! what has failed runs once more, alone, and has to pass then. That it has failed is
//! said at once and at the end. Everything else fails at the first try, and so does
//! whatever has let too much through: no machine is too slow to count.

use anyhow::{Result, bail, ensure};

use crate::command::{cargo, run_shown};
use crate::servers;

/// The suites that measure, as cargo names them.
const AGAINST_THE_CLOCK: &[&str] = &[
    "-p tidegate-redis --test cluster",
    "-p tidegate-redis --test it",
    "-p tidegate-server --test it",
    "-p tidegate-server --test nginx",
    "-p tidegate-tower --test it",
];

/// More than these of one suite is not a moment in which the machine was busy.
const AT_MOST: usize = 3;

/// What a test says when it has counted too much, and a report of `tidegate bench` as
/// well. Such a test has no second try.
const WRONG_COUNTS: &[&str] = &["bound broken", "charged twice", "\"held\": false"];

/// A suite that has failed.
#[derive(Debug, PartialEq, Eq)]
struct Suite<'o> {
    /// As cargo names it: `-p tidegate-redis --test it`.
    target: &'o str,
    output: &'o str,
}

/// A test that has failed.
#[derive(Debug, PartialEq, Eq)]
struct Failure<'o> {
    name: &'o str,
    said: &'o str,
}

/// Runs all tests. Says which of them have failed once and passed alone, and why.
pub(crate) fn run_tests() -> Result<Vec<String>> {
    let servers = servers::others()?;
    let test = |arguments: &[&str]| {
        let mut command = cargo();
        command.args(["test", "--workspace"]).args(arguments);
        command.env(servers::VARIABLE, &servers);
        run_shown(&mut command)
    };
    let (passed, output) = test(&["--no-fail-fast"])?;
    if passed {
        return Ok(Vec::new());
    }
    let suites = failed_suites(&output);
    ensure!(
        !suites.is_empty(),
        "`cargo test` has failed, and no suite of it has"
    );
    let mut again = Vec::new();
    for suite in &suites {
        again.push((suite, failures_to_try_again(suite)?));
    }
    let mut lines = Vec::new();
    for (suite, failures) in again {
        for Failure { name, said } in failures {
            let (target, reason) = (suite.target, reason(said));
            println!("\n*** {name} of `{target}` has failed: a second try, alone ***\n");
            // Not by `-p`: that might build it anew, with other features.
            let (_, suite) = target.split_once("--test ").unwrap_or_default();
            let (passed, output) = test(&["--test", suite, "--", "--exact", name])?;
            let ran = output.lines().any(|it| it == format!("test {name} ... ok"));
            ensure!(passed && ran, "{name} of `{target}` has failed twice");
            let line = format!("failed once and passed alone: {name} of `{target}`: {reason}");
            println!("\n*** {line} ***\n");
            lines.push(line);
        }
    }
    Ok(lines)
}

/// The suites that have failed, from what `cargo test --no-fail-fast` has printed.
fn failed_suites(output: &str) -> Vec<Suite<'_>> {
    let (mut suites, mut start, mut end) = (Vec::new(), 0, 0);
    for line in output.split_inclusive('\n') {
        let words = line.trim();
        if words.starts_with("Running ") || words.starts_with("Doc-tests ") {
            start = end;
        }
        if words.starts_with("error: ")
            && let Some((_, target)) = words.split_once("to rerun pass `")
        {
            suites.push(Suite {
                target: target.trim_end_matches('`'),
                output: &output[start..end],
            });
        }
        end += line.len();
    }
    suites
}

/// The tests of a suite that have failed, where a second try may tell more than the
/// first one.
fn failures_to_try_again<'o>(suite: &Suite<'o>) -> Result<Vec<Failure<'o>>> {
    let Suite { target, output } = suite;
    ensure!(
        AGAINST_THE_CLOCK.contains(target),
        "`{target}` has failed, which does not depend on the clock"
    );
    let said = output.to_lowercase();
    if let Some(words) = WRONG_COUNTS.iter().find(|words| said.contains(**words)) {
        bail!("`{target}` has failed with \"{words}\": there is no second try for that");
    }
    let failures = failures(output);
    ensure!(
        !failures.is_empty() && failures.len() == failed(output),
        "`{target}` has failed, and does not say which tests did"
    );
    ensure!(
        failures.len() <= AT_MOST,
        "{} tests of `{target}` have failed, and at most {AT_MOST} have a second try",
        failures.len()
    );
    Ok(failures)
}

/// The tests that a suite names at its end, with what each of them had said.
fn failures(output: &str) -> Vec<Failure<'_>> {
    let Some((before, list)) = output.rsplit_once("\nfailures:\n") else {
        return Vec::new();
    };
    let names = list.lines().map_while(|line| line.strip_prefix("    "));
    let failure = |name| {
        let header = format!("---- {name} stdout ----\n");
        let said = before.split_once(&header).map_or("", |(_, said)| said);
        let said = said.split_once("\n---- ").map_or(said, |(said, _)| said);
        Failure { name, said }
    };
    names.map(failure).collect()
}

/// How many tests a suite says have failed.
fn failed(output: &str) -> usize {
    let mut results = output
        .lines()
        .filter_map(|line| line.strip_prefix("test result: FAILED. "));
    let failed = results.next_back().and_then(|result| {
        let counts = result.split("; ");
        let mut failed = counts.filter_map(|count| count.strip_suffix(" failed"));
        failed.next()?.parse().ok()
    });
    failed.unwrap_or(0)
}

/// Where it has panicked, and with what message.
fn reason(said: &str) -> String {
    let lines = said
        .lines()
        .skip_while(|line| !line.contains("panicked at"));
    let ends = |line: &str| line.starts_with("stack backtrace:") || line.starts_with("note: ");
    let lines = lines.take_while(|line| !line.is_empty() && !ends(line));
    let lines: Vec<_> = lines.take(8).collect();
    match lines.is_empty() {
        true => "without a panic".into(),
        false => lines.join("\n    "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As cargo and its test harness print it, but for most of the lines.
    const OUTPUT: &str = "     Running unittests src/lib.rs (target/debug/deps/tidegate-5a)

running 1 test
test tests::one ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.25s

     Running tests/it/main.rs (target/debug/deps/it-fe77f89127070a02)

running 3 tests
test lines::a_handful ... FAILED
test states::passing ... ok
test states::busy ... FAILED

failures:

---- lines::a_handful stdout ----
20 checks

thread 'lines::a_handful' (30641) panicked at crates/tidegate-redis/tests/it/lines.rs:104:5:
assertion `left == right` failed
  left: 408
 right: 503
stack backtrace:
   0: __rustc::rust_begin_unwind

---- states::busy stdout ----

thread 'states::busy' (30642) panicked at crates/tidegate-redis/tests/it/states.rs:1:5:
never: open


failures:
    lines::a_handful
    states::busy

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 31.24s

error: test failed, to rerun pass `-p tidegate-redis --test it`
   Doc-tests tidegate

running 1 test
test crates/tidegate/src/lib.rs - (line 7) ... FAILED

failures:

---- crates/tidegate/src/lib.rs - (line 7) stdout ----
error[E0425]: cannot find value `x` in this scope

failures:
    crates/tidegate/src/lib.rs - (line 7)

test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.05s

error: doctest failed, to rerun pass `-p tidegate --doc`
error: 2 targets failed:
    `-p tidegate-redis --test it`
    `-p tidegate --doc`
";

    fn with(output: &str) -> Suite<'_> {
        Suite {
            target: "-p tidegate-redis --test it",
            output,
        }
    }

    #[test]
    fn failed_suites_are_those_that_cargo_names() {
        let suites = failed_suites(OUTPUT);
        let targets: Vec<_> = suites.iter().map(|suite| suite.target).collect();
        assert_eq!(
            targets,
            ["-p tidegate-redis --test it", "-p tidegate --doc"]
        );
        assert!(
            suites[0]
                .output
                .trim()
                .starts_with("Running tests/it/main.rs")
        );
        assert!(suites[0].output.trim().ends_with("finished in 31.24s"));
        assert_eq!(failed_suites("error[E0425]: cannot find value\n"), []);
    }

    #[test]
    fn failed_tests_keep_what_they_have_said() {
        let suites = failed_suites(OUTPUT);
        let failures = failures_to_try_again(&suites[0]).unwrap();
        let names: Vec<_> = failures.iter().map(|failure| failure.name).collect();
        assert_eq!(names, ["lines::a_handful", "states::busy"]);
        assert_eq!(
            reason(failures[0].said),
            "thread 'lines::a_handful' (30641) panicked at \
             crates/tidegate-redis/tests/it/lines.rs:104:5:\n    \
             assertion `left == right` failed\n      left: 408\n     right: 503"
        );
        assert!(reason(failures[1].said).ends_with("states.rs:1:5:\n    never: open"));
    }

    #[test]
    fn what_does_not_depend_on_the_clock_has_no_second_try() {
        let error = failures_to_try_again(&failed_suites(OUTPUT)[1]).unwrap_err();
        let error = error.to_string();
        assert!(
            error.starts_with("`-p tidegate --doc` has failed"),
            "{error}"
        );
    }

    #[test]
    fn what_has_counted_too_much_has_no_second_try() {
        for words in [
            "bound broken: 11 of 10",
            "key3 was Charged twice",
            "\"held\": false",
        ] {
            let output = OUTPUT.replace("never: open", words);
            let error = failures_to_try_again(&failed_suites(&output)[0]).unwrap_err();
            assert!(error.to_string().contains("no second try"), "{error}");
        }
    }

    #[test]
    fn a_suite_that_ends_without_a_list_has_no_second_try() {
        let half = "running 3 tests\ntest lines::a_handful ... FAILED\n";
        let none = "\nfailures:\n    one\n\ntest result: FAILED. 1 passed; 2 failed; 0 ignored\n";
        for output in [half, none] {
            let error = failures_to_try_again(&with(output)).unwrap_err();
            assert!(error.to_string().contains("does not say which"), "{error}");
        }
    }

    #[test]
    fn many_failures_have_no_second_try() {
        let names = "    one\n    two\n    three\n    four\n";
        let output = format!("\nfailures:\n{names}\ntest result: FAILED. 1 passed; 4 failed; 0\n");
        let error = failures_to_try_again(&with(&output)).unwrap_err();
        assert!(error.to_string().starts_with("4 tests of "), "{error}");
        let three = output
            .replace("    four\n", "")
            .replace("4 failed", "3 failed");
        assert_eq!(failures_to_try_again(&with(&three)).unwrap().len(), 3);
    }
}
