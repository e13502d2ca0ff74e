//! nginx with the module in each mode, beside nginx without a limit, with `limit_req`, with
//! `auth_request` to `tidegate serve`, and with a limiter in Lua that asks Redis: all load a
//! small file by `wrk`, in turns.

mod process;
mod report;

use std::path::Path;
use std::process::Command;

use crate::cpu::Cpu;
use crate::rounds::in_turns;
use crate::server::process::Process;
use process::{Config, Nginx};
use tidegate_testkit::redis::Server;

/// Connections that ask at once.
const CONNECTIONS: usize = 32;

/// How long a measurement lasts, in seconds.
const LENGTH: u32 = 3;
const QUICK: u32 = 1;

/// A directive for a zone that admits everything.
const RATE: &str = "rate=1000000r/s";

/// What a limiter in Lua asks Redis: about the least that a limit needs.
const SCRIPT: &str = "local n = redis.call('INCR', KEYS[1]) if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end return n";

/// What is compared. The order is that of the table.
const LANES: usize = 9;

/// One measurement.
#[derive(Clone, Copy)]
struct Round {
    a_second: f64,
    /// Processor time per request: of nginx, and of what it asks.
    nginx_us: f64,
    others_us: f64,
}

/// An nginx, and the server it asks.
struct Lane {
    label: &'static str,
    nginx: Nginx,
    other: Option<u32>,
}

/// Prints the tables of this part of `docs/benchmarks.md`. `module` is the module for the
/// installed nginx. A quick run only shows that all works.
pub(crate) fn run(module: &Path, quick: bool) {
    println!("{}\n", crate::report::machine());
    let (redis, tidegate) = (Server::start(), Process::tidegate());
    let lanes = lanes(module, &redis, &tidegate);
    let length = if quick { QUICK } else { LENGTH };
    eprintln!("measuring: {LANES} configs of nginx in turns");
    let fared = in_turns(
        lanes
            .each_ref()
            .map(|lane| (lane.label, move || lane.run(length))),
    );
    println!("{}", report::compared(&fared));
    crate::report::print_goals(report::goals(&fared));
}

fn lanes(module: &Path, redis: &Server, tidegate: &Process) -> [Lane; LANES] {
    let store = format!("tidegate_store default {};", redis.url());
    let zone = |label: &'static str, mode: &str, headers: &str, other: Option<u32>| {
        let http = format!(
            "{store} tidegate_zone z key=$binary_remote_addr {RATE} mode={mode}; tidegate_headers {headers};"
        );
        let config = Config::new(&http, "tidegate z;").module(module);
        Lane::start(label, &config, other)
    };
    let limit_req = format!(
        "limit_req_zone $binary_remote_addr zone=z:10m {RATE}; limit_req zone=z burst=1000000 nodelay;"
    );
    let upstream = format!(
        "upstream tidegate {{ server 127.0.0.1:{}; keepalive {CONNECTIONS}; }}",
        tidegate.port()
    );
    let auth_request = "auth_request /tidegate;
        location = /tidegate {
            internal;
            auth_request off;
            proxy_pass http://tidegate/v1/gate/api?deny=403&body=none&key=$remote_addr;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_pass_request_body off;
            proxy_set_header Content-Length \"\";
        }";
    let asks_redis = Some(redis.pid());
    [
        Lane::start("bare", &Config::new("", ""), None),
        Lane::start("`limit_req`", &Config::new(&limit_req, ""), None),
        zone("module, `local`", "local", "off", None),
        zone("module, `local`, with headers", "local", "ietf", None),
        zone("module, `lease`", "lease", "off", asks_redis),
        zone("module, `background`", "background", "off", asks_redis),
        zone("module, `exact`", "exact", "off", asks_redis),
        Lane::start(
            "`auth_request`",
            &Config::new(&upstream, auth_request),
            Some(tidegate.id()),
        ),
        Lane::start(
            "Lua and Redis",
            &Config::new("", &lua(redis)).lua(),
            asks_redis,
        ),
    ]
}

/// A limiter in Lua: one script per request, over connections that stay open.
fn lua(redis: &Server) -> String {
    let port = redis.port().to_string();
    let loaded = Command::new("redis-cli")
        .args(["-p", &port, "SCRIPT", "LOAD", SCRIPT])
        .output();
    let loaded = loaded.expect("redis-cli is installed by `cargo xtask bench nginx`");
    let sha = String::from_utf8(loaded.stdout).expect("a hash");
    let sha = sha.trim();
    assert_eq!(sha.len(), 40, "not a hash: {sha}");
    format!(
        r#"access_by_lua_block {{
            local redis = ngx.socket.tcp()
            redis:settimeout(1000)
            local ok = redis:connect("127.0.0.1", {port})
            if not ok then return ngx.exit(500) end
            local key = "limit:" .. ngx.var.remote_addr
            redis:send("*5\r\n$7\r\nEVALSHA\r\n$40\r\n{sha}\r\n$1\r\n1\r\n$" .. #key .. "\r\n" .. key .. "\r\n$5\r\n60000\r\n")
            local count = redis:receive()
            if not count then return ngx.exit(500) end
            redis:setkeepalive(10000, 100)
            if tonumber(count:sub(2)) > 100000000 then return ngx.exit(429) end
        }}"#
    )
}

impl Lane {
    fn start(label: &'static str, config: &Config, other: Option<u32>) -> Self {
        let nginx = Nginx::start(config);
        Self {
            label,
            nginx,
            other,
        }
    }

    /// Loads it for this many seconds.
    fn run(&self, seconds: u32) -> Round {
        let others: Vec<u32> = self.other.into_iter().collect();
        let before = (Cpu::now(self.nginx.id()), Cpu::of_all(&others));
        let output = Command::new("wrk")
            .args(["--threads", "1", "--connections", &CONNECTIONS.to_string()])
            .args(["--duration", &format!("{seconds}s")])
            .arg(format!("http://127.0.0.1:{}/", self.nginx.port()))
            .output();
        let after = (Cpu::now(self.nginx.id()), Cpu::of_all(&others));
        let output = output.expect("wrk is installed by `cargo xtask bench nginx`");
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(
            !text.contains("Non-2xx") && !text.contains("Socket errors"),
            "{}: not all requests were answered with 200: {text}",
            self.label
        );
        let requests = figure(&text, |line| {
            Some(line.split_once(" requests in ")?.0.trim())
        });
        let a_second = figure(&text, |line| {
            Some(line.strip_prefix("Requests/sec:")?.trim())
        });
        Round {
            a_second,
            nginx_us: after.0.each_since(before.0, requests).server_us,
            others_us: after.1.each_since(before.1, requests).server_us,
        }
    }
}

/// The number in a line of wrk's report.
fn figure(text: &str, find: impl Fn(&str) -> Option<&str>) -> f64 {
    let found = text.lines().find_map(find);
    let number = found.and_then(|found| found.parse().ok());
    number.unwrap_or_else(|| panic!("no figures of wrk: {text}"))
}
