//! `cargo xtask pictures`: the pictures of docs/algorithms.md, drawn by
//! `tidegate-bench` from runs of the algorithms.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::command::{cargo, root, run};

const FOLDER: &str = "docs/pictures";

/// Drawn from measurements, which are never the same twice: `cargo xtask bench modes`.
const MEASURED: &str = "modes.svg";

/// Draws the pictures into docs/pictures.
pub(crate) fn write() -> Result<()> {
    draw(&root().join(FOLDER))
}

/// Fails if docs/pictures holds anything but what would be drawn.
pub(crate) fn check() -> Result<()> {
    let fresh = std::env::temp_dir().join(format!("tidegate-pictures-{}", std::process::id()));
    let compared = draw(&fresh).and_then(|()| {
        let drawn = files(&fresh)?;
        let mut kept = files(&root().join(FOLDER))?;
        kept.remove(OsStr::new(MEASURED));
        Ok(different(&kept, &drawn))
    });
    if fresh.exists() {
        std::fs::remove_dir_all(&fresh).context("the folder of fresh pictures")?;
    }
    let different = compared?;
    if !different.is_empty() {
        bail!(
            "{FOLDER} is not what the algorithms draw: {}. Run `cargo xtask pictures`, \
             look at the pictures, and see whether docs/algorithms.md is still right",
            different.join(", ")
        );
    }
    println!("{FOLDER} is what the algorithms draw.");
    Ok(())
}

fn draw(folder: &Path) -> Result<()> {
    run(cargo()
        .args(["run", "--quiet", "--package", "tidegate-bench", "--"])
        .arg("pictures")
        .arg(folder))
}

type Files = BTreeMap<OsString, Vec<u8>>;

fn files(folder: &Path) -> Result<Files> {
    let mut files = Files::new();
    if !folder.exists() {
        return Ok(files);
    }
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry.with_context(|| folder.display().to_string())?;
        let path = entry.path();
        let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
        files.insert(entry.file_name(), bytes);
    }
    Ok(files)
}

/// The files that differ, each with how.
fn different(kept: &Files, drawn: &Files) -> Vec<String> {
    let mut different = Vec::new();
    for (name, bytes) in drawn {
        let how = match kept.get(name) {
            None => "is missing",
            Some(kept) if kept != bytes => "is out of date",
            Some(_) => continue,
        };
        different.push(format!("{} {how}", name.display()));
    }
    let unknown = kept.keys().filter(|name| !drawn.contains_key(*name));
    different.extend(
        unknown.map(|name| format!("{} is not one of them and can be removed", name.display())),
    );
    different
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_differ_are_named_with_how() {
        let files = |list: &[(&str, &str)]| -> Files {
            let entries = list.iter();
            entries
                .map(|(name, text)| (name.into(), text.as_bytes().to_vec()))
                .collect()
        };
        let kept = files(&[("a.svg", "a"), ("b.svg", "old"), ("d.svg", "d")]);
        let drawn = files(&[("a.svg", "a"), ("b.svg", "new"), ("c.svg", "c")]);
        assert_eq!(
            different(&kept, &drawn),
            [
                "b.svg is out of date",
                "c.svg is missing",
                "d.svg is not one of them and can be removed"
            ]
        );
        assert!(different(&kept, &kept).is_empty());
    }
}
