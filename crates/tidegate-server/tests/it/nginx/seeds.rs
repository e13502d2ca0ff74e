//! What published limiters for nginx and Redis show in their manuals, end to end.

use std::time::{Duration, Instant};

use super::proxy::{Change, Nginx};
use super::store;
use super::tidegate::{Tidegate, default_policy};
use tidegate_testkit::http::{Answer, get, send, statuses};
use tidegate_testkit::process::{Folder, free_port};
use tidegate_testkit::redis::Server;

/// Three more headers, with the lines that `limit.conf` asks for in that case.
const MORE_HEADERS: [Change<'static>; 2] = [
    (
        "auth_request_set $tidegate_asked $tidegate_policy;",
        "auth_request_set $tidegate_asked $tidegate_policy;
         auth_request_set $x_limit $upstream_http_x_ratelimit_limit;
         auth_request_set $x_reset $upstream_http_x_ratelimit_reset;
         auth_request_set $x_remaining $upstream_http_x_ratelimit_remaining;
         auth_request_set $x_acme $upstream_http_x_acme_header;",
    ),
    (
        "add_header RateLimit $tidegate_ratelimit always;",
        "add_header RateLimit $tidegate_ratelimit always;
         add_header X-RateLimit-Limit $x_limit always;
         add_header X-RateLimit-Reset $x_reset always;
         add_header X-RateLimit-Remaining $x_remaining always;
         add_header X-Acme-Header $x_acme always;",
    ),
];

/// The values of three headers.
fn values<'r>(response: &'r Answer, names: [&str; 3]) -> [Option<&'r str>; 3] {
    names.map(|name| response.header(name))
}

#[test]
fn login_zone_of_100_requests_per_second() {
    let tidegate = Tidegate::example();
    let nginx = Nginx::start(&tidegate);
    let start = Instant::now();
    let passed: u32 = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| statuses(nginx.port(), "/login", 100)))
            .collect();
        let all = clients.into_iter().map(|client| client.join().unwrap());
        let passed = all.flatten().filter(|&status| status == 200);
        passed.map(|_| 1).sum()
    });
    // What fits at once, and what has come back since.
    let most = 100.0 + 100.0 * start.elapsed().as_secs_f64();
    assert!(passed >= 100, "{passed}");
    assert!(
        f64::from(passed) <= most,
        "bound broken: {passed} of at most {most}"
    );
}

#[test]
fn two_requests_per_minute_refuse_the_third_and_fourth() {
    let policies = default_policy("{ip}", "2r/m");
    for algorithm in ["token_bucket", "sliding_window", "sliding_log"] {
        let policies = format!("{policies}algorithm = \"{algorithm}\"\n");
        let tidegate = Tidegate::start(&policies);
        let nginx = Nginx::start(&tidegate);
        let statuses = [0, 1, 2, 3].map(|number| {
            if number > 0 {
                std::thread::sleep(Duration::from_millis(200));
            }
            get(nginx.port(), "/").status
        });
        assert_eq!(statuses, [200, 200, 429, 429], "{algorithm}");
    }
}

#[test]
fn get_head_and_put_are_keys_of_their_own() {
    let policies = default_policy("{method}", "2r/m");
    let tidegate = Tidegate::start(&policies);
    let nginx = Nginx::start(&tidegate);
    for method in ["GET", "HEAD", "PUT"] {
        let statuses = [(); 4].map(|()| send(nginx.port(), method, "/", &[]).status);
        assert_eq!(statuses, [200, 200, 429, 429], "{method}");
    }
}

#[test]
fn a_resource_and_its_consumers_have_limits_of_their_own() {
    let redis = Server::start();
    let policies = "
        [server]
        gate_headers = [\"resource\", \"consumer\"]
        [[policies]]
        name = \"default\"
        tag = \"{resource}\"
        [[policies.levels]]
        name = \"resource\"
        key = \"{resource}\"
        limit = \"5/10s\"
        algorithm = \"sliding_log\"
        [[policies.levels]]
        name = \"consumer\"
        key = \"{resource}:{consumer}\"
        limit = \"3/10s\"
        algorithm = \"sliding_log\"
    ";
    let tidegate = Tidegate::start(&(store(&redis) + policies));
    let attributes = [
        (
            "proxy_set_header X-Tidegate-Key $tidegate_key;",
            "proxy_set_header X-Tidegate-Resource $resource;
             proxy_set_header X-Tidegate-Consumer $consumer;",
        ),
        (
            "include tidegate/limit.conf;        # 3.",
            "set $resource $arg_resource;
             set $consumer $arg_consumer;
             include tidegate/limit.conf;        # 3.",
        ),
    ];
    let nginx = Nginx::start_with(&[&tidegate.address()], &attributes);
    for (resource, consumer, expected) in [
        (
            12,
            1,
            Ok("\"default.resource\";r=4, \"default.consumer\";r=2"),
        ),
        (
            12,
            1,
            Ok("\"default.resource\";r=3, \"default.consumer\";r=1"),
        ),
        (
            12,
            1,
            Ok("\"default.resource\";r=2, \"default.consumer\";r=0"),
        ),
        (12, 1, Err("consumer")),
        (
            12,
            2,
            Ok("\"default.resource\";r=1, \"default.consumer\";r=2"),
        ),
        (
            12,
            2,
            Ok("\"default.resource\";r=0, \"default.consumer\";r=1"),
        ),
        (12, 2, Err("resource")),
        (12, 3, Err("resource")),
        (
            13,
            1,
            Ok("\"default.resource\";r=4, \"default.consumer\";r=2"),
        ),
    ] {
        let target = format!("/?resource={resource}&consumer={consumer}");
        let response = get(nginx.port(), &target);
        let limit = response.header("RateLimit").unwrap();
        match expected {
            Ok(expected) => {
                assert_eq!(response.status, 200, "{target}");
                let items = limit
                    .split(", ")
                    .map(|item| item.split(";t=").next().unwrap());
                assert_eq!(items.collect::<Vec<_>>().join(", "), expected, "{target}");
            }
            Err(level) => {
                assert_eq!(response.status, 429, "{target}");
                let refused = format!("\"default.{level}\";r=0;");
                assert!(limit.contains(&refused), "{target}: {limit}");
            }
        }
    }
}

#[test]
fn fixed_window_of_three_in_sixty_seconds_leaves_2_1_0() {
    let names = [
        "X-RateLimit-Limit",
        "X-RateLimit-Reset",
        "X-RateLimit-Remaining",
    ];
    let policies = format!(
        "[[policies]]
         name = \"default\"
         key = \"{{ip}}\"
         limit = \"3/60s\"
         algorithm = \"fixed_window\"
         headers = {names:?}
        "
    );
    let tidegate = Tidegate::start(&policies);
    let nginx = Nginx::start_with(&[&tidegate.address()], &MORE_HEADERS);
    for remaining in ["2", "1", "0"] {
        let response = get(nginx.port(), "/");
        assert_eq!(response.status, 200);
        let [limit, reset, left] = values(&response, names);
        assert_eq!((limit, left), (Some("3"), Some(remaining)));
        let reset: u32 = reset.unwrap().parse().unwrap();
        assert!((30..=60).contains(&reset), "{reset}");
    }
    for _ in 0..2 {
        let response = get(nginx.port(), "/");
        assert_eq!(response.status, 429);
        let [limit, reset, left] = values(&response, names);
        assert_eq!((limit, left), (Some("3"), Some("0")));
        assert_eq!(reset, response.header("Retry-After"));
    }
}

#[test]
fn a_script_of_ones_own_renames_a_header() {
    let redis = Server::start();
    let folder = Folder::new();
    let script = folder.root().join("mine.lua");
    let lua = "
        local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
        local used = tonumber(redis.call('GET', KEYS[1]) or 0)
        local verdict = 'block'
        if used < limit then
          verdict, used = 'allow', used + 1
          redis.call('SET', KEYS[1], used, 'EX', window)
        end
        return {verdict, {tostring(limit), {'x-acme-header', '60'}, tostring(limit - used)}}
    ";
    std::fs::write(&script, lua).unwrap();
    let policies = format!(
        "{}
         [[policies]]
         name = \"default\"
         key = \"{{ip}}\"
         algorithm = \"script\"
         script = {script:?}
         args = [10, 60]
         headers = [\"x-ratelimit-limit\", \"x-ratelimit-reset\", \"x-ratelimit-remaining\"]
        ",
        store(&redis)
    );
    let tidegate = Tidegate::start(&policies);
    let nginx = Nginx::start_with(&[&tidegate.address()], &MORE_HEADERS);
    let names = [
        "x-ratelimit-limit",
        "x-acme-header",
        "x-ratelimit-remaining",
    ];
    for left in (0..10).rev() {
        let response = get(nginx.port(), "/");
        assert_eq!(response.status, 200);
        let left = left.to_string();
        assert_eq!(
            values(&response, names),
            [Some("10"), Some("60"), Some(&*left)]
        );
        assert_eq!(response.header("x-ratelimit-reset"), None);
    }
    let refused = get(nginx.port(), "/");
    assert_eq!(refused.status, 429);
    assert_eq!(values(&refused, names), [Some("10"), Some("60"), Some("0")]);
}

#[test]
fn redis_on_a_dead_port_lets_all_pass_and_says_so() {
    let policies = default_policy("{ip}", "2r/m") + "on_error = \"allow\"\n";
    let port = free_port();
    let store = format!("redis://127.0.0.1:{port}/0");
    let tidegate = Tidegate::start_with(&policies, &["--store", &store]);
    let nginx = Nginx::start(&tidegate);
    assert_eq!(statuses(nginx.port(), "/", 20), [200; 20]);
    let nothing_to_say = get(nginx.port(), "/").header("RateLimit").is_none();
    assert!(nothing_to_say, "no numbers where nobody has counted");
    let log = tidegate.log();
    let said = log.lines().find(|line| {
        line.contains("the store") && line.contains("on_error decides") && line.contains("default")
    });
    assert!(said.is_some(), "{log}");
    let failed = tidegate.metric("tidegate_store_errors_total", "");
    assert!(failed >= 20.0, "{failed}");
    assert_eq!(nginx.errors(), "", "to nginx, all is well");
}
