//! Requests, as data: `requests.txt` is in the language of [`tidegate_testkit::nginx`].
//!
//! All cases are in one nginx, and before them the file has the policies that the example does
//! not have. Each case is a client of its own: nginx takes its address from `x-client`, and
//! `CLIENT` stands for it. A step `tidegate GET ...` asks tidegate itself.

use super::proxy::{Change, Nginx};
use super::tidegate::{Tidegate, example};
use tidegate_testkit::nginx::cases;
use tidegate_testkit::process::free_port;
use tidegate_testkit::tidegate as server;

const FILE: &str = include_str!("requests.txt");

/// More headers, with the lines that `limit.conf` asks for in that case.
const MORE_HEADERS: [Change<'static>; 2] = [
    (
        "auth_request_set $tidegate_asked $tidegate_policy;",
        "auth_request_set $tidegate_asked $tidegate_policy;
         auth_request_set $x_limit $upstream_http_x_ratelimit_limit;
         auth_request_set $x_reset $upstream_http_x_ratelimit_reset;
         auth_request_set $x_remaining $upstream_http_x_ratelimit_remaining;",
    ),
    (
        "add_header RateLimit $tidegate_ratelimit always;",
        "add_header RateLimit $tidegate_ratelimit always;
         add_header X-RateLimit-Limit $x_limit always;
         add_header X-RateLimit-Reset $x_reset always;
         add_header X-RateLimit-Remaining $x_remaining always;",
    ),
];

#[test]
fn requests_are_answered_as_written() {
    let cases = cases(FILE);
    assert!(cases.len() >= 18, "is requests.txt cut off?");
    let (policies, _) = FILE.split_once("\n--- ").unwrap();
    let policies = policies.replace("DEAD", &format!("127.0.0.1:{}", free_port()));
    let config = std::fs::read_to_string(example("tidegate.toml")).unwrap();
    // A key that the client cannot set is named, too.
    let config = config.replace("\"key\"]", "\"key\", \"user\"]") + &policies;
    let tidegate = Tidegate(server::Tidegate::start(&config));

    let mut locations = String::from("set_real_ip_from 127.0.0.1; real_ip_header X-Client;\n");
    for line in cases.iter().flat_map(|case| &case.config) {
        locations += &format!("{line}\n");
    }
    let locations = format!("{locations}location /health {{");
    let changes = [&MORE_HEADERS[..], &[("location /health {", &locations)]].concat();
    let nginx = Nginx::start_with(&[tidegate.0.address()], &changes).0;
    std::fs::create_dir_all(nginx.folder().path("pages/pages")).unwrap();
    for name in ["index", "missing"] {
        nginx
            .folder()
            .write(&format!("pages/pages/{name}.html"), name);
    }

    let (_, port) = tidegate.0.address().rsplit_once(':').unwrap();
    let port = port.parse().unwrap();
    let wrong = (1..).zip(&cases).map(|(number, case)| {
        let client = format!("198.51.100.{number}");
        case.run(|step| match step.strip_prefix("tidegate ") {
            Some(step) => nginx.answer(port, &step.replace("CLIENT", &client)),
            None if step.starts_with("log ") || step.contains("x-client:") => {
                nginx.answer(nginx.port(), step)
            }
            None => nginx.answer(nginx.port(), &format!("{step} x-client:{client}")),
        })
    });
    let wrong: String = wrong.collect();
    assert!(wrong.is_empty(), "otherwise than written:\n{wrong}");
}
