//! The environment as a config of the server, which is loaded, validated and watched like
//! one in a file.

use std::fmt::Write;

use tidegate_config::write::{duration, quoted};

use super::environment::{Environment, Limits};

impl Environment {
    /// The config that says the same.
    #[must_use]
    pub fn config(&self) -> String {
        let mut text = String::new();
        let mut add = |field: &str, value: Option<&str>| {
            if let Some(value) = value {
                let _ = writeln!(text, "{field} = {}", quoted(value));
            }
        };
        let (tls, redis) = (self.grpc_tls.as_ref(), &self.redis);
        add("server.http", Some(&self.http));
        add("server.grpc", Some(&self.grpc));
        add("server.log", Some(self.log.word()));
        add("server.tls_cert", tls.map(|tls| &*tls.cert));
        add("server.tls_key", tls.map(|tls| &*tls.key));
        let authority = tls.and_then(|tls| tls.client_ca.as_deref());
        add("server.tls_client_ca", authority);
        add("stores.default.url", Some(&redis.url));
        add("stores.default.prefix", redis.prefix.as_deref());
        add("stores.default.tls_ca", redis.ca.as_deref());
        let identity = redis.identity.as_ref();
        add("stores.default.tls_cert", identity.map(|(cert, _)| &**cert));
        add("stores.default.tls_key", identity.map(|(_, key)| &**key));
        if let Limits::Files(folder) = &self.limits {
            add("envoy.config", Some(&folder.to_string_lossy()));
        }
        if let Some(timeout) = redis.timeout {
            let _ = writeln!(text, "stores.default.timeout = {}", duration(timeout));
        }
        let _ = writeln!(text, "envoy.merge_domains = {}", self.merge_domains);
        text
    }
}
