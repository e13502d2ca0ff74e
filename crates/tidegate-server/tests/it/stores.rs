//! Stores of several servers. What a server does without its store is in `requests/observed.txt`.

use serde_json::json;

use crate::process::{Tidegate, until};
use crate::redis_server::Server;

#[test]
fn two_servers_on_one_redis_share_one_limit() {
    let redis = Server::start();
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
