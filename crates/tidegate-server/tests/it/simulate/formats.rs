//! Every format: the same requests, told in each of them, have the same answer.

use serde_json::json;

use super::{MIDNIGHT, by_address, common_time, counts, folder, number, policy, simulate};

/// When, who, what, with which answer.
struct Event {
    second: u64,
    ip: &'static str,
    user: &'static str,
    target: &'static str,
    status: u16,
}

/// Under `2/10s`, counted as a log, per address: the IPv4 address asks at 0, 1, 2 and 10. At 2
/// there are two in the last ten seconds: refused. At 10 the one at 0 is gone: admitted. The
/// IPv6 address asks at 3, 4, 5 and 6: two of them are refused.
const EVENTS: [Event; 8] = [
    event(0, "203.0.113.7", "ada", "/login?next=/"),
    event(1, "203.0.113.7", "-", "/login"),
    event(2, "203.0.113.7", "-", "/login?again"),
    event(3, "2001:db8::7", "-", "/"),
    event(4, "2001:db8::7", "-", "/"),
    event(5, "2001:db8::7", "-", "/"),
    event(6, "2001:db8::7", "-", "/"),
    event(10, "203.0.113.7", "ada", "/a b"),
];

const fn event(second: u64, ip: &'static str, user: &'static str, target: &'static str) -> Event {
    Event {
        second,
        ip,
        user,
        target,
        status: 200,
    }
}

impl Event {
    fn at(&self) -> u64 {
        MIDNIGHT + self.second
    }

    fn iso(&self, fraction: &str) -> String {
        format!("2026-11-16T00:00:{:02}{fraction}Z", self.second)
    }

    fn common(&self, rest: &str) -> String {
        format!(
            "{} - {} [{}] \"GET {} HTTP/1.1\" {} 612{rest}",
            self.ip,
            self.user,
            common_time(self.at()),
            self.target,
            self.status
        )
    }

    fn with_port(&self) -> String {
        match self.ip.contains(':') {
            true => format!("[{}]:50000", self.ip),
            false => format!("{}:50000", self.ip),
        }
    }
}

const LIMIT: &str = "limit = \"2/10s\"\nalgorithm = \"sliding_log\"";

/// The flags, and how a line is written.
type Case = (&'static [&'static str], fn(&Event) -> String);

const CASES: &[Case] = &[
    (&[], |event| event.common(" \"-\" \"curl/8.5\"")),
    (&["--format", "nginx"], |event| {
        event.common(" \"https://a.example/\\x22\" \"a \\\"b\\\" c\" \"10.0.0.1, 10.0.0.2\"")
    }),
    (&["--format", "nginx"], |event| event.common("")),
    (&["--format", "combined"], |event| {
        event.common(" \"-\" \"curl/8.5\"")
    }),
    (&["--format", "common"], |event| event.common("")),
    (&["--format", "traefik"], |event| {
        event.common(" \"-\" \"curl\" 7 \"router@file\" \"http://10.0.0.9:80\" 3ms")
    }),
    (&["--format", "json"], |event| {
        json!({
            "time": event.iso(""), "remote_addr": event.ip, "remote_user": event.user,
            "request_uri": event.target, "status": event.status, "ignored": {"a": [1, {"b": 2}]},
        })
        .to_string()
    }),
    (
        &[
            "--format",
            "json",
            "--time",
            "meta.at",
            "--attr",
            "ip=meta.peers.1",
            "--attr",
            "path=what",
            "--attr",
            "user=who\\.name",
        ],
        |event| {
            json!({
                "meta": {"at": event.at(), "peers": ["10.0.0.1", event.with_port()]},
                "ip": "wrong", "what": event.target, "who.name": event.user,
            })
            .to_string()
        },
    ),
    (&["--format", "caddy"], |event| {
        json!({
            "level": "info", "ts": event.at() as f64 + 0.25, "status": event.status, "user_id": event.user,
            "request": {
                "remote_ip": "10.0.0.1", "client_ip": event.ip, "method": "GET",
                "host": "a.example", "uri": event.target, "headers": {"User-Agent": ["curl"]},
            },
        })
        .to_string()
    }),
    (&["--format", "traefik"], |event| {
        json!({
            "ClientHost": event.ip, "ClientUsername": event.user, "RequestMethod": "GET",
            "RequestPath": event.target, "RequestHost": "a.example", "DownstreamStatus": event.status,
            "StartUTC": event.iso(".123456789"), "time": "2020-01-01T00:00:00Z",
        })
        .to_string()
    }),
    (&["--format", "envoy"], |event| {
        json!({
            "start_time": event.iso(".310"), "method": "GET", "path": event.target,
            "response_code": event.status, "authority": "a.example", "user": event.user,
            "downstream_remote_address": event.with_port(), "x_forwarded_for": "192.0.2.99",
        })
        .to_string()
    }),
    (
        &[
            "--format",
            "envoy",
            "--attr",
            "ip=x_forwarded_for",
            "--attr",
            "user=request_id",
        ],
        |event| {
            format!(
                "[{}] \"GET {} HTTP/2\" {} - via_upstream - \"-\" 154 0 226 100 \"{}\" \"curl\" \"{}\" \"a.example\" \"10.0.2.1:80\"",
                event.iso(".310"),
                event.target,
                event.status,
                event.ip,
                event.user
            )
        },
    ),
    (
        &[
            "--pattern",
            r"^(?P<time>\S+) (?P<ip>\S+) (?P<user>\S+) (?P<path>.+)$",
        ],
        |event| {
            format!(
                "{}.5 {} {} {}",
                event.at(),
                event.with_port(),
                event.user,
                event.target
            )
        },
    ),
];

#[test]
fn every_format_tells_the_same_requests() {
    let policies = format!(
        "{}\n[[policies]]\nname = \"path\"\nkey = \"{{path}}\"\nlimit = \"1r/h\"\nalgorithm = \"fixed_window\"\n\
         [[policies]]\nname = \"user\"\nkey = \"{{user}}\"\nlimit = \"1r/h\"\nalgorithm = \"fixed_window\"\n\
         [[policies]]\nname = \"key\"\n{LIMIT}\n",
        by_address(LIMIT)
    );
    for (number, (flags, line)) in CASES.iter().enumerate() {
        let folder = folder(&policies);
        let log: Vec<String> = EVENTS.iter().map(line).collect();
        folder.write("log", format!("{}\n", log.join("\n")));
        let arguments = [*flags, &["--config", "tidegate.toml", "log"]].concat();
        let result = simulate(&folder, &arguments);
        let shown = format!("case {number}, {flags:?}: {result}\n{}", log[0]);
        assert_eq!(
            (&result["lines"], &result["unreadable"]),
            (&json!(8), &json!(0)),
            "{shown}"
        );
        assert_eq!(counts(policy(&result)), [8, 3, 2, 2], "{shown}");
        let top = &policy(&result)["top"];
        assert_eq!(
            *top,
            json!([
                {"key": {"ip": "2001:db8::7"}, "requests": 4, "denied": 2},
                {"key": {"ip": "203.0.113.7"}, "requests": 4, "denied": 1},
            ]),
            "{shown}"
        );
        // One of each path passes: "/login" is asked for three times, "/" four times.
        let path = &result["policies"][1];
        assert_eq!(counts(path), [8, 5, 3, 2], "{shown}");
        assert_eq!(path["top"][1]["key"], json!({"path": "/login"}), "{shown}");
        // "ada" asks twice; the others have no name.
        let user = &result["policies"][2];
        assert_eq!(counts(user), [2, 1, 1, 1], "{shown}");
        assert_eq!(super::number(&user["without_key"]), 6, "{shown}");
        // `key` is the address.
        assert_eq!(counts(&result["policies"][3]), [8, 3, 2, 2], "{shown}");
        assert_eq!(
            result["policies"][3]["top"][0]["key"],
            json!({"key": "2001:db8::7"}),
            "{shown}"
        );
    }
}

#[test]
fn other_attributes_come_from_their_fields() {
    let policies = "[[policies]]\nname = \"p\"\nkey = \"{method} {status} {agent} {host}\"\nlimit = \"1r/h\"\n";
    for (flags, line, host) in [
        (
            &["--attr", "agent=user_agent", "--attr", "host=http_referer"][..],
            r#"::1 - - [16/Nov/2026:00:00:00 +0000] "POST /a HTTP/1.1" 503 0 "https://b.example/" "x \"y\" z""#,
            "https://b.example/",
        ),
        (
            &[
                "--format",
                "caddy",
                "--attr",
                "agent=request.headers.User-Agent.0",
            ],
            r#"{"ts":1.5,"status":503,"request":{"method":"POST","host":"b.example","headers":{"User-Agent":["x \\\"y\\\" z"]}}}"#,
            "b.example",
        ),
    ] {
        let folder = folder(policies);
        folder.write("log", format!("{line}\n{line}\n"));
        let arguments = [flags, &["--config", "tidegate.toml", "log"]].concat();
        let result = simulate(&folder, &arguments);
        let expected =
            json!({"method": "POST", "status": "503", "agent": "x \\\"y\\\" z", "host": host});
        assert_eq!(policy(&result)["top"][0]["key"], expected, "{result}");
        assert_eq!(number(&policy(&result)["denied"]), 1);
    }
}
