//! `cargo xtask nginx ...`: the module for nginx. It is a workspace of its own, because it
//! needs nginx's headers, and has its build below `target/nginx`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{cargo, program, root, run, run_beside, target as workspace_target};
use crate::install;

/// What the module is called where nginx looks for it.
const MODULE: &str = "ngx_http_tidegate_module.so";

/// How long a soak lasts unless the command says otherwise, in seconds.
const SOAK: &str = "600";

/// The crate that has the source of a newer nginx than Debian's.
const NEWEST: &str = "[workspace]

[package]
name = \"newest\"
version = \"0.0.0\"
edition = \"2024\"

[lib]
path = \"lib.rs\"

[dependencies]
nginx-src = \"=1.28.5\"
";

/// What the tests need of an nginx, beside what it always has.
const CONFIGURE: &[&str] = &[
    "--with-compat",
    "--with-debug",
    "--with-threads",
    "--with-http_ssl_module",
    "--with-http_v2_module",
    "--with-http_realip_module",
    "--with-http_auth_request_module",
];

/// Where Debian has the source of the nginx it ships, without its objects.
const DEBIAN: &str = "/usr/share/nginx/src";

/// Builds the module for the installed nginx, or for the one with this source.
pub(crate) fn build(source: Option<&str>) -> Result<()> {
    let source = match source {
        Some(source) => configured(Path::new(source))?,
        None => debian()?,
    };
    let module = release(&source)?;
    println!(
        "\nBuilt {} for nginx {}.\n\nCopy it to nginx's modules and load it at the top of nginx.conf:\n\n    load_module modules/{MODULE};",
        module.strip_prefix(root()).unwrap_or(&module).display(),
        version(&source)?,
    );
    Ok(())
}

/// The module for the installed nginx.
pub(crate) fn built() -> Result<PathBuf> {
    release(&debian()?)
}

/// Builds the module for the nginx with this source, and says where it lies.
fn release(source: &Path) -> Result<PathBuf> {
    run(module("build", source).arg("--release"))?;
    let built = target(source).join("release/libtidegate_nginx.so");
    let module = folder().join(MODULE);
    std::fs::copy(&built, &module).with_context(|| format!("cannot write {}", module.display()))?;
    Ok(module)
}

/// How to test.
#[derive(Default)]
struct Options<'a> {
    newest: bool,
    valgrind: bool,
    /// How long the soak lasts.
    soak: Option<&'a str>,
}

/// Checks the module for the installed nginx, and builds it for its tests.
pub(crate) fn check() -> Result<()> {
    check_for(&debian()?, run_beside)
}

/// Tests the checked module, with the server that the other tests have built.
pub(crate) fn test_built() -> Result<()> {
    test_for(&debian()?, None, &Options::default())
}

/// Checks and tests the module, with options: another nginx, under valgrind, or the soak
/// alone.
pub(crate) fn test(options: &[&str]) -> Result<()> {
    let options = Options::parse(options)?;
    let (source, nginx) = match options.newest {
        true => newest().map(|source| (source.clone(), Some(source.join("objs/nginx"))))?,
        false => (debian()?, None),
    };
    if options.valgrind {
        install::valgrind()?;
        println!("Under valgrind nginx is too slow to judge how much of a limit is used.");
    }
    check_for(&source, run)?;
    run(cargo().args(["build", "--package", "tidegate-server"]))?;
    test_for(&source, nginx.as_deref(), &options)
}

fn check_for(source: &Path, run: fn(&mut Command) -> Result<()>) -> Result<()> {
    run(cargo()
        .args(["fmt", "--check", "--manifest-path"])
        .arg(manifest()))?;
    run(module("clippy", source).args(["--all-targets", "--", "-D", "warnings"]))?;
    // A test does not build a library that it does not link.
    run(&mut module("build", source))?;
    run(module("test", source).arg("--no-run"))
}

fn test_for(source: &Path, nginx: Option<&Path>, options: &Options<'_>) -> Result<()> {
    let server = workspace_target()?.join("debug/tidegate");
    let tests = || {
        let mut tests = module("test", source);
        tests.env("TIDEGATE", &server);
        if let Some(nginx) = nginx {
            tests.env("TIDEGATE_NGINX", nginx);
        }
        if options.valgrind {
            tests.env("TIDEGATE_VALGRIND", "1");
        }
        tests
    };
    if let Some(length) = options.soak {
        let soak = ["--", "--ignored", "--nocapture", "soak"];
        return run(tests().env("TIDEGATE_SOAK", length).args(soak));
    }
    // Each nginx under valgrind takes a processor for itself.
    let threads = match options.valgrind {
        true => "--test-threads=2",
        false => "--test-threads=8",
    };
    run(tests().args(["--", threads, "--skip", "timing"]))?;
    run(tests().args(["--", "--test-threads=1", "timing"]))
}

impl<'a> Options<'a> {
    fn parse(mut words: &[&'a str]) -> Result<Self> {
        let mut options = Self::default();
        loop {
            words = match words {
                [] => return Ok(options),
                ["--newest", rest @ ..] => {
                    options.newest = true;
                    rest
                }
                ["--valgrind", rest @ ..] => {
                    options.valgrind = true;
                    rest
                }
                ["--soak", length, rest @ ..] if length.parse::<u32>().is_ok() => {
                    options.soak = Some(length);
                    rest
                }
                ["--soak", rest @ ..] => {
                    options.soak = Some(SOAK);
                    rest
                }
                [other, ..] => {
                    bail!("{other}: expected --newest, --valgrind or --soak [SECONDS]")
                }
            };
        }
    }
}

/// A cargo command for the module.
fn module(command: &str, source: &Path) -> Command {
    let mut cargo = cargo();
    cargo
        .arg(command)
        .arg("--manifest-path")
        .arg(manifest())
        .arg("--target-dir")
        .arg(target(source))
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

/// A module is built for one nginx, so each has a folder of its own.
fn target(source: &Path) -> PathBuf {
    match source.starts_with(folder().join("newest")) {
        true => folder().join("build-newest"),
        false => folder().join("build"),
    }
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

/// The source of a newer nginx, built.
fn newest() -> Result<PathBuf> {
    install::nginx_headers()?;
    let folder = folder().join("newest");
    let source = folder.join("vendor/nginx-src/nginx");
    if source.join("objs/nginx").is_file() {
        return Ok(source);
    }
    let cannot = || format!("cannot write into {}", folder.display());
    std::fs::create_dir_all(&folder).with_context(cannot)?;
    std::fs::write(folder.join("Cargo.toml"), NEWEST).with_context(cannot)?;
    std::fs::write(folder.join("lib.rs"), "").with_context(cannot)?;
    run(cargo()
        .args(["vendor", "--quiet", "vendor"])
        .current_dir(&folder)
        .stdout(std::process::Stdio::null()))?;
    run(program("sh")
        .arg("auto/configure")
        .args(CONFIGURE)
        .current_dir(&source)
        .stdout(std::process::Stdio::null()))?;
    run(program("make")
        .args(["--silent", "--jobs", "2"])
        .current_dir(&source))?;
    Ok(source)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soak_takes_its_length_or_ten_minutes() {
        let soak = |words: &[&'static str]| Options::parse(words).unwrap().soak;
        assert_eq!(soak(&[]), None);
        assert_eq!(soak(&["--soak"]), Some("600"));
        assert_eq!(soak(&["--soak", "5", "--valgrind"]), Some("5"));
        assert_eq!(soak(&["--soak", "--newest"]), Some("600"));
    }

    #[test]
    fn unknown_options_are_refused() {
        let error = Options::parse(&["--newer"]).err().unwrap().to_string();
        let expected = "--newer: expected --newest, --valgrind or --soak [SECONDS]";
        assert_eq!(error, expected);
    }
}
