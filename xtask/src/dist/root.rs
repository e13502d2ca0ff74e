//! A clean Debian system in a folder: the essential packages, made once by mmdebstrap and
//! unpacked for each test.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::command::{output, program, run, target};
use crate::install;

/// What dpkg, useradd and the loader keep for themselves, below the root: their records of
/// what was installed, and backups.
const KEPT: [&str; 9] = [
    "var/lib/dpkg/",
    "var/log/",
    "var/cache/",
    "etc/passwd-",
    "etc/group-",
    "etc/shadow-",
    "etc/gshadow-",
    "etc/subuid-",
    "etc/subgid-",
];

pub(super) struct Root {
    folder: PathBuf,
}

/// Path, and what there is: mode, owner and contents.
pub(super) type Listing = BTreeMap<PathBuf, String>;

impl Root {
    /// Unpacks a fresh one. It is removed on drop.
    pub(super) fn new() -> Result<Self> {
        let archive = archive()?;
        let folder = target()?.join("dist-root");
        if folder.exists() {
            fs::remove_dir_all(&folder).context("the root of an earlier test")?;
        }
        fs::create_dir_all(&folder).context("a root")?;
        let root = Self { folder };
        run(program("tar")
            .args(["--extract", "--numeric-owner", "--preserve-permissions"])
            .arg("--file")
            .arg(archive)
            .arg("--directory")
            .arg(&root.folder))?;
        Ok(root)
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }

    pub(super) fn read(&self, path: &str) -> Result<String> {
        fs::read_to_string(self.path(path)).with_context(|| format!("/{path} in the root"))
    }

    pub(super) fn write(&self, path: &str, text: &str) -> Result<()> {
        fs::write(self.path(path), text).with_context(|| format!("/{path} in the root"))
    }

    /// Runs a command inside, with nothing of this environment, and returns its output. Its
    /// failure is an error that shows what it wrote.
    pub(super) fn run(&self, words: &[&str]) -> Result<String> {
        println!("  # {}", words.join(" "));
        let mut command = Command::new("chroot");
        command.arg(&self.folder).args(words).env_clear();
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        command
            .env("PATH", path)
            .env("DEBIAN_FRONTEND", "noninteractive");
        command.env("LC_ALL", "C.UTF-8").current_dir("/");
        let done = command.output().context("cannot start chroot")?;
        let said = [done.stdout, done.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        if !done.status.success() {
            bail!("`{}` ended with {}:\n{said}", words.join(" "), done.status);
        }
        Ok(said)
    }

    /// Everything there is, but for what dpkg and useradd keep for themselves.
    pub(super) fn listing(&self) -> Result<Listing> {
        let mut listing = Listing::new();
        self.walk(&self.folder, &mut listing)?;
        Ok(listing)
    }

    fn walk(&self, folder: &Path, listing: &mut Listing) -> Result<()> {
        let cannot = || format!("cannot read {}", folder.display());
        for entry in fs::read_dir(folder).with_context(cannot)? {
            let path = entry.with_context(cannot)?.path();
            let below = path.strip_prefix(&self.folder).expect("it was found below");
            let name = below.to_string_lossy();
            if KEPT.iter().any(|kept| name.starts_with(kept)) {
                continue;
            }
            let metadata = fs::symlink_metadata(&path).with_context(cannot)?;
            let mut what = format!(
                "{:o} {}:{}",
                metadata.mode(),
                metadata.uid(),
                metadata.gid()
            );
            if metadata.is_symlink() {
                let to = fs::read_link(&path).with_context(cannot)?;
                write!(what, " -> {}", to.display())?;
            } else if metadata.is_file() {
                write!(what, " {} bytes", metadata.len())?;
                if below.starts_with("etc") {
                    let text = fs::read(&path).with_context(cannot)?;
                    write!(what, " {}", String::from_utf8_lossy(&text))?;
                }
            }
            listing.insert(below.to_owned(), what);
            if metadata.is_dir() {
                self.walk(&path, listing)?;
            }
        }
        Ok(())
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// Fails with what differs.
pub(super) fn ensure_same(before: &Listing, after: &Listing) -> Result<()> {
    let changed = |from: &Listing, to: &Listing, word: &str| -> Vec<String> {
        let differs = from
            .iter()
            .filter(|(path, what)| to.get(*path) != Some(what));
        differs
            .map(|(path, what)| format!("{word} /{}: {what}", path.display()))
            .collect()
    };
    let mut differences = changed(before, after, "before");
    differences.extend(changed(after, before, "after"));
    ensure!(
        differences.is_empty(),
        "a purge should leave nothing:\n{}",
        differences.join("\n")
    );
    Ok(())
}

/// The packed root, made once: of the same release as this machine, whose libraries the
/// program was built with.
fn archive() -> Result<PathBuf> {
    let release = fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let codename = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let codename = codename.context("/etc/os-release has no VERSION_CODENAME")?;
    let folder = target()?.join("peers");
    let archive = folder.join(format!("debian-{codename}.tar"));
    if !archive.is_file() {
        install::packages(&install::missing(&[("mmdebstrap", "mmdebstrap")]))?;
        fs::create_dir_all(&folder).context("target/peers")?;
        let unfinished = folder.join("debian-unfinished.tar");
        output(
            program("mmdebstrap")
                .args([
                    "--quiet",
                    "--variant=essential",
                    "--include=passwd",
                    codename,
                ])
                .arg(&unfinished),
        )?;
        fs::rename(&unfinished, &archive).context("the packed root")?;
    }
    Ok(archive)
}
