//! `cargo xtask publish --dry-run`: packages every crate that would be published, in order,
//! and builds each from its package, without uploading anything.

use anyhow::Result;

use crate::command::{cargo, run};

/// Does everything but the upload. Crates that depend on each other are resolved among the
/// packages themselves.
pub(crate) fn dry_run() -> Result<()> {
    run(cargo().args(["publish", "--workspace", "--dry-run", "--locked"]))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::command::root;

    /// What crates.io shows of a crate, and what belongs into its package.
    const FIELDS: [&str; 7] = [
        "description = ",
        "keywords = ",
        "categories = ",
        "readme = \"README.md\"",
        "documentation = \"https://docs.rs/",
        "include = ",
        "[package.metadata.docs.rs]",
    ];

    #[test]
    fn every_crate_can_be_published_or_says_that_it_is_not() {
        let mut published = 0;
        for folder in fs::read_dir(root().join("crates")).unwrap() {
            let folder = folder.unwrap().path();
            let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
            if manifest.lines().any(|line| line == "publish = false") {
                continue;
            }
            published += 1;
            for field in FIELDS {
                let found = manifest.lines().any(|line| line.starts_with(field));
                assert!(found, "{}/Cargo.toml has no {field}", folder.display());
            }
            for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
                assert!(folder.join(file).is_file(), "{}: {file}", folder.display());
            }
        }
        assert!(published >= 6, "only {published} crates");
    }
}
