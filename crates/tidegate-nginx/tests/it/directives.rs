//! What `nginx -t` accepts, and what it says of everything else: the cases of `directives.txt`.
//! A row has what is in `http`, with line ends as pictures, and the errors, each after its line.

use tidegate_testkit::cases;

use crate::nginx::check;

const FILE: &str = include_str!("directives.txt");

#[test]
fn every_directive_and_option_is_accepted() {
    cases::check(FILE, 1, check);
}

#[test]
fn wrong_directive_is_refused_with_its_line_its_value_and_what_was_expected() {
    cases::rows(FILE, "Wrong", check);
}
