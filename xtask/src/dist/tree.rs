//! A folder that becomes an archive: every file with the mode it should have, whatever the
//! umask and the checkout say.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::command::{program, run};

pub(super) struct Tree {
    folder: PathBuf,
}

impl Tree {
    /// An empty tree at this folder. Whatever was there is removed.
    pub(super) fn new(folder: PathBuf) -> Result<Self> {
        if folder.exists() {
            fs::remove_dir_all(&folder)
                .with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        let tree = Self { folder };
        tree.make(&tree.folder)?;
        Ok(tree)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// A file for everybody to read.
    pub(super) fn add(&self, path: &str, contents: impl AsRef<[u8]>) -> Result<()> {
        self.write(path, contents.as_ref(), 0o644)
    }

    /// A file for everybody to run.
    pub(super) fn add_program(&self, path: &str, contents: impl AsRef<[u8]>) -> Result<()> {
        self.write(path, contents.as_ref(), 0o755)
    }

    /// A file compressed as Debian wants its documents: without a name or a time in it.
    pub(super) fn add_compressed(&self, path: &str, contents: impl AsRef<[u8]>) -> Result<()> {
        self.add(path, contents)?;
        run(program("gzip")
            .args(["-9", "-n"])
            .arg(self.folder.join(path)))
    }

    /// All files with their sizes, sorted, below the root of the tree.
    pub(super) fn files(&self) -> Result<Vec<(PathBuf, u64)>> {
        let mut files = Vec::new();
        self.walk(&self.folder, &mut files)?;
        files.sort();
        Ok(files)
    }

    fn walk(&self, folder: &Path, files: &mut Vec<(PathBuf, u64)>) -> Result<()> {
        let cannot = || format!("cannot read {}", folder.display());
        for entry in fs::read_dir(folder).with_context(cannot)? {
            let entry = entry.with_context(cannot)?;
            let (path, metadata) = (entry.path(), entry.metadata().with_context(cannot)?);
            if metadata.is_dir() {
                self.walk(&path, files)?;
            } else {
                let below = path.strip_prefix(&self.folder).expect("it was found below");
                files.push((below.to_owned(), metadata.len()));
            }
        }
        Ok(())
    }

    fn write(&self, path: &str, contents: &[u8], mode: u32) -> Result<()> {
        let path = self.folder.join(path);
        self.make(path.parent().expect("a file lies in a folder"))?;
        fs::write(&path, contents)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// A folder inside the tree, and those it lies in.
    fn make(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let inside = folder
            .ancestors()
            .take_while(|it| it.starts_with(&self.folder));
        for folder in inside {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755))
                .with_context(|| format!("cannot set the mode of {}", folder.display()))?;
        }
        Ok(())
    }
}
