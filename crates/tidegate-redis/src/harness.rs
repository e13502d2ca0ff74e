//! What unit tests use of the integration tests: servers, clusters and sentinels, started
//! on free ports and stopped on drop.

#[path = "../tests/it/server.rs"]
#[expect(dead_code, reason = "the integration tests use all of it")]
pub(crate) mod server;
#[path = "../tests/cluster/test_cluster.rs"]
#[expect(dead_code, reason = "the integration tests use all of it")]
pub(crate) mod test_cluster;
#[path = "../tests/cluster/test_sentinels.rs"]
#[expect(dead_code, reason = "the integration tests use all of it")]
pub(crate) mod test_sentinels;
