//! What nginx does while tidegate cannot be asked: the line in `server.conf` decides.

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
fn requests_pass_or_get_503_while_tidegate_is_gone_until_it_is_back() {
    let policies = default_policy("{ip}", "2r/m");
    // A port that nobody takes while nobody listens on it.
    let address = format!("127.0.0.1:{}", free_port());
    let first = Tidegate::start_at(&address, &policies);
    let [open, closed] = [&[][..], &[CLOSED]].map(|it| Nginx::start_with(&[&address], it));
    assert_eq!(statuses(open.port(), "/", 3), [200, 200, 429]);
    assert_eq!(get(closed.port(), "/").status, 429);
    drop(first);

    let response = get(open.port(), "/");
    assert_eq!((response.status, response.text()), (200, "hello\n"));
    assert_eq!(response.header("RateLimit"), None);
    assert_eq!(statuses(open.port(), "/", 10), [200; 10]);
    let forbidden = get(open.port(), "/login/forbidden");
    assert_eq!(forbidden.text(), "the application says no\n");
    assert!(open.0.count("…connect() failed…") > 0, "it is noticed");

    let response = get(closed.port(), "/");
    assert_eq!(
        (response.status, &response.json()["status"]),
        (503, &503.into())
    );
    assert_eq!(response.header("RateLimit"), None);
    assert_eq!(statuses(closed.port(), "/", 10), [503; 10]);
    assert_eq!(get(closed.port(), "/health").status, 200);

    // Connections were kept open, and their other end is now another process.
    let _second = Tidegate::start_at(&address, &policies);
    assert_eq!(statuses(open.port(), "/", 3), [200, 200, 429]);
    assert_eq!(get(closed.port(), "/").status, 429);
}

#[test]
fn of_two_tidegates_one_may_go() {
    let [first, second] = [(); 2].map(|()| Tidegate::example());
    let upstream = [first.0.address(), second.0.address()];
    let nginx = Nginx::start_with(&upstream, &[CLOSED]);
    drop(first);
    let expected = [[200; 5], [429; 5]].concat();
    assert_eq!(statuses(nginx.port(), "/", 10), expected);
}

/// How long nginx waits.
mod timing {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn tidegate_that_stands_still_is_not_waited_for() {
        let tidegate = Tidegate::example();
        for (changes, expected) in [(&[][..], 200), (&[CLOSED], 503)] {
            let nginx = Nginx::start_hasty(&[tidegate.0.address()], changes);
            tidegate.0.signal("STOP");
            let start = Instant::now();
            assert_eq!(get(nginx.port(), "/").status, expected);
            let waited = start.elapsed();
            // Unless told otherwise, nginx waits for a minute.
            assert!(waited < Duration::from_secs(10), "{waited:?}");
        }
    }
}
