//! `/openapi.json` held against the server: every path and method in it is answered,
//! nothing else is, and the answers are what it says.

use jsonschema::Validator;
use serde_json::{Value, json};

use crate::client::Answer;
use crate::process::{Start, Tidegate};
use crate::redis_server::Server;

const METHODS: [&str; 8] = [
    "get", "put", "post", "delete", "options", "head", "patch", "trace",
];

fn description(server: &Tidegate) -> Value {
    let answer = server.get("/openapi.json");
    assert_eq!(answer.header("content-type"), Some("application/json"));
    answer.json()
}

/// Follows a reference within the description.
fn resolve<'v>(whole: &'v Value, part: &'v Value) -> &'v Value {
    match part["$ref"].as_str() {
        Some(reference) => whole.pointer(&reference[1..]).expect(reference),
        None => part,
    }
}

/// What the description says about an answer, which must be there.
fn response<'v>(whole: &'v Value, path: &str, method: &str, status: u16) -> &'v Value {
    let responses = &whole["paths"][path][method]["responses"];
    let class = format!("{}XX", status / 100);
    let found = responses
        .get(status.to_string())
        .or_else(|| responses.get(class));
    let found = found.unwrap_or_else(|| panic!("{method} {path}: {status} is not described"));
    resolve(whole, found)
}

/// Holds an answer against the description.
fn validate(whole: &Value, path: &str, method: &str, answer: &Answer) {
    let described = response(whole, path, method, answer.status);
    let Some(kind) = answer.header("content-type") else {
        assert_eq!(answer.body, b"", "{method} {path}");
        return;
    };
    let kind = kind.split(';').next().expect("a type");
    let schema = &described["content"][kind]["schema"];
    assert!(
        schema.is_object(),
        "{method} {path}: no {kind} at {}",
        answer.status
    );
    if method == "head" {
        assert_eq!(answer.body, b"");
        return;
    }
    let body = match kind {
        kind if kind.starts_with("text/") => Value::from(answer.text()),
        _ => answer.json(),
    };
    // The schema's references are within the description.
    let mut schema = schema.clone();
    schema["components"] = whole["components"].clone();
    let validator: Validator = jsonschema::draft202012::new(&schema).expect("a schema");
    let errors: Vec<String> = validator
        .iter_errors(&body)
        .map(|error| error.to_string())
        .collect();
    assert_eq!(errors, [""; 0], "{method} {path}: {body}");
    if answer.status >= 400 && body["status"].is_number() {
        assert_eq!(body["status"], answer.status);
    }
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

const ADMIN: (&str, &str) = ("Authorization", "Bearer sesame");

/// A path of the description, a method, the path and body of a real request, and the
/// status of its answer.
const REQUESTS: &[(&str, &str, &str, &str, u16)] = &[
    (
        "/v1/check",
        "post",
        "/v1/check",
        "{\"policy\":\"p\",\"key\":\"k\"}",
        200,
    ),
    (
        "/v1/check",
        "post",
        "/v1/check",
        "{\"policy\":\"p\",\"key\":\"k\",\"cost\":9}",
        200,
    ),
    (
        "/v1/check",
        "post",
        "/v1/check",
        "{\"policy\":\"p\",\"key\":\"exempt\"}",
        200,
    ),
    (
        "/v1/check",
        "post",
        "/v1/check",
        "{\"policy\":\"two\",\"attributes\":{\"key\":\"1\",\"x\":\"2\"}}",
        200,
    ),
    (
        "/v1/check",
        "post",
        "/v1/check",
        "{\"policy\":\"closed\",\"key\":\"k\"}",
        200,
    ),
    (
        "/v1/check",
        "post",
        "/v1/check",
        "{\"policy\":\"off\",\"key\":\"k\"}",
        200,
    ),
    (
        "/v1/check",
        "post",
        "/v1/check",
        "{\"policy\":\"p\",\"key\":\"k\",\"peek\":true}",
        200,
    ),
    (
        "/v1/check",
        "post",
        "/v1/check",
        "[{\"policy\":\"p\",\"key\":\"k\"},{},{\"policy\":\"q\"}]",
        200,
    ),
    ("/v1/check", "post", "/v1/check", "[]", 200),
    ("/v1/check", "post", "/v1/check", "nonsense", 400),
    (
        "/v1/check",
        "post",
        "/v1/check",
        "{\"policy\":\"q\",\"key\":\"k\"}",
        404,
    ),
    ("/v1/gate/{policy}", "get", "/v1/gate/p?key=g", "", 200),
    ("/v1/gate/{policy}", "put", "/v1/gate/p?key=g", "", 200),
    ("/v1/gate/{policy}", "get", "/v1/gate/p?key=g", "", 429),
    ("/v1/gate/{policy}", "head", "/v1/gate/p?key=g", "", 429),
    (
        "/v1/gate/{policy}",
        "post",
        "/v1/gate/p?key=g&deny=403",
        "",
        403,
    ),
    (
        "/v1/gate/{policy}",
        "get",
        "/v1/gate/p?key=g&deny=503",
        "",
        503,
    ),
    (
        "/v1/gate/{policy}",
        "get",
        "/v1/gate/p?key=g&deny=400",
        "",
        400,
    ),
    (
        "/v1/gate/{policy}",
        "get",
        "/v1/gate/p?key=g&deny=404",
        "",
        404,
    ),
    (
        "/v1/gate/{policy}",
        "get",
        "/v1/gate/p?key=g&body=none",
        "",
        429,
    ),
    ("/v1/gate/{policy}", "get", "/v1/gate/p", "", 400),
    ("/v1/gate/{policy}", "get", "/v1/gate/q?key=g", "", 404),
    ("/v1/policies", "get", "/v1/policies", "", 200),
    ("/v1/policies", "head", "/v1/policies", "", 200),
    ("/v1/keys/{policy}", "get", "/v1/keys/p?key=k", "", 200),
    ("/v1/keys/{policy}", "get", "/v1/keys/p?key=exempt", "", 200),
    (
        "/v1/keys/{policy}",
        "get",
        "/v1/keys/two?key=k&x=1",
        "",
        200,
    ),
    ("/v1/keys/{policy}", "get", "/v1/keys/closed?key=k", "", 200),
    ("/v1/keys/{policy}", "get", "/v1/keys/off?key=k", "", 200),
    ("/v1/keys/{policy}", "head", "/v1/keys/p?key=k", "", 200),
    ("/v1/keys/{policy}", "get", "/v1/keys/p", "", 400),
    ("/v1/keys/{policy}", "get", "/v1/keys/q?key=k", "", 404),
    ("/v1/keys/{policy}", "delete", "/v1/keys/p?key=k", "", 200),
    (
        "/v1/keys/{policy}",
        "delete",
        "/v1/keys/two?key=k&x=1",
        "",
        400,
    ),
    ("/v1/keys/{policy}", "delete", "/v1/keys/q?key=k", "", 404),
    ("/v1/top/{policy}", "get", "/v1/top/p", "", 200),
    ("/v1/top/{policy}", "head", "/v1/top/p?by=requests", "", 200),
    (
        "/v1/top/{policy}",
        "get",
        "/v1/top/two?by=requests&window=1h&n=1",
        "",
        200,
    ),
    ("/v1/top/{policy}", "get", "/v1/top/p?n=0", "", 400),
    ("/v1/top/{policy}", "get", "/v1/top/q", "", 404),
    ("/", "get", "/", "", 200),
    ("/", "head", "/", "", 200),
    ("/dashboard.css", "get", "/dashboard.css", "", 200),
    ("/dashboard.js", "get", "/dashboard.js", "", 200),
    ("/v1/live", "get", "/v1/live", "", 200),
    ("/v1/live", "head", "/v1/live", "", 200),
    ("/v1/refund", "post", "/v1/refund", "{}", 400),
    ("/metrics", "get", "/metrics", "", 200),
    ("/healthz", "get", "/healthz", "", 200),
    ("/healthz", "head", "/healthz", "", 200),
    ("/openapi.json", "get", "/openapi.json", "", 200),
];

#[test]
fn answers_are_what_it_says() {
    let server = Tidegate::start(CONFIG);
    let whole = description(&server);
    for (path, method, url, body, status) in REQUESTS {
        let answer = server.ask_with(&method.to_uppercase(), url, &[ADMIN], body);
        assert_eq!(answer.status, *status, "{method} {url}");
        validate(&whole, path, method, &answer);
    }
    let charged = server.check("{\"policy\":\"p\",\"key\":\"r\"}").json();
    let refund = json!({"receipt": charged["receipt"]}).to_string();
    for (server, headers, status) in [
        (&server, &[ADMIN][..], 204),
        (&server, &[], 401),
        (&Tidegate::start(CONFIG), &[ADMIN], 409),
        (&Tidegate::start(""), &[ADMIN], 403),
    ] {
        let answer = server.ask_with("POST", "/v1/refund", headers, &refund);
        assert_eq!(answer.status, status);
        validate(&whole, "/v1/refund", "post", &answer);
        let answer = server.ask_with("DELETE", "/v1/keys/p?key=k", headers, "");
        validate(&whole, "/v1/keys/{policy}", "delete", &answer);
    }
    let long = " ".repeat((1 << 20) + 1);
    for path in ["/v1/check", "/v1/refund"] {
        let answer = server.ask_with("POST", path, &[ADMIN], &long);
        assert_eq!(answer.status, 413);
        validate(&whole, path, "post", &answer);
    }
    // Without a store, and shutting down.
    let mut dead = Start::new(
        "[server]\nadmin_token = \"sesame\"\n[stores.default]\nurl = \"redis://127.0.0.1:1\"\n",
    )
    .argument("--drain")
    .argument("5")
    .start();
    let answers = [
        (
            "/v1/check",
            "post",
            "/v1/check",
            "{\"policy\":\"default\",\"key\":\"k\"}",
            200,
        ),
        (
            "/v1/check",
            "post",
            "/v1/check",
            "{\"policy\":\"default\",\"key\":\"k\",\"peek\":true}",
            503,
        ),
        (
            "/v1/keys/{policy}",
            "get",
            "/v1/keys/default?key=k",
            "",
            503,
        ),
        (
            "/v1/keys/{policy}",
            "delete",
            "/v1/keys/default?key=k",
            "",
            503,
        ),
        ("/readyz", "get", "/readyz", "", 503),
    ];
    for (path, method, url, body, status) in answers {
        if path == "/readyz" {
            dead.signal("TERM");
            dead.line("shutting down");
        }
        let answer = dead.ask_with(&method.to_uppercase(), url, &[ADMIN], body);
        assert_eq!(answer.status, status, "{method} {url}");
        validate(&whole, path, method, &answer);
    }
    assert!(dead.is_running());
}

#[test]
fn a_script_answers_what_it_says() {
    let redis = Server::start();
    let config = format!(
        "[stores.default]\nurl = {:?}\ntimeout = \"5s\"\n[[policies]]\nname = \"s\"\nalgorithm = \"script\"\nscript = \"s.lua\"\nheaders = [\"x-a\", \"x-b\", \"x-c\"]\n",
        redis.url()
    );
    let start = Start::new(&config);
    start
        .folder()
        .write("s.lua", "return {'deny', {7, 8, 9}, 'more'}");
    let server = start.start();
    let whole = description(&server);
    let answer = server.check("{\"policy\":\"s\",\"key\":\"k\"}");
    assert_eq!(answer.json()["answer"], json!(["more"]));
    assert_eq!(answer.header("x-a"), Some("7"));
    validate(&whole, "/v1/check", "post", &answer);
    validate(&whole, "/v1/policies", "get", &server.get("/v1/policies"));
    let gate = server.get("/v1/gate/s?key=k");
    assert_eq!(gate.status, 429);
    validate(&whole, "/v1/gate/{policy}", "get", &gate);
}

#[test]
fn every_path_and_method_in_it_is_answered_and_nothing_else_is() {
    let server = Tidegate::start(CONFIG);
    let whole = description(&server);
    let paths = whole["paths"].as_object().expect("paths");
    for (path, item) in paths {
        for method in METHODS {
            let url = path.replace("{policy}", "p");
            let answer = server.ask(&method.to_uppercase(), &url, "");
            let is_described = item.get(method).is_some();
            assert_eq!(
                answer.status != 405,
                is_described,
                "{method} {path}: {}",
                answer.status
            );
            if is_described {
                validate(&whole, path, method, &answer);
            }
        }
        for other in ["/", "x", "/x"] {
            let url = format!("{}{other}", path.replace("{policy}", "p"));
            assert_eq!(server.get(&url).status, 404, "{url}");
        }
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
    // Everything that a table above asks for is there, and the other way round.
    let mut asked: Vec<&str> = REQUESTS.iter().map(|(path, ..)| *path).collect();
    asked.push("/readyz");
    for path in paths.keys() {
        assert!(asked.contains(&path.as_str()), "{path} is not tested");
    }
}

#[test]
fn what_it_says_about_questions_is_what_the_server_takes() {
    let server = Tidegate::start(CONFIG);
    let whole = description(&server);
    let mut schema = whole["components"]["schemas"]["Check"].clone();
    schema["components"] = whole["components"].clone();
    let validator = jsonschema::draft202012::new(&schema).expect("a schema");
    let many: Value = (0..65)
        .map(|number| (number.to_string(), json!("")))
        .collect::<serde_json::Map<String, Value>>()
        .into();
    for question in [
        json!({"policy": "p", "key": "k"}),
        json!({"policy": "p", "key": null, "attributes": {"key": "k"}}),
        json!({"policy": "p", "attributes": null, "attributes_b64": {"key": "aw=="}}),
        json!({"policy": "p", "key": "k", "cost": 4_294_967_295_u32, "peek": true}),
        json!({"key": "k"}),
        json!({"policy": null, "key": "k"}),
        json!({"policy": "p", "key": 1}),
        json!({"policy": "p", "key": "k", "cost": 0}),
        json!({"policy": "p", "key": "k", "cost": 4_294_967_296_u64}),
        json!({"policy": "p", "key": "k", "cost": null}),
        json!({"policy": "p", "key": "k", "peek": null}),
        json!({"policy": "p", "key": "k", "pek": true}),
        json!({"policy": "p", "attributes": {"key": 1}}),
        json!({"policy": "p", "key": "k", "attributes": many}),
        json!([]),
        json!("p"),
    ] {
        // A list of one, so that an empty list is an element, too.
        let answer = server.check(&json!([question]).to_string()).json();
        let taken = answer[0].get("error").is_none();
        assert_eq!(validator.is_valid(&question), taken, "{question}: {answer}");
    }
    // References lead somewhere, and the version is the program's.
    let text = whole.to_string();
    for part in text.split("\"$ref\":\"#").skip(1) {
        let pointer = part.split('"').next().expect("its end");
        assert!(whole.pointer(pointer).is_some(), "{pointer}");
    }
    assert_eq!(whole["openapi"], "3.1.0");
    // The description names every source.
    let sources = &whole["components"]["schemas"]["Decision"]["properties"]["source"]["enum"];
    let sources = sources.as_array().expect("a list").iter();
    let mut sources: Vec<String> = sources
        .map(|source| format!("tidegate_source_total{{policy=\"p\",source={source}}}"))
        .collect();
    sources.sort_unstable();
    let metrics = crate::observed::metrics(&server).into_keys();
    let counted = metrics.filter(|name| name.starts_with("tidegate_source_total{policy=\"p\""));
    assert_eq!(sources, counted.collect::<Vec<_>>());
    assert_eq!(whole["info"]["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn every_algorithm_is_described() {
    let text = include_str!("../../src/api/openapi.json");
    let names = tidegate::Algorithm::ALL.iter().map(|it| it.as_str());
    let names: Vec<String> = names.map(|name| format!("{name:?}")).collect();
    let described = format!("\"algorithm\": {{\"enum\": [{}]", names.join(", "));
    assert!(text.contains(&described), "expected {described}");
}
