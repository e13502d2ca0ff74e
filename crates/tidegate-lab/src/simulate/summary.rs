//! A run in numbers: what `--json` prints, and what the other reports are made of.

use serde::Serialize;
use serde_json::{Map, Value};
use tidegate::{Limit, Policy};

use super::arguments::{Of, Share};
use super::chart::Chart;
use super::compare::Comparison;
use super::order::Found;
use super::suggest::{Point, Question, Suggestion};
use super::tally::{Client, Minute, Tally};
use super::time;

/// How many clients are listed.
pub(super) const TOP: usize = 10;

/// A run.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    pub(super) lines: u64,
    pub(super) unreadable: u64,
    pub(super) late: u64,
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
    pub(super) policies: Vec<PolicyBody>,
    /// The first few lines that were left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) left_out_lines: Vec<BadLine>,
    /// Policies that cannot be simulated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) left_out_policies: Vec<LeftOut>,
    /// How lines were read.
    pub(super) format: &'static str,
}

/// A line that was left out.
#[derive(Debug, Serialize)]
pub(super) struct BadLine {
    pub(super) log: String,
    pub(super) line: u64,
    pub(super) reason: String,
    pub(super) text: String,
}

/// A policy that was left out.
#[derive(Debug, Clone, Serialize)]
pub(super) struct LeftOut {
    pub(super) name: String,
    pub(super) reason: String,
}

/// A policy.
#[derive(Debug, Serialize)]
pub(super) struct PolicyBody {
    pub(super) name: String,
    pub(super) requests: u64,
    pub(super) denied: u64,
    pub(super) keys: u64,
    pub(super) keys_denied: u64,
    pub(super) worst_minute: Option<MinuteBody>,
    pub(super) top: Vec<ClientBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) suggested: Option<Suggested>,
    /// Why there is nothing to suggest, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) not_suggested: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) compared: Option<Compared>,
    /// Requests that lack an attribute of the policy's key, and were not asked for.
    pub(super) without_key: u64,
    pub(super) levels: Vec<LevelBody>,
    pub(super) over_time: OverTime,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) notes: Vec<String>,
}

/// A level of a policy, and how many requests it was the first to refuse.
#[derive(Debug, Serialize)]
pub(super) struct LevelBody {
    pub(super) name: String,
    pub(super) key: String,
    pub(super) limit: String,
    pub(super) denied: u64,
}

/// A minute.
#[derive(Debug, Serialize)]
pub(super) struct MinuteBody {
    pub(super) at: String,
    pub(super) denied: u64,
}

/// A client.
#[derive(Debug, Serialize)]
pub(super) struct ClientBody {
    pub(super) key: Map<String, Value>,
    pub(super) requests: u64,
    pub(super) denied: u64,
}

/// Counts over time.
#[derive(Debug, Serialize)]
pub(super) struct OverTime {
    pub(super) start: Option<String>,
    #[serde(skip)]
    pub(super) start_us: u64,
    pub(super) width_s: u64,
    pub(super) requests: Vec<u64>,
    pub(super) denied: Vec<u64>,
}

/// The smallest limit that refuses fewer than what was asked for.
#[derive(Debug, Serialize)]
pub(super) struct Suggested {
    pub(super) limit: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) burst: Option<u64>,
    pub(super) denied_share: f64,
    /// What the share is a share of.
    pub(super) of: &'static str,
    pub(super) below: f64,
    /// Requests and clients that it refuses, of how many.
    pub(super) denied: u64,
    pub(super) keys_denied: u64,
    #[serde(skip)]
    pub(super) requests: u64,
    #[serde(skip)]
    pub(super) keys: u64,
    /// The clients that it refuses: the most refused of them.
    pub(super) clients: Vec<ClientBody>,
    /// The smallest limit that refuses nobody, these clients included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) with_them: Option<LimitBody>,
    pub(super) curve: Vec<PointBody>,
}

/// A limit.
#[derive(Debug, Serialize)]
pub(super) struct LimitBody {
    pub(super) limit: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) burst: Option<u64>,
}

/// A limit, and what it refuses.
#[derive(Debug, Serialize)]
pub(super) struct PointBody {
    pub(super) limit: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) burst: Option<u64>,
    pub(super) denied: u64,
    pub(super) keys_denied: u64,
    pub(super) denied_share: f64,
    /// Requests per window.
    #[serde(skip)]
    pub(super) number: u32,
    #[serde(skip)]
    pub(super) is_best: bool,
}

/// Two algorithms on the same requests.
#[derive(Debug, Serialize)]
pub(super) struct Compared {
    pub(super) algorithms: [&'static str; 2],
    pub(super) requests: u64,
    pub(super) both_allowed: u64,
    pub(super) both_denied: u64,
    pub(super) only_first_denied: u64,
    pub(super) only_second_denied: u64,
    pub(super) differ_share: f64,
    pub(super) keys_differ: u64,
    pub(super) worst_minute: Option<DifferMinute>,
    pub(super) top: Vec<DifferClient>,
    pub(super) examples: Vec<DifferExample>,
    pub(super) over_time: Vec<u64>,
}

/// A minute in which they differ.
#[derive(Debug, Serialize)]
pub(super) struct DifferMinute {
    pub(super) at: String,
    pub(super) differ: u64,
}

/// A client for whom they differ.
#[derive(Debug, Serialize)]
pub(super) struct DifferClient {
    pub(super) key: Map<String, Value>,
    pub(super) requests: u64,
    pub(super) differ: u64,
}

/// A request for which they differ.
#[derive(Debug, Serialize)]
pub(super) struct DifferExample {
    pub(super) at: String,
    pub(super) key: Map<String, Value>,
    pub(super) denied_by: &'static str,
}

/// A part of a whole, as a number to read.
#[expect(clippy::cast_precision_loss, reason = "a figure to read")]
pub(super) fn share(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => part as f64 / whole as f64,
    }
}

fn key(policy: &Policy, values: &[Vec<u8>]) -> Map<String, Value> {
    let text = |value: &Vec<u8>| Value::from(String::from_utf8_lossy(value).into_owned());
    let pairs = policy.attributes().into_iter().zip(values);
    pairs
        .map(|(name, value)| (name.to_owned(), text(value)))
        .collect()
}

impl Summary {
    pub(super) fn new(
        found: Found,
        format: &'static str,
        policies: Vec<PolicyBody>,
        left_out_policies: Vec<LeftOut>,
    ) -> Self {
        let bad = found.shown.into_iter().map(|bad| BadLine {
            log: bad.log,
            line: bad.line,
            reason: bad.reason,
            text: bad.text,
        });
        Self {
            lines: found.lines,
            unreadable: found.unreadable,
            late: found.late,
            from: found.span_us.map(|(first, _)| time::text(first)),
            to: found.span_us.map(|(_, last)| time::text(last)),
            policies,
            left_out_lines: bad.collect(),
            left_out_policies,
            format,
        }
    }
}

impl PolicyBody {
    pub(super) fn new(policy: &Policy, tally: &Tally, refused_by: &[u64]) -> Self {
        let (all, clients) = (tally.all(), tally.clients());
        let levels = policy.levels().iter().zip(refused_by);
        let client = |client: Client| ClientBody::new(policy, &client);
        let minute = |minute: Minute| MinuteBody {
            at: time::text(minute.at_us),
            denied: minute.marked,
        };
        Self {
            name: policy.name().into(),
            requests: all.requests,
            denied: all.marked,
            keys: clients.requests,
            keys_denied: clients.marked,
            worst_minute: tally.worst().map(minute),
            top: tally.top(TOP).into_iter().map(client).collect(),
            suggested: None,
            not_suggested: None,
            compared: None,
            without_key: 0,
            levels: levels
                .map(|(level, denied)| LevelBody {
                    name: level.name().into(),
                    key: level.key().to_string(),
                    limit: level.limit().to_string(),
                    denied: *denied,
                })
                .collect(),
            over_time: OverTime::new(tally.chart()),
            notes: Vec::new(),
        }
    }
}

impl ClientBody {
    fn new(policy: &Policy, client: &Client) -> Self {
        Self {
            key: key(policy, &client.values),
            requests: client.counts.requests,
            denied: client.counts.marked,
        }
    }
}

impl OverTime {
    fn new(chart: &Chart) -> Self {
        let columns = chart.columns();
        Self {
            start: (!columns.is_empty()).then(|| time::text(chart.start_us())),
            start_us: chart.start_us(),
            width_s: chart.width(),
            requests: columns.iter().map(|column| column.requests).collect(),
            denied: columns.iter().map(|column| column.marked).collect(),
        }
    }
}

impl Suggested {
    pub(super) fn new(found: &Suggestion, question: &Question<'_>, below: Share) -> Self {
        let body = |point: &Point| {
            let counts = point.refused.of(question);
            PointBody {
                limit: rate(&point.limit),
                burst: burst(&point.limit),
                denied: point.refused.requests,
                keys_denied: point.refused.clients,
                denied_share: share(counts.marked, counts.requests),
                number: point.limit.spec().map_or(0, |spec| spec.rate.requests()),
                is_best: point.limit == found.best.limit,
            }
        };
        let best = body(&found.best);
        let clients = found.clients.iter();
        let clients = clients.map(|client| ClientBody::new(question.policy, client));
        Self {
            limit: best.limit,
            burst: best.burst,
            denied_share: best.denied_share,
            of: match question.of {
                Of::Requests => "requests",
                Of::Clients => "clients",
            },
            below: below.as_f64(),
            denied: best.denied,
            keys_denied: best.keys_denied,
            requests: question.requests,
            keys: question.clients,
            clients: clients.collect(),
            with_them: found.with_them.map(|limit| LimitBody {
                limit: rate(&limit),
                burst: burst(&limit),
            }),
            curve: found.curve.iter().map(body).collect(),
        }
    }
}

fn rate(limit: &Limit) -> String {
    limit
        .spec()
        .map_or_else(String::new, |spec| spec.rate.to_string())
}

fn burst(limit: &Limit) -> Option<u64> {
    let spec = limit.spec()?;
    let is_bucket = spec.algorithm == tidegate::Algorithm::TokenBucket;
    is_bucket.then(|| spec.burst.unwrap_or_else(|| spec.rate.requests().into()))
}

impl Compared {
    pub(super) fn new(policy: &Policy, comparison: &Comparison) -> Self {
        let tally = &comparison.tally;
        let all = tally.all();
        let [one, other] = comparison.only;
        let examples = comparison.examples.iter().map(|example| DifferExample {
            at: time::text(example.at_us),
            key: key(policy, &example.values),
            denied_by: example.refused_by.as_str(),
        });
        let top = tally.top(TOP).into_iter().map(|client| DifferClient {
            key: key(policy, &client.values),
            requests: client.counts.requests,
            differ: client.counts.marked,
        });
        Self {
            algorithms: comparison.algorithms.map(|algorithm| algorithm.as_str()),
            requests: all.requests,
            both_allowed: comparison.neither,
            both_denied: comparison.both,
            only_first_denied: one,
            only_second_denied: other,
            differ_share: share(one + other, all.requests),
            keys_differ: tally.clients().marked,
            worst_minute: tally.worst().map(|minute| DifferMinute {
                at: time::text(minute.at_us),
                differ: minute.marked,
            }),
            top: top.collect(),
            examples: examples.collect(),
            over_time: OverTime::new(tally.chart()).denied,
        }
    }
}
