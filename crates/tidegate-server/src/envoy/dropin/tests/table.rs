//! What envoyproxy/ratelimit is documented to answer, case by case.

use super::{Service, domain};

/// A name, the descriptors, and what happens: `request => response`, or `+seconds`.
type Case = (&'static str, &'static str, &'static [&'static str]);

/// Descriptors for the cases about matching.
const TREE: &str = "
  - {key: path, value: /login, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: path, value: /a/*, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: path, value: /a/b*, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: path, value: /x*y, rate_limit: {unit: hour, requests_per_unit: 4}}
  - {key: path, value: ab*ba, rate_limit: {unit: hour, requests_per_unit: 6}}
  - {key: path, rate_limit: {unit: hour, requests_per_unit: 5}}
  - key: user
    value: root
    descriptors:
      - {key: path, value: /su, rate_limit: {unit: hour, requests_per_unit: 7}}
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 8}
    descriptors:
      - {key: path, rate_limit: {unit: hour, requests_per_unit: 9}}
      - key: path
        value: /deep
        descriptors:
          - {key: method, value: POST, rate_limit: {unit: hour, requests_per_unit: 10}}
  - key: group
    value: g*
    descriptors:
      - {key: path, value: /g, rate_limit: {unit: hour, requests_per_unit: 11}}
  - key: group
    descriptors:
      - {key: path, value: /other, rate_limit: {unit: hour, requests_per_unit: 12}}
  - {key: no_limit}
  - {key: a_b, rate_limit: {unit: hour, requests_per_unit: 13}}
  - {key: lit, value: 'x*', rate_limit: {unit: hour, requests_per_unit: 14}}
";

const COUNTED: &str = "
  - {key: one, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: two, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: five, rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: none, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: max, rate_limit: {unit: hour, requests_per_unit: 4294967295}}
  - {key: half, rate_limit: {window: 30s, requests_per_unit: 1}}
  - {key: sec, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: free, rate_limit: {unlimited: true}}
";

const MODES: &str = "
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: plain, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: q1, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: q2, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: qs, quota_mode: true, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: qf, quota_mode: true, rate_limit: {unlimited: true}}
  - key: backend_name
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 9}
    descriptors:
      - {key: tenant, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
";

const REPLACES: &str = "
  - {key: a, rate_limit: {unit: hour, requests_per_unit: 1, name: a}}
  - {key: b, rate_limit: {unit: hour, requests_per_unit: 2, name: b, replaces: [{name: a}]}}
  - {key: c, rate_limit: {unit: hour, requests_per_unit: 3, name: c, replaces: [{name: b}]}}
  - {key: u, rate_limit: {unlimited: true, name: u, replaces: [{name: a}, {name: c}]}}
  - {key: v, rate_limit: {unit: hour, requests_per_unit: 4, replaces: [{name: u}, {name: nobody}]}}
  - {key: s, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 5, replaces: [{name: a}]}}
";

const SHARED: &str = "
  - {key: f, value: pdf*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: f, value: txt*, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: f, value: 'a*z', share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 2}}
  - key: dir
    value: d*
    share_threshold: true
    descriptors:
      - {key: user, rate_limit: {unit: hour, requests_per_unit: 2}}
";

const CASES: &[Case] = &[
    ("unknown domain", TREE, &["other: path=/login => OK: OK -"]),
    ("exact value", TREE, &["path=/login => OK: OK 0/1"]),
    (
        "exact value is case-sensitive",
        TREE,
        &["path=/Login => OK: OK 4/5"],
    ),
    (
        "bare key for any other value",
        TREE,
        &["path=/other => OK: OK 4/5"],
    ),
    (
        "bare key counts each value by itself",
        TREE,
        &[
            "path=/1 => OK: OK 4/5",
            "path=/2 => OK: OK 4/5",
            "path=/1 => OK: OK 3/5",
        ],
    ),
    (
        "bare key matches an empty value",
        TREE,
        &["path= => OK: OK 4/5"],
    ),
    ("unknown key", TREE, &["nope=1 => OK: OK -"]),
    ("wildcard at the end", TREE, &["path=/a/1 => OK: OK 1/2"]),
    (
        "wildcard matches nothing more",
        TREE,
        &["path=/a/ => OK: OK 1/2"],
    ),
    (
        "wildcard needs its prefix",
        TREE,
        &["path=/a => OK: OK 4/5"],
    ),
    (
        "first wildcard of the file wins",
        TREE,
        &["path=/a/b1 => OK: OK 1/2"],
    ),
    (
        "wildcard counts each value by itself",
        TREE,
        &["path=/a/1 => OK: OK 1/2", "path=/a/2 => OK: OK 1/2"],
    ),
    ("wildcard in the middle", TREE, &["path=/x1y => OK: OK 3/4"]),
    (
        "wildcard in the middle needs its suffix",
        TREE,
        &["path=/x1z => OK: OK 4/5"],
    ),
    (
        "prefix and suffix do not overlap",
        TREE,
        &["path=aba => OK: OK 4/5"],
    ),
    (
        "prefix and suffix may touch",
        TREE,
        &["path=abba => OK: OK 5/6"],
    ),
    (
        "literal value of a wildcard",
        TREE,
        &["lit=x* => OK: OK 13/14"],
    ),
    ("nested", TREE, &["user=root,path=/su => OK: OK 6/7"]),
    (
        "no way back to the bare key",
        TREE,
        &["user=root,path=/else => OK: OK -"],
    ),
    (
        "value without a limit hides the bare key",
        TREE,
        &["user=root => OK: OK -"],
    ),
    ("limit above others", TREE, &["user=ann => OK: OK 7/8"]),
    (
        "nested bare keys",
        TREE,
        &["user=ann,path=/1 => OK: OK 8/9"],
    ),
    (
        "nested value without a limit",
        TREE,
        &["user=ann,path=/deep => OK: OK -"],
    ),
    (
        "three levels",
        TREE,
        &["user=ann,path=/deep,method=POST => OK: OK 9/10"],
    ),
    (
        "three levels, last one unknown",
        TREE,
        &["user=ann,path=/deep,method=GET => OK: OK -"],
    ),
    (
        "more entries than levels",
        TREE,
        &["path=/login,user=ann => OK: OK -"],
    ),
    (
        "more entries than levels, deep",
        TREE,
        &["user=ann,path=/1,method=GET => OK: OK -"],
    ),
    (
        "order of entries matters",
        TREE,
        &["path=/su,user=root => OK: OK -"],
    ),
    (
        "wildcard above others",
        TREE,
        &["group=g1,path=/g => OK: OK 10/11"],
    ),
    (
        "no way back from a wildcard",
        TREE,
        &["group=g1,path=/other => OK: OK -"],
    ),
    (
        "bare key beside a wildcard",
        TREE,
        &["group=h,path=/other => OK: OK 11/12"],
    ),
    (
        "descriptor without a limit",
        TREE,
        &["no_limit=1 => OK: OK -"],
    ),
    ("descriptor without entries", TREE, &[" => OK: OK -"]),
    (
        "key and value are joined by an underscore",
        TREE,
        &["a=b => OK: OK 12/13"],
    ),
    (
        "joined names count apart",
        TREE,
        &["a=b => OK: OK 12/13", "a_b=1 => OK: OK 12/13"],
    ),
    (
        "same descriptor twice counts twice",
        TREE,
        &["path=/1 | path=/1 => OK: OK 4/5, OK 3/5"],
    ),
    (
        "several descriptors",
        TREE,
        &["path=/login | user=ann | nope=1 => OK: OK 0/1, OK 7/8, OK -"],
    ),
    (
        "under the limit",
        COUNTED,
        &["five=1 => OK: OK 4/5", "five=1 => OK: OK 3/5"],
    ),
    (
        "the last one is admitted",
        COUNTED,
        &["one=1 => OK: OK 0/1", "one=1 => OVER: OVER 0/1"],
    ),
    (
        "refused hits count",
        COUNTED,
        &[
            "five=1 *4 => OK: OK 1/5",
            "five=1 *2 => OVER: OVER 0/5",
            "five=1 *0 => OVER: OVER 0/5",
        ],
    ),
    (
        "refused hits count on every descriptor",
        COUNTED,
        &[
            "one=1 | five=1 => OK: OK 0/1, OK 4/5",
            "one=1 | five=1 => OVER: OVER 0/1, OK 3/5",
            "five=1 => OK: OK 2/5",
        ],
    ),
    (
        "one over is enough",
        COUNTED,
        &[
            "one=1 => OK: OK 0/1",
            "five=1 | one=1 | free=1 => OVER: OK 4/5, OVER 0/1, OK inf",
        ],
    ),
    ("limit of zero", COUNTED, &["none=1 => OVER: OVER 0/0"]),
    (
        "look at a limit of zero",
        COUNTED,
        &["none=1 *0 => OK: OK 0/0"],
    ),
    (
        "unlimited",
        COUNTED,
        &["free=1 => OK: OK inf", "free=1 *1000000 => OK: OK inf"],
    ),
    (
        "hits of the request",
        COUNTED,
        &["five=1; *3 => OK: OK 2/5", "five=1; *3 => OVER: OVER 0/5"],
    ),
    (
        "hits of the request on all descriptors",
        COUNTED,
        &["five=1 | five=2; *2 => OK: OK 3/5, OK 3/5"],
    ),
    (
        "no hits of the request mean one",
        COUNTED,
        &["five=1; *0 => OK: OK 4/5"],
    ),
    (
        "hits of the descriptor win",
        COUNTED,
        &["five=1 *2 | five=2; *3 => OK: OK 3/5, OK 2/5"],
    ),
    (
        "no hits of the descriptor are a look",
        COUNTED,
        &["five=1 *0; *3 => OK: OK 5/5", "five=1 => OK: OK 4/5"],
    ),
    (
        "look when full",
        COUNTED,
        &["one=1 => OK: OK 0/1", "one=1 *0 => OK: OK 0/1"],
    ),
    (
        "look when over",
        COUNTED,
        &["one=1 *2 => OVER: OVER 0/1", "one=1 *0 => OVER: OVER 0/1"],
    ),
    (
        "look beside a hit",
        COUNTED,
        &["five=1 *0 | two=1 => OK: OK 5/5, OK 1/2"],
    ),
    (
        "hits at once above the limit",
        COUNTED,
        &["two=1 *3 => OVER: OVER 0/2", "two=1 => OVER: OVER 0/2"],
    ),
    (
        "2^32 hits are not none",
        COUNTED,
        &["five=1 *4294967296 => OVER: OVER 0/5"],
    ),
    (
        "the most hits",
        COUNTED,
        &[
            "five=1 *18446744073709551615 => OVER: OVER 0/5",
            "five=1 => OVER: OVER 0/5",
        ],
    ),
    (
        "the largest limit",
        COUNTED,
        &[
            "max=1 *4294967294 => OK: OK 1/4294967295",
            "max=1 => OK: OK 0/4294967295",
            "max=1 => OVER: OVER 0/4294967295",
        ],
    ),
    (
        "a new window",
        COUNTED,
        &[
            "two=1 *3 => OVER: OVER 0/2",
            "+19",
            "two=1 => OVER: OVER 0/2",
            "+1",
            "two=1 => OK: OK 1/2",
        ],
    ),
    (
        "a new second",
        COUNTED,
        &["sec=1 *2 => OVER: OVER 0/1", "+1", "sec=1 => OK: OK 0/1"],
    ),
    (
        "a window of 30 s",
        COUNTED,
        &[
            "half=1 *2 => OVER: OVER 0/1",
            "+19",
            "half=1 => OVER: OVER 0/1",
            "+1",
            "half=1 => OK: OK 0/1",
        ],
    ),
    (
        "negative hits",
        COUNTED,
        &[
            "five=1 *4 => OK: OK 1/5",
            "five=1 *-3 => OK: OK 4/5",
            "five=1 => OK: OK 3/5",
        ],
    ),
    (
        "negative hits stop at zero",
        COUNTED,
        &[
            "five=1 *2 => OK: OK 3/5",
            "five=1 *-9 => OK: OK 5/5",
            "five=1 *5 => OK: OK 0/5",
        ],
    ),
    (
        "negative hits of nothing",
        COUNTED,
        &["five=1 *-1 => OK: OK 5/5"],
    ),
    (
        "negative hits are never over",
        COUNTED,
        &[
            "one=1 *5 => OVER: OVER 0/1",
            "one=1 *-1 => OK: OK 0/1",
            "one=1 *0 => OVER: OVER 0/1",
            "one=1 *-3 => OK: OK 0/1",
        ],
    ),
    (
        "override",
        COUNTED,
        &[
            "five=1 @2/hour => OK: OK 1/2",
            "five=1 @2/hour => OK: OK 0/2",
            "five=1 @2/hour => OVER: OVER 0/2",
        ],
    ),
    (
        "override where nothing matches",
        COUNTED,
        &[
            "nope=1 @1/hour => OK: OK 0/1",
            "nope=1 @1/hour => OVER: OVER 0/1",
        ],
    ),
    (
        "override needs the domain",
        COUNTED,
        &["other: five=1 @0/hour => OK: OK -"],
    ),
    (
        "override shares the count of its window",
        COUNTED,
        &["five=1 *3 => OK: OK 2/5", "five=1 @9/hour => OK: OK 5/9"],
    ),
    (
        "override with another unit counts apart",
        COUNTED,
        &["five=1 *3 => OK: OK 2/5", "five=1 @9/day => OK: OK 8/9"],
    ),
    (
        "override of an unlimited one",
        COUNTED,
        &["free=1 @1/hour => OK: OK 0/1"],
    ),
    (
        "override to zero",
        COUNTED,
        &["five=1 @0/hour => OVER: OVER 0/0"],
    ),
    (
        "shadow",
        MODES,
        &[
            "shadow=1 => OK: OK 0/1",
            "shadow=1 => OK: OK 0/1",
            "shadow=1 => OK: OK 0/1",
        ],
    ),
    (
        "shadow beside another one",
        MODES,
        &[
            "shadow=1 *5 | plain=1 => OK: OK 0/1, OK 0/1",
            "shadow=1 | plain=1 => OVER: OK 0/1, OVER 0/1",
        ],
    ),
    (
        "override drops shadow",
        MODES,
        &[
            "shadow=1 @1/hour => OK: OK 0/1",
            "shadow=1 @1/hour => OVER: OVER 0/1",
        ],
    ),
    (
        "one quota alone",
        MODES,
        &["q1=1 => OK: OK 0/1", "q1=1 => OVER: OVER 0/1"],
    ),
    (
        "one of two quotas over",
        MODES,
        &[
            "q1=1 | q2=1 => OK: OK 0/1, OK 1/2",
            "q1=1 | q2=1 => OK: OVER 0/1, OK 0/2",
            "q1=1 | q2=1 => OVER: OVER 0/1, OVER 0/2",
        ],
    ),
    (
        "quota over beside a limit",
        MODES,
        &["q1=1 *2 | plain=1 => OVER: OVER 0/1, OK 0/1"],
    ),
    (
        "limit over beside a quota",
        MODES,
        &["q1=1 | plain=1 *2 => OVER: OK 0/1, OVER 0/1"],
    ),
    (
        "quota beside an unknown one",
        MODES,
        &["q1=1 *2 | nope=1 => OVER: OVER 0/1, OK -"],
    ),
    (
        "quota in shadow",
        MODES,
        &["qs=1 *2 | q1=1 *2 => OK: OK 0/1, OVER 0/1"],
    ),
    (
        "unlimited quota has no say",
        MODES,
        &["q1=1 *2 | qf=1 => OVER: OVER 0/1, OK inf"],
    ),
    (
        "quotas of one backend refuse together",
        MODES,
        &["backend_name=x | backend_name=x,tenant=t *2 => OVER: OK 8/9, OVER 0/1"],
    ),
    (
        "another backend has room",
        MODES,
        &["backend_name=x,tenant=t *2 | backend_name=y,tenant=t => OK: OVER 0/1, OK 0/1"],
    ),
    (
        "all backends over",
        MODES,
        &["backend_name=x,tenant=t *2 | backend_name=y,tenant=t *2 => OVER: OVER 0/1, OVER 0/1"],
    ),
    (
        "replaced",
        REPLACES,
        &["a=1 | b=1 => OK: OK -, OK 1/2", "a=1 => OK: OK 0/1"],
    ),
    (
        "replaced, whatever the order",
        REPLACES,
        &["b=1 | a=1 => OK: OK 1/2, OK -"],
    ),
    (
        "not replaced alone",
        REPLACES,
        &["a=1 => OK: OK 0/1", "a=1 => OVER: OVER 0/1"],
    ),
    (
        "replaced ones replace",
        REPLACES,
        &["a=1 | b=1 | c=1 => OK: OK -, OK -, OK 2/3"],
    ),
    (
        "unlimited ones replace",
        REPLACES,
        &["a=1 | u=1 | c=1 => OK: OK -, OK inf, OK -"],
    ),
    (
        "unlimited ones are not replaced",
        REPLACES,
        &["v=1 | u=1 => OK: OK 3/4, OK inf"],
    ),
    (
        "shadow ones replace",
        REPLACES,
        &["s=1 *9 | a=1 => OK: OK 0/5, OK -"],
    ),
    (
        "overrides have no name",
        REPLACES,
        &["a=1 @1/hour | b=1 => OK: OK 0/1, OK 1/2"],
    ),
    (
        "overrides do not replace",
        REPLACES,
        &["a=1 | b=1 @2/hour => OK: OK 0/1, OK 1/2"],
    ),
    (
        "share_threshold",
        SHARED,
        &[
            "f=pdf1 => OK: OK 1/2",
            "f=pdf2 => OK: OK 0/2",
            "f=pdf3 => OVER: OVER 0/2",
        ],
    ),
    (
        "share_threshold in one request",
        SHARED,
        &["f=pdf1 | f=pdf2 | f=pdf3 => OVER: OK 1/2, OK 0/2, OVER 0/2"],
    ),
    (
        "without share_threshold",
        SHARED,
        &["f=txt1 => OK: OK 1/2", "f=txt2 => OK: OK 1/2"],
    ),
    (
        "share_threshold with a * in the middle",
        SHARED,
        &["f=a1z => OK: OK 1/2", "f=a2z => OK: OK 0/2"],
    ),
    (
        "share_threshold above a limit",
        SHARED,
        &[
            "dir=d1,user=u => OK: OK 1/2",
            "dir=d2,user=u => OK: OK 0/2",
            "dir=d2,user=v => OK: OK 1/2",
        ],
    ),
    (
        "share_threshold and an override",
        SHARED,
        &[
            "f=pdf1 @9/hour => OK: OK 8/9",
            "f=pdf2 @9/hour => OK: OK 8/9",
        ],
    ),
];

#[test]
fn documented_behaviour() {
    assert!(CASES.len() >= 90, "{}", CASES.len());
    let mut wrong = Vec::new();
    for (name, descriptors, steps) in CASES {
        let service = Service::new(&domain(descriptors));
        for step in *steps {
            if let Some(seconds) = step.strip_prefix('+') {
                service.advance(seconds.parse().expect("seconds"));
                continue;
            }
            let (request, expected) = step.split_once(" => ").expect("request => response");
            let got = service.say(request);
            if got != expected {
                wrong.push(format!("{name}: {request} => {got}, expected {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
