//! The users of docs/redis.md, and all that a limiter can be asked: what they need.

use tidegate::{Cost, Limit, Which};
use tidegate_redis::{ErrorKind, Policies, RedisOptions, RedisStore, TryCheckError};

use crate::server::Server;
use crate::support::{Named, YEAR, every_algorithm, levels, limiter_over, policy};
use tidegate_testkit::cluster::run;

const MANUAL: &str = include_str!("../../../../docs/redis.md");

/// The rules of the manual's user, without `user` and its name.
pub(crate) fn rules() -> Vec<&'static str> {
    rules_of(0)
}

/// The rules of this block of the manual.
pub(crate) fn rules_of(number: usize) -> Vec<&'static str> {
    let mut blocks = MANUAL.split("```acl\n").skip(1);
    let block = blocks.nth(number).expect("a block of rules");
    let line = block.lines().next().expect("a line");
    let mut words = line.split(' ');
    assert_eq!(
        [words.next(), words.next()],
        [Some("user"), Some("tidegate")]
    );
    words.collect()
}

pub(crate) fn set_user(server: &Server, rules: &[&str]) {
    let user = format!("ACL SETUSER tidegate reset {}", rules.join(" "));
    run::<()>(&mut server.connect(), &user);
}

/// Every algorithm, with checks, looks, refunds and resets; and all of it again when the
/// servers have lost their scripts.
pub(crate) async fn everything(
    url: &str,
    options: RedisOptions,
    servers: &[Server],
) -> Result<(), ErrorKind> {
    let mut limits = every_algorithm(100, YEAR).map(|(_, limit)| limit).to_vec();
    limits.push(Limit::per(5, YEAR).sliding_log());
    let policies = limits.iter().enumerate();
    let policies = policies.map(|(number, limit)| policy(&format!("p{number}"), *limit));
    let mut policies: Vec<_> = policies.collect();
    policies.push(levels("mixed", &limits));
    let names: Vec<String> = policies.iter().map(|it| it.name().to_owned()).collect();
    let store = RedisStore::new(url, options).expect("a right url");
    let limiter = limiter_over(store, policies);
    for _ in 0..2 {
        for server in servers {
            run::<()>(&mut server.connect(), "SCRIPT FLUSH");
        }
        for name in &names {
            walk(&limiter, name).await.map_err(|error| kind(&error))?;
        }
    }
    Ok(())
}

/// The kind of a store's error.
pub(crate) fn kind(error: &TryCheckError) -> ErrorKind {
    match error {
        TryCheckError::Store(error) => error.kind(),
        TryCheckError::Check(error) => panic!("{error}"),
    }
}

async fn walk(limiter: &Policies, name: &str) -> Result<(), TryCheckError> {
    let key = [("key", name)];
    let mut receipts = Vec::new();
    // More than a short log holds: long ones need other commands.
    for _ in 0..30 {
        let decision = limiter.of(name).try_check(&key, Cost::ONE).await?;
        receipts.extend(decision.receipt());
    }
    let _ = limiter.of(name).peek(&key, Cost::ONE).await?;
    for receipt in &receipts {
        limiter.of(name).refund(&key, receipt).await?;
    }
    let last = limiter.of(name).try_check(&key, Cost::ONE).await?;
    assert!(last.allowed());
    limiter.of(name).reset(&key, Which::All).await?;
    Ok(())
}
