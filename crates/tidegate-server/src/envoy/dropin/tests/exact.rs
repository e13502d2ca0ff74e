//! Limits with `algorithm`: refusals charge nothing, and descriptors are charged all or
//! none.

use tidegate::Algorithm;

use super::{Service, domain};
use crate::envoy::rules::Defaults;

const LIMITS: &str = "
  - {key: two, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: five, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: none, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: q1, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: q2, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: counted, rate_limit: {unit: minute, requests_per_unit: 1, algorithm: fixed_window}}
";

fn exact(algorithm: Algorithm) -> Service {
    let service = Service::new("domain: d\n");
    let defaults = Defaults {
        algorithm,
        ..Defaults::default()
    };
    service.change(&domain(LIMITS), &defaults);
    service
}

fn steps(algorithm: Algorithm, steps: &[(&str, &str)]) {
    let service = exact(algorithm);
    for (request, expected) in steps {
        match request.strip_prefix('+') {
            Some(seconds) => service.advance(seconds.parse().expect("seconds")),
            None => assert_eq!(service.say(request), *expected, "{algorithm} {request}"),
        }
    }
}

const EXACT: [Algorithm; 2] = [Algorithm::TokenBucket, Algorithm::SlidingLog];

#[test]
fn refusal_charges_nothing() {
    for algorithm in EXACT {
        steps(
            algorithm,
            &[
                ("five=1 *4", "OK: OK 1/5"),
                ("five=1 *2", "OVER: OVER 0/5"),
                ("five=1", "OK: OK 0/5"),
                ("five=1 *0", "OK: OK 0/5"),
                ("five=1", "OVER: OVER 0/5"),
            ],
        );
    }
}

#[test]
fn descriptors_are_charged_all_or_none() {
    for algorithm in EXACT {
        steps(
            algorithm,
            &[
                ("two=1 *2 | five=1", "OK: OK 0/2, OK 4/5"),
                ("five=1 | two=1", "OVER: OK 3/5, OVER 0/2"),
                ("five=1 *0", "OK: OK 4/5"),
                ("five=1 *4 | counted=1", "OK: OK 0/5, OK 0/1"),
                ("five=2 *4 | counted=1", "OVER: OK 1/5, OVER 0/1"),
                ("five=2 *0", "OK: OK 5/5"),
                ("five=3 | none=1", "OVER: OK 4/5, OVER 0/0"),
                ("five=3 *0", "OK: OK 5/5"),
            ],
        );
    }
}

#[test]
fn shadow_and_quotas_do_not_undo_charges() {
    for algorithm in EXACT {
        steps(
            algorithm,
            &[
                ("shadow=1 *2 | five=1", "OK: OK 0/1, OK 4/5"),
                ("five=1 *0", "OK: OK 4/5"),
                ("q1=1 | q2=1", "OK: OK 0/1, OK 2/3"),
                ("q1=1 | q2=1", "OK: OVER 0/1, OK 1/3"),
                ("q2=1 *0", "OK: OK 1/3"),
                ("q1=1 | q2=1 *2", "OVER: OVER 0/1, OVER 0/3"),
                ("q2=1 *0", "OK: OK 1/3"),
            ],
        );
    }
}

#[test]
fn no_burst_across_the_edge_of_a_window() {
    // 40 s into a minute.
    let counted = [
        ("two=1 *2", "OK: OK 0/2"),
        ("+20", ""),
        ("two=1 *2", "OK: OK 0/2"),
    ];
    steps(Algorithm::FixedWindow, &counted);
    let log = [
        ("two=1 *2", "OK: OK 0/2"),
        ("+20", ""),
        ("two=1 *2", "OVER: OVER 0/2"),
        ("+40", ""),
        ("two=1 *2", "OK: OK 0/2"),
    ];
    steps(Algorithm::SlidingLog, &log);
    let bucket = [
        ("two=1 *2", "OK: OK 0/2"),
        ("+20", ""),
        ("two=1", "OVER: OVER 0/2"),
        ("+10", ""),
        ("two=1", "OK: OK 0/2"),
    ];
    steps(Algorithm::TokenBucket, &bucket);
}

#[test]
fn limit_of_its_own_algorithm_and_burst() {
    let service = Service::new(&domain(
        "[{key: a, rate_limit: {unit: minute, requests_per_unit: 6, algorithm: token_bucket, burst: 2}},
          {key: b, rate_limit: {unit: minute, requests_per_unit: 6}}]",
    ));
    assert_eq!(service.say("a=1 *2 | b=1 *2"), "OK: OK 0/6, OK 4/6");
    assert_eq!(service.say("a=1"), "OVER: OVER 0/6");
    service.advance(10);
    assert_eq!(service.say("a=1"), "OK: OK 0/6");
}

#[test]
fn changed_limit_keeps_its_charges() {
    let defaults = Defaults {
        algorithm: Algorithm::SlidingLog,
        ..Defaults::default()
    };
    let service = Service::new("domain: d\n");
    let limit = |requests: u32| {
        domain(&format!(
            "[{{key: a, rate_limit: {{unit: hour, requests_per_unit: {requests}}}}}]"
        ))
    };
    service.change(&limit(3), &defaults);
    assert_eq!(service.say("a=1 *3"), "OK: OK 0/3");
    service.change(&limit(5), &defaults);
    assert_eq!(service.say("a=1"), "OK: OK 1/5");
}
