//! A run in words and small tables, for people.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::chart::sparkline;
use super::summary::{ClientBody, Compared, PolicyBody, Suggested, Summary, share};
use crate::figures::{count, thousands};

/// The longest sparkline.
const WIDTH: usize = 60;

/// The longest bar of a curve.
const BAR: f64 = 30.0;

const TAKES_ALL: &str = "a string takes everything";

/// The report.
pub(super) fn text(summary: &Summary) -> String {
    let mut text = heading(summary);
    for policy in &summary.policies {
        text.push('\n');
        text.push_str(&of_policy(policy));
    }
    for left_out in &summary.left_out_policies {
        let (name, reason) = (&left_out.name, &left_out.reason);
        writeln!(text, "\n{name}: left out: {reason}").expect(TAKES_ALL);
    }
    text
}

fn heading(summary: &Summary) -> String {
    let mut text = count(summary.lines, "line", "lines");
    match (&summary.from, &summary.to) {
        (Some(from), Some(to)) => {
            write!(text, " from {from} to {to}").expect(TAKES_ALL);
        }
        _ => {
            write!(
                text,
                ", none of which can be read as {}: is --format right?",
                summary.format
            )
            .expect(TAKES_ALL);
        }
    }
    text.push('\n');
    if summary.unreadable > 0 {
        writeln!(
            text,
            "{} cannot be read and {} left out",
            count(summary.unreadable, "line", "lines"),
            if summary.unreadable == 1 { "is" } else { "are" }
        )
        .expect(TAKES_ALL);
    }
    if summary.late > 0 {
        writeln!(
            text,
            "{} left out: more than {} lines out of order. If this file joins several logs, pass them separately",
            count(summary.late, "line is", "lines are"),
            thousands(super::order::WINDOW as u64)
        )
        .expect(TAKES_ALL);
    }
    for bad in &summary.left_out_lines {
        writeln!(
            text,
            "  {}:{}: {}: {}",
            bad.log, bad.line, bad.reason, bad.text
        )
        .expect(TAKES_ALL);
    }
    text
}

fn of_policy(policy: &PolicyBody) -> String {
    let mut text = String::new();
    let levels = policy.levels.iter().map(|level| match level.key.as_str() {
        "" => format!("{} for all", level.limit),
        key => format!("{} per {key}", level.limit),
    });
    let levels: Vec<String> = levels.collect();
    let mut line = |label: &str, value: &str| {
        writeln!(text, "  {label:<14} {value}").expect(TAKES_ALL);
    };
    line("requests", &thousands(policy.requests));
    line(
        "refused",
        &format!(
            "{} ({})",
            thousands(policy.denied),
            percent(share(policy.denied, policy.requests))
        ),
    );
    line(
        "clients",
        &format!(
            "{}, {} of them refused at least once ({})",
            thousands(policy.keys),
            thousands(policy.keys_denied),
            percent(share(policy.keys_denied, policy.keys))
        ),
    );
    if policy.without_key > 0 {
        line(
            "without key",
            &format!(
                "{} lack an attribute of the key, and are not counted above",
                thousands(policy.without_key)
            ),
        );
    }
    if let Some(worst) = &policy.worst_minute {
        line(
            "worst minute",
            &format!("{}, {} refused", worst.at, thousands(worst.denied)),
        );
    }
    if policy.levels.len() > 1 {
        for level in &policy.levels {
            let refused = format!("{} refused first by this level", thousands(level.denied));
            line(&level.name, &refused);
        }
    }
    let over_time = &policy.over_time;
    line("over time", &bracketed(&over_time.requests));
    if policy.denied > 0 {
        line("refused", &bracketed(&over_time.denied));
        line("most refused", "");
    }
    for client in &policy.top {
        text.push_str(&of_client(client));
    }
    if let Some(suggested) = &policy.suggested {
        text.push_str(&of_suggestion(suggested));
    }
    if let Some(why) = &policy.not_suggested {
        writeln!(text, "  suggested      nothing: {why}").expect(TAKES_ALL);
    }
    if let Some(compared) = &policy.compared {
        text.push_str(&of_comparison(compared));
    }
    for note in &policy.notes {
        writeln!(text, "  note           {note}").expect(TAKES_ALL);
    }
    format!("{}: {}\n{text}", policy.name, levels.join(" and "))
}

fn bracketed(values: &[u64]) -> String {
    format!("|{}|", sparkline(values, WIDTH))
}

fn of_client(client: &ClientBody) -> String {
    format!(
        "    {:>10} of {:<10}  {}\n",
        thousands(client.denied),
        thousands(client.requests),
        key(&client.key)
    )
}

/// `refuses 1 of 72 clients (1.39 %) and 341 of 2,943 requests (11.6 %)`.
pub(super) fn refuses(suggested: &Suggested) -> String {
    let Suggested {
        denied,
        keys_denied,
        requests,
        keys,
        ..
    } = suggested;
    let part = |some: u64, all: u64, one: &str, many: &str| {
        let share = percent(share(some, all));
        format!("{} of {} ({share})", thousands(some), count(all, one, many))
    };
    let clients = part(*keys_denied, *keys, "client", "clients");
    let requests = part(*denied, *requests, "request", "requests");
    format!("refuses {clients} and {requests}")
}

/// What becomes of the limit with the clients that it refuses, and without them.
pub(super) fn with_them(suggested: &Suggested) -> Option<String> {
    let limit = suggested.with_them.as_ref()?;
    let limit = numbers(&limit.limit, limit.burst);
    let more = suggested.keys_denied - suggested.clients.len() as u64;
    let (these, them) = match (more, suggested.keys_denied) {
        (0, 1) => ("this client".into(), "it"),
        (0, _) => ("these clients".into(), "them"),
        (more, _) => (
            format!("these clients and {} more", thousands(more)),
            "them",
        ),
    };
    Some(format!(
        "without {these}, nothing is refused; to refuse none of {them}: {limit}"
    ))
}

fn of_suggestion(suggested: &Suggested) -> String {
    let mut text = format!(
        "  suggested      {}: {}\n",
        numbers(&suggested.limit, suggested.burst),
        refuses(suggested)
    );
    for client in &suggested.clients {
        text.push_str(&of_client(client));
    }
    if let Some(with_them) = with_them(suggested) {
        writeln!(text, "    {with_them}").expect(TAKES_ALL);
    }
    let largest = suggested.curve.iter().map(|point| point.denied_share);
    let largest = largest.fold(f64::MIN_POSITIVE, f64::max);
    for point in &suggested.curve {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 0 to the longest bar"
        )]
        let length = (point.denied_share / largest * BAR).ceil() as usize;
        writeln!(
            text,
            "  {} {:>24} {:>12}  {}",
            if point.is_best { "  ->" } else { "    " },
            numbers(&point.limit, point.burst),
            percent(point.denied_share),
            "#".repeat(length)
        )
        .expect(TAKES_ALL);
    }
    text
}

fn of_comparison(compared: &Compared) -> String {
    let [one, other] = compared.algorithms;
    let differ = compared.only_first_denied + compared.only_second_denied;
    let mut text = format!(
        "  compared       {one} with {other}: {} of {} decided differently ({})\n",
        thousands(differ),
        count(compared.requests, "request", "requests"),
        percent(compared.differ_share)
    );
    let rows = [
        (format!("only {one} refuses"), compared.only_first_denied),
        (format!("only {other} refuses"), compared.only_second_denied),
        ("both refuse".into(), compared.both_denied),
        ("both admit".into(), compared.both_allowed),
    ];
    for (label, number) in rows {
        writeln!(text, "    {label:<28} {:>12}", thousands(number)).expect(TAKES_ALL);
    }
    if differ > 0 {
        if let Some(worst) = &compared.worst_minute {
            writeln!(
                text,
                "    worst minute {}, {} decided differently",
                worst.at,
                thousands(worst.differ)
            )
            .expect(TAKES_ALL);
        }
        writeln!(
            text,
            "    where          {}",
            bracketed(&compared.over_time)
        )
        .expect(TAKES_ALL);
        for client in &compared.top {
            writeln!(
                text,
                "    {:>10} of {:<10}  {}",
                thousands(client.differ),
                thousands(client.requests),
                key(&client.key)
            )
            .expect(TAKES_ALL);
        }
        for example in &compared.examples {
            writeln!(
                text,
                "    {} {}: refused only by {}",
                example.at,
                key(&example.key),
                example.denied_by
            )
            .expect(TAKES_ALL);
        }
    }
    text
}

/// `20r/s, burst 35`.
pub(super) fn numbers(limit: &str, burst: Option<u64>) -> String {
    match burst {
        Some(burst) => format!("{limit}, burst {burst}"),
        None => limit.to_owned(),
    }
}

/// `ip 203.0.113.7, path /login`.
pub(super) fn key(key: &Map<String, Value>) -> String {
    let text = |value: &Value| -> String {
        let text = value.as_str().unwrap_or_default();
        let letters = text.chars();
        letters
            .map(|letter| if letter.is_control() { '·' } else { letter })
            .collect()
    };
    let parts: Vec<String> = match key.len() {
        0 => vec!["all requests".into()],
        1 => key.values().map(text).collect(),
        _ => key
            .iter()
            .map(|(name, value)| format!("{name} {}", text(value)))
            .collect(),
    };
    parts.join(", ")
}

/// A share as a percentage, with as many digits as it takes to see it.
pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        0.0 => "0 %".into(),
        _ if percent >= 10.0 => format!("{percent:.1} %"),
        _ if percent >= 0.1 => format!("{percent:.2} %"),
        _ if percent >= 0.001 => format!("{percent:.4} %"),
        _ => format!("{percent:.7} %"),
    }
}
