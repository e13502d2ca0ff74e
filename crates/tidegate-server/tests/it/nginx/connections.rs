//! Connections between nginx and tidegate stay open, whatever is answered.

use super::proxy::{Change, Nginx};
use super::relay::Relay;
use super::tidegate::{Tidegate, default_policy};
use tidegate_testkit::http::statuses;
use tidegate_testkit::process::Folder;

/// The workers of nginx keep connections of their own: at most as many as there are
/// requests at once, which is one here. The example has a worker for each processor, and
/// who may use only a part of them counts fewer than nginx does.
const TWO_WORKERS: Change<'static> = ("worker_processes auto;", "worker_processes 2;");

#[test]
fn refusals_leave_connections_open() {
    let tidegate = Tidegate::example();
    let relay = Relay::start(tidegate.port());
    let nginx = Nginx::start_with(&[&relay.address()], &[TWO_WORKERS]);
    let refused = statuses(nginx.port(), "/", 205).split_off(5);
    assert_eq!(refused, [429; 200]);
    let count = relay.count();
    assert!((1..=2).contains(&count), "{count} connections");
}

#[test]
fn a_refusal_with_a_body_would_not() {
    // Why the example says body=none: this is what it spares.
    let tidegate = Tidegate::example();
    let relay = Relay::start(tidegate.port());
    let with_body = [("deny=403&body=none", "deny=403")];
    let nginx = Nginx::start_with(&[&relay.address()], &with_body);
    assert_eq!(statuses(nginx.port(), "/", 55).split_off(5), [429; 50]);
    assert!(relay.count() >= 50, "{} connections", relay.count());
}

#[test]
fn a_socket_file_serves_as_well_as_a_port() {
    let folder = Folder::new();
    let socket = format!("unix:{}/socket", folder.root().display());
    let policies = default_policy("{ip}", "5r/m");
    let tidegate = Tidegate::start_with(&policies, &["--http", &socket]);
    let nginx = Nginx::start_with(&[&socket], &[]);
    let mut expected = vec![200; 5];
    expected.extend([429; 20]);
    assert_eq!(statuses(nginx.port(), "/", 25), expected);
    // The one that asks for the metrics is open, too.
    let open = tidegate.metric("tidegate_connections", "");
    assert!(open >= 2.0, "{open} connections");
}
