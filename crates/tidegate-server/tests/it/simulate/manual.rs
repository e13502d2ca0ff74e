//! What docs/simulate.md shows is what the commands say.

use std::path::Path;
use std::process::Command;

const MANUAL: &str = include_str!("../../../../../docs/simulate.md");

#[test]
fn commands_of_the_manual_say_what_stands_below_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let sessions: Vec<&str> = MANUAL.split("\n```console\n").skip(1).collect();
    assert_eq!(sessions.len(), 2);
    for session in sessions {
        let session = session.split("```\n").next().expect("every block ends");
        let (command, expected) = session.split_once('\n').expect("a command");
        let words = command.strip_prefix("$ tidegate ").expect("a command");
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(words.split(' '))
            .env_remove("TIDEGATE_CONFIG")
            .current_dir(&root)
            .output()
            .expect("the binary");
        assert!(output.status.success(), "{command}: {output:?}");
        let said = String::from_utf8(output.stdout).expect("text");
        let mut lines = said.lines().map(str::trim_end);
        for line in expected.lines() {
            let found = lines.any(|other| other == line.trim_end());
            assert!(found, "{command}\nsays\n{said}\nand not\n{line}");
        }
    }
}

#[test]
fn manual_names_every_format() {
    let help = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["simulate", "--help"])
        .output()
        .expect("the binary");
    let help = String::from_utf8(help.stdout).expect("text");
    for format in [
        "nginx", "combined", "common", "json", "caddy", "traefik", "envoy",
    ] {
        assert!(help.contains(&format!("- {format}:")), "{format}: {help}");
        assert!(
            MANUAL.contains(&format!("| `--format {format}`")),
            "{format}"
        );
    }
}
