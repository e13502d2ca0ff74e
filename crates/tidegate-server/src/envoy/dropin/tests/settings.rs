//! Settings of the answers, what a change of limits keeps, and errors.

use std::sync::{Arc, Mutex};

use tonic::Code as Grpc;

use super::{Service, domain, read};
use crate::envoy::options::Options;
use crate::envoy::rules::Defaults;
use crate::envoy::tally::{Hits, Tally};
use crate::envoy::wire::{LimitOverride, Unit};

const FIVE: &str = "[{key: a, rate_limit: {unit: minute, requests_per_unit: 5, name: five}}, {key: b, rate_limit: {unit: hour, requests_per_unit: 2}}]";

#[test]
fn status_has_unit_name_and_whole_seconds_until_the_window_ends() {
    let service = Service::new(&domain(FIVE));
    service.clock.advance(std::time::Duration::from_millis(900));
    let answer = service.ask(&read("a=1 | b=1 | nope=1"));
    let [a, b, none] = &answer.statuses[..] else {
        panic!("three statuses");
    };
    let limit = a.current_limit.as_ref().expect("a limit");
    assert_eq!((limit.unit, &*limit.name), (Unit::Minute.into(), "five"));
    // 40 s into the minute, and 46 min 40 s into the hour.
    let seconds =
        |status: &super::DescriptorStatus| status.duration_until_reset.map(|it| it.seconds);
    assert_eq!(seconds(a), Some(20));
    assert_eq!(seconds(b), Some(800));
    assert_eq!(seconds(none), None);
    assert!(answer.response_headers_to_add.is_empty());
    assert_eq!(answer.dynamic_metadata, None);
}

#[test]
fn changed_limit_keeps_its_count() {
    let service = Service::new(&domain(
        "[{key: a, rate_limit: {unit: hour, requests_per_unit: 2}}]",
    ));
    assert_eq!(service.say("a=1 *7"), "OVER: OVER 0/2");
    let raised = domain("[{key: a, rate_limit: {unit: hour, requests_per_unit: 10}}]");
    service.change(&raised, &Defaults::default());
    assert_eq!(service.say("a=1"), "OK: OK 2/10");
    let lowered = domain("[{key: a, rate_limit: {unit: hour, requests_per_unit: 5}}]");
    service.change(&lowered, &Defaults::default());
    assert_eq!(service.say("a=1 *0"), "OVER: OVER 0/5");
    let other = domain("[{key: a, rate_limit: {unit: day, requests_per_unit: 5}}]");
    service.change(&other, &Defaults::default());
    assert_eq!(service.say("a=1"), "OK: OK 4/5");
}

#[test]
fn headers_are_those_of_the_tightest_limit() {
    let options = Options {
        response_headers: true,
        reset_header: "X-Reset".into(),
        ..Options::default()
    };
    let service = Service::with(&domain(FIVE), options, None);
    let headers = |request: &str| {
        let answer = service.ask(&read(request));
        let headers = answer.response_headers_to_add.into_iter();
        let headers = headers.map(|it| format!("{} {}", it.key, it.value));
        headers.collect::<Vec<_>>().join(", ")
    };
    let of_b = "RateLimit-Limit 2, RateLimit-Remaining 1, X-Reset 800";
    assert_eq!(headers("a=1 | b=1"), of_b);
    let of_a = "RateLimit-Limit 5, RateLimit-Remaining 3, X-Reset 20";
    assert_eq!(headers("a=1 | nope=1"), of_a);
    let over = "RateLimit-Limit 5, RateLimit-Remaining 0, X-Reset 20";
    assert_eq!(headers("b=1 | a=1 *9"), over);
    assert_eq!(headers("nope=1"), "");
}

#[test]
fn global_shadow_mode_changes_the_overall_code_alone() {
    let options = Options {
        shadow_mode: true,
        ..Options::default()
    };
    let service = Service::with(&domain(FIVE), options, None);
    assert_eq!(service.say("b=1 *3"), "OK: OVER 0/2");
}

#[test]
fn global_quota_mode_needs_all_over() {
    let options = Options {
        quota_mode: true,
        ..Options::default()
    };
    let service = Service::with(&domain(FIVE), options, None);
    assert_eq!(service.say("a=1 | b=1 *3"), "OK: OK 4/5, OVER 0/2");
    assert_eq!(service.say("nope=1 | b=1"), "OK: OK -, OVER 0/2");
    assert_eq!(service.say("a=1 *9 | b=1"), "OVER: OVER 0/5, OVER 0/2");
}

#[test]
fn others_are_not_charged_when_one_goes_over() {
    let options = Options {
        stop_increment_when_over: true,
        ..Options::default()
    };
    let service = Service::with(&domain(FIVE), options, None);
    assert_eq!(service.say("a=1 | b=1"), "OK: OK 4/5, OK 1/2");
    assert_eq!(service.say("a=1 | b=1 *2"), "OVER: OK 4/5, OVER 0/2");
    assert_eq!(service.say("a=1"), "OK: OK 3/5");
    assert_eq!(service.say("b=1 *0"), "OVER: OVER 0/2");
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
fn bad_override_is_an_error_that_names_it() {
    let service = Service::new(&domain(FIVE));
    let mut request = read("a=1");
    for unit in [0, 8, -1] {
        request.descriptors[0].limit = Some(LimitOverride {
            requests_per_unit: 1,
            unit,
        });
        let status = service.try_ask(&request).expect_err("a bad unit");
        assert_eq!(status.code(), Grpc::InvalidArgument);
        let expected = format!("descriptor.limit.unit: {unit}: expected SECOND (1)");
        assert!(status.message().starts_with(&expected), "{status}");
    }
}

/// Remembers what it was told.
#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Tally for Told {
    fn count(&self, hits: &Hits<'_>) {
        let Hits {
            domain,
            total,
            over_limit,
            near_limit,
            within_limit,
            shadow_mode,
            ..
        } = hits;
        let path = hits.path.join(".");
        self.0.lock().expect("a lock").push(format!(
            "{domain}.{path} total {total} over {over_limit} near {near_limit} within {within_limit} shadow {shadow_mode}"
        ));
    }
}

#[test]
fn hits_are_told_by_limit() {
    let told = Arc::new(Told::default());
    let yaml = domain(
        "[{key: a, rate_limit: {unit: hour, requests_per_unit: 10}},
          {key: s, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}},
          {key: m, detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 9}},
          {key: v, value_to_metric: true, descriptors: [{key: w, value: 'x*', rate_limit: {unit: hour, requests_per_unit: 9}}]},
          {key: f, value: 'x*', share_threshold: true, detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 9}}]",
    );
    let tally: Arc<dyn Tally> = Arc::clone(&told) as Arc<dyn Tally>;
    let service = Service::with(&yaml, Options::default(), Some(tally));
    for (request, expected) in [
        ("a=1 *6", "d.a total 6 over 0 near 0 within 6 shadow 0"),
        ("a=1 *3", "d.a total 3 over 0 near 1 within 3 shadow 0"),
        ("a=1 *3", "d.a total 3 over 2 near 1 within 0 shadow 0"),
        ("a=1 *3", "d.a total 3 over 3 near 0 within 0 shadow 0"),
        ("s=1 *2", "d.s total 2 over 1 near 1 within 0 shadow 2"),
        ("m=7", "d.m_7 total 1 over 0 near 0 within 1 shadow 0"),
        (
            "v=1,w=x2",
            "d.v_1.w_x* total 1 over 0 near 0 within 1 shadow 0",
        ),
        ("f=x1", "d.f_x* total 1 over 0 near 0 within 1 shadow 0"),
        (
            "a=2 @9/hour",
            "d.a_2 total 1 over 0 near 0 within 1 shadow 0",
        ),
    ] {
        service.say(request);
        let last = told.0.lock().expect("a lock").pop();
        assert_eq!(last.as_deref(), Some(expected), "{request}");
    }
    service.say("nope=1");
    assert!(told.0.lock().expect("a lock").is_empty());
}
