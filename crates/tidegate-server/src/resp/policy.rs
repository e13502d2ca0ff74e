//! Policies over the Redis protocol: decisions, resets and refunds.

use std::time::Duration;

use tidegate::{LevelDecision, PolicyDecision, Source};
use tidegate_redis::TryCheckError;

use super::command::{CommandError, Reset};
use super::reply::Replies;
use crate::api::decision::milliseconds;
use crate::engine::{Call, Current, Engine};
use crate::receipt;

/// Writes a decision: a map of nine names.
pub(super) fn write(replies: &mut Replies, call: &Call<'_>, decision: &PolicyDecision<'_>) {
    // A refusal because the store has not answered is no quota.
    let is_quota = decision.allowed() || decision.source() != Source::ErrorPolicy;
    let reported = decision.reported().filter(|_| is_quota);
    let numbers = reported.map(|level| *level.numbers());
    replies.map(9);
    replies.bulk("allowed");
    replies.flag(decision.allowed());
    replies.bulk("denied_by");
    replies.bulk_or_null(decision.denied_by().filter(|_| is_quota));
    write_numbers(
        replies,
        numbers,
        decision.retry_after(),
        decision.reset_after(),
    );
    replies.bulk("source");
    replies.bulk(decision.source().as_str());
    replies.bulk("receipt");
    match decision.receipt() {
        Some(receipt) => {
            let mut text = Vec::with_capacity(128);
            let (instance, policy) = (call.entry.instance(), call.entry.policy());
            receipt::encode(&mut text, instance, policy, call.attributes, &receipt);
            replies.bulk(text);
        }
        None => replies.null(),
    }
    replies.bulk("levels");
    let levels = decision.levels().filter(|_| is_quota);
    replies.array(levels.count());
    for level in decision.levels().filter(|_| is_quota) {
        let numbers = level.numbers();
        replies.map(5);
        replies.bulk("name");
        replies.bulk(level.name());
        write_numbers(
            replies,
            Some(*numbers),
            numbers.retry_after(),
            numbers.reset_after(),
        );
    }
}

/// Four names, and their numbers or nulls.
fn write_numbers(
    replies: &mut Replies,
    numbers: Option<LevelDecision>,
    retry_after: Option<Duration>,
    reset_after: Duration,
) {
    replies.bulk("limit");
    replies.number_or_null(numbers.map(|it| it.limit().into()));
    replies.bulk("remaining");
    replies.number_or_null(numbers.map(|it| it.remaining().into()));
    replies.bulk("retry_after_ms");
    replies.number_or_null(retry_after.map(milliseconds));
    replies.bulk("reset_after_ms");
    replies.number(milliseconds(reset_after));
}

/// Writes why there is no decision.
pub(super) fn write_error(replies: &mut Replies, error: &TryCheckError) {
    match error {
        TryCheckError::Check(error) => {
            let CommandError { code, message } = error.clone().into();
            replies.error(code, message);
        }
        TryCheckError::Store(error) => {
            let kind = error.kind().as_str();
            replies.error("STORE", format_args!("{kind}: {}", error.redacted()));
        }
    }
}

pub(super) fn names(current: &Current, replies: &mut Replies) {
    let policies = &current.config.policies;
    replies.array(policies.len());
    for policy in policies {
        replies.bulk(policy.name());
    }
}

pub(super) async fn reset(engine: &Engine, replies: &mut Replies, reset: Reset<'_>) {
    match engine.reset(reset.entry, &reset.subject, reset.which).await {
        Ok(_) => replies.ok(),
        Err(error) => write_error(replies, &error),
    }
}

pub(super) async fn refund(engine: &Engine, current: &Current, replies: &mut Replies, text: &[u8]) {
    let returned = std::str::from_utf8(text).ok().and_then(receipt::decode);
    let Some(returned) = returned else {
        return replies.error("ERR", "receipt: expected the receipt of a TG.CHECK");
    };
    let entry = match current.entry(&returned.policy) {
        Ok(entry) => entry,
        Err(error) => return write_error(replies, &error.into()),
    };
    // A server that counts in memory cannot refund what another server counted.
    if entry.instance() != returned.instance {
        let message = "receipt: issued by another server, which counts in its own memory";
        return replies.error("ERR", message);
    }
    let (attributes, receipt) = (&returned.attributes, &returned.receipt);
    match engine.refund(entry, attributes, receipt).await {
        Ok(()) => replies.ok(),
        Err(error) => write_error(replies, &error),
    }
}
