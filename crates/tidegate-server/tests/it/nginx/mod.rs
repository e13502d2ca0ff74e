//! A real nginx with the files in `examples/nginx/`, real tidegates behind it, and a real
//! Redis where limits are shared.

mod proxy;
mod tidegate;

mod connections;
mod fallback;
mod fleet;
mod readme;
mod requests;

use std::ffi::OsString;

use tidegate_testkit::tidegate::binary;

/// Where programs are: the one that is tested first, and servers where only root looks.
fn path() -> OsString {
    let path = std::env::var_os("PATH").expect("a PATH");
    let own = binary().parent().expect("a binary in a folder").to_owned();
    let folders = std::iter::once(own)
        .chain(std::env::split_paths(&path))
        .chain(["/usr/sbin".into()]);
    std::env::join_paths(folders).expect("folders without a colon")
}
