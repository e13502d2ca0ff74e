//! Connections between nginx and tidegate stay open, whatever is answered.

use std::os::unix::fs::PermissionsExt;

use super::proxy::Nginx;
use super::tidegate::{Tidegate, default_policy};
use tidegate_testkit::http::statuses;
use tidegate_testkit::process::Folder;
use tidegate_testkit::proxy::Proxy;

#[test]
fn refusals_leave_connections_open() {
    let tidegate = Tidegate::example();
    let (_, port) = tidegate.0.address().rsplit_once(':').unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let between = runtime.block_on(Proxy::start(port.parse().unwrap()));
    let url = between.url();
    let address = url.trim_start_matches("redis://").trim_end_matches('/');
    let nginx = Nginx::start_with(&[address], &[]);
    let refused = statuses(nginx.port(), "/", 205).split_off(5);
    assert_eq!(refused, [429; 200]);
    // At most one for each worker, because there is one request at a time.
    let count = between.accepted();
    assert!((1..=2).contains(&count), "{count} connections");
}

#[test]
fn socket_file_serves_as_well_as_a_port() {
    let folder = Folder::new();
    let socket = format!("unix:{}", folder.path("socket").display());
    let tidegate = Tidegate::start_at(&socket, &default_policy("{ip}", "5r/m"));
    // The workers of nginx are another user, who may write to a socket file only if
    // everybody may.
    let all = PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(folder.path("socket"), all).unwrap();
    let nginx = Nginx::start_with(&[&socket], &[]);
    let expected = [&[200; 5][..], &[429; 20]].concat();
    assert_eq!(statuses(nginx.port(), "/", 25), expected);
    // The one that asks for the metrics is open, too.
    let metrics = tidegate.0.get("/metrics");
    let mut open = metrics.text().lines().filter(|line| {
        let number = line.strip_prefix("tidegate_connections ");
        number.is_some_and(|number| number.parse::<u32>().is_ok_and(|it| it >= 2))
    });
    assert!(open.next().is_some(), "{}", metrics.text());
}
