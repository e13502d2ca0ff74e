//! Quotas: a stream of reports in, assignments out, over a real socket.

use std::collections::{BTreeMap, BTreeSet};

use prost_types::Duration;
use tidegate_server::quota::wire::{
    Blanket, BucketAction, BucketName, QuotaAssignment, QuotaResponse, Rule, Todo, Usage,
    UsageReports,
};
use tokio::sync::mpsc;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;

use super::Served;

const API: &str = r#"
[envoy]
quota = true
[[policies]]
name = "api"
key = "{user}"
limit = "100r/s"
[[policies]]
name = "slow"
key = "{user}"
limit = "600r/h"
"#;

/// A stream to a server.
struct Stream<'s> {
    served: &'s Served,
    reports: mpsc::Sender<UsageReports>,
    answers: Streaming<QuotaResponse>,
}

impl<'s> Stream<'s> {
    fn open(served: &'s Served) -> Result<Self, Status> {
        let (reports, mut waiting) = mpsc::channel::<UsageReports>(8);
        let waiting = futures_util::stream::poll_fn(move |cx| waiting.poll_recv(cx));
        let answers = served.client.run(async {
            let mut grpc = Grpc::new(served.client.channel());
            grpc.ready().await.expect("a connection");
            let path = PathAndQuery::from_static(
                "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas",
            );
            let codec = ProstCodec::<UsageReports, QuotaResponse>::default();
            grpc.streaming(tonic::Request::new(waiting), path, codec)
                .await
        });
        Ok(Self {
            served,
            reports,
            answers: answers?.into_inner(),
        })
    }

    fn report(&self, domain: &str, buckets: &[&[(&str, &str)]]) {
        let usages = buckets.iter().map(|entries| Usage {
            bucket_id: Some(bucket(entries)),
            time_elapsed: Some(Duration::default()),
            num_requests_allowed: 1,
            num_requests_denied: 2,
        });
        let reports = UsageReports {
            domain: domain.into(),
            bucket_quota_usages: usages.collect(),
        };
        let sent = self.served.client.run(self.reports.send(reports));
        sent.expect("a stream that goes on");
    }

    fn answer(&mut self) -> Vec<BucketAction> {
        let Self {
            served, answers, ..
        } = self;
        let answer = served.client.run(answers.message());
        let answer = answer.expect("a stream that goes on");
        answer.expect("an answer").bucket_action
    }

    /// The rule of the next answer, which is for this bucket.
    fn rule(&mut self, entries: &[(&str, &str)]) -> Rule {
        let answer = self.answer();
        let [action] = &answer[..] else {
            panic!("one action: {answer:?}");
        };
        assert_eq!(action.bucket_id.as_ref(), Some(&bucket(entries)));
        let Some(Todo::Assign(QuotaAssignment {
            assignment_time_to_live,
            rate_limit_strategy,
        })) = &action.todo
        else {
            panic!("an assignment: {action:?}");
        };
        // More than two reports, in whole seconds.
        let lives = assignment_time_to_live.as_ref().expect("a time to live");
        assert_eq!((lives.seconds, lives.nanos), (15, 0));
        let strategy = rate_limit_strategy.as_ref();
        strategy.and_then(|it| it.rule.clone()).expect("a rule")
    }
}

fn bucket(entries: &[(&str, &str)]) -> BucketName {
    let entries = entries.iter();
    let entries = entries.map(|(key, value)| ((*key).into(), value.as_bytes().to_vec()));
    BucketName {
        bucket: entries.collect::<BTreeMap<_, _>>(),
    }
}

fn is_abandoned(action: &BucketAction) -> bool {
    matches!(action.todo, Some(Todo::Abandon(_)))
}

#[test]
fn new_bucket_is_assigned_at_once_and_charged_to_the_policy() {
    let served = Served::start(API);
    let mut stream = Stream::open(&served).expect("a stream");
    let ann = [("user", "ann")];
    stream.report("api", &[&ann]);
    let Rule::TokenBucket(tokens) = stream.rule(&ann) else {
        panic!("a token bucket");
    };
    let interval = tokens.fill_interval.expect("an interval");
    // Below a second, Envoy would not limit at all, and it ignores parts of one.
    assert!(interval.seconds >= 1 && interval.nanos == 0, "{interval:?}");
    let fill = f64::from(tokens.tokens_per_fill.expect("tokens"));
    let rate = fill / f64::from(i32::try_from(interval.seconds).expect("some seconds"));
    assert!(rate > 5.0 && rate <= 100.0, "{rate}/s of 100");
    assert!(tokens.max_tokens >= 1 && tokens.max_tokens <= 50);
    let slow = [("policy", "slow"), ("user", "ann")];
    stream.report("", &[&slow]);
    let _rule = stream.rule(&slow);
    let keys = served.server.get("/v1/keys/slow?user=ann").json();
    let used = keys["levels"][0]["rate"].as_f64().expect("a number");
    assert!(used >= 1.0, "the policy's own counter is charged: {keys}");
    let text = served.server.get("/metrics");
    for line in [
        "tidegate_quota_streams 1",
        "tidegate_quota_buckets 2",
        "tidegate_quota_requests_total{policy=\"api\",result=\"allowed\"} 1",
        "tidegate_quota_requests_total{policy=\"api\",result=\"denied\"} 2",
    ] {
        assert!(text.text().contains(line), "{line}\n{}", text.text());
    }
}

#[test]
fn bucket_that_fits_no_policy_is_abandoned_and_the_stream_goes_on() {
    let served = Served::start(API);
    let mut stream = Stream::open(&served).expect("a stream");
    let long = "x".repeat(5_000);
    for wrong in [
        &[("policy", "nope"), ("user", "ann")][..],
        &[("policy", "")],
        &[("consumer", "ann")],
        &[("user", &long)],
        &[],
    ] {
        stream.report("api", &[wrong]);
        let answer = stream.answer();
        assert_eq!(answer.len(), 1, "{wrong:?}: {answer:?}");
        assert!(is_abandoned(&answer[0]), "{wrong:?}: {answer:?}");
        assert_eq!(answer[0].bucket_id, Some(bucket(wrong)));
    }
    // The entry `policy` wins; the domain need not come again.
    let ann = [("policy", "api"), ("user", "ann")];
    stream.report("", &[&ann]);
    assert!(matches!(stream.rule(&ann), Rule::TokenBucket(_)));
    let bob = [("user", "bob")];
    stream.report("", &[&bob]);
    assert!(matches!(stream.rule(&bob), Rule::TokenBucket(_)));
    let line = served.server.line("the bucket is abandoned");
    assert!(line.contains("StreamRateLimitQuotas"), "{line}");
}

#[test]
fn two_streams_share_one_bucket() {
    let served = Served::start(API);
    let (mut one, mut other) = (
        Stream::open(&served).expect("a stream"),
        Stream::open(&served).expect("a stream"),
    );
    let ann = [("user", "ann")];
    one.report("api", &[&ann]);
    let _first = one.rule(&ann);
    // Another bucket id, and the same key of the policy.
    let same = [("user", "ann"), ("policy", "api")];
    other.report("elsewhere", &[&same]);
    let _second = other.rule(&same);
    let text = served.server.get("/metrics");
    let text = text.text();
    assert!(text.contains("tidegate_quota_streams 2"), "{text}");
    drop(one);
    crate::process::until("the stream has ended", || {
        let text = served.server.get("/metrics");
        let streams = text.text().contains("tidegate_quota_streams 1\n");
        streams.then_some(())
    });
}

#[test]
fn policies_that_refuse_or_admit_everything_are_assigned_as_such() {
    let policies = r#"
[envoy]
quota = true
[[policies]]
name = "never"
key = "{user}"
block = true
[[policies]]
name = "off"
key = "{user}"
limit = "1r/s"
enabled = false
[[policies]]
name = "watch"
key = "{user}"
limit = "1r/s"
shadow = true
"#;
    let served = Served::start(policies);
    let mut stream = Stream::open(&served).expect("a stream");
    for (policy, expected) in [
        ("never", Blanket::DenyAll),
        ("off", Blanket::AllowAll),
        ("watch", Blanket::AllowAll),
    ] {
        let entries = [("policy", policy), ("user", "ann")];
        stream.report("api", &[&entries]);
        assert_eq!(
            stream.rule(&entries),
            Rule::Blanket(expected.into()),
            "{policy}"
        );
    }
    let keys = served.server.get("/v1/keys/watch?user=ann").json();
    assert!(keys["levels"][0]["rate"].as_f64() > Some(0.5), "{keys}");
}

#[test]
fn store_that_is_down_is_decided_by_the_policy() {
    let policies = r#"
[envoy]
quota = true
[stores.default]
url = "redis://127.0.0.1:1"
[[policies]]
name = "open"
key = "{user}"
limit = "100r/s"
on_error = "allow"
[[policies]]
name = "closed"
key = "{user}"
limit = "100r/s"
on_error = "deny"
"#;
    let served = Served::start(policies);
    let mut stream = Stream::open(&served).expect("a stream");
    let entries = [("user", "ann")];
    stream.report("open", &[&entries]);
    assert!(matches!(stream.rule(&entries), Rule::TokenBucket(_)));
    stream.report("closed", &[&[("user", "ann"), ("policy", "closed")]]);
    let rule = stream.rule(&[("user", "ann"), ("policy", "closed")]);
    assert_eq!(rule, Rule::Blanket(Blanket::DenyAll.into()));
}

#[test]
fn quotas_are_off_unless_asked_for() {
    let served = Served::start("[[policies]]\nname = \"api\"\nlimit = \"1r/s\"\n");
    let status = Stream::open(&served).err().expect("an error");
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("quota = true"), "{status:?}");
}

#[test]
fn buckets_of_a_stream_are_bounded() {
    let served = Served::start(API);
    let mut stream = Stream::open(&served).expect("a stream");
    let users: Vec<String> = (0..2_100).map(|user| user.to_string()).collect();
    let (mut abandoned, mut assigned) = (BTreeSet::new(), BTreeSet::new());
    for users in users.chunks(500) {
        let buckets: Vec<_> = users.iter().map(|user| [("user", user.as_str())]).collect();
        let buckets: Vec<_> = buckets.iter().map(|it| &it[..]).collect();
        stream.report("api", &buckets);
    }
    while abandoned.len() + assigned.len() < 2_100 {
        for action in stream.answer() {
            match is_abandoned(&action) {
                true => abandoned.insert(action.bucket_id),
                false => assigned.insert(action.bucket_id),
            };
        }
    }
    assert_eq!((assigned.len(), abandoned.len()), (2_000, 100));
}

#[test]
fn messages_that_are_too_long_end_only_their_stream() {
    let served = Served::start(API);
    let mut stream = Stream::open(&served).expect("a stream");
    let long = "x".repeat(300 << 10);
    stream.report("api", &[&[("user", &long)]]);
    let ended = served.client.run(stream.answers.message());
    assert!(!matches!(ended, Ok(Some(_))), "{ended:?}");
    let mut stream = Stream::open(&served).expect("a stream");
    let ann = [("user", "ann")];
    stream.report("api", &[&ann]);
    assert!(matches!(stream.rule(&ann), Rule::TokenBucket(_)));
}

mod timing {
    use std::time::{Duration, Instant};

    use super::super::proxy::{Proxy, example};
    use super::super::{Served, address};
    use crate::process::{Start, until};
    use crate::redis_server::Server as Redis;

    const EXAMPLE: &str = include_str!("../../../../../examples/envoy/rlqs.yaml");

    fn config(grpc: &str) -> String {
        example(EXAMPLE, grpc)
    }

    fn within(times: &[Instant], from: Instant, to: Instant) -> f64 {
        let within = times.iter().filter(|time| (from..to).contains(time));
        within.count() as f64
    }

    #[test]
    fn two_envoys_share_a_limit_and_outlive_their_tidegate() {
        let toml = "[envoy]\nquota = true\n[[policies]]\nname = \"api\"\nkey = \"{user}\"\nlimit = \"40r/s\"\n";
        let mut served = Served::start(toml);
        let grpc = address(&served.server);
        let proxies = [Proxy::start(&config(&grpc)), Proxy::start(&config(&grpc))];
        // A bucket that fits no policy is abandoned, each time: it is never limited.
        let unknown = Proxy::start(&config(&grpc).replace("domain: api", "domain: nope"));
        let mut connection = unknown.connect();
        let ann = [("x-user", "ann")];
        for _ in 0..100 {
            let answer = connection.ask("GET", "/", &ann, b"");
            assert_eq!(answer.status, 200);
        }
        let line = served.server.line("the bucket is abandoned");
        assert!(line.contains("nope"), "{line}");
        let start = Instant::now();
        let end = start + Duration::from_secs(35);
        let (one, other, restarted) = std::thread::scope(|scope| {
            let [one, other] = &proxies;
            let one = scope.spawn(|| one.offer(90, &ann, end));
            let other = scope.spawn(|| other.offer(30, &ann, end));
            std::thread::sleep(Duration::from_secs(20));
            served.server.signal("KILL");
            std::thread::sleep(Duration::from_secs(1));
            let restarted = Instant::now();
            served.server = Start::new(toml).argument("--grpc").argument(&grpc).start();
            (
                one.join().expect("answers"),
                other.join().expect("answers"),
                restarted,
            )
        });
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let both = |from: Instant, to: Instant| within(&one, from, to) + within(&other, from, to);
        println!(
            "per 2 s: {:?}",
            (0..17)
                .map(|it| both(after(it * 2), after(it * 2 + 2)))
                .collect::<Vec<_>>()
        );
        // Cautious for six seconds, then by the first reports: settled after ten.
        let (from, to) = (after(10), after(20));
        let settled = both(from, to);
        // 40 per second for ten seconds, the sizes of the Envoys' buckets, and a second that
        // the machine may stall.
        assert!(settled <= 400.0 + 22.0 + 40.0, "{settled} in ten seconds");
        assert!(settled >= 300.0, "{settled} in ten seconds");
        let share = within(&one, from, to) / settled;
        assert!(
            (0.5..0.95).contains(&share),
            "three quarters of it: {share}"
        );
        // The restart: assignments go on, and then come from the new process.
        let to = restarted + Duration::from_secs(13);
        let seconds = 14.0;
        let around = both(restarted - Duration::from_secs(1), to);
        assert!(around <= 40.0 * (seconds + 1.0) + 44.0 + 40.0, "{around}");
        assert!(around >= 40.0 * seconds * 0.5, "{around}");
    }

    #[test]
    fn tidegates_with_one_store_share_a_limit() {
        let redis = Redis::start();
        let toml = format!(
            "[envoy]\nquota = true\n[stores.default]\nurl = \"{}\"\ntimeout = \"2s\"\n\
             [[policies]]\nname = \"api\"\nkey = \"{{user}}\"\nlimit = \"40r/s\"\n",
            redis.url()
        );
        let served = [Served::start(&toml), Served::start(&toml)];
        let proxies: Vec<Proxy> = served
            .iter()
            .map(|served| Proxy::start(&config(&address(&served.server))))
            .collect();
        let start = Instant::now();
        let end = start + Duration::from_secs(20);
        let ann = [("x-user", "ann")];
        let admitted: Vec<Vec<Instant>> = std::thread::scope(|scope| {
            let offers: Vec<_> = proxies
                .iter()
                .map(|proxy| scope.spawn(|| proxy.offer(60, &ann, end)))
                .collect();
            offers
                .into_iter()
                .map(|offer| offer.join().expect("answers"))
                .collect()
        });
        let both = |from: u64, to: u64| {
            let after = |seconds: u64| start + Duration::from_secs(seconds);
            let counts = admitted.iter();
            let counts = counts.map(|times| within(times, after(from), after(to)));
            counts.collect::<Vec<_>>()
        };
        println!(
            "per 2 s: {:?}",
            (0..10)
                .map(|it| both(it * 2, it * 2 + 2))
                .collect::<Vec<_>>()
        );
        let settled = both(10, 20);
        let total: f64 = settled.iter().sum();
        // The formula of docs/modes.md: B + N*t/W + n*(H + S), and a second of a stall.
        assert!(
            total <= 40.0 + 400.0 + 2.0 * (60.0 + 11.0) + 40.0,
            "{settled:?}"
        );
        assert!(total >= 200.0, "{settled:?}");
        assert!(settled.iter().all(|it| *it >= 40.0), "{settled:?}");
        until("the store is charged", || {
            let keys = served[0].server.get("/v1/keys/api?user=ann").json();
            (keys["levels"][0]["rate"].as_f64()? > 0.0).then_some(())
        });
    }
}
