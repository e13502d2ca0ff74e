//! `/openapi.json` held against the server: every path and method in it is answered,
//! nothing else is, and the answers are what it says. The requests are rows of openapi.txt.

use jsonschema::Validator;
use serde_json::{Value, json};
use tidegate_testkit::cases::rows;

use crate::client::Answer;
use crate::process::{Start, Tidegate};
use crate::redis_server::Server;

const ROWS: &str = include_str!("openapi.txt");

const METHODS: [&str; 8] = [
    "get", "put", "post", "delete", "options", "head", "patch", "trace",
];

fn description(server: &Tidegate) -> Value {
    let answer = server.get("/openapi.json");
    assert_eq!(answer.header("content-type"), Some("application/json"));
    answer.json()
}

/// A schema whose references are within the description.
fn validator(whole: &Value, schema: &Value) -> Validator {
    let mut schema = schema.clone();
    schema["components"] = whole["components"].clone();
    jsonschema::draft202012::new(&schema).expect("a schema")
}

/// The path of the description for that of a request.
fn template(url: &str) -> String {
    let path = url.split('?').next().expect("a path");
    match path.rsplit_once('/') {
        Some((start @ ("/v1/gate" | "/v1/keys" | "/v1/top"), _)) => format!("{start}/{{policy}}"),
        _ => path.to_owned(),
    }
}

/// The status of an answer, and in what it differs from the description.
fn judged(whole: &Value, method: &str, url: &str, answer: &Answer) -> String {
    let responses = &whole["paths"][template(url)][method.to_lowercase()]["responses"];
    let class = format!("{}XX", answer.status / 100);
    let described = responses.get(answer.status.to_string());
    let Some(described) = described.or_else(|| responses.get(class)) else {
        return format!("{}, which is not described", answer.status);
    };
    let described = match described["$ref"].as_str() {
        Some(reference) => whole.pointer(&reference[1..]).expect(reference),
        None => described,
    };
    let kind = answer.header("content-type").unwrap_or_default();
    let kind = kind.split(';').next().expect("a type");
    let schema = &described["content"][kind]["schema"];
    let is_empty = kind.is_empty() || method == "HEAD";
    let body = match kind {
        _ if is_empty && answer.body.is_empty() => return answer.status.to_string(),
        _ if is_empty || !schema.is_object() => return format!("a body of type {kind:?}"),
        kind if kind.starts_with("text/") => Value::from(answer.text()),
        _ => answer.json(),
    };
    let errors = validator(whole, schema);
    let errors = errors.iter_errors(&body).map(|error| error.to_string());
    let mut wrong: Vec<String> = errors.collect();
    if answer.status >= 400 && body["status"].is_number() && body["status"] != answer.status {
        wrong.push(format!("the body has status {}", body["status"]));
    }
    let all = [answer.status.to_string()].into_iter().chain(wrong);
    all.collect::<Vec<_>>().join("; ")
}

const CONFIG: &str = r#"
[server]
admin_token = "sesame"

[[policies]]
name = "p"
limit = "2/1h"
[[policies.overrides]]
match = { key = "exempt" }
enabled = false

[[policies]]
name = "two"
headers = ["l", "r", "m"]
[[policies.levels]]
name = "a"
key = "{key}"
limit = "5/1h"
algorithm = "sliding_log"
[[policies.levels]]
name = "b"
key = "{key}:{x}"
limit = "2/1h"
algorithm = "sliding_window"

[[policies]]
name = "closed"
block = true

[[policies]]
name = "off"
limit = "1/1h"
enabled = false
"#;

const ADMIN: &[(&str, &str)] = &[("Authorization", "Bearer sesame")];

#[test]
fn answers_are_what_it_says() {
    let redis = Server::start();
    let [server, other] = [(); 2].map(|()| Tidegate::start(CONFIG));
    let open = Tidegate::start("");
    let gone =
        "[server]\nadmin_token = \"sesame\"\n[stores.default]\nurl = \"redis://127.0.0.1:1\"\n";
    let mut gone = Start::new(gone).argument("--drain").argument("5").start();
    let script = format!(
        "[stores.default]\nurl = {:?}\ntimeout = \"5s\"\n[[policies]]\nname = \"s\"\n\
         algorithm = \"script\"\nscript = \"s.lua\"\nheaders = [\"x-a\", \"x-b\", \"x-c\"]\n",
        redis.url()
    );
    let script = Start::new(&script);
    let text = "return {'deny', {7, 8, 9}, 'more'}";
    script.folder().write("s.lua", text);
    let script = script.start();
    let whole = description(&server);
    let charged = server.check("{\"policy\":\"p\",\"key\":\"r\"}").json();
    let receipt = json!({"receipt": charged["receipt"]}).to_string();
    let check = |heading: &str, server: &Tidegate, headers: &[(&str, &str)]| {
        rows(ROWS, heading, |row| {
            let mut words = row.splitn(3, ' ');
            let (method, url) = (words.next().expect(row), words.next().expect(row));
            let body = match words.next().unwrap_or_default() {
                "RECEIPT" => &receipt,
                "LONG" => &" ".repeat((1 << 20) + 1),
                body => body,
            };
            judged(
                &whole,
                method,
                url,
                &server.ask_with(method, url, headers, body),
            )
        });
    };
    check("answers without a token", &server, &[]);
    check("answers of another server", &other, ADMIN);
    check("answers of a server", &server, ADMIN);
    check("answers of a server that has no token", &open, ADMIN);
    check("answers with a script", &script, ADMIN);
    let answer = script.check("{\"policy\":\"s\",\"key\":\"k\"}");
    assert_eq!(answer.json()["answer"], json!(["more"]));
    assert_eq!(answer.header("x-a"), Some("7"));
    check("answers of a server whose store is gone", &gone, ADMIN);
    gone.signal("TERM");
    gone.line("shutting down");
    check("answers of a server that shuts down", &gone, ADMIN);
    assert!(gone.is_running());
}

#[test]
fn every_path_and_method_in_it_is_answered_and_nothing_else_is() {
    let server = Tidegate::start(CONFIG);
    let whole = description(&server);
    for (path, item) in whole["paths"].as_object().expect("paths") {
        let url = path.replace("{policy}", "p");
        for method in METHODS {
            let is_described = item.get(method).is_some();
            let answer = server.ask(&method.to_uppercase(), &url, "");
            assert_eq!(answer.status != 405, is_described, "{method} {path}");
        }
        for other in ["/", "x", "/x"] {
            assert_eq!(
                server.get(&format!("{url}{other}")).status,
                404,
                "{url}{other}"
            );
        }
        let mut rows = ROWS.lines().filter_map(|row| row.split(' ').nth(1));
        assert!(rows.any(|url| template(url) == *path), "no row asks {path}");
    }
    for path in [
        "/v1",
        "/v1/",
        "/v1/keys",
        "/v1/gate",
        "/index.html",
        "/openapi",
    ] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
}

#[test]
fn what_it_says_about_questions_and_versions_is_so() {
    let server = Tidegate::start(CONFIG);
    let whole = description(&server);
    let described = validator(&whole, &whole["components"]["schemas"]["Check"]);
    let many: serde_json::Map<String, Value> = (0..65)
        .map(|number| (number.to_string(), json!("")))
        .collect();
    let many = Value::from(many).to_string();
    rows(
        ROWS,
        "questions that the server and the description take",
        |row| {
            let question: Value = serde_json::from_str(&row.replace("MANY", &many)).expect(row);
            // A list of one, so that an empty list is an element, too.
            let answer = server.check(&json!([question]).to_string()).json();
            match (
                answer[0].get("error").is_none(),
                described.is_valid(&question),
            ) {
                (taken, described) if taken == described => taken.to_string(),
                (taken, _) => format!("{taken}, and the description says otherwise: {answer}"),
            }
        },
    );
    let (version, program) = (&whole["info"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(
        (&whole["openapi"], version),
        (&json!("3.1.0"), &json!(program))
    );
    // The description names every source and every algorithm.
    let schemas = &whole["components"]["schemas"];
    let sources = &schemas["Decision"]["properties"]["source"]["enum"];
    let sources = sources.as_array().expect("a list").iter();
    let mut sources: Vec<String> = sources
        .map(|source| format!("tidegate_source_total{{policy=\"p\",source={source}}}"))
        .collect();
    sources.sort_unstable();
    let metrics = crate::observed::metrics(&server).into_keys();
    let counted = metrics.filter(|name| name.starts_with("tidegate_source_total{policy=\"p\""));
    assert_eq!(sources, counted.collect::<Vec<_>>());
    let names = tidegate::Algorithm::ALL.iter().map(|it| it.as_str());
    let names: Vec<&str> = names.collect();
    let described = format!("\"algorithm\":{{\"enum\":{}", json!(names));
    assert!(
        whole.to_string().contains(&described),
        "expected {described}"
    );
}
