//! Receipts that are not as they were issued. The others are in `requests/keys.txt`.

use serde_json::json;

use crate::client::Answer;
use crate::process::Tidegate;

const CONFIG: &str = "[server]\nadmin_token = \"sesame\"\n\
                      [[policies]]\nname = \"p\"\nlimit = \"1000/1h\"\n";

fn refund(server: &Tidegate, receipt: &str) -> Answer {
    let token = [("Authorization", "Bearer sesame")];
    let body = json!({"receipt": receipt}).to_string();
    server.ask_with("POST", "/v1/refund", &token, &body)
}

#[test]
fn receipt_of_another_server_or_that_was_tampered_with_does_no_harm() {
    let [server, other] = [(); 2].map(|()| Tidegate::start(CONFIG));
    let decision = server.check(r#"{"policy":"p","key":"k"}"#).json();
    let receipt = decision["receipt"].as_str().expect("a receipt");
    let answer = refund(&other, receipt);
    assert_eq!(answer.status, 409, "{answer:?}");
    assert!(answer.detail().contains("issued by another server"));
    for index in 0..receipt.len() {
        let mut bytes = receipt.as_bytes().to_vec();
        bytes[index] = if bytes[index] == b'A' { b'_' } else { b'A' };
        let tampered = String::from_utf8(bytes).expect("ASCII");
        let status = refund(&server, &tampered).status;
        assert!([204, 400, 404, 409].contains(&status), "{index}: {status}");
    }
    let decision = server.check(r#"{"policy":"p","key":"new"}"#).json();
    assert_eq!(decision["remaining"], 999);
}
