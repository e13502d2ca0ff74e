//! Lines that nobody wrote.

use super::{MIDNIGHT, by_address, folder, nginx, policy, simulate};

#[test]
fn random_bytes_are_lines_like_any_other() {
    let seeds = [
        nginx(MIDNIGHT, "192.0.2.1"),
        format!("{{\"ts\":{MIDNIGHT}.5,\"ip\":\"::1\",\"request\":{{\"uri\":\"/\\u00e4\"}}}}\n"),
        "[2026-11-16T00:00:00.310Z] \"GET / HTTP/2\" 204 - 154 0 226 100 \"::1\" \"a\" \"b\" \"c\" \"d\"\n".into(),
    ];
    let mut random = super::Random(5);
    let mut log = Vec::new();
    for number in 0..3_000 {
        let mut line = seeds[number % 3].clone().into_bytes();
        for _ in 0..random.below(4) {
            let at = usize::try_from(random.below(line.len() as u64)).expect("small");
            match random.below(3) {
                0 => drop(line.remove(at)),
                1 => line.insert(
                    at,
                    b"\"[]{}\\:. -\0\xff9"[usize::try_from(random.below(13)).expect("small")],
                ),
                _ => line.truncate(at + 1),
            }
            line.retain(|byte| *byte != b'\n');
            line.push(b'\n');
        }
        log.extend(line);
    }
    let folder = folder(&by_address("limit = \"1r/s\""));
    folder.write("log", &log);
    for format in [
        "nginx", "combined", "common", "json", "caddy", "traefik", "envoy",
    ] {
        let result = simulate(
            &folder,
            &["--config", "tidegate.toml", "--format", format, "log"],
        );
        let number = |field: &str| super::number(&result[field]);
        assert_eq!(number("lines"), 3_000, "{format}");
        let body = policy(&result);
        let asked = super::number(&body["requests"]) + super::number(&body["without_key"]);
        assert_eq!(
            asked + number("unreadable") + number("late"),
            3_000,
            "{format}"
        );
        assert!(
            number("unreadable") > 0 && number("unreadable") < 3_000,
            "{format}"
        );
    }
}
