//! What `nginx -t` accepts, and what it says of everything else.

use crate::nginx::{FIRST_LINE, check};

#[test]
fn every_directive_and_option_is_accepted() {
    let (accepted, said) = check(
        "tidegate_store default redis://127.0.0.1:6379/0;
         tidegate_store other rediss://user:secret@redis.example:6380/1 timeout=20ms prefix=a:b;
         tidegate_store cluster redis-cluster://10.0.0.1:7000,10.0.0.2:7000;
         tidegate_zone a key=$binary_remote_addr rate=100r/s;
         tidegate_zone b key=$binary_remote_addr$uri rate=5/10s burst=20 algorithm=token_bucket mode=local size=1m;
         tidegate_zone c key=constant rate=1000r/d algorithm=fixed_window store=none size=300K;
         tidegate_zone d \"key=$http_x_api_key and $arg_a\" rate=3/500ms algorithm=sliding_window;
         tidegate_zone e key=$remote_addr rate=100r/m store=other;
         tidegate_zone f key=$remote_addr rate=100r/m mode=exact on_error=deny;
         tidegate_zone g key=$remote_addr rate=100r/m mode=lease store=cluster on_error=local;
         tidegate_zone h key=$remote_addr rate=100r/m mode=background on_error=allow;
         tidegate a; tidegate_status 503; tidegate_headers x-ratelimit; tidegate_dry_run on; tidegate_log_level info;
         server {
             tidegate b; tidegate c cost=5; tidegate_headers draft-06;
             location / { tidegate later; tidegate d cost=$arg_cost; tidegate_headers off; tidegate_dry_run off; }
             location /off { tidegate off; tidegate_status 444; tidegate_headers ietf; tidegate_log_level error; }
         }
         tidegate_zone later key=$remote_addr rate=1r/h;",
    );
    assert!(accepted, "{said}");
}

/// The content of `http`, the line of the mistake in it, and the error message.
const WRONG: &[(&str, usize, &str)] = &[
    (
        "tidegate_store a;",
        1,
        "invalid number of arguments in \"tidegate_store\" directive",
    ),
    (
        "tidegate_store a http://x;",
        1,
        "tidegate_store: not a Redis URL: expected \"redis://host:port/database\"",
    ),
    (
        "tidegate_store a/b redis://x;",
        1,
        "tidegate_store: \"a/b\": expected 1 to 64 of the characters A-Z a-z 0-9 _ -",
    ),
    (
        "tidegate_store a redis://x timeout=0s;",
        1,
        "\"timeout=0s\": expected a duration from 1ms to 60s, such as 50ms",
    ),
    (
        "tidegate_store a redis://x timeout=50;",
        1,
        "\"timeout=50\": expected a duration",
    ),
    (
        "tidegate_store a redis://x prefix=a/b;",
        1,
        "\"prefix=a/b\": expected 1 to 64 of the characters",
    ),
    (
        "tidegate_store a redis://x fast=1;",
        1,
        "\"fast=1\": expected one of \"timeout=\", \"prefix=\"",
    ),
    (
        "tidegate_store a redis://x;\ntidegate_store a redis://y;",
        2,
        "\"a\": a store of this name exists: expected another",
    ),
    (
        "tidegate_store none redis://x;",
        1,
        "tidegate_store: \"none\": expected another name, because \"store=none\" means no store",
    ),
    (
        "tidegate_zone z key=$uri rate=1r/s;\ntidegate_store default redis://x;",
        2,
        "\"default\": zone \"z\" comes before this store: expected the store first, or mode=local in the zone",
    ),
    (
        "tidegate_zone z;",
        1,
        "invalid number of arguments in \"tidegate_zone\" directive",
    ),
    (
        "tidegate_zone z rate=1r/s;",
        1,
        "tidegate_zone: expected key=EXPRESSION, such as key=$binary_remote_addr",
    ),
    (
        "tidegate_zone z key=$uri size=1m;",
        1,
        "tidegate_zone: expected rate=RATE, such as rate=100r/s",
    ),
    (
        "tidegate_zone z key=$uri rate=10r/fortnight;",
        1,
        "rate=10r/fortnight: ",
    ),
    ("tidegate_zone z key=$uri rate=100;", 1, "rate=100: "),
    ("tidegate_zone z key=$uri rate=0r/s;", 1, "rate=0r/s: "),
    ("tidegate_zone z key=$uri rate=1r/s burst=0;", 1, "burst"),
    (
        "tidegate_zone z key=$uri rate=1r/s burst=many;",
        1,
        "\"burst=many\": expected a number from 1",
    ),
    (
        "tidegate_zone z key=$uri rate=1r/s burst=5 algorithm=fixed_window;",
        1,
        "burst",
    ),
    (
        "tidegate_zone z key=$uri rate=1r/s algorithm=sliding_log;",
        1,
        "\"algorithm=sliding_log\": expected token_bucket, fixed_window or sliding_window",
    ),
    (
        "tidegate_zone z key=$uri rate=1r/s mode=fast;",
        1,
        "\"mode=fast\": expected exact, lease, background or local",
    ),
    (
        "tidegate_zone z key=$uri rate=1r/s mode=lease algorithm=sliding_window;",
        1,
        "lease",
    ),
    (
        "tidegate_zone z key=$uri rate=1r/s mode=local store=a;",
        1,
        "\"store=a\": mode=local asks no store",
    ),
    (
        "tidegate_zone z key=$uri rate=1r/s mode=lease store=none;",
        1,
        "\"store=none\": mode=lease needs a store: expected mode=local",
    ),
    (
        "tidegate_zone z key=$uri rate=1r/s on_error=deny;",
        1,
        "\"on_error=deny\": mode=local asks no store",
    ),
    (
        "tidegate_zone z key=$uri rate=1r/s store=a on_error=maybe;",
        1,
        "\"on_error=maybe\": expected local, allow or deny",
    ),
    (
        "tidegate_zone z key=$uri rate=1r/s size=1;",
        1,
        "\"size=1\": expected a size of at least 128k, such as 10m",
    ),
    (
        "tidegate_zone z key=$uri rate=1r/s size=10q;",
        1,
        "\"size=10q\": expected a size",
    ),
    (
        "tidegate_zone z key=$uri rate=1r/s store=a mode=lease size=1m;",
        1,
        "\"size=1m\": only mode=local uses shared memory: expected that mode, or no size",
    ),
    (
        "tidegate_zone z key=$uri rate=1r/s rate=2r/s;",
        1,
        "\"rate=2r/s\": this option was given before: expected it once",
    ),
    (
        "tidegate_zone z key=$uri rate=1r/s nodelay;",
        1,
        "\"nodelay\": expected one of \"key=\"",
    ),
    (
        "tidegate_zone off key=$uri rate=1r/s;",
        1,
        "\"off\": expected another name",
    ),
    (
        "tidegate_zone z key=$uri rate=1r/s;\ntidegate_zone z key=$uri rate=1r/s;",
        2,
        "\"z\": a zone of this name exists: expected another",
    ),
    (
        "limit_req_zone $uri zone=z:1m rate=1r/s;\ntidegate_zone z key=$uri rate=1r/s;",
        2,
        "the shared memory zone \"z\" is already declared for a different use",
    ),
    (
        "\ntidegate_zone z key=$uri rate=1r/s mode=exact;",
        2,
        "store \"default\" of zone \"z\" is unknown: expected a tidegate_store of this name",
    ),
    (
        "\n\ntidegate nowhere;",
        3,
        "zone \"nowhere\" is unknown: expected a tidegate_zone of this name",
    ),
    (
        "server {\nlocation / {\ntidegate z; tidegate off; } }",
        3,
        "\"off\": expected no other \"tidegate\" beside it",
    ),
    (
        "tidegate z;\ntidegate z;",
        2,
        "\"z\": this zone is here already: expected it once",
    ),
    (
        "tidegate z price=3;",
        1,
        "\"price=3\": expected cost=EXPRESSION",
    ),
    (
        "tidegate z cost=0;",
        1,
        "\"cost=0\": expected a number from 1 to 4294967295",
    ),
    (
        "tidegate z cost=4294967296;",
        1,
        "\"cost=4294967296\": expected a number",
    ),
    (
        "tidegate_status 200;",
        1,
        "tidegate_status: \"200\": expected a status from 400 to 599",
    ),
    (
        "tidegate_status 429;\ntidegate_status 429;",
        2,
        "tidegate_status: is given twice: expected it once",
    ),
    (
        "tidegate_headers all;",
        1,
        "\"all\": expected ietf, x-ratelimit, draft-06 or off",
    ),
    ("tidegate_dry_run yes;", 1, "\"yes\": expected on or off"),
    (
        "tidegate_log_level debug;",
        1,
        "\"debug\": expected info, notice, warn or error",
    ),
];

#[test]
fn wrong_directive_is_refused_with_its_line_its_value_and_what_was_expected() {
    for (http, line, expected) in WRONG {
        let (accepted, said) = check(http);
        assert!(!accepted, "accepted: {http}");
        assert!(
            said.contains(expected),
            "{http}\nexpected: {expected}\nsaid: {said}"
        );
        let place = format!("/nginx.conf:{}", FIRST_LINE + line - 1);
        assert!(
            said.contains(&place),
            "{http}\nexpected: {place}\nsaid: {said}"
        );
    }
}

#[test]
fn unknown_store_is_refused_before_nginx_listens() {
    // An address that no machine has: an nginx that comes to listen there says so.
    let said = |store: &str| {
        let zone = format!("tidegate_zone z key=$uri rate=1r/s store={store};");
        let listen = "server { listen 192.0.2.1:80; }";
        check(&format!("tidegate_store a redis://x;\n{zone}\n{listen}")).1
    };
    assert!(said("a").contains("bind() to"), "{}", said("a"));
    let said = said("nowhere");
    let expected =
        "store \"nowhere\" of zone \"z\" is unknown: expected a tidegate_store of this name";
    assert!(said.contains(expected), "{said}");
    assert!(!said.contains("bind() to"), "{said}");
}

#[test]
fn password_of_a_store_is_not_repeated() {
    let (accepted, said) = check("tidegate_store a redis:/user:secret@x;");
    assert!(!accepted && !said.contains("secret"), "{said}");
}

#[test]
fn unknown_variable_is_refused_by_nginx() {
    let (accepted, said) = check("tidegate_zone z key=$nowhere rate=1r/s;");
    assert!(
        !accepted && said.contains("unknown \"nowhere\" variable"),
        "{said}"
    );
}
