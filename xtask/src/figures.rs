//! Where figures are kept: docs/benchmarks.md has all of them, and README.md repeats a few,
//! between two marks, taken from that page.

use std::fmt::Write;

use anyhow::{Context, Result};

use crate::command::root;

const PAGE: &str = "docs/benchmarks.md";
const README: &str = "README.md";

/// The heading of the figures that README.md repeats.
pub(crate) const CORE: &str = "## Figures";

/// The line of `tidegate-bench` after which nothing is for the page.
const DETAILS: &str = "Not for docs/benchmarks.md:";

/// What stands before and after the figures in README.md.
const START: &str = "<!-- figures from docs/benchmarks.md: `cargo xtask bench core --save` -->\n";
const END: &str = "<!-- end of figures -->";

/// The rows that README.md repeats: how the row begins on the page, and what README.md calls
/// it.
const ROWS: [(&str, &str); 6] = [
    (
        "1 thousand keys, 1 thread, admitted",
        "a check, admitted, 1 thousand keys",
    ),
    (
        "1 million keys, 1 thread, admitted",
        "a check, admitted, 1 million keys",
    ),
    (
        "1 hot key, 2 threads, admitted",
        "one hot key on two threads, admitted",
    ),
    (
        "1 hot key, 2 threads, refused",
        "one hot key on two threads, refused",
    ),
    ("a new key", "a new key"),
    ("memory ", "memory per key, 1 million keys"),
];

/// Puts tables under a heading of the page, and what README.md repeats into it.
pub(crate) fn save(heading: &str, tables: &str) -> Result<()> {
    let tables = tables.split(DETAILS).next().unwrap_or_default();
    save_in(PAGE, heading, tables)?;
    if heading == CORE {
        write(README, &with_figures(&read(README)?, &read(PAGE)?)?)?;
        println!("Saved in {README}.");
    }
    Ok(())
}

/// Puts tables under a heading of any page.
pub(crate) fn save_in(file: &str, heading: &str, tables: &str) -> Result<()> {
    let page = replace(&read(file)?, heading, tables).context(file.to_owned())?;
    write(file, &page)?;
    println!("Saved in {file}.");
    Ok(())
}

fn read(file: &str) -> Result<String> {
    std::fs::read_to_string(root().join(file)).context(file.to_owned())
}

fn write(file: &str, text: &str) -> Result<()> {
    std::fs::write(root().join(file), text).context(file.to_owned())
}

/// The page with other figures under a heading; what stands under others stays.
pub(crate) fn replace(page: &str, heading: &str, tables: &str) -> Result<String> {
    let line = format!("\n{heading}\n");
    let start = page
        .find(&line)
        .with_context(|| format!("the page has no heading `{heading}`"))?;
    let (before, old) = page.split_at(start + line.len());
    let rest = old.find("\n#").map_or("", |next| &old[next..]);
    Ok(format!("{before}\n{}\n{rest}", tables.trim_end()))
}

/// README.md with the figures of the page between its marks.
fn with_figures(readme: &str, page: &str) -> Result<String> {
    let (before, rest) = readme
        .split_once(START)
        .with_context(|| format!("{README} has no line {START}"))?;
    let (_, after) = rest
        .split_once(END)
        .with_context(|| format!("{README} has no line {END}"))?;
    Ok(format!("{before}{START}{}{END}{after}", table(page)?))
}

/// The rows of README.md, from the first table under the heading.
fn table(page: &str) -> Result<String> {
    let line = format!("\n{CORE}\n");
    let (_, figures) = page.split_once(&line).context("no figures")?;
    let processor = figures.split(',').next().unwrap_or_default().trim();
    let mut table =
        format!("| {processor} | tidegate | governor | ratio |\n| --- | ---: | ---: | ---: |\n");
    for (start, label) in ROWS {
        let row = figures
            .lines()
            .find(|line| line.starts_with(&format!("| {start}")));
        let row = row.with_context(|| format!("{PAGE}: no row {start}"))?;
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, _, tidegate, governor, _, ratio, ..] = cells[..] else {
            anyhow::bail!("{PAGE}: {row}: expected tidegate, governor, another, a ratio");
        };
        writeln!(table, "| {label} | {tidegate} | {governor} | {ratio} |")?;
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_replace_what_stood_under_their_heading_and_nothing_else() {
        let page = "# Benchmarks\n\nwords\n\n## Figures\n\nold\n\n\
                    ## Redis\n\nmore words\n\n### Redis figures\n\nolder\n";
        let core = replace(page, CORE, "new\n\n").unwrap();
        assert_eq!(core, page.replace("old\n\n", "new\n\n"));
        let both = replace(&core, "### Redis figures", "newer\n").unwrap();
        assert_eq!(both, core.replace("older", "newer"));
        assert_eq!(replace(&both, CORE, "new").unwrap(), both);
        assert!(replace("no heading", CORE, "new").is_err());
    }

    /// Nobody types figures into README.md.
    #[test]
    fn readme_has_the_figures_of_the_page() {
        let (readme, page) = (read(README).unwrap(), read(PAGE).unwrap());
        assert_eq!(readme, with_figures(&readme, &page).unwrap());
    }

    /// The ratios differ from one kind of processor to the other.
    #[test]
    fn u13_figures_name_their_processor() {
        let (readme, page) = (read(README).unwrap(), read(PAGE).unwrap());
        let (before, figures) = page.split_once("\n## Figures\n\n").unwrap();
        let (_, figures) = figures.split_once(',').unwrap();
        let changed = format!("{before}\n## Figures\n\nAMD EPYC 9554,{figures}");
        let readme = with_figures(&readme, &changed).unwrap();
        assert!(readme.contains("\n| AMD EPYC 9554 | tidegate | governor | ratio |\n"));
    }

    #[test]
    fn changed_figures_reach_the_readme() {
        let (readme, page) = (read(README).unwrap(), read(PAGE).unwrap());
        let row = page.lines().find(|line| line.starts_with("| a new key"));
        let page = page.replacen(
            row.unwrap(),
            "| a new key, up to 1 million | 1 ns | 2 ns | 3 ns | 0.50 | | |",
            1,
        );
        let changed = with_figures(&readme, &page).unwrap();
        assert!(
            changed.contains("\n| a new key | 1 ns | 2 ns | 0.50 |\n"),
            "{changed}"
        );
        assert!(with_figures("no marks", &page).is_err());
    }
}
