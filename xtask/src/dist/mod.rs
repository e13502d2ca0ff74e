//! `cargo xtask dist`: what users install. A tarball and a Debian package, with checksums,
//! under `target/dist`.
//!
//! Both hold the same things: the program, its manual pages and completions (which the
//! program writes itself), the systemd unit and an example config. The same binary and the
//! same `SOURCE_DATE_EPOCH` (without one: the time of the last commit) give the same bytes.

mod debian;
mod installed;
mod root;
mod tree;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::command::{cargo, find, output, program, root as source, run, target};
use tree::Tree;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Where each shell looks for completions, below `/usr/share`.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/tidegate"),
    ("zsh", "zsh/vendor-completions/_tidegate"),
    ("fish", "fish/vendor_completions.d/tidegate.fish"),
];

/// What to package.
struct Contents {
    /// The program, without its symbols.
    binary: PathBuf,
    /// Name and text of each manual page.
    pages: Vec<(String, String)>,
    /// Shell, place below `/usr/share`, and script.
    completions: Vec<(&'static str, &'static str, String)>,
    /// Seconds since the epoch: the time of every file.
    time: String,
    /// Whether size matters more than the time it takes.
    small: bool,
}

/// Builds the release and packages it.
pub(crate) fn make() -> Result<PathBuf> {
    run(cargo().args([
        "build",
        "--release",
        "--locked",
        "--package",
        "tidegate-server",
    ]))?;
    let folder = target()?.join("dist");
    let package = package(&target()?.join("release/tidegate"), &folder, true)?;
    println!("\n{}", std::fs::read_to_string(folder.join("SHA256SUMS"))?);
    println!("In {}.", folder.display());
    Ok(package)
}

/// Builds the release, packages it, and tries the package on a clean root.
pub(crate) fn make_and_test() -> Result<()> {
    installed::check(&make()?)
}

/// Packages the program that the tests have built, twice, and tries the package on a clean
/// root.
pub(crate) fn test_built() -> Result<()> {
    let binary = target()?.join("debug/tidegate");
    let folders = ["dist-test", "dist-test-again"].map(|name| target().map(|it| it.join(name)));
    let [first, second] = folders;
    let (first, second) = (first?, second?);
    let made = package(&binary, &first, false)?;
    package(&binary, &second, false)?;
    let sums = |folder: &Path| std::fs::read_to_string(folder.join("SHA256SUMS"));
    ensure!(
        sums(&first)? == sums(&second)?,
        "the same program was packaged into other bytes: compare {} and {}",
        first.display(),
        second.display()
    );
    std::fs::remove_dir_all(&second).context("the second packages")?;
    installed::check(&made)
}

/// Makes the packages of a binary in a folder, and returns the Debian one.
fn package(binary: &Path, folder: &Path, small: bool) -> Result<PathBuf> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let contents = Contents::collect(binary, folder, small)?;
    let tarball = tarball(&contents, folder)?;
    let package = debian::package(&contents, folder)?;
    let names = [&tarball, &package].map(|path| path.file_name().expect("a file"));
    let sums = output(program("sha256sum").args(names).current_dir(folder))?;
    std::fs::write(folder.join("SHA256SUMS"), sums).context("SHA256SUMS")?;
    Ok(package)
}

impl Contents {
    fn collect(binary: &Path, folder: &Path, small: bool) -> Result<Self> {
        let stripped = folder.join("tidegate");
        ensure!(
            find("strip").is_some(),
            "strip is not installed; as root, run: apt-get install binutils"
        );
        run(program("strip").arg("-o").arg(&stripped).arg(binary))?;
        let pages = Tree::new(folder.join("man"))?;
        run(program(&stripped).arg("man").arg(pages.folder()))?;
        let mut texts = Vec::new();
        for (page, _) in pages.files()? {
            let text = std::fs::read_to_string(pages.folder().join(&page))?;
            texts.push((page.display().to_string(), text));
        }
        let mut completions = Vec::new();
        for (shell, place) in COMPLETIONS {
            let script = output(program(&stripped).args(["completions", shell]))?;
            completions.push((shell, place, script));
        }
        Ok(Self {
            binary: stripped,
            pages: texts,
            completions,
            time: time()?,
            small,
        })
    }
}

/// `SOURCE_DATE_EPOCH`, or the time of the last commit.
fn time() -> Result<String> {
    if let Ok(time) = std::env::var("SOURCE_DATE_EPOCH") {
        return Ok(time);
    }
    let time = output(program("git").args(["log", "-1", "--format=%ct"]));
    let time = time.context("not in a git repository: set SOURCE_DATE_EPOCH")?;
    Ok(time.trim().to_owned())
}

/// A file of the repository.
fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(source().join(path)).with_context(|| path.to_owned())
}

/// One folder to unpack anywhere.
fn tarball(contents: &Contents, folder: &Path) -> Result<PathBuf> {
    let name = format!("tidegate-{VERSION}-linux-{}", std::env::consts::ARCH);
    let tree = Tree::new(folder.join(&name))?;
    let binary = std::fs::read(&contents.binary).context("the program")?;
    tree.add_program("bin/tidegate", binary)?;
    for (page, text) in &contents.pages {
        tree.add(&format!("share/man/man1/{page}"), text)?;
    }
    for (_, place, script) in &contents.completions {
        tree.add(&format!("share/{place}"), script)?;
    }
    for file in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        tree.add(file, read(file)?)?;
    }
    for file in ["tidegate.service", "tidegate.toml", "grafana.json"] {
        tree.add(file, read(&format!("deploy/{file}"))?)?;
    }
    let archive = folder.join(format!("{name}.tar.gz"));
    let level = if contents.small { "-9" } else { "-1" };
    run(program("tar")
        .args(["--create", "--sort=name", "--owner=0", "--group=0"])
        .args(["--numeric-owner", "--format=gnu"])
        .arg(format!("--mtime=@{}", contents.time))
        .arg(format!("--use-compress-program=gzip -n {level}"))
        .arg("--file")
        .arg(&archive)
        .arg("--directory")
        .arg(folder)
        .arg(&name))?;
    Ok(archive)
}
