//! Limits and requests in, responses out, on a clock that the tests move.

mod differential;
mod table;

use std::sync::Arc;

use futures_util::FutureExt;
use tidegate::{ManualClock, MemoryStore};

use crate::engine::{Engine, Redaction};
use crate::envoy::dropin;
use crate::envoy::options::Options;
use crate::envoy::rules::{Defaults, Domains, read_text};
use crate::envoy::tally::Tally;
use crate::envoy::wire::{
    Code, Descriptor, DescriptorStatus, Entry, LimitOverride, RateLimitRequest, RateLimitResponse,
    Unit,
};
use crate::record::Recorder;
use crate::top::{By, Since};

/// When the tests begin: 40 s into a minute.
const START_S: u64 = 1_000_000_000;

/// A service over one store in memory.
struct Service {
    engine: Engine,
    clock: ManualClock,
}

impl Service {
    fn new(yaml: &str) -> Self {
        Self::with(yaml, Options::default(), None)
    }

    fn with(yaml: &str, options: Options, tally: Option<Arc<dyn Tally>>) -> Self {
        let clock = ManualClock::at_us(START_S * 1_000_000);
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let engine = Engine::on_store(store).answering(options, tally);
        let service = Self { engine, clock };
        service.change(yaml, &Defaults::default());
        service
    }

    /// Puts other limits in force.
    fn change(&self, yaml: &str, defaults: &Defaults) {
        let draft = read_text(yaml, "test.yaml").unwrap_or_else(|errors| panic!("{errors}"));
        let domains = Domains::build(vec![draft], defaults);
        let domains = domains.unwrap_or_else(|errors| panic!("{errors}"));
        let changed = self.engine.change_rules(domains).now_or_never();
        changed.expect("no store to wait for").expect("rules");
    }

    fn advance(&self, seconds: u64) {
        self.clock.advance(std::time::Duration::from_secs(seconds));
    }

    fn ask(&self, request: &RateLimitRequest) -> RateLimitResponse {
        self.try_ask(request)
            .unwrap_or_else(|status| panic!("{status}"))
    }

    fn try_ask(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, tonic::Status> {
        let current = self.engine.current();
        let limits = current.dropin().expect("limits");
        let answer = dropin::answer(&self.engine, &current, limits, request);
        answer.now_or_never().expect("counts in memory")
    }

    /// Asks in words, and says the answer in words.
    fn say(&self, request: &str) -> String {
        said(&self.ask(&read(request)))
    }
}

/// Limits of the domain `d`.
fn domain(descriptors: &str) -> String {
    format!("domain: d\ndescriptors: {descriptors}\n")
}

/// Reads `domain: key=value,key=value *hits @requests/unit | ...; *hits`. The domain is `d`
/// where there is none; hits below zero are negative hits; a unit may be its number.
fn read(text: &str) -> RateLimitRequest {
    let (domain, text) = text.split_once(": ").unwrap_or(("d", text));
    let (text, hits) = text.split_once("; *").unwrap_or((text, "0"));
    RateLimitRequest {
        domain: domain.into(),
        descriptors: text.split(" | ").map(read_descriptor).collect(),
        hits_addend: hits.parse().expect("hits"),
    }
}

fn read_descriptor(text: &str) -> Descriptor {
    let mut descriptor = Descriptor::default();
    for (index, word) in text.split(' ').enumerate() {
        if index == 0 {
            let entries = word.split(',').filter(|it| !it.is_empty());
            let entries = entries.map(|entry| {
                let (key, value) = entry.split_once('=').expect("key=value");
                Entry {
                    key: key.to_owned().into(),
                    value: value.to_owned().into(),
                }
            });
            descriptor.entries = entries.collect();
        } else if let Some(hits) = word.strip_prefix('*') {
            let hits: i128 = hits.parse().expect("hits");
            descriptor.is_negative_hits = hits < 0;
            descriptor.hits_addend = Some(hits.unsigned_abs().try_into().expect("hits"));
        } else {
            let limit = word.strip_prefix('@').expect("@requests/unit");
            let (requests, unit) = limit.split_once('/').expect("requests/unit");
            let named = Unit::ALL.iter().find(|(name, _)| *name == unit);
            descriptor.limit = Some(LimitOverride {
                requests_per_unit: requests.parse().expect("a number"),
                unit: named.map_or_else(|| unit.parse().expect("a unit"), |it| it.1.into()),
            });
        }
    }
    descriptor
}

/// `OK: OVER 0/5, OK 3/10, OK -, OK inf`.
fn said(response: &RateLimitResponse) -> String {
    let statuses: Vec<String> = response.statuses.iter().map(said_status).collect();
    format!("{}: {}", code(response.overall_code), statuses.join(", "))
}

fn code(code: i32) -> &'static str {
    match Code::try_from(code).expect("a code") {
        Code::Unknown => "UNKNOWN",
        Code::Ok => "OK",
        Code::OverLimit => "OVER",
    }
}

fn said_status(status: &DescriptorStatus) -> String {
    let remaining = status.limit_remaining;
    let numbers = match &status.current_limit {
        Some(limit) => format!("{remaining}/{}", limit.requests_per_unit),
        None if remaining == u32::MAX => "inf".into(),
        None => "-".into(),
    };
    format!("{} {numbers}", code(status.code))
}

#[test]
fn metadata_has_the_request_and_what_limits_with_room_say() {
    let options = Options {
        dynamic_metadata: true,
        ..Options::default()
    };
    let yaml = domain(
        "[{key: a, metadata: {tier: 1, in: {x: y}}, rate_limit: {unit: hour, requests_per_unit: 9}},
          {key: b, metadata: {tier: 2, in: {z: true}}, rate_limit: {unit: hour, requests_per_unit: 1}}]",
    );
    let service = Service::with(&yaml, options, None);
    let text = |request: &str| {
        let metadata = service.ask(&read(request)).dynamic_metadata;
        format!("{:?}", metadata.expect("metadata"))
    };
    let both = text("a=1 *2 @9/hour | a=2 | b=1; *1");
    for part in [
        "StringValue(\"d\")",
        "\"a=1\"",
        "requests_per_unit:9 unit:HOUR",
        "\"hitsAddend\"",
        "\"tier\"",
        "NumberValue(1.0)",
        "\"z\"",
    ] {
        assert!(both.contains(part), "{part}: {both}");
    }
    let over = text("b=1");
    assert!(!over.contains("tier"), "{over}");
}

#[test]
fn s11_drop_in_decisions_are_recorded_and_their_keys_counted() {
    let file = std::env::temp_dir().join(format!("tidegate-s11-{}.jsonl", std::process::id()));
    let redaction = Arc::new(Redaction::new(None));
    let recorder = Recorder::open(&file, 1 << 20, Arc::clone(&redaction)).expect("a file");
    let service = Service::new(&domain(
        "[{key: ip, rate_limit: {unit: hour, requests_per_unit: 1}}]",
    ));
    let engine = service.engine.recording(redaction, Some(recorder));
    let service = Service { engine, ..service };
    assert_eq!(service.say("ip=1"), "OK: OK 0/1");
    service.engine.finish_record();
    let text = std::fs::read_to_string(&file).expect("a record");
    std::fs::remove_file(&file).expect("a record");
    let recorded = text.lines().count();
    assert!(recorded == 1, "recorded {recorded} of 1 decisions");
    let current = service.engine.current();
    let top = current.top("envoy").expect("limits");
    let most = top.most(By::Requests, Since::Minute, 2).keys;
    let keys: Vec<&str> = most.iter().map(|key| &*key.values[0]).collect();
    assert_eq!(keys, ["d~ip~1"]);
}
