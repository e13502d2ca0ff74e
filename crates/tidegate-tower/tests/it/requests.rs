//! Requests through the layer, as data, over memory and over Redis.
//!
//! `requests.txt` holds the cases. A case is `--- ` and its title, the policies as in a config
//! file, a line `layer` (two, if one is around the other), and steps. It runs in memory, as it
//! is and with a wait of no time (which takes a layer of one policy off its shorter way), and
//! in Redis. Times of a few minutes less than some days are written as
//! those days, and spaces inside a value as their picture (U+2420).
//!
//! A layer has policies, keys (`name=source`, and after `?` what happens without a value),
//! and options (`+name:value`). A step is one of these:
//!
//! | step | what comes of it |
//! | --- | --- |
//! | `3x GET / name:value from=10.0.0.1` | the statuses, then header fields and body of the last response; may be cut off at ` \| ` |
//! | `used p k=x` | what the policy has counted |
//! | `keys` | how many keys the store holds |
//! | `build` | the error |
//!
//! `keys.txt` holds what requests are counted by, in the same language.

use std::collections::HashMap;
use std::fmt::{Debug, Write as _};
use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tidegate::{Cost, MemoryStore, Policy, PolicyLimiter};
use tidegate_config::Config;
use tidegate_testkit::cases::controls;
use tidegate_testkit::redis::Server;
use tidegate_tower::{Key, LayerPolicy, Proxies, RateLimitBuilder, RateLimitLayer};
use tower::{Layer, Service};

use crate::shared::{PATIENT, store};
use crate::support::{Body, count_keys, hello, is_counted, one_policy, request, send};

const CASES: &str = include_str!("requests.txt");
const KEYS: &str = include_str!("keys.txt");

/// Load balancers, and a CDN before them: `ours`.
const OURS: [&str; 3] = ["10.0.0.0/8", "198.51.100.0/24", "fd00::/8"];

/// Found by [`Key::extension`].
#[derive(Clone)]
struct User(String);

struct Case {
    title: &'static str,
    policies: String,
    layers: Vec<&'static str>,
    steps: Vec<&'static str>,
}

fn cases() -> Vec<Case> {
    let cases = CASES.split("\n--- ").skip(1).map(|case| {
        let (title, case) = case.split_once('\n').expect(case);
        let lines = case.lines().filter(|line| !line.is_empty());
        let (steps, lines): (Vec<_>, Vec<_>) = lines.partition(|line| line.contains(" -> "));
        let (layers, policies): (Vec<&str>, Vec<_>) = lines
            .into_iter()
            .partition(|line| line.starts_with("layer "));
        Case {
            title,
            policies: policies.join("\n"),
            layers: layers.iter().map(|line| &line["layer ".len()..]).collect(),
            steps,
        }
    });
    cases.collect()
}

/// The policies of a case, by name.
type Limiters = HashMap<String, LayerPolicy>;

/// Limiters over one store.
fn limiters(config: Config, over: impl Fn(Policy) -> LayerPolicy) -> Limiters {
    let policies = config.policies.into_iter();
    let limiters = policies.map(|policy| (policy.name().to_owned(), over(policy)));
    limiters.collect()
}

/// Runs each case on limiters of its own.
async fn run(
    limiters: impl Fn(Config) -> Limiters,
    change: impl Fn(RateLimitBuilder) -> RateLimitBuilder,
    keys: impl Fn(&Limiters) -> usize,
) {
    let (mut wrong, mut count) = (String::new(), 0);
    for case in cases() {
        let config: Config = case.policies.parse().expect(case.title);
        let limiters = limiters(config);
        let layers = case.layers.iter();
        let layers = layers.map(|text| layer(&limiters, &change, text).build());
        let failed = match layers.collect::<Result<Vec<_>, _>>().as_deref() {
            Err(error) => compare(case.steps[0], |_| error.to_string()),
            Ok([one]) => take(&case, one.layer(hello()), &limiters, &keys).await,
            Ok([outer, inner]) => {
                take(&case, outer.layer(inner.layer(hello())), &limiters, &keys).await
            }
            Ok(_) => panic!("one or two layers: {}", case.title),
        };
        if !failed.is_empty() {
            write!(wrong, "--- {}\n{failed}", case.title).expect("text");
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "otherwise than written:\n{wrong}");
    assert!(count > 35, "only {count} cases: is requests.txt cut off?");
}

fn compare(line: &str, answer: impl FnOnce(&str) -> String) -> String {
    let (step, expected) = line.split_once(" -> ").expect(line);
    let got = answer(step);
    let rest = got.strip_prefix(expected);
    match rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" | ")) {
        true => String::new(),
        false => format!("{step} -> {got}\n   instead of {expected}\n"),
    }
}

async fn take<B: http_body::Body<Error: Debug>>(
    case: &Case,
    mut service: impl Service<Request<Body>, Response = Response<B>, Error: Debug>,
    limiters: &Limiters,
    keys: impl Fn(&Limiters) -> usize,
) -> String {
    let mut failed = String::new();
    for line in &case.steps {
        let step = line.split(" -> ").next().expect("a step");
        let words: Vec<&str> = step.split(' ').collect();
        let got = match words[0] {
            "used" => used(&limiters[words[1]], &words[2..]).await.to_string(),
            "keys" => keys(limiters).to_string(),
            _ => ask(&mut service, &words).await,
        };
        failed += &compare(line, |_| got);
    }
    failed
}

async fn ask<B: http_body::Body<Error: Debug>>(
    service: &mut impl Service<Request<Body>, Response = Response<B>, Error: Debug>,
    words: &[&str],
) -> String {
    let (times, words) = match words[0].strip_suffix('x') {
        Some(times) => (times.parse().expect("a number"), &words[1..]),
        None => (1, words),
    };
    let (mut statuses, mut last) = (String::new(), None);
    for _ in 0..times {
        let headers: Vec<(&str, String)> = words[2..]
            .iter()
            .filter_map(|word| word.split_once(':').filter(|(name, _)| !name.contains('=')))
            .map(|(name, value)| (name, controls(value)))
            .collect();
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, it)| (*name, &**it)).collect();
        let mut request = request(words[1], &headers);
        *request.method_mut() = words[0].parse().expect("a method");
        for word in &words[2..] {
            if let Some(peer) = word.strip_prefix("from=") {
                let peer: IpAddr = peer.parse().expect("an address");
                request
                    .extensions_mut()
                    .insert(SocketAddr::new(peer, 4_000));
            } else if let Some(user) = word.strip_prefix("user=") {
                request.extensions_mut().insert(User(user.to_owned()));
            }
        }
        let answer = send(service, request).await;
        write!(statuses, "{} ", answer.status.as_u16()).expect("text");
        last = Some(answer);
    }
    let last = last.expect("a request");
    let mut fields: Vec<String> = last
        .headers
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().expect("text")))
        // Details that tonic's own reader checks elsewhere.
        .filter(|field| !field.starts_with("grpc-status-details") && !field.contains("pushback"))
        .collect();
    fields.sort_unstable();
    let parts = [statuses.trim_end().to_owned()];
    let parts = parts.into_iter().chain(fields).chain([last.body]);
    let parts: Vec<String> = parts.filter(|part| !part.is_empty()).collect();
    in_days(&parts.join(" | "))
}

/// Numbers of seconds that are some days, or up to ten minutes less, as those days.
fn in_days(text: &str) -> String {
    let mut parts = Vec::new();
    for part in text.split_inclusive(|character: char| !character.is_ascii_digit()) {
        let digits = part.trim_end_matches(|character: char| !character.is_ascii_digit());
        match digits.parse::<u64>() {
            Ok(number) if number > 80_000 && number.div_ceil(86_400) * 86_400 - number < 600 => {
                let rest = &part[digits.len()..];
                parts.push(format!("{}d{rest}", number.div_ceil(86_400)));
            }
            _ => parts.push(part.to_owned()),
        }
    }
    parts.concat()
}

async fn used(limiter: &LayerPolicy, attributes: &[&str]) -> u32 {
    let attributes = attributes.iter().map(|word| {
        let (name, value) = word.split_once('=').expect(word);
        (name, controls(value))
    });
    let attributes: Vec<(&str, String)> = attributes.collect();
    let look = match limiter {
        LayerPolicy::Memory(limiter) => limiter.peek(&attributes, Cost::ONE).ok(),
        LayerPolicy::Redis(limiter) => limiter.peek(&attributes, Cost::ONE).await.ok(),
        _ => panic!("neither memory nor Redis"),
    };
    let look = look.expect("an answer");
    look.limit() - look.remaining()
}

fn layer(
    limiters: &Limiters,
    change: impl Fn(RateLimitBuilder) -> RateLimitBuilder,
    text: &'static str,
) -> RateLimitBuilder {
    let mut words = text.split(' ');
    let policies = words.next().expect("policies").split(',');
    let mut policies = policies.map(|name| limiters[name].clone());
    let layer = RateLimitLayer::builder(policies.next().expect("a policy"));
    with_words(
        change(policies.fold(layer, RateLimitBuilder::policy)),
        words,
    )
}

fn with_words(
    layer: RateLimitBuilder,
    words: impl Iterator<Item = &'static str>,
) -> RateLimitBuilder {
    words.fold(layer, |layer, word| match word.strip_prefix('+') {
        Some(option) => with_option(layer, option),
        None => {
            let (name, source) = word.split_once('=').expect(word);
            layer.key(name, key(source))
        }
    })
}

fn key(text: &'static str) -> Key {
    let (source, missing) = text.split_once('?').unwrap_or((text, ""));
    let (kind, value) = source.split_once(':').unwrap_or((source, ""));
    let key = match kind {
        "address" => Key::address(),
        "peer" => Key::peer_address(),
        "header" => Key::header(value.parse().expect(value)),
        "bearer" => Key::bearer_token(),
        "method" => Key::method(),
        "path" => {
            let (path, name) = value.rsplit_once(':').expect(value);
            Key::path_parameter(path, name)
        }
        "user" => Key::extension(|user: &User| Some(user.0.clone())),
        "query" => Key::function(|head| head.uri.query().map(str::to_owned)),
        "hashed" => Key::function(move |_| Some(value)).hashed(),
        _ => panic!("unknown source {source:?}"),
    };
    match missing.split_once(':').unwrap_or((missing, "")) {
        ("", _) => key,
        ("skip", _) => key.or_skip(),
        ("refuse", _) => key.or_refuse(),
        ("shared", value) => key.or_shared(value),
        _ => panic!("unknown way {missing:?}"),
    }
}

fn with_option(layer: RateLimitBuilder, option: &'static str) -> RateLimitBuilder {
    let (name, value) = option.split_once(':').unwrap_or((option, ""));
    match name {
        "cost" => {
            let (path, cost) = value.split_once('=').expect(value);
            let cost = Cost::of(cost.parse().expect(value));
            layer.cost(move |head| match head.uri.path() == path {
                true => cost,
                false => Cost::ONE,
            })
        }
        "skip" => layer.skip(move |head| head.uri.path() == value || head.method == value),
        "refund" => {
            let status: StatusCode = value.parse().expect(value);
            layer.refund(move |response| response.status == status)
        }
        "exempt" => layer.exempt_addresses([value]),
        "exempt-token" => layer.exempt_tokens([value]),
        "xff" => layer.proxies(Proxies::x_forwarded_for(networks(value))),
        "forwarded" => layer.proxies(Proxies::forwarded(networks(value))),
        "ipv6" => layer.ipv6_prefix(value.parse().expect(value)),
        "peer" => {
            let peer: IpAddr = value.parse().expect(value);
            layer.peer(move |_| Some(peer))
        }
        "wait" => layer.wait(Duration::from_secs(60), 1, |_| std::future::ready(())),
        _ => panic!("unknown option {option:?}"),
    }
}

fn networks(text: &'static str) -> Vec<&'static str> {
    match text {
        "ours" => OURS.to_vec(),
        network => vec![network],
    }
}

#[tokio::test]
async fn keys() {
    let rows = KEYS.lines().filter(|line| line.contains(" -> "));
    let values = rows.clone().filter_map(|row| row.split(" -> ").nth(1));
    let mut wrong = String::new();
    for row in rows.clone() {
        let text = row.split(" -> ").next().expect(row);
        let [_, keys, words] = text.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("three columns: {row}");
        };
        let limiter = one_policy(1);
        let layer = RateLimitLayer::builder(limiter.clone());
        let got = match with_words(layer, keys.split(' ')).build() {
            Err(error) => error.to_string(),
            Ok(layer) => {
                let words: Vec<&str> = words.split(' ').collect();
                let answer = ask(&mut layer.layer(hello()), &words).await;
                assert!(answer.starts_with("200"), "{row}: {answer}");
                let mut counted = values.clone().filter(|value| is_counted(&limiter, value));
                match count_keys(&limiter) {
                    0 => "nothing".to_owned(),
                    1 => counted.next().unwrap_or("another value").to_owned(),
                    several => format!("{several} keys"),
                }
            }
        };
        wrong += &compare(row, |_| got);
    }
    assert!(wrong.is_empty(), "otherwise than written:\n{wrong}");
    assert!(rows.count() > 110, "is keys.txt cut off?");
}

fn in_memory(config: Config) -> Limiters {
    let store = MemoryStore::builder().max_keys(1_000).build();
    limiters(config, |policy| {
        let limiter = PolicyLimiter::over(&store, policy);
        limiter.expect("policies in memory").into()
    })
}

fn keys_in_memory(limiters: &Limiters) -> usize {
    match limiters.values().next() {
        Some(LayerPolicy::Memory(limiter)) => count_keys(limiter),
        _ => panic!("not in memory"),
    }
}

#[tokio::test]
async fn memory() {
    run(in_memory, |layer| layer, keys_in_memory).await;
}

#[tokio::test]
async fn memory_with_a_wait_of_no_time() {
    let wait = |layer: RateLimitBuilder| layer.wait(Duration::ZERO, 0, |_| pending());
    run(in_memory, wait, keys_in_memory).await;
}

#[tokio::test]
async fn redis() {
    let server = Server::start();
    let over = |config: Config| {
        redis::cmd("FLUSHALL").exec(&mut server.connect()).unwrap();
        let store = store(&server, PATIENT);
        limiters(config, |policy| {
            let limiter = tidegate_redis::PolicyLimiter::over(store.clone(), policy);
            limiter.expect("policies without files").into()
        })
    };
    let keys = |_: &Limiters| redis::cmd("DBSIZE").query(&mut server.connect()).unwrap();
    run(over, |layer| layer, keys).await;
}
