//! Quotas: a stream of reports in, assignments out, over a real socket.

use std::collections::{BTreeMap, BTreeSet};

use prost_types::Duration;
use tidegate_server::quota::wire::{
    Blanket, BucketAction, BucketName, QuotaAssignment, QuotaResponse, Rule, Todo, Usage,
    UsageReports,
};
use tidegate_testkit::cases::rows;
use tokio::sync::mpsc;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;

use super::Served;
use crate::process::until;

/// All policies of these tests. The store of the last two is down.
const POLICIES: &str = r#"
[envoy]
quota = true
[stores.default]
[stores.down]
url = "redis://127.0.0.1:1"
[[policies]]
name = "api"
key = "{user}"
limit = "100r/s"
[[policies]]
name = "slow"
key = "{user}"
limit = "600r/h"
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
[[policies]]
name = "open"
key = "{user}"
limit = "100r/s"
store = "down"
on_error = "allow"
[[policies]]
name = "closed"
key = "{user}"
limit = "100r/s"
store = "down"
on_error = "deny"
"#;

/// Reports of one stream (a domain, which need not come again, and a bucket), and what the
/// bucket is assigned.
const REPORTS: &str = "
# reports
api: policy=nope,user=ann => abandoned
api: policy= => abandoned
api: consumer=ann => abandoned
api: user=LONG => abandoned
api:  => abandoned
: policy=api,user=ann => tokens
: user=bob => tokens
: policy=slow,user=ann => tokens
never: policy=never,user=ann => deny all
off: policy=off,user=ann => allow all
watch: policy=watch,user=ann => allow all
open: user=eve => tokens
open: user=eve,policy=closed => deny all
";

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

    /// What the next answer, which is for this bucket, assigns to it.
    fn rule(&mut self, entries: &[(&str, &str)]) -> Option<Rule> {
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
            assert!(is_abandoned(action), "{action:?}");
            return None;
        };
        // More than two reports, in whole seconds.
        let lives = assignment_time_to_live.as_ref().expect("a time to live");
        assert_eq!((lives.seconds, lives.nanos), (15, 0));
        let strategy = rate_limit_strategy.as_ref();
        strategy.and_then(|it| it.rule.clone())
    }

    /// Reports use of a bucket, and says in a word what it is assigned.
    fn say(&mut self, domain: &str, entries: &[(&str, &str)]) -> String {
        self.report(domain, &[entries]);
        match self.rule(entries) {
            None => "abandoned".into(),
            Some(Rule::TokenBucket(_)) => "tokens".into(),
            Some(Rule::Blanket(rule)) if rule == i32::from(Blanket::DenyAll) => "deny all".into(),
            Some(Rule::Blanket(rule)) if rule == i32::from(Blanket::AllowAll) => "allow all".into(),
            Some(other) => format!("{other:?}"),
        }
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
fn reports_are_answered_by_the_policy_of_the_bucket_or_abandoned() {
    let served = Served::start(POLICIES);
    let mut stream = Stream::open(&served).expect("a stream");
    let long = "x".repeat(5_000);
    rows(REPORTS, "reports", |text| {
        let text = text.replace("LONG", &long);
        let (domain, entries) = text.split_once(": ").expect("a domain");
        let entries = entries.split(',').filter_map(|it| it.split_once('='));
        stream.say(domain, &entries.collect::<Vec<_>>())
    });
    let line = served.server.line("the bucket is abandoned");
    assert!(line.contains("StreamRateLimitQuotas"), "{line}");
    // The policies' own counters are charged.
    for policy in ["slow", "watch"] {
        let keys = served.server.get(&format!("/v1/keys/{policy}?user=ann"));
        let rate = keys.json()["levels"][0]["rate"].as_f64();
        assert!(rate > Some(0.5), "{policy}: {}", keys.text());
    }
}

#[test]
fn new_bucket_is_assigned_whole_seconds_and_streams_share_its_policy() {
    let served = Served::start(POLICIES);
    let mut streams = [(); 2].map(|()| Stream::open(&served).expect("a stream"));
    let ann = [("user", "ann")];
    streams[0].report("api", &[&ann]);
    let Some(Rule::TokenBucket(tokens)) = streams[0].rule(&ann) else {
        panic!("a token bucket");
    };
    let interval = tokens.fill_interval.expect("an interval");
    // Below a second, Envoy would not limit at all, and it ignores parts of one.
    assert!(interval.seconds >= 1 && interval.nanos == 0, "{interval:?}");
    let fill = f64::from(tokens.tokens_per_fill.expect("tokens"));
    let rate = fill / f64::from(i32::try_from(interval.seconds).expect("some seconds"));
    assert!(rate > 5.0 && rate <= 100.0, "{rate}/s of 100");
    assert!(tokens.max_tokens >= 1 && tokens.max_tokens <= 50);
    // Another bucket id, and the same key of the policy.
    let same = [("user", "ann"), ("policy", "api")];
    assert_eq!(streams[1].say("elsewhere", &same), "tokens");
    let text = served.server.get("/metrics");
    for line in [
        "tidegate_quota_streams 2",
        "tidegate_quota_buckets 2",
        "tidegate_quota_requests_total{policy=\"api\",result=\"allowed\"} 2",
        "tidegate_quota_requests_total{policy=\"api\",result=\"denied\"} 4",
    ] {
        assert!(text.text().contains(line), "{line}\n{}", text.text());
    }
    let [other, one] = streams;
    drop(other);
    until("the other stream has ended", || {
        let text = one.served.server.get("/metrics");
        let streams = text.text().contains("tidegate_quota_streams 1\n");
        streams.then_some(())
    });
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
    let served = Served::start(POLICIES);
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
    let served = Served::start(POLICIES);
    let mut stream = Stream::open(&served).expect("a stream");
    let long = "x".repeat(300 << 10);
    stream.report("api", &[&[("user", &long)]]);
    let ended = served.client.run(stream.answers.message());
    assert!(!matches!(ended, Ok(Some(_))), "{ended:?}");
    let mut stream = Stream::open(&served).expect("a stream");
    assert_eq!(stream.say("api", &[("user", "ann")]), "tokens");
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
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let settled = admitted.iter().map(|it| within(it, after(10), after(20)));
        let settled: Vec<f64> = settled.collect();
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
