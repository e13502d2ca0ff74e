//! `cargo xtask pictures`: the pictures of docs/algorithms.md, drawn by `tidegate-bench` from
//! runs of the algorithms, which its tests compare; and the picture and the table of
//! docs/scale.md, from a simulation of a fleet.

use anyhow::Result;

use crate::command::{cargo, output, run, target};
use crate::figures;

/// The heading in docs/scale.md under which the table stands.
const SCALE: &str = "#### What the simulation shows";

/// Draws the pictures into docs/pictures.
pub(crate) fn write() -> Result<()> {
    run(bench().args(["pictures", "docs/pictures"]))?;
    let lines = target()?.join("scale.tsv");
    let told = output(
        cargo()
            .args(["test", "--release", "--package", "tidegate-redis", "--lib"])
            .args(["scale_of_leases", "--", "--ignored", "--nocapture"])
            .env("TIDEGATE_SCALE", &lines),
    )?;
    let table: Vec<&str> = told.lines().filter(|line| line.starts_with('|')).collect();
    figures::save_in("docs/scale.md", SCALE, &table.join("\n"))?;
    run(bench()
        .arg("scale")
        .arg(lines)
        .arg("docs/pictures/scale.svg"))
}

fn bench() -> std::process::Command {
    let mut bench = cargo();
    bench.args(["run", "--quiet", "--package", "tidegate-bench", "--"]);
    bench
}
