//! Requests over HTTP and RESP as data, and what comes of them.
//!
//! A server of a file is `=== ` and its title, its config (`$REDIS` is the URL of a Redis of its
//! own), and, in a line of `$ `, its environment and arguments. A case is `--- ` and its title,
//! and rows; each row is asked in turn:
//!
//! | row | what comes of it |
//! | --- | --- |
//! | `3x POST /v1/check name:value BODY` | the statuses, header fields of the last answer, its body |
//! | `raw BYTES` | the answer to bytes on a connection of its own, or nothing |
//! | `> TG.CHECK p KEY a` | the reply to a command of RESP |
//! | `>> BYTES` | this many replies as are written, divided by ` \| `, or `closed` |
//! | `metric NAME` | its value |
//! | `log TEXT` | the first line of the log that has it |
//! | `record TEXT` | the first line of `record.jsonl` that has it |
//! | `sh SCRIPT` | what a shell prints in the folder of the server |
//! | `until ROW` | what comes of the row, once it is as written |
//! | `at FILE GET /` | the answer to a request or to `raw` bytes at a unix socket |
//!
//! A row without an answer does something: `write FILE TEXT`, `signal HUP`, `redis kill` or
//! `redis restart`.
//!
//! Requests of a server come over one connection, and commands of a case over one. An answer may
//! be cut off at ` | `, and `…` stands for anything. No body is `-`. JSON is told without its
//! type, a problem by its detail, and `cache-control` only where it is not `no-store`. Control
//! characters, and spaces in a value, stand as their pictures (U+2400 and following), `⏎` is CR
//! LF, and bytes of RESP and of `raw` may be `%XX`. Times of a few minutes less than some days are
//! written as those days (`1d`, in milliseconds `1d000`), and the time of a decision as `now`.
//! `$address` is that of the server, `$receipt`, `$receipt2` ... the receipts of the last answer
//! with any, and `$hash`, `$hash2` ... the hashes of keys.

use std::collections::BTreeMap;
use std::time::SystemTime;

use tidegate_testkit::cases::{controls, pictures};
use tidegate_testkit::console::{is_like, shell};

use crate::client::{Answer, Connection, request};
use crate::observed::metrics;
use crate::process::{Start, Tidegate, until};
use crate::redis_server::Server;
use crate::resp::{self, Raw, Reply};

/// A server and its cases.
pub(crate) struct Group {
    text: String,
    redis: Option<Server>,
    pub(crate) server: Tidegate,
}

/// What rows share.
struct Session<'a> {
    server: &'a Tidegate,
    /// Where requests go.
    url: String,
    http: Option<Connection>,
    resp: Option<Raw>,
    /// What stands for something that answers have said.
    names: BTreeMap<String, String>,
}

/// Starts the servers of a file.
fn groups(file: &str) -> impl Iterator<Item = Group> {
    let path = format!(
        "{}/tests/it/requests/{file}.txt",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(&path).expect(&path);
    let groups: Vec<String> = text.split("\n=== ").skip(1).map(str::to_owned).collect();
    assert!(!groups.is_empty(), "{path} has no server");
    groups.into_iter().map(|text| {
        let redis = text.contains("$REDIS").then(Server::start);
        let url = redis.as_ref().map(Server::url).unwrap_or_default();
        let text = text.replace("$REDIS", &url);
        let config = text.split("\n--- ").next().expect("a part");
        let (_, config) = config.split_once('\n').unwrap_or_default();
        let (words, config): (Vec<&str>, Vec<&str>) =
            config.lines().partition(|line| line.starts_with("$ "));
        let config = config.join("\n");
        let start = match config.contains("http = ") {
            true => Start::configured(&config),
            false => Start::new(&config),
        };
        let words = words.iter().flat_map(|line| line[2..].split(' '));
        let start = words.fold(start, |start, word| match word.split_once('=') {
            Some((name, value)) => start.variable(name, value),
            None => start.argument(word),
        });
        Group {
            server: start.start(),
            redis,
            text,
        }
    })
}

/// Asks all rows of a file, each server in turn.
fn run(file: &str) {
    let rows: usize = groups(file).map(|mut group| group.run()).sum();
    assert!(rows > 10, "only {rows} rows: is {file}.txt cut off?");
}

/// The only server of a file.
pub(crate) fn group(file: &str) -> Group {
    groups(file).next().expect("a server")
}

impl Group {
    /// Asks all rows: how many. Panics with those that came out otherwise, as they should read.
    pub(crate) fn run(&mut self) -> usize {
        let (mut wrong, mut count) = (String::new(), 0);
        let mut session = Session::new(&self.server, self.server.url().to_owned());
        for case in self.text.split("\n--- ").skip(1) {
            let (title, rows) = case.split_once('\n').expect(case);
            let rows = rows.lines().filter(|row| !row.is_empty());
            session.resp = None;
            for row in rows {
                count += 1;
                let Some((asked, expected)) = row.split_once(" =>") else {
                    act(&self.server, self.redis.as_mut(), row);
                    continue;
                };
                let expected = expected.trim_start();
                let got = session.ask(asked, expected);
                if !is_as_written(&got, expected) {
                    wrong += &format!("--- {title}\n{asked} => {got}\n   instead of {expected}\n");
                }
            }
        }
        assert!(wrong.is_empty(), "otherwise than written:\n{wrong}");
        count
    }
}

/// Does what a row without an answer says.
fn act(server: &Tidegate, redis: Option<&mut Server>, row: &str) {
    let (kind, rest) = row.split_once(' ').expect(row);
    match (kind, rest, redis) {
        ("write", rest, _) => {
            let (file, text) = rest.split_once(' ').expect(row);
            server.folder().write(file, controls(text));
        }
        ("signal", name, _) => server.signal(name),
        ("redis", "kill", Some(redis)) => redis.kill(),
        ("redis", "restart", Some(redis)) => redis.restart(),
        _ => panic!("{row} does nothing"),
    }
}

impl<'a> Session<'a> {
    fn new(server: &'a Tidegate, url: String) -> Self {
        let address = url.split("://").nth(1).map(str::to_owned);
        let names = address.map(|address| ("$address".to_owned(), address));
        Self {
            server,
            url,
            http: None,
            resp: None,
            names: names.into_iter().collect(),
        }
    }

    fn connect(&self) -> Connection {
        match self.url.strip_prefix("unix:") {
            Some(file) => Connection::unix(self.server.folder().path(file).to_str().expect("text")),
            None => self.server.connect(),
        }
    }

    fn ask(&mut self, row: &str, expected: &str) -> String {
        let names = self.names.iter().rev();
        let row = names.fold(row.to_owned(), |row, (name, value)| {
            row.replace(name, value)
        });
        let (kind, rest) = row.split_once(' ').expect(&row);
        let got = match kind {
            "at" => {
                let (file, row) = rest.split_once(' ').expect(rest);
                let names = self.names.clone();
                let url = format!("unix:{file}");
                Session {
                    names,
                    ..Session::new(self.server, url)
                }
                .ask(row, expected)
            }
            "sh" => shell(self.server.folder().root(), rest, &[]),
            "until" => until(&row, || {
                let got = self.ask(rest, expected);
                is_as_written(&got, expected).then_some(got)
            }),
            "raw" => self.raw(&bytes(rest), expected),
            ">" => {
                let words: Vec<Vec<u8>> = rest.split(' ').map(bytes).collect();
                let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                self.replies(&resp::command(&words), 1)
            }
            ">>" => self.replies(&bytes(rest), expected.split(" | ").count()),
            "metric" => metrics(self.server)
                .get(rest)
                .map_or("none".into(), f64::to_string),
            "log" => self.server.line(rest),
            "record" => until(&row, || {
                let record = std::fs::read_to_string(self.server.folder().path("record.jsonl"));
                let record = record.expect("a record");
                let line = record.lines().find(|line| line.contains(rest));
                line.map(str::to_owned)
            }),
            _ => self.http(&row),
        };
        self.remember(&got);
        let names = self.names.iter().rev();
        let got = names.fold(got, |got, (name, value)| got.replace(value, name));
        pictures(&in_days(&got))
    }

    /// Remembers receipts and hashes of an answer.
    fn remember(&mut self, answer: &str) {
        for name in ["receipt", "hash"] {
            let mut count = 0;
            for start in [format!("\"{name}\":\""), format!("\"{name}\" \"")] {
                for part in answer.split(&start).skip(1) {
                    count += 1;
                    let number = if count == 1 {
                        String::new()
                    } else {
                        count.to_string()
                    };
                    let value = part.split('"').next().expect("its end").to_owned();
                    self.names.insert(format!("${name}{number}"), value);
                }
            }
        }
    }

    fn http(&mut self, row: &str) -> String {
        let (times, row) = match row.split_once("x ") {
            Some((times, rest)) if times.parse::<u32>().is_ok() => (times, rest),
            _ => ("1", row),
        };
        let mut words = row.splitn(3, ' ');
        let (method, path) = (words.next().expect(row), words.next().expect(row));
        let (mut headers, mut rest) = (Vec::new(), words.next().unwrap_or_default());
        while let Some((name, value)) = header(rest) {
            let (value, after) = value.split_once(' ').unwrap_or((value, ""));
            headers.push((name, controls(value)));
            rest = after;
        }
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, it)| (*name, &**it)).collect();
        let whole = request(method, &controls(path), &headers, controls(rest).as_bytes());
        let (mut statuses, mut last) = (Vec::new(), None);
        for _ in 0..times.parse().expect(times) {
            let mut connection = self.http.take().unwrap_or_else(|| self.connect());
            connection.send(&whole);
            let answer = connection.receive(method);
            let answer = answer.unwrap_or_else(|| panic!("no answer to {row}"));
            match answer.header("connection") {
                Some("close") => assert!(connection.has_ended(), "{row}"),
                _ => self.http = Some(connection),
            }
            statuses.push(answer.status.to_string());
            last = Some(answer);
        }
        let answer = last.expect("at least one request");
        format!("{}{}", statuses.join(" "), shown(&answer))
    }

    /// A request as bytes: its answer, or nothing where none is expected.
    fn raw(&self, bytes: &[u8], expected: &str) -> String {
        let mut connection = self.connect();
        connection.send(bytes);
        connection.finish();
        let answer = (!expected.is_empty()).then(|| connection.receive("GET"));
        match answer.flatten() {
            Some(answer) => format!("{}{}", answer.status, shown(&answer)),
            None => String::new(),
        }
    }

    fn replies(&mut self, bytes: &[u8], count: usize) -> String {
        let connect = || resp::connect(&resp::address(self.server));
        let connection = self.resp.get_or_insert_with(connect);
        connection.send(bytes);
        let replies = (0..count).map(|_| match connection.next() {
            Some(reply) => written(&reply),
            None => "closed".into(),
        });
        let replies = replies.collect::<Vec<_>>().join(" | ");
        if replies.ends_with("closed") {
            self.resp = None;
        }
        replies
    }
}

fn is_as_written(got: &str, expected: &str) -> bool {
    is_like(got, expected) || is_like(got, &format!("{expected} | …"))
}

/// A header field at the beginning of a text: its name, and what follows.
fn header(text: &str) -> Option<(&str, &str)> {
    let (name, rest) = text.split_once(':')?;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (!name.is_empty() && name.bytes().all(is_name)).then_some((name, rest))
}

fn bytes(text: &str) -> Vec<u8> {
    let text = controls(text).replace('⏎', "\r\n");
    percent_encoding::percent_decode_str(&text).collect()
}

/// Header fields and the body of an answer.
fn shown(answer: &Answer) -> String {
    let mut fields: BTreeMap<&str, String> = BTreeMap::new();
    for (name, _) in &answer.headers {
        fields.insert(name, answer.headers(name).join(", "));
    }
    fields.remove("content-length");
    fields.remove("date");
    match fields.get("cache-control").map(String::as_str) {
        Some("no-store") => drop(fields.remove("cache-control")),
        Some(_) => {}
        None => drop(fields.insert("cache-control", "none".into())),
    }
    if !answer.body.is_empty() {
        fields.entry("content-type").or_insert("none".into());
    }
    let body = match fields.get("content-type").map_or("", String::as_str) {
        _ if answer.body.is_empty() => "-".into(),
        "application/json" => {
            fields.remove("content-type");
            answer.text().to_owned()
        }
        "application/problem+json" if answer.text().contains("\"about:blank\"") => {
            fields.remove("content-type");
            answer.detail()
        }
        _ => answer.text().to_owned(),
    };
    let fields = fields
        .iter()
        .map(|(name, value)| format!(" | {name}: {value}"));
    format!("{} | {}", fields.collect::<String>(), now(body))
}

/// Writes `now` for the time of a decision that was just made.
fn now(body: String) -> String {
    const NAME: &str = "\"decided_at_us\":";
    let now = SystemTime::UNIX_EPOCH
        .elapsed()
        .expect("after 1970")
        .as_micros();
    let parts = body.split(NAME).skip(1);
    let times = parts.map(|part| part.split(',').next().expect("a number"));
    let is_now = |time: &&str| {
        time.parse()
            .is_ok_and(|time| now.abs_diff(time) < 60_000_000)
    };
    times.filter(is_now).fold(body.clone(), |body, time| {
        body.replace(&format!("{NAME}{time},"), &format!("{NAME}now,"))
    })
}

/// A reply on a line.
fn written(reply: &Reply) -> String {
    let list = |elements: &[Reply]| elements.iter().map(written).collect::<Vec<_>>().join(" ");
    match reply {
        Reply::Simple(text) => text.clone(),
        Reply::Error(text) => format!("-{text}"),
        Reply::Number(number) => number.to_string(),
        Reply::Bulk(bytes) => format!("\"{}\"", bytes.escape_ascii()),
        Reply::Null => "null".into(),
        Reply::Array(elements) => format!("[{}]", list(elements)),
        Reply::Map(pairs) => {
            let pairs = pairs.iter();
            let pairs = pairs.map(|(name, value)| format!("{} {}", written(name), written(value)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(" "))
        }
        Reply::Flag(flag) => flag.to_string(),
        Reply::Double(number) => number.to_string(),
    }
}

/// Numbers of seconds or milliseconds that are some days, or up to ten minutes less, as those
/// days.
fn in_days(text: &str) -> String {
    const DAY: u64 = 86_400;
    let days = |number: u64, day: u64| {
        let days = number.div_ceil(day);
        ((1..100).contains(&days) && days * day - number < day / 144).then_some(days)
    };
    let mut result = String::new();
    for part in text.split_inclusive(|character: char| !character.is_ascii_digit()) {
        let digits = part.trim_end_matches(|character: char| !character.is_ascii_digit());
        let number = digits.parse().unwrap_or_default();
        match (days(number, DAY), days(number, 1_000 * DAY)) {
            (Some(days), _) => result += &format!("{days}d"),
            (_, Some(days)) => result += &format!("{days}d000"),
            _ => result += digits,
        }
        result += &part[digits.len()..];
    }
    result
}

#[test]
fn checks_and_batches() {
    run("check");
}

#[test]
fn gate() {
    run("gate");
}

#[test]
fn headers_of_every_dialect() {
    run("headers");
}

#[test]
fn keys_refunds_and_top() {
    run("keys");
}

#[test]
fn forms_of_a_request() {
    run("forms");
}

#[test]
fn stores_and_what_is_observed() {
    run("observed");
}

#[test]
fn commands_of_resp() {
    run("commands");
}

#[test]
fn frames_of_resp() {
    run("frames");
}

#[test]
fn reloads() {
    run("reload");
}

#[test]
fn trials() {
    run("trial");
}

#[test]
fn limits_that_come_along() {
    run("adhoc");
}

#[test]
fn records_and_what_verify_says() {
    run("record");
}
