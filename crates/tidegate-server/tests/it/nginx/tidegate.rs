//! Tidegate with the config of `examples/nginx/`, or with other policies.

use std::path::PathBuf;

use tidegate_testkit::tidegate as server;

/// The part of a config that goes with `examples/nginx/tidegate/server.conf`.
const SERVER: &str = "[server]\ngate_headers = [\"ip\", \"method\", \"key\"]\n";

pub(crate) struct Tidegate(pub(crate) server::Tidegate);

impl Tidegate {
    /// With these policies.
    pub(crate) fn start(policies: &str) -> Self {
        Self(server::Tidegate::start(&(SERVER.to_owned() + policies)))
    }

    /// With these policies, at this address.
    pub(crate) fn start_at(address: &str, policies: &str) -> Self {
        let start = server::Start::configured(&(SERVER.to_owned() + policies));
        Self(start.argument("--http").argument(address).start())
    }

    /// With the config in `examples/nginx/`.
    pub(crate) fn example() -> Self {
        let config = std::fs::read_to_string(example("tidegate.toml"));
        Self(server::Tidegate::start(&config.expect("the example")))
    }
}

/// The policy of locations that choose none.
pub(crate) fn default_policy(key: &str, limit: &str) -> String {
    format!("[[policies]]\nname = \"default\"\nkey = {key:?}\nlimit = {limit:?}\n")
}

/// A file of `examples/nginx/`.
pub(crate) fn example(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples/nginx")
        .join(name)
}
