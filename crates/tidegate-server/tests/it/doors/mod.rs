//! One table of questions (`questions.txt`), put through every door of the server: each must
//! give the same answers, on memory and on Redis in each mode, and leave the same behind: in
//! the metrics, the most frequent keys, the record, the log and a trial.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};
use tidegate_testkit::redis::Server;
use tokio::runtime::Runtime;

use crate::client::{Answer, Connection};
use crate::envoy;
use crate::http2;
use crate::observed::metrics;
use crate::process::{Start, Tidegate, ended, tidegate, until};
use crate::resp::{self, Raw, Reply};

const CONFIG: &str = include_str!("policies.toml");

struct Question {
    policy: String,
    attributes: Vec<(String, Vec<u8>)>,
    cost: u32,
    peek: bool,
    expected: &'static str,
}

/// A way to ask. Returns `None` where a question cannot be put that way.
trait Door {
    fn ask(&mut self, question: &Question) -> Option<String>;

    /// What the door can tell of an answer.
    fn told(&self, expected: &str) -> String {
        expected.to_owned()
    }
}

fn questions() -> impl Iterator<Item = Question> {
    let groups = include_str!("questions.txt").split("\n# ").skip(1);
    groups.enumerate().flat_map(|(group, text)| {
        let lines = text.lines().skip(1).filter(|line| !line.is_empty());
        lines.map(move |line| read(group, line))
    })
}

/// Reads a line. Values of other groups are others, except where an override names them.
fn read(group: usize, line: &'static str) -> Question {
    let (asked, expected) = line.split_once(" -> ").expect(line);
    let mut words = asked.split(' ');
    let policy = words.next().expect(line).to_owned();
    let mut question = Question {
        policy,
        attributes: Vec::new(),
        cost: 1,
        peek: false,
        expected,
    };
    for word in words {
        if let Some(cost) = word.strip_prefix('*') {
            question.cost = cost.parse().expect(line);
        } else if word == "peek" {
            question.peek = true;
        } else {
            let (name, value) = word.split_once('=').expect(line);
            let mut value: Vec<u8> = percent_encoding::percent_decode_str(value).collect();
            if question.policy == "bucket" {
                value.extend(format!("~{group}").into_bytes());
            }
            question.attributes.push((name.to_owned(), value));
        }
    }
    question
}

/// The answer in JSON, as a line says it.
fn from_json(decision: &Value) -> String {
    let by = decision["denied_by"]
        .as_str()
        .map(|level| format!(" by {level}"));
    let by = by.unwrap_or_default();
    let left = match (decision["remaining"].as_u64(), decision["limit"].as_u64()) {
        (Some(remaining), Some(limit)) => format!("{remaining}/{limit}"),
        _ => "-".into(),
    };
    let never = match decision["retry_after_ms"].is_null() {
        true => ", never",
        false => "",
    };
    match (decision["allowed"] == true, decision["would_deny"] == true) {
        (true, true) => format!("yes {left} would be no{by}"),
        (true, false) => format!("yes {left}"),
        (false, _) => format!("no {left}{by}{never}"),
    }
}

fn from_answer(answer: &Answer) -> String {
    match answer.status {
        200 => from_json(&answer.json()),
        _ => answer.detail(),
    }
}

fn body(question: &Question) -> Value {
    let (mut text, mut bytes) = (Map::new(), Map::new());
    for (name, value) in &question.attributes {
        match std::str::from_utf8(value) {
            Ok(value) => text.insert(name.clone(), value.into()),
            Err(_) => bytes.insert(name.clone(), BASE64_STANDARD.encode(value).into()),
        };
    }
    json!({
        "policy": question.policy, "attributes": text, "attributes_b64": bytes,
        "cost": question.cost, "peek": question.peek,
    })
}

/// `POST /v1/check`.
struct Check(Connection);

impl Door for Check {
    fn ask(&mut self, question: &Question) -> Option<String> {
        let body = body(question).to_string();
        let answer = self.0.ask("POST", "/v1/check", &[], body.as_bytes());
        Some(from_answer(&answer))
    }
}

/// `POST /v1/check` with a list.
struct Batch(Connection);

impl Door for Batch {
    fn ask(&mut self, question: &Question) -> Option<String> {
        let body = json!([body(question)]).to_string();
        let answer = self.0.ask("POST", "/v1/check", &[], body.as_bytes());
        let answer = &answer.json()[0];
        Some(match answer["error"]["detail"].as_str() {
            Some(detail) => detail.to_owned(),
            None => from_json(answer),
        })
    }
}

/// `POST /v1/check` over HTTP/2.
struct Http2(Runtime, http2::Sender);

impl Http2 {
    fn connect(server: &Tidegate) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let sender = runtime.block_on(http2::connect(server));
        Self(runtime, sender)
    }
}

impl Door for Http2 {
    fn ask(&mut self, question: &Question) -> Option<String> {
        let body = body(question).to_string();
        let answer = self
            .0
            .block_on(http2::ask(&self.1, "POST", "/v1/check", body));
        Some(from_answer(&answer.expect("an answer")))
    }
}

/// `/v1/gate/{policy}`.
struct Gate(Connection);

impl Door for Gate {
    fn ask(&mut self, question: &Question) -> Option<String> {
        if question.peek {
            return None;
        }
        let encode = |bytes: &[u8]| {
            percent_encoding::percent_encode(bytes, percent_encoding::NON_ALPHANUMERIC).to_string()
        };
        let (policy, cost) = (&question.policy, question.cost);
        let mut path = format!("/v1/gate/{policy}?cost={cost}");
        for (name, value) in &question.attributes {
            path += &format!("&{name}={}", encode(value));
        }
        let answer = self.0.ask("GET", &path, &[], b"");
        if ![200, 429].contains(&answer.status) {
            return Some(answer.detail());
        }
        let header = |name: &str| answer.header(&format!("x-ratelimit-{name}"));
        let left = match (header("remaining"), header("limit")) {
            (Some(remaining), Some(limit)) => format!("{remaining}/{limit}"),
            _ => "-".into(),
        };
        if answer.status == 200 {
            return Some(format!("yes {left}"));
        }
        let violated = answer.json()["violated-policies"][0].clone();
        let violated = violated.as_str().expect("a level").to_owned();
        let level = violated.rsplit('.').next().expect("a name");
        let never = answer.header("retry-after").map_or(", never", |_| "");
        Some(format!("no {left} by {level}{never}"))
    }

    fn told(&self, expected: &str) -> String {
        expected.split(" would be").next().expect("a part").into()
    }
}

/// `TG.CHECK`, in either version of the protocol.
struct Resp(Raw);

impl Resp {
    fn connect(server: &Tidegate, version: &str) -> Self {
        let mut raw = resp::connect(&resp::address(server));
        raw.ask(&format!("HELLO {version}"));
        Self(raw)
    }
}

impl Door for Resp {
    fn ask(&mut self, question: &Question) -> Option<String> {
        let cost = question.cost.to_string();
        let mut words: Vec<&[u8]> = vec![b"TG.CHECK", question.policy.as_bytes()];
        words.extend([&b"COST"[..], cost.as_bytes()]);
        words.extend(question.peek.then_some(&b"PEEK"[..]));
        words.push(b"ATTR");
        for (name, value) in &question.attributes {
            words.extend([name.as_bytes(), value]);
        }
        self.0.send(&resp::command(&words));
        let reply = self.0.reply();
        if let Reply::Error(error) = reply {
            return Some(error);
        }
        let number = |name: &str| match reply.get(name) {
            Reply::Number(number) => json!(number),
            Reply::Null => Value::Null,
            other => panic!("{other:?}"),
        };
        let denied_by = match reply.get("denied_by") {
            Reply::Null => Value::Null,
            by => by.text().into(),
        };
        let allowed = [Reply::Number(1), Reply::Flag(true)].contains(reply.get("allowed"));
        Some(from_json(&json!({
            "allowed": allowed, "would_deny": allowed && !denied_by.is_null(),
            "denied_by": denied_by, "limit": number("limit"), "remaining": number("remaining"),
            "retry_after_ms": number("retry_after_ms"),
        })))
    }
}

/// Envoy's rate limit service, where the domain names the policy.
struct Rls(envoy::Client);

impl Door for Rls {
    fn ask(&mut self, question: &Question) -> Option<String> {
        if question.peek && question.cost > 1 {
            return None;
        }
        let mut request = envoy::request(&question.policy, &[&[]]);
        let descriptor = &mut request.descriptors[0];
        descriptor.hits_addend = Some(u64::from(question.cost) * u64::from(!question.peek));
        for (name, value) in &question.attributes {
            descriptor.entries.push(envoy::entry(name, value));
        }
        let answer = match self.0.ask(request) {
            Ok(answer) => answer,
            Err(status) => return Some(status.message().to_owned()),
        };
        let (limit, remaining, _) = envoy::numbers(&answer.statuses[0]);
        let left = limit.map_or("-".into(), |(limit, _)| format!("{remaining}/{limit}"));
        Some(match envoy::codes(&answer)[0] {
            tidegate_server::envoy::wire::Code::Ok => format!("yes {left}"),
            _ => format!("no {left}"),
        })
    }

    /// Neither the level nor the wait, and a look is at a cost of zero.
    fn told(&self, expected: &str) -> String {
        let expected = expected.split(" would be").next().expect("a part");
        match expected.starts_with("no ") {
            true => expected.split(" by ").next().expect("a part").into(),
            false => expected.into(),
        }
    }
}

/// `tidegate check --server`.
struct Command(String);

impl Door for Command {
    fn ask(&mut self, question: &Question) -> Option<String> {
        let folder = crate::process::Folder::new();
        let mut command = tidegate(folder.root());
        command.args(["check", &question.policy, "--json", "--server", &self.0]);
        command.args(["--cost", &question.cost.to_string()]);
        command.args(question.peek.then_some("--peek"));
        for (name, value) in &question.attributes {
            let value = std::str::from_utf8(value).ok()?;
            command.arg(format!("{name}={value}"));
        }
        let (code, out, error) = ended(command.output().expect("the binary"));
        Some(match code {
            2 => error,
            _ => from_json(&serde_json::from_str(&out).expect("a decision")),
        })
    }
}

/// How many of the answers are of a kind, by policy.
#[derive(Default, Debug, PartialEq)]
struct Left {
    decisions: BTreeMap<String, [f64; 3]>,
    peeks: f64,
}

/// Puts all questions through a door, and judges what they leave behind.
fn pass(name: &str, mode: &str, server: &mut Tidegate, mut door: Box<dyn Door>) {
    let (mut left, mut wrong) = (Left::default(), String::new());
    for question in questions() {
        // A look asks the store, which hears of charges later in this mode.
        if question.peek && mode.contains("background") {
            continue;
        }
        let Some(got) = door.ask(&question) else {
            continue;
        };
        let expected = door.told(question.expected);
        let is_error = !expected.starts_with("yes ") && !expected.starts_with("no ")
            || expected.starts_with("no policy");
        let is_right = match is_error {
            true => got.contains(&expected),
            false => got == expected,
        };
        if !is_right {
            let asked = String::from_utf8_lossy(&question.attributes[0].1);
            wrong += &format!(
                "{} {asked} -> {got}\n   instead of {expected}\n",
                question.policy
            );
        }
        if is_error {
            continue;
        }
        if question.peek {
            left.peeks += 1.0;
            continue;
        }
        let result = match question.expected {
            shadow if shadow.contains("would be") => 2,
            denied if denied.starts_with("no ") => 1,
            _ => 0,
        };
        left.decisions.entry(question.policy).or_default()[result] += 1.0;
    }
    assert!(wrong.is_empty(), "{name}, otherwise than written:\n{wrong}");
    judge(name, server, &left);
}

/// What is left in metrics, top keys, the record and the log.
fn judge(name: &str, server: &mut Tidegate, left: &Left) {
    let checks = |policy: &str| left.decisions[policy].iter().sum::<f64>();
    until(&format!("{name}: metrics say {left:?}"), || {
        let metrics = metrics(server);
        let count = |metric: &str| metrics.get(metric).copied().unwrap_or_default();
        let decisions = |policy: &str| {
            ["allowed", "denied", "shadow_denied"].map(|result| {
                count(&format!(
                    "tidegate_decisions_total{{policy=\"{policy}\",result=\"{result}\"}}"
                ))
            })
        };
        let peeks = metrics
            .iter()
            .filter(|(it, _)| it.starts_with("tidegate_peeks_total"));
        let peeks: f64 = peeks.map(|(_, count)| count).sum();
        // The trial of a policy is asked with every check of it.
        let tried: f64 = decisions("bucket-next").iter().sum();
        let policies = left.decisions.keys().map(|it| (it.clone(), decisions(it)));
        let is_so = policies.collect::<BTreeMap<_, _>>() == left.decisions
            && peeks == left.peeks
            && tried == checks("bucket");
        is_so.then_some(())
    });
    let token = [("Authorization", "Bearer sesame")];
    let top = server
        .ask_with("GET", "/v1/top/login?by=requests", &token, "")
        .json();
    let asked = top["keys"].as_array().expect("keys").iter();
    let asked: f64 = asked.filter_map(|key| key["requests"].as_f64()).sum();
    assert_eq!(asked, checks("login"), "{name}: {top}");
    let logged = questions().filter(|it| it.policy == "login" && it.attributes[0].0 == "ip");
    let logged = logged.count();
    until(&format!("{name}: {logged} debug lines"), || {
        let lines = server.log().into_iter();
        let lines = lines.filter(|it| it.contains("decided") && it.contains("policy=\"login\""));
        (lines.count() == logged).then_some(())
    });
    server.signal("TERM");
    assert!(server.end().0.success());
    let record = std::fs::read_to_string(server.folder().path("record.jsonl")).expect("a record");
    let recorded = record
        .lines()
        .filter(|line| line.contains("\"policy\":\"login\""));
    assert_eq!(recorded.count(), logged, "{name}: record");
}

/// Every door, each with a server of its own.
fn every_door(store: impl Fn() -> String, mode: &str) {
    type Open = fn(&Tidegate) -> Box<dyn Door>;
    let doors: [(&str, Open); 8] = [
        ("check", |it| Box::new(Check(it.connect()))),
        ("batch", |it| Box::new(Batch(it.connect()))),
        ("gate", |it| Box::new(Gate(it.connect()))),
        ("http2", |it| Box::new(Http2::connect(it))),
        ("resp2", |it| Box::new(Resp::connect(it, "2"))),
        ("resp3", |it| Box::new(Resp::connect(it, "3"))),
        ("rls", |it| {
            let url = format!("http://{}", envoy::address(it));
            Box::new(Rls(envoy::Client::new(&url)))
        }),
        ("command", |it| Box::new(Command(it.url().to_owned()))),
    ];
    for (name, open) in doors {
        let whole = if mode.contains("lease") { "" } else { mode };
        let config = CONFIG.replace("MODE", mode).replace("WHOLE", whole);
        let start = Start::new(&format!("{}{config}", store()));
        let arguments = "--log debug --record record.jsonl --drain 0";
        let start = arguments.split(' ').fold(start, Start::argument);
        let mut server = start.variable("NO_COLOR", "1").start();
        let door = open(&server);
        pass(name, mode, &mut server, door);
    }
}

#[test]
fn in_memory() {
    every_door(String::new, "");
}

#[test]
fn on_redis_in_each_mode() {
    let redis = Server::start();
    let next = std::cell::Cell::new(0);
    for mode in ["exact", "lease", "background"] {
        let store = || {
            next.set(next.get() + 1);
            let (url, prefix) = (redis.url(), format!("p{}", next.get()));
            format!("[stores.default]\nurl = \"{url}\"\nprefix = \"{prefix}\"\ntimeout = \"10s\"\n")
        };
        every_door(store, &format!("mode = \"{mode}\""));
    }
}
