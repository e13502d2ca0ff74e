//! A layer of one policy and one key takes a shorter way: its responses are the same as
//! those of the long one.

use http::HeaderName;
use tidegate::{Dialect, Limit, Policy};
use tidegate_tower::Key;

use crate::support::{around_hello, by, limiter, request, send, yearly};

#[tokio::test]
async fn shorter_way_leads_to_the_same_responses() {
    let custom = ["x-most", "x-reset", "x-left"].map(Into::into);
    let dialects = [
        Dialect::Ietf,
        Dialect::XRateLimit,
        Dialect::Draft06,
        Dialect::Custom(custom),
        Dialect::None,
    ];
    let limits = [
        yearly(2),
        yearly(1_000).fixed_window(),
        yearly(3).sliding_log(),
        Limit::block(),
    ];
    for dialect in dialects {
        for limit in limits {
            for shadow in [false, true] {
                let policy = || {
                    let policy = Policy::builder("p").key("{k}").limit(limit);
                    limiter([policy.headers(dialect.clone()).shadow(shadow)])
                };
                let key = || Key::header(HeaderName::from_static("who")).or_refuse();
                let mut short = around_hello(by(&policy(), key()));
                let mut long = around_hello(by(&policy(), key()).skip(|_| false));
                for who in [&[("who", "a")][..], &[("who", "a")], &[("who", "a")], &[]] {
                    let one = send(&mut short, request("/", who)).await;
                    let other = send(&mut long, request("/", who)).await;
                    let what = format!("{dialect:?} {limit} {shadow} {who:?}");
                    assert_eq!(one.status, other.status, "{what}");
                    assert_eq!(one.headers, other.headers, "{what}");
                    assert_eq!(one.body, other.body, "{what}");
                }
            }
        }
    }
}
