//! Decisions as `serve --record` writes them, and what `verify` says of them.

use serde_json::{Value, json};

use crate::process::{Start, Tidegate, run, until};

const CONFIG: &str = r#"
[[policies]]
name = "login"
levels = [
    { name = "ip", key = "{ip}", limit = "5/1h", algorithm = "sliding_log" },
    { name = "all", key = "", limit = "8/1h", algorithm = "fixed_window" },
]

[[policies]]
name = "watch"
shadow = true
key = "{ip}"
limit = "2/1h"
"#;

/// A server that records what it decides.
fn recording(config: &str, arguments: &[&str]) -> Tidegate {
    let start = Start::new(config).argument("--drain").argument("0");
    let start = start.argument("--record").argument("record.jsonl");
    let start = arguments.iter().fold(start, |start, it| start.argument(it));
    start.start()
}

fn ask(server: &Tidegate, policy: &str, ip: &str) -> Value {
    let question = json!({"policy": policy, "attributes": {"ip": ip}});
    server.check(&question.to_string()).json()
}

/// Ends the server, and reads its record.
fn recorded(server: &mut Tidegate) -> Vec<Value> {
    server.signal("TERM");
    assert!(server.end().0.success());
    let text = std::fs::read_to_string(server.folder().path("record.jsonl"));
    let text = text.expect("a record");
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("lines of JSON")
}

#[test]
fn what_a_server_records_is_verified() {
    let mut server = recording(CONFIG, &[]);
    let mut allowed = 0;
    for number in 0..16 {
        let decision = ask(&server, "login", ["a", "b"][number % 2]);
        allowed += u64::from(decision["allowed"] == true);
        ask(&server, "watch", "a");
    }
    assert_eq!(allowed, 8);
    // Looking charges nothing, and is not recorded.
    let look = json!({"policy": "login", "attributes": {"ip": "a"}, "peek": true});
    server.check(&look.to_string());
    let lines = recorded(&mut server);
    assert_eq!(lines.len(), 16 * 3);
    assert!(
        !lines.iter().any(|line| line["key"] == "a"),
        "no key is recorded"
    );
    let folder = server.folder();
    for arguments in [
        &["verify", "record.jsonl"][..],
        &["verify", "record.jsonl", "--config", "tidegate.toml"],
    ] {
        let (code, said, error) = run(folder, arguments);
        assert_eq!(
            (code, said.as_str(), error.as_str()),
            (
                0,
                "login/all 8r/h fixed_window: held: 8 admitted to 1 key, 8 refused, 0 decided without the store\n\
                 login/ip 5r/h sliding_log: held: 8 admitted to 2 keys, 8 refused, 0 decided without the store\n\
                 watch/watch 2r/h: held: 2 admitted to 1 key, 14 refused, 0 decided without the store\n",
                ""
            )
        );
    }
    // The same decisions, one of them made an admission.
    let text: String = lines
        .iter()
        .map(|line| {
            let mut line = line.clone();
            if line["policy"] == "login" {
                line["allowed"] = true.into();
            }
            format!("{line}\n")
        })
        .collect();
    folder.write("forged.jsonl", text);
    let (code, said, _) = run(folder, &["verify", "forged.jsonl"]);
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("login/ip 5r/h sliding_log: broken for 2 of 2 keys"),
        "{said}"
    );
    assert!(said.contains("6 admitted in the "), "{said}");
    assert!(said.contains("at most 5 allowed"), "{said}");
}

#[test]
fn keys_are_told_where_they_may_be_and_a_salt_hides_them_alike() {
    let key = |arguments: &[&str], config: &str| {
        let mut server = recording(config, arguments);
        ask(&server, "login", "a");
        recorded(&mut server)[0]["key"].clone()
    };
    let plain = format!("[server]\nlog_keys = true\n{CONFIG}");
    assert_eq!(key(&[], &plain), "a");
    let (one, other) = (key(&[], CONFIG), key(&[], CONFIG));
    assert_ne!(one, other);
    let salted = ["--record-salt", "sea"];
    assert_eq!(key(&salted, CONFIG), key(&salted, CONFIG));
    assert_eq!(one.as_str().map(str::len), Some(24));
}

#[test]
fn s22_receipt_that_is_handed_in_twice_takes_one_request_out_of_the_record() {
    let config = format!("[server]\nadmin_token = \"sesame\"\n{CONFIG}");
    let mut server = recording(&config, &[]);
    for _ in 0..7 {
        let decision = ask(&server, "login", "a");
        let receipt = json!({"receipt": decision["receipt"]}).to_string();
        let token = [("authorization", "Bearer sesame")];
        for _ in 0..2 {
            let answer = server.ask_with("POST", "/v1/refund", &token, &receipt);
            assert_eq!(answer.status, 204);
        }
    }
    let lines = recorded(&mut server);
    let refunds = lines.iter().filter(|line| line["refunded"] == true);
    assert_eq!(refunds.count(), 14);
    let (code, said, _) = run(server.folder(), &["verify", "record.jsonl"]);
    assert_eq!(code, 0, "{said}");
}

#[test]
fn a_record_stops_growing_and_requests_go_on() {
    let server = recording(CONFIG, &["--record-limit", "1KiB"]);
    let warned = until("the warning", || {
        ask(&server, "watch", "a");
        let log = server.log();
        log.into_iter()
            .find(|line| line.contains("recording stops"))
    });
    assert!(warned.contains("WARN"), "{warned}");
    assert_eq!(ask(&server, "watch", "b")["allowed"], true);
    let record = std::fs::read(server.folder().path("record.jsonl")).expect("a record");
    assert!((500..=1024).contains(&record.len()), "{}", record.len());
    assert_eq!(run(server.folder(), &["verify", "record.jsonl"]).0, 0);
}
