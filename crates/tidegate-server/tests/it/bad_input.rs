//! What cannot be right: a server that is as well afterwards as it was before. The answers are
//! in `requests/wrong.txt`.

use crate::process::Tidegate;
use crate::requests;

#[test]
fn a_hundred_wrong_requests_have_clear_answers_and_leave_nothing_behind() {
    let mut group = requests::group("wrong");
    assert!(group.run() >= 100);
    let before = group.server.resident_kb();
    for _ in 0..10 {
        group.run();
    }
    let after = group.server.resident_kb();
    assert!(after < before + 4 * 1024, "{before} kB, then {after} kB");
    let decision = group
        .server
        .check("{\"policy\":\"p\",\"key\":\"k\"}")
        .json();
    assert_eq!(decision["remaining"], 999_999, "none of them was charged");
    let log = group.server.log().join("\n");
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn long_and_deep_requests_get_short_answers() {
    let server = Tidegate::start("[[policies]]\nname = \"p\"\nlimit = \"1000000/1h\"\n");
    let (long, name) = ("\\u0001".repeat(100_000), "x".repeat(50_000));
    for body in [
        format!("{{\"{long}\":1}}"),
        format!("{{\"policy\":\"{long}\"}}"),
        format!("{{\"policy\":\"p\",\"key\":\"k\",\"peek\":\"{long}\"}}"),
        format!("{{\"policy\":\"p\",\"attributes_b64\":{{\"{long}\":\"?\"}}}}"),
        format!("{{\"policy\":\"p\",\"attributes\":{{\"{long}\":\"\",\"{long}\":\"\"}}}}"),
        "[".repeat(500_000),
        format!("{}{}", "[".repeat(400_000), "]".repeat(400_000)),
        format!("{{\"policy\":{}", "{\"a\":".repeat(100_000)),
        format!("{{\"policy\":\"p\",\"attributes\":{}", "[".repeat(100_000)),
        format!("[{}0]", "0,".repeat(500_000)),
        format!("{{\"policy\":\"p\",\"cost\":{}}}", "9".repeat(500_000)),
    ] {
        let answer = server.check(&body);
        // A list of one element, which is a list.
        let is_batch = answer.status == 200 && answer.json()[0]["error"]["detail"].is_string();
        assert!(is_batch || answer.status >= 400, "{}", answer.status);
        assert!(answer.body.len() < 2_500, "{}", answer.body.len());
    }
    for path in [
        format!("/{name}"),
        format!("/v1/gate/{name}"),
        format!("/v1/gate/p?{name}"),
        format!("/v1/gate/p?cost={name}"),
        format!("/v1/gate/p?deny={name}"),
    ] {
        let answer = server.get(&path);
        assert!(answer.status >= 400);
        assert!(answer.body.len() < 1_000, "{}", answer.body.len());
    }
    assert_eq!(server.get("/healthz").status, 200);
}
