//! The Debian package: the files of `deploy/debian`, and where everything goes on a Debian
//! system.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::tree::Tree;
use super::{Contents, VERSION, read};
use crate::command::{output, program, run};

const CONFIG: &str = "etc/tidegate/tidegate.toml";

/// What differs between the unit in `deploy` and the one of the package, which has its
/// program in another place and a user of its own.
const UNIT: [(&str, &str); 3] = [
    (
        "# systemd: copy to /etc/systemd/system/, then\n\
         #   systemctl daemon-reload && systemctl enable --now tidegate\n\
         # The binary is expected in /usr/local/bin, the config in /etc/tidegate.\n",
        "",
    ),
    ("/usr/local/bin/tidegate", "/usr/bin/tidegate"),
    ("DynamicUser=yes\n", "User=tidegate\nGroup=tidegate\n"),
];

/// Makes the package in a folder.
pub(super) fn package(contents: &Contents, folder: &Path) -> Result<PathBuf> {
    let tree = Tree::new(folder.join("debian"))?;
    let binary = std::fs::read(&contents.binary).context("the program")?;
    let depends = depends(&binary)?;
    tree.add_program("usr/bin/tidegate", binary)?;
    for (page, text) in &contents.pages {
        tree.add_compressed(&format!("usr/share/man/man1/{page}"), text)?;
    }
    for (_, place, script) in &contents.completions {
        tree.add(&format!("usr/share/{place}"), script)?;
    }
    tree.add(CONFIG, read("deploy/tidegate.toml")?)?;
    tree.add("usr/lib/systemd/system/tidegate.service", unit()?)?;
    let documents = "usr/share/doc/tidegate";
    tree.add(
        &format!("{documents}/copyright"),
        read("deploy/debian/copyright")?,
    )?;
    for file in ["LICENSE-MIT", "LICENSE-APACHE"] {
        tree.add(&format!("{documents}/{file}"), read(file)?)?;
    }
    tree.add_compressed(&format!("{documents}/changelog"), read("CHANGELOG.md")?)?;
    let dashboard = format!("{documents}/examples/grafana.json");
    tree.add(&dashboard, read("deploy/grafana.json")?)?;

    let files = tree.files()?;
    let names = files.iter().map(|(path, _)| path);
    let config = Path::new(CONFIG);
    let sums = program("md5sum")
        .args(names.filter(|path| *path != config))
        .current_dir(tree.folder())
        .output();
    tree.add("DEBIAN/md5sums", sums.context("md5sum")?.stdout)?;
    tree.add("DEBIAN/conffiles", format!("/{CONFIG}\n"))?;
    for script in ["postinst", "prerm", "postrm"] {
        let text = read(&format!("deploy/debian/{script}"))?;
        tree.add_program(&format!("DEBIAN/{script}"), text)?;
    }
    let architecture = output(program("dpkg").arg("--print-architecture"))?;
    let architecture = architecture.trim();
    let size = files.iter().map(|(_, size)| size.div_ceil(1024)).sum();
    tree.add("DEBIAN/control", control(architecture, size, &depends)?)?;

    let package = folder.join(format!("tidegate_{VERSION}_{architecture}.deb"));
    let compression: &[&str] = match contents.small {
        true => &["-Zxz"],
        false => &["-Zgzip", "-z1"],
    };
    run(program("dpkg-deb")
        .args(["--build", "--root-owner-group"])
        .args(compression)
        .arg(tree.folder())
        .arg(&package)
        .env("SOURCE_DATE_EPOCH", &contents.time))?;
    Ok(package)
}

fn control(architecture: &str, kibibytes: u64, depends: &str) -> Result<String> {
    let mut text = read("deploy/debian/control")?;
    for (name, value) in [
        ("@VERSION@", VERSION),
        ("@ARCHITECTURE@", architecture),
        ("@SIZE@", &kibibytes.to_string()),
        ("@DEPENDS@", depends),
    ] {
        ensure!(text.contains(name), "deploy/debian/control lacks {name}");
        text = text.replace(name, value);
    }
    Ok(text)
}

fn unit() -> Result<String> {
    let mut unit = read("deploy/tidegate.service")?;
    for (from, to) in UNIT {
        ensure!(
            unit.contains(from),
            "deploy/tidegate.service lacks {from:?}"
        );
        unit = unit.replace(from, to);
    }
    Ok(unit)
}

/// The libraries that a program of Rust needs: glibc, as new as the newest symbol it uses,
/// and the unwinder.
fn depends(binary: &[u8]) -> Result<String> {
    let newest = glibc(binary).context("the program uses no symbol of glibc")?;
    let mut depends = String::from("libc6 (>= ");
    write!(depends, "{}.{}), libgcc-s1", newest.0, newest.1)?;
    Ok(depends)
}

/// The newest version among names like `GLIBC_2.34` in a program.
fn glibc(binary: &[u8]) -> Option<(u32, u32)> {
    const NAME: &[u8] = b"GLIBC_";
    let at = binary.windows(NAME.len()).enumerate();
    let starts = at.filter(|(_, window)| *window == NAME);
    let versions = starts.filter_map(|(at, _)| {
        let rest = &binary[at + NAME.len()..];
        let end = rest
            .iter()
            .position(|byte| !byte.is_ascii_digit() && *byte != b'.')?;
        let (major, minor) = str::from_utf8(&rest[..end]).ok()?.split_once('.')?;
        let minor = minor.split('.').next()?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    });
    versions.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_glibc_is_found() {
        let binary = b"\0GLIBC_2.4\0GLIBC_PRIVATE\0GLIBC_2.34\0GLIBC_2.2.5\0";
        assert_eq!(glibc(binary), Some((2, 34)));
        assert_eq!(depends(binary).unwrap(), "libc6 (>= 2.34), libgcc-s1");
        assert!(depends(b"nothing").is_err());
    }

    #[test]
    fn unit_of_the_package_runs_its_own_program_as_its_own_user() {
        let unit = unit().unwrap();
        assert!(unit.starts_with("[Unit]\n"), "{unit}");
        assert!(unit.contains("\nExecStart=/usr/bin/tidegate serve --config /etc/tidegate/"));
        assert!(unit.contains("\nUser=tidegate\n") && !unit.contains("DynamicUser"));
        assert!(!unit.contains("/usr/local"), "{unit}");
    }

    #[test]
    fn control_file_has_every_value() {
        let control = control("amd64", 7, "libc6").unwrap();
        assert!(!control.contains('@') || !control.replace("s@t", "").contains('@'));
        assert!(control.contains("\nVersion: ") && control.contains("\nDepends: libc6\n"));
    }
}
