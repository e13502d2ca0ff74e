//! A config file that others put in place. What changes with it is in `requests/reload.txt`.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use crate::process::{Folder, Start, Tidegate, until};

/// Writes a config whose only policy admits this many an hour.
fn write(folder: &Folder, file: &str, requests: u32) -> PathBuf {
    let policy = format!("[[policies]]\nname = \"p\"\nlimit = \"{requests}/1h\"\n");
    folder.write(file, policy)
}

fn start(folder: &Folder) -> Tidegate {
    let path = folder.path("tidegate.toml");
    let start = Start::without_config().argument("--config");
    start.argument(path.to_str().expect("text")).start()
}

/// Waits until the limit in force is this.
fn wait_for(server: &Tidegate, requests: u32) {
    until("the limit", || {
        let policies = server.get("/v1/policies").json();
        (policies[0]["levels"][0]["limit"]["requests"] == requests).then_some(())
    });
}

#[test]
fn file_that_an_editor_puts_in_place_is_read() {
    let folder = Folder::new();
    write(&folder, "tidegate.toml", 5);
    let server = start(&folder);
    for requests in [9, 8] {
        let beside = write(&folder, ".tidegate.toml.swp", requests);
        std::fs::rename(beside, folder.path("tidegate.toml")).expect("a rename");
        wait_for(&server, requests);
    }
}

#[test]
fn link_that_is_swapped_as_kubernetes_does_is_followed() {
    let folder = Folder::new();
    for (version, requests) in [("..1", 5), ("..2", 6)] {
        std::fs::create_dir(folder.path(version)).expect("a folder");
        write(&folder, &format!("{version}/tidegate.toml"), requests);
    }
    symlink("..1", folder.path("..data")).expect("a link");
    symlink("..data/tidegate.toml", folder.path("tidegate.toml")).expect("a link");
    let server = start(&folder);
    wait_for(&server, 5);
    symlink("..2", folder.path("..data_tmp")).expect("a link");
    std::fs::rename(folder.path("..data_tmp"), folder.path("..data")).expect("a rename");
    wait_for(&server, 6);
}
