//! Stores that answer, and one that does not.

use serde_json::json;

use crate::observed::metrics;
use crate::process::{Tidegate, until};
use crate::redis_server::Server;

/// A policy for each of what to do without a store, at a port where nobody listens.
const DEAD: &str = r#"
[stores.default]
url = "redis://127.0.0.1:1/"
timeout = "200ms"

[[policies]]
name = "open"
limit = "1/1h"
on_error = "allow"

[[policies]]
name = "shut"
limit = "1/1h"
on_error = "deny"

[[policies]]
name = "alone"
limit = "1/1h"
"#;

#[test]
fn redis_on_a_dead_port_lets_all_through_and_says_so() {
    let server = Tidegate::start(DEAD);
    let line = server.line("the store does not answer: on_error decides");
    assert!(line.contains("server=\"127.0.0.1:1\""), "{line}");
    assert!(line.contains("Connection refused"), "{line}");
    assert!(
        line.contains("policies=allowed: open; decided locally: alone; denied: shut"),
        "{line}"
    );
    let ready = until("it is ready all the same", || {
        let answer = server.get("/readyz");
        (answer.status == 200).then_some(answer)
    });
    assert_eq!(ready.text(), "ready\n");
    for _ in 0..10 {
        let answer = server.get("/v1/gate/open?key=k");
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("ratelimit"), None, "nothing is known");
    }
    server.line("the store keeps failing: checks do not wait for it until a probe succeeds");
    let decision = server.check("{\"policy\":\"open\",\"key\":\"k\"}").json();
    assert_eq!(decision["source"], "error_policy");
    assert_eq!(decision["limit"], json!(null));
    let refused = server.get("/v1/gate/shut?key=k");
    assert_eq!(refused.status, 503);
    assert!(refused.header("retry-after").is_some());
    assert_eq!(refused.header("ratelimit"), None, "no quota is claimed");
    assert_eq!(refused.header("ratelimit-policy"), None);
    assert_eq!(
        refused.detail(),
        "the store of policy shut is unavailable, and the policy denies requests until it answers"
    );
    let asked = server.get("/v1/gate/shut?key=k&deny=403&body=none");
    assert_eq!((asked.status, asked.text()), (403, ""));
    assert_eq!(asked.header("x-tidegate-reason"), Some("store-unavailable"));
    let decision = server.check("{\"policy\":\"shut\",\"key\":\"k\"}");
    assert_eq!(decision.status, 200);
    let decision = decision.json();
    assert_eq!(decision["allowed"], false);
    for field in ["denied_by", "limit", "remaining", "rate", "receipt"] {
        assert_eq!(decision[field], json!(null), "{field}");
    }
    assert_eq!(decision["levels"], json!([]));
    assert!(
        decision["retry_after_ms"]
            .as_u64()
            .is_some_and(|wait| wait > 0)
    );
    let statuses = [200, 429].map(|_| server.get("/v1/gate/alone?key=k").status);
    assert_eq!(statuses, [200, 429]);
    // A request that only looks gets the error.
    let answer = server.get("/v1/keys/open?key=k");
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert!(answer.detail().starts_with("the store did not answer: "));
    let peek = "{\"policy\":\"open\",\"key\":\"k\",\"peek\":true}";
    assert_eq!(server.check(peek).status, 503);
    let batch = server.check(&format!("[{peek}]")).json();
    assert_eq!(batch[0]["error"]["status"], 503);
    let metrics = metrics(&server);
    assert_eq!(metrics["tidegate_store_up{store=\"default\"}"], 0.0);
    assert_eq!(metrics["tidegate_breaker_open{store=\"default\"}"], 1.0);
    assert_eq!(
        metrics["tidegate_source_total{policy=\"open\",source=\"error_policy\"}"],
        11.0
    );
    let errors = metrics
        .iter()
        .filter(|(name, _)| name.starts_with("tidegate_store_errors_total{"));
    assert!(errors.map(|(_, count)| count).sum::<f64>() > 5.0);
}

#[test]
fn two_servers_on_one_redis_share_one_limit_and_survive_its_end() {
    let mut redis = Server::start();
    let config = format!(
        "[server]\nadmin_token = \"sesame\"\n[stores.default]\nurl = {:?}\ntimeout = \"5s\"\n\
         [[policies]]\nname = \"p\"\nlimit = \"10/1h\"\nkey = \"{{ip}}\"\n",
        redis.url()
    );
    let servers = [Tidegate::start(&config), Tidegate::start(&config)];
    let statuses = (0..20).map(|number| {
        let answer = servers[number % 2].get("/v1/gate/p?ip=%ff%00");
        answer.status
    });
    let admitted = statuses.filter(|status| *status == 200).count();
    assert_eq!(admitted, 10, "bound broken");
    // What one has charged, the other gives back.
    let charged = servers[0]
        .check("{\"policy\":\"p\",\"attributes\":{\"ip\":\"1\"},\"cost\":5}")
        .json();
    let refund = json!({"receipt": charged["receipt"]}).to_string();
    let headers = [("Authorization", "Bearer sesame")];
    let answer = servers[1].ask_with("POST", "/v1/refund", &headers, &refund);
    assert_eq!(answer.status, 204, "{answer:?}");
    let key = servers[0].get("/v1/keys/p?ip=1").json();
    assert_eq!(key["levels"][0]["remaining"], 10);
    let forgotten = servers[1].ask_with("DELETE", "/v1/keys/p?ip=%ff%00", &headers, "");
    assert_eq!(forgotten.json(), json!({"forgotten": 1}));
    until("the other has forgotten its refusal, too", || {
        (servers[0].get("/v1/gate/p?ip=%ff%00").status == 200).then_some(())
    });
    let up = |server: &Tidegate| metrics(server)["tidegate_store_up{store=\"default\"}"];
    assert_eq!(up(&servers[0]), 1.0);
    redis.kill();
    until("the loss is noticed", || {
        servers[0].get("/v1/gate/p?ip=2");
        (up(&servers[0]) == 0.0).then_some(())
    });
    redis.restart();
    until("it is up again", || {
        servers[0].get("/v1/gate/p?ip=2");
        (up(&servers[0]) == 1.0).then_some(())
    });
}

#[test]
fn a_store_that_throws_keys_away_is_warned_of() {
    let redis = Server::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    // A long timeout, for busy machines: a store that does not answer logs no warning.
    let store = format!(
        "[stores.default]\nurl = {:?}\ntimeout = \"10s\"\n",
        redis.url()
    );
    let server = Tidegate::start(&store);
    let line = server.line("allkeys-lru");
    assert!(
        line.contains("WARN") && line.contains("store \"default\""),
        "{line}"
    );
}

#[test]
fn likely_mistakes_are_logged_at_start_up() {
    let server = Tidegate::start(
        "[[policies]]\nname = \"a\"\nkey = \"ip\"\nlimit = \"1/1h\"\n\
         [[policies]]\nname = \"b\"\nkey = \"{level}\"\nlimit = \"1/1h\"\n",
    );
    server.line("policy \"a\", level \"a\": the key \"ip\" has no attribute in braces");
    server.line("policy \"b\": the attribute \"level\" is reserved in URLs");
    assert_eq!(
        server
            .check("{\"policy\":\"b\",\"attributes\":{\"level\":\"1\"}}")
            .status,
        200
    );
    assert_eq!(server.get("/v1/gate/b?level=1").status, 400);
}
