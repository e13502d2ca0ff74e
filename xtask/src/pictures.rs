//! `cargo xtask pictures`: the pictures of docs/algorithms.md, drawn by
//! `tidegate-bench` from runs of the algorithms. Its tests compare them.

use anyhow::Result;

use crate::command::{cargo, run};

/// Draws the pictures into docs/pictures.
pub(crate) fn write() -> Result<()> {
    run(cargo()
        .args(["run", "--quiet", "--package", "tidegate-bench", "--"])
        .args(["pictures", "docs/pictures"]))
}
