//! User-defined scripts: they run as they are, and their answers are validated.

use tidegate::{
    CheckError, Cost, CustomScript, Dialect, OnError, Policy, PolicyBuilder, PolicyDecision,
    Source, Which,
};
use tidegate_redis::{ErrorKind, Policies, SetupError, TryCheckError};

use crate::server::Server;
use crate::support::{Named, all_keys, stats, store};
use crate::user::kind;
use tidegate_testkit::cluster::run;

/// A fixed window whose limit and length are arguments, with its numbers as headers.
const WINDOW: &str = "
    local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
    local used = redis.call('INCR', KEYS[1])
    if used == 1 then redis.call('EXPIRE', KEYS[1], window) end
    local verdict = used <= limit and 'allow' or 'deny'
    local left = math.max(0, limit - used)
    return {verdict, {tostring(limit), redis.call('TTL', KEYS[1]), {'x-left', left}}, 'more', 7}
";

/// Scripts whose answers are none.
const NONSENSE: &str = include_str!("nonsense.txt");

fn custom(lua: &str) -> PolicyBuilder {
    let names = ["x-limit", "x-reset", "x-remaining"].map(Box::from);
    Policy::builder("custom")
        .key("{ip}")
        .script(CustomScript::text(lua).args(["3", "60"]))
        .headers(Dialect::Custom(names))
}

fn limiter(server: &Server, policy: PolicyBuilder) -> Policies {
    crate::support::limiter(server, [policy.build().expect("a policy")])
}

const KEY: [(&str, &str); 1] = [("ip", "203.0.113.7")];

async fn check(limiter: &Policies) -> PolicyDecision<'_> {
    let decision = limiter.check("custom", &KEY, Cost::ONE).await;
    decision.expect("all attributes are there")
}

/// What the store says to a check that it cannot decide.
async fn error(limiter: &Policies) -> ErrorKind {
    let asked = limiter.of("custom").try_check(&KEY, Cost::ONE).await;
    kind(&asked.expect_err("the script is broken"))
}

#[tokio::test]
async fn a_script_decides_and_names_its_headers() {
    let server = Server::start();
    let limiter = limiter(&server, custom(WINDOW));
    for left in ["2", "1", "0"] {
        let decision = check(&limiter).await;
        assert!(decision.allowed());
        assert_eq!(decision.source(), Source::Store);
        let headers = decision.headers();
        let mut headers: Vec<(&str, &str)> = headers.iter().collect();
        // The key's own time, which has begun to pass.
        let (name, reset) = headers.remove(1);
        assert_eq!(name, "x-reset");
        assert!((30..=60).contains(&reset.parse().unwrap()), "{reset}");
        assert_eq!(headers, [("x-limit", "3"), ("x-left", left)]);
        let answer = decision.answer().expect("a script has answered");
        assert_eq!(answer.rest, ["more", "7"]);
    }
    let refused = check(&limiter).await;
    assert!(!refused.allowed());
    assert_eq!(refused.denied_by(), Some("custom"));
    assert_eq!(refused.headers().get("x-left"), Some("0"));
    // It says no, and not for how long.
    assert_eq!(refused.headers().get("retry-after"), None);
    let violated = "\"violated-policies\":[\"custom\"]";
    assert!(refused.problem(429).contains(violated));
    // It has no numbers to look at.
    let look = limiter.of("custom").peek(&KEY, Cost::ONE).await;
    assert_eq!(kind(&look.unwrap_err()), ErrorKind::Script);
    // Its key is one of ours: of the policy, in its slot, and forgotten by a reset.
    let mut redis = server.connect();
    assert_eq!(all_keys(&mut redis), ["tg:{203.0.113.7}:custom:custom"]);
    let forgotten = limiter.of("custom").reset(&KEY, Which::Only).await;
    assert_eq!(forgotten, Ok(1));
    assert!(check(&limiter).await.allowed());
}

#[tokio::test]
async fn nonsense_is_a_store_error_and_never_an_allow() {
    let server = Server::start();
    for lua in NONSENSE.lines() {
        for on_error in [OnError::Allow, OnError::Deny] {
            let limiter = limiter(&server, custom(lua).on_error(on_error));
            let decision = check(&limiter).await;
            assert_eq!(decision.allowed(), on_error == OnError::Allow, "{lua}");
            assert_eq!(decision.source(), Source::ErrorPolicy, "{lua}");
            assert_eq!(error(&limiter).await, ErrorKind::Script, "{lua}");
            // A script that is broken says nothing about the store.
            assert!(!stats(&limiter).breaker_open);
        }
    }
}

#[tokio::test]
async fn scripts_are_looked_at_when_the_limiter_is_made() {
    let server = Server::start();
    let missing = Policy::builder("custom").script(CustomScript::file("no/such/file.lua"));
    let made = Policies::new([("default", store(&server))], [missing.build().unwrap()]);
    let error = made.unwrap_err();
    assert!(matches!(error, SetupError::Script { .. }));
    let text = error.to_string();
    let is_named = ["\"custom\"", "no/such/file.lua"].map(|name| text.contains(name));
    assert_eq!(is_named, [true; 2], "{text}");

    let good = limiter(&server, custom(WINDOW));
    assert_eq!(good.verify_scripts().await, []);
    let bad = limiter(&server, custom("this is not Lua"));
    let wrong = bad.verify_scripts().await;
    let wrong = wrong.iter().map(|(name, error)| (*name, error.kind()));
    assert_eq!(wrong.collect::<Vec<_>>(), [("custom", ErrorKind::Script)]);
}

/// Without the cost, a script would count ten requests as one.
#[tokio::test]
async fn a_script_that_is_not_told_the_cost_is_asked_for_one_only() {
    let server = Server::start();
    let limiter = limiter(&server, custom(WINDOW));
    let untold = CheckError::CostUntold {
        policy: "custom".into(),
        cost: 2,
    };
    let asked = limiter.check("custom", &KEY, Cost::of(2)).await;
    assert_eq!(asked.unwrap_err(), untold);
    let asked = limiter.of("custom").try_check(&KEY, Cost::of(2)).await;
    assert_eq!(asked.unwrap_err(), TryCheckError::Check(untold.clone()));
    let asked = limiter.check_all(&["custom"], &KEY, Cost::of(2)).await;
    assert_eq!(asked.unwrap_err(), untold);
    assert_eq!(
        untold.to_string(),
        "a cost of 2 for policy \"custom\", whose script does not use the cost: expected 1, or \
         \"{cost}\" among its args"
    );
    // Nothing was charged by these.
    assert_eq!(check(&limiter).await.headers().get("x-left"), Some("2"));
}

#[tokio::test]
async fn script_receives_the_cost_if_its_args_name_it() {
    let server = Server::start();
    let echo = "return {'allow', {}, ARGV[1], ARGV[2], ARGV[3], ARGV[4], tostring(#ARGV)}";
    let args = ["{cost}", "x{cost}", "{cost}", "7"];
    let policy = custom(echo).script(CustomScript::text(echo).args(args));
    let limiter = limiter(&server, policy);
    for cost in [1, 10, u32::MAX] {
        let asked = limiter.check("custom", &KEY, Cost::of(cost)).await;
        let decision = asked.expect("a script that takes the cost");
        let answer = decision.answer().expect("a script has answered");
        let cost = cost.to_string();
        assert_eq!(answer.rest, [&*cost, "x{cost}", &*cost, "7", "4"]);
    }
}

#[tokio::test]
async fn script_whose_error_reads_like_the_servers_runs_once() {
    let server = Server::start();
    for error_code in ["TRYAGAIN", "READONLY", "NOSCRIPT", "BUSY"] {
        let text = format!("{error_code} for now");
        let lua = format!("redis.call('INCR', KEYS[1]) return redis.error_reply('{text}')");
        let limiter = limiter(&server, custom(&lua));
        let mut redis = server.connect();
        run::<()>(&mut redis, "FLUSHALL");
        assert_eq!(error(&limiter).await, ErrorKind::Script, "{text}");
        let runs: u32 = run(&mut redis, "GET tg:{203.0.113.7}:custom:custom");
        assert_eq!(runs, 1, "{text}");
    }
}
