//! Trials: asked beside the policy in force, and never in its way.

use serde_json::{Value, json};
use tidegate::Cost;
use tidegate_server::cli::Source;
use tidegate_server::engine::Engine;
use tidegate_server::settings::{Listen, Settings};

use crate::observed::metrics;
use crate::process::{Folder, Tidegate, until};
use crate::redis_server::Server;

const LIVE: &str = r#"
[[policies]]
name = "api"
[[policies.levels]]
name = "resource"
key = "{resource}"
limit = "6/1h"
algorithm = "fixed_window"
[[policies.levels]]
name = "consumer"
key = "{resource}:{consumer}"
limit = "4/1h"
algorithm = "fixed_window"
"#;

const TRIAL: &str = r#"
[[policies]]
name = "api-next"
trial_of = "api"
key = "{resource}"
limit = "3/1h"
algorithm = "fixed_window"
"#;

/// Checks of several consumers, some of which cost more.
fn questions() -> Vec<Value> {
    let question = |number: u32| {
        let (resource, consumer) = ((number / 7).to_string(), (number % 2).to_string());
        json!({
            "policy": "api",
            "attributes": {"resource": resource, "consumer": consumer},
            "cost": 1 + number % 3 / 2,
        })
    };
    (0..28).map(question).collect()
}

/// What a decision says, apart from times and receipts.
fn numbers(decision: &Value) -> Value {
    json!([
        decision["allowed"],
        decision["denied_by"],
        decision["remaining"],
        decision["rate"],
        decision["source"],
        decision["would_deny"],
        decision["levels"].as_array().map(Vec::len),
    ])
}

/// Decisions of each result.
fn results(server: &Tidegate, policy: &str) -> [f64; 3] {
    let metrics = metrics(server);
    ["allowed", "denied", "shadow_denied"].map(|result| {
        let name = format!("tidegate_decisions_total{{policy=\"{policy}\",result=\"{result}\"}}");
        metrics.get(&name).copied().unwrap_or_default()
    })
}

#[test]
fn policy_in_force_decides_the_same_with_and_without_a_trial() {
    let (with, without) = (
        Tidegate::start(&format!("{LIVE}{TRIAL}")),
        Tidegate::start(LIVE),
    );
    // The trial by itself: asked by name, it decides as it does beside the other one.
    let alone = Tidegate::start(&format!("{LIVE}{TRIAL}"));
    for question in questions() {
        let body = question.to_string();
        let [a, b] = [&with, &without].map(|server| numbers(&server.check(&body).json()));
        assert_eq!(a, b, "{body}");
        let mut question = question;
        question["policy"] = "api-next".into();
        let decision = alone.check(&question.to_string()).json();
        assert_eq!(decision["allowed"], true, "a trial never refuses");
        assert_eq!(decision["shadow"], true);
    }
    assert_eq!(results(&with, "api"), results(&without, "api"));
    let tried = results(&with, "api-next");
    assert_eq!(tried, results(&alone, "api-next"));
    assert_eq!(tried.iter().sum::<f64>(), 28.0);
    assert!(tried[2] > 5.0, "{tried:?}");
    // Its keys stand where they stand when it is alone.
    for resource in 0..4 {
        let path = format!("/v1/keys/api-next?resource={resource}");
        let [a, b] = [&with, &alone].map(|server| server.get(&path).json()["levels"][0].clone());
        assert_eq!(a["remaining"], b["remaining"]);
        assert_eq!(a["rate"], b["rate"]);
    }
    // Looks ask no trial, and neither does a check that is wrong.
    let look =
        "{\"policy\":\"api\",\"attributes\":{\"resource\":\"1\",\"consumer\":\"1\"},\"peek\":true}";
    assert_eq!(with.check(look).status, 200);
    let wrong = "{\"policy\":\"api\",\"attributes\":{\"resource\":\"1\"}}";
    assert_eq!(with.check(wrong).status, 400);
    assert_eq!(results(&with, "api-next"), tried);
}

/// An engine over this config, in a folder of its own.
fn engine(config: &str) -> Engine {
    let folder = Folder::new();
    let path = folder.write("tidegate.toml", config);
    let source = Source {
        config: Some(path),
        store: None,
    };
    let settings = Settings::new(&source, Listen::default()).expect("no store");
    Engine::new(settings.load().expect("a config")).expect("policies")
}

/// Scripts that Redis has run.
fn scripts_run(redis: &Server) -> u64 {
    let mut info = redis::cmd("INFO");
    let info = info.arg("commandstats").query(&mut redis.connect());
    let info: String = info.expect("a Redis that runs");
    let lines = info.lines().filter_map(|line| {
        let (name, stats) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let is_script = matches!(name, "eval" | "evalsha");
        stats
            .split(',')
            .next()
            .filter(|_| is_script)?
            .parse::<u64>()
            .ok()
    });
    lines.sum()
}

/// A check and its trial are on their way at once, and Redis runs one script for both.
/// There is one thread here, so that what is sent together does not depend on luck.
#[tokio::test]
async fn trial_in_redis_travels_with_the_check() {
    let redis = Server::start();
    let store = format!(
        "[stores.default]\nurl = {:?}\ntimeout = \"10s\"\n",
        redis.url()
    );
    let live = "[[policies]]\nname = \"p\"\nkey = \"{ip}\"\nlimit = \"100/1h\"\n";
    let trial = "[[policies]]\nname = \"next\"\ntrial_of = \"p\"\nkey = \"{ip}\"\n\
                 limit = \"50/1h\"\n";
    for (run, trial) in ["", trial].into_iter().enumerate() {
        let engine = engine(&format!("{store}{live}{trial}"));
        let current = engine.current();
        let ask = async |ip: &str| {
            let ip = [("ip", ip)];
            let decided = engine.decide(&current, "p", &ip, Cost::ONE);
            decided.await.expect("a policy").decision.remaining()
        };
        // Connects to Redis, and gives it the scripts.
        for number in 0..8 {
            ask(&format!("{run} first {number}")).await;
        }
        let before = scripts_run(&redis);
        for number in 0..50 {
            let left = ask(&format!("{run} {}", number % 5)).await;
            assert_eq!(left, 99 - number / 5, "the numbers of the policy in force");
        }
        assert_eq!(scripts_run(&redis) - before, 50, "{trial:?}");
        if !trial.is_empty() {
            let left = engine.peek(&current, "next", &[("ip", "1 0")], Cost::ONE);
            assert_eq!(left.await.expect("a policy").decision.remaining(), 40);
        }
    }
}

#[test]
fn stores_of_policy_and_trial_may_differ() {
    let redis = Server::start();
    let stores = format!(
        "[stores.default]\nurl = \"memory:\"\n[stores.redis]\nurl = {:?}\ntimeout = \"10s\"\n",
        redis.url()
    );
    let policy = |name: &str, store: &str, line: &str| {
        format!("[[policies]]\nname = \"{name}\"\nlimit = \"3/1h\"\nstore = \"{store}\"\n{line}\n")
    };
    let server = Tidegate::start(&format!(
        "{stores}{}{}{}{}",
        policy("a", "default", ""),
        policy("a-next", "redis", "trial_of = \"a\""),
        policy("b", "redis", ""),
        policy("b-next", "default", "trial_of = \"b\""),
    ));
    for name in ["a", "b"] {
        let path = format!("/v1/gate/{name}?key=k");
        let statuses = [(); 5].map(|()| server.get(&path).status);
        assert_eq!(statuses, [200, 200, 200, 429, 429]);
        until("the trial was counted", || {
            let tried = results(&server, &format!("{name}-next"));
            (tried == [3.0, 0.0, 2.0]).then_some(())
        });
    }
}

#[test]
fn trial_whose_store_is_down_delays_no_request() {
    let server = Tidegate::start(
        "[stores.gone]\nurl = \"redis://127.0.0.1:1\"\n\
         [[policies]]\nname = \"p\"\nlimit = \"2/1h\"\n\
         [[policies]]\nname = \"next\"\ntrial_of = \"p\"\nlimit = \"1/1h\"\nstore = \"gone\"\n",
    );
    let statuses = [(); 3].map(|()| server.get("/v1/gate/p?key=k").status);
    assert_eq!(statuses, [200, 200, 429]);
    until("the trial was answered by its on_error", || {
        (results(&server, "next") == [1.0, 0.0, 2.0]).then_some(())
    });
}
