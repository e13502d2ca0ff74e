//! `cargo xtask screenshots`: the pictures of pages that README.md shows, taken by Chromium
//! without a window.

mod browser;
mod dashboard;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::command::{cargo, program, root, run};
use crate::install;
use browser::Browser;

/// A name, and what takes the picture into a file.
type Shot = (&'static str, fn(&Path) -> Result<()>);

/// Takes all pictures into docs/pictures, or the one of this name.
pub(crate) fn take(name: Option<&str>) -> Result<()> {
    const SHOTS: [Shot; 2] = [("simulate", simulation), ("dashboard", dashboard::take)];
    ensure!(
        name.is_none_or(|name| SHOTS.iter().any(|(shot, _)| *shot == name)),
        "{}: expected simulate or dashboard",
        name.unwrap_or_default()
    );
    install::browser()?;
    install::redis()?;
    run(cargo().args(["build", "--package", "tidegate-server"]))?;
    for (shot, take) in SHOTS {
        if name.is_some_and(|name| name != shot) {
            continue;
        }
        let picture = root().join("docs/pictures").join(format!("{shot}.png"));
        take(&picture).with_context(|| format!("the picture of {shot}"))?;
        ensure!(picture.is_file(), "{shot}: no picture");
    }
    Ok(())
}

/// The program that was built: beside this one.
fn tidegate() -> Result<PathBuf> {
    let this = std::env::current_exe().context("where this program is")?;
    Ok(this.with_file_name("tidegate"))
}

/// The report of `tidegate simulate` on the example.
fn simulation(picture: &Path) -> Result<()> {
    let page = root().join("target/simulate.html");
    run(program(tidegate()?)
        .args(["simulate", "--config", "examples/simulate/tidegate.toml"])
        .args(["--policy", "address", "--suggest", "1%", "--html"])
        .arg(&page)
        .arg("examples/simulate/access.log"))?;
    let browser = Browser::start()?;
    browser.resize(1_000, 1_085)?;
    browser.prefer("light")?;
    browser.open(&format!("file://{}", page.display()))?;
    browser.picture(picture)?;
    println!("Saved {}.", picture.display());
    Ok(())
}
