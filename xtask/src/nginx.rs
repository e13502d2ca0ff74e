//! `cargo xtask nginx ...`: the module for nginx. It is a workspace of its own, because it
//! needs nginx's headers, and has its build below `target/nginx`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{cargo, program, root, run};
use crate::install;

/// What the module is called where nginx looks for it.
const MODULE: &str = "ngx_http_tidegate_module.so";

/// Where Debian has the source of the nginx it ships, without its objects.
const DEBIAN: &str = "/usr/share/nginx/src";

/// Builds the module for the installed nginx, or for the one with this source.
pub(crate) fn build(source: Option<&str>) -> Result<()> {
    let source = match source {
        Some(source) => configured(Path::new(source))?,
        None => debian()?,
    };
    run(module("build", &source).arg("--release"))?;
    let built = target().join("release/libtidegate_nginx.so");
    let module = folder().join(MODULE);
    std::fs::copy(&built, &module).with_context(|| format!("cannot write {}", module.display()))?;
    println!(
        "\nBuilt {} for nginx {}.\n\nCopy it to nginx's modules and load it at the top of nginx.conf:\n\n    load_module modules/{MODULE};",
        module.strip_prefix(root()).unwrap_or(&module).display(),
        version(&source)?,
    );
    Ok(())
}

/// Checks and tests the module with the installed nginx.
pub(crate) fn test() -> Result<()> {
    let source = debian()?;
    run(cargo()
        .args(["fmt", "--check", "--manifest-path"])
        .arg(manifest()))?;
    run(module("clippy", &source).args(["--all-targets", "--", "-D", "warnings"]))?;
    // A test does not build a library that it does not link.
    run(&mut module("build", &source))?;
    run(module("test", &source).args(["--", "--skip", "timing"]))?;
    run(module("test", &source).args(["--", "--test-threads=1", "timing"]))
}

/// A cargo command for the module.
fn module(command: &str, source: &Path) -> Command {
    let mut cargo = cargo();
    cargo
        .arg(command)
        .arg("--manifest-path")
        .arg(manifest())
        .arg("--target-dir")
        .arg(target())
        .env("NGINX_SOURCE_DIR", source)
        .env("NGINX_BUILD_DIR", source.join("objs"));
    cargo
}

fn manifest() -> PathBuf {
    root().join("crates/tidegate-nginx/Cargo.toml")
}

fn folder() -> PathBuf {
    root().join("target/nginx")
}

fn target() -> PathBuf {
    folder().join("build")
}

/// A copy of the source of the installed nginx, configured as that is.
fn debian() -> Result<PathBuf> {
    install::nginx_headers()?;
    let copy = folder().join(format!("nginx-{}", version(Path::new(DEBIAN))?));
    if !copy.join("objs/ngx_auto_config.h").is_file() {
        if copy.exists() {
            std::fs::remove_dir_all(&copy)
                .with_context(|| format!("cannot remove {}", copy.display()))?;
        }
        std::fs::create_dir_all(folder())
            .with_context(|| format!("cannot make {}", folder().display()))?;
        run(program("cp").arg("-a").arg(DEBIAN).arg(&copy))?;
        // The flags are an array of bash.
        let configure = ". ./conf_flags && ./configure \"${NGX_CONF_FLAGS[@]}\" > configure.log";
        run(program("bash").args(["-c", configure]).current_dir(&copy))?;
    }
    Ok(copy)
}

/// The source of another nginx, which was configured as that nginx is.
fn configured(source: &Path) -> Result<PathBuf> {
    let source = std::path::absolute(source)?;
    if !source.join("objs/ngx_auto_config.h").is_file() {
        bail!(
            "{0} is not a configured source of nginx: expected {0}/objs/ngx_auto_config.h; run ./configure there with the arguments that `nginx -V` prints",
            source.display()
        );
    }
    install::clang()?;
    Ok(source)
}

/// The version of a source.
fn version(source: &Path) -> Result<String> {
    let header = source.join("src/core/nginx.h");
    let header = std::fs::read_to_string(&header)
        .with_context(|| format!("cannot read {}", header.display()))?;
    let line = header.lines().find_map(|line| {
        let rest = line.strip_prefix("#define NGINX_VERSION")?;
        Some(rest.trim().trim_matches('"').to_owned())
    });
    line.context("nginx.h has no NGINX_VERSION")
}
