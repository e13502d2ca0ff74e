//! What nginx does while tidegate cannot be asked: the line in `server.conf` decides.

use std::time::{Duration, Instant};

use super::proxy::{Change, Nginx};
use super::tidegate::{Tidegate, default_policy};
use tidegate_testkit::http::{get, statuses};
use tidegate_testkit::process::free_port;

/// The one line that decides.
const CLOSED: Change<'static> = (
    "error_page 500 502 503 504 = @tidegate_open;",
    "error_page 500 502 503 504 = @tidegate_closed;",
);

#[test]
fn requests_pass_while_tidegate_is_gone() {
    let mut tidegate = Tidegate::example();
    let nginx = Nginx::start(&tidegate);
    assert_eq!(statuses(nginx.port(), "/", 6)[5], 429);
    tidegate.process().kill();
    let response = get(nginx.port(), "/");
    assert_eq!((response.status, response.text()), (200, "hello\n"));
    assert_eq!(response.header("RateLimit"), None);
    assert_eq!(statuses(nginx.port(), "/", 10), [200; 10]);
    let forbidden = get(nginx.port(), "/login/forbidden");
    assert_eq!(forbidden.text(), "the application says no\n");
    assert!(nginx.errors().contains("connect() failed"), "it is noticed");
}

#[test]
fn requests_are_answered_with_503_while_tidegate_is_gone_if_that_is_chosen() {
    let mut tidegate = Tidegate::example();
    let nginx = Nginx::start_with(&[&tidegate.address()], &[CLOSED]);
    assert_eq!(get(nginx.port(), "/").status, 200);
    tidegate.process().kill();
    let response = get(nginx.port(), "/");
    assert_eq!(response.status, 503);
    assert_eq!(response.json()["status"], 503);
    assert_eq!(response.header("RateLimit"), None);
    assert_eq!(statuses(nginx.port(), "/", 10), [503; 10]);
    assert_eq!(get(nginx.port(), "/health").status, 200);
}

/// No quota is used up, so there are no quota headers.
#[test]
fn requests_get_503_while_the_store_of_a_policy_that_denies_is_down() {
    let store = format!(
        "[stores.default]\nurl = \"redis://127.0.0.1:{}\"\n",
        free_port()
    );
    let policy = default_policy("{ip}", "5r/m") + "on_error = \"deny\"\n";
    let tidegate = Tidegate::start(&(store + &policy));
    let nginx = Nginx::start(&tidegate);
    let response = get(nginx.port(), "/");
    assert_eq!(response.status, 503, "{}", response.text());
    assert_eq!(response.json()["status"], 503);
    assert!(response.header("Retry-After").is_some());
    assert_eq!(response.header("RateLimit"), None);
    assert_eq!(response.header("RateLimit-Policy"), None);
}

#[test]
fn a_tidegate_that_is_back_is_asked_again() {
    let policies = default_policy("{ip}", "2r/m");
    // A port that nobody takes while nobody listens on it.
    let address = format!("127.0.0.1:{}", free_port());
    let mut first = Tidegate::start_with(&policies, &["--http", &address]);
    let nginx = Nginx::start_with(&[&address], &[]);
    // Connections that are kept open, and whose other end is then another process.
    assert_eq!(statuses(nginx.port(), "/", 4), [200, 200, 429, 429]);
    first.process().kill();
    let _second = Tidegate::start_with(&policies, &["--http", &address]);
    assert_eq!(statuses(nginx.port(), "/", 4), [200, 200, 429, 429]);
}

#[test]
fn of_two_tidegates_one_may_go() {
    let (mut first, second) = (Tidegate::example(), Tidegate::example());
    let upstream = [&*first.address(), &*second.address()];
    let nginx = Nginx::start_with(&upstream, &[CLOSED]);
    first.process().kill();
    let mut expected = vec![200; 5];
    expected.extend([429; 5]);
    assert_eq!(statuses(nginx.port(), "/", 10), expected);
}

#[test]
fn invalid_question_lets_no_request_pass() {
    // Neither a policy that is not there, nor an attribute that the policy needs.
    let tidegate = Tidegate::example();
    let nginx = Nginx::start_location(
        &tidegate,
        "location /unknown {
             set $tidegate_policy nothing;
             include tidegate/limit.conf;
             proxy_pass http://127.0.0.1:8001;
         }
         location /keyless {
             set $tidegate_policy token;
             include tidegate/limit.conf;
             proxy_pass http://127.0.0.1:8001;
         }",
    );
    assert_eq!(get(nginx.port(), "/unknown").status, 500);
    assert_eq!(get(nginx.port(), "/keyless").status, 500);
    let errors = nginx.errors();
    for status in ["404", "400"] {
        let line = format!("auth request unexpected status: {status}");
        assert!(errors.contains(&line), "{errors}");
    }
}

/// How long nginx waits.
mod timing {
    use super::*;

    #[test]
    fn a_tidegate_that_stands_still_is_not_waited_for() {
        for (changes, expected) in [(&[][..], 200), (&[CLOSED][..], 503)] {
            let mut tidegate = Tidegate::example();
            let nginx = Nginx::start_hasty(&[&tidegate.address()], changes);
            tidegate.process().signal("STOP");
            let start = Instant::now();
            assert_eq!(get(nginx.port(), "/").status, expected);
            let waited = start.elapsed();
            // Unless told otherwise, nginx waits for a minute.
            assert!(waited < Duration::from_secs(10), "{waited:?}");
        }
    }
}
