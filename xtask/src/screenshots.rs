//! `cargo xtask screenshots`: the pictures of pages that README.md shows, taken by Chromium
//! without a window.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::command::{cargo, program, root, run};
use crate::install;

/// A page to be photographed.
struct Shot {
    /// The file in docs/pictures.
    file: &'static str,
    /// The size of the window.
    size: (u32, u32),
    page: fn() -> Result<Page>,
}

/// A page that is there.
struct Page {
    url: String,
    /// What has to live until the picture is taken, such as a server.
    _kept: Option<Box<dyn std::any::Any>>,
}

const SHOTS: &[Shot] = &[Shot {
    file: "simulate.png",
    size: (1000, 1085),
    page: simulation,
}];

/// Takes all of them into docs/pictures.
pub(crate) fn take() -> Result<()> {
    install::browser()?;
    run(cargo().args(["build", "--package", "tidegate-server"]))?;
    for shot in SHOTS {
        let page = (shot.page)().with_context(|| shot.file)?;
        let picture = root().join("docs/pictures").join(shot.file);
        let (width, height) = shot.size;
        let profile = std::env::temp_dir().join(format!("tidegate-shot-{}", std::process::id()));
        let taken = run(program("chromium")
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
            ])
            .arg("--disable-dev-shm-usage")
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg(format!("--window-size={width},{height}"))
            .arg(format!("--screenshot={}", picture.display()))
            .arg(&page.url)
            // It complains of a desktop that is not there.
            .stderr(std::process::Stdio::null()));
        drop(std::fs::remove_dir_all(&profile));
        taken?;
        ensure!(picture.is_file(), "{}: no picture", shot.file);
        println!("Saved {}.", picture.display());
    }
    Ok(())
}

/// The program that was built: beside this one.
fn tidegate() -> Result<PathBuf> {
    let this = std::env::current_exe().context("where this program is")?;
    Ok(this.with_file_name("tidegate"))
}

/// The report of `tidegate simulate` on the example.
fn simulation() -> Result<Page> {
    let page = root().join("target/simulate.html");
    run(program(tidegate()?)
        .args(["simulate", "--config", "examples/simulate/tidegate.toml"])
        .args(["--policy", "address", "--suggest", "1%", "--html"])
        .arg(&page)
        .arg("examples/simulate/access.log"))?;
    Ok(Page {
        url: format!("file://{}", page.display()),
        _kept: None,
    })
}
