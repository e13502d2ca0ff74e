//! The layer and its builder.

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use tidegate::{Cost, Limit, Policy, PolicyLimiter};
use tower_layer::Layer;

use crate::address::{Networks, Proxies};
use crate::error::LayerError;
use crate::fields::KnownFields;
use crate::gate::Gate;
use crate::head::{RequestHead, ResponseHead};
use crate::key::Key;
use crate::limiter::LayerPolicy;
use crate::refusal::Refusal;
use crate::service::RateLimit;
use crate::token::hashed;
use crate::wait::Wait;

/// Adds limits to a service. All clones, and all services they are applied to, share the
/// same counters.
///
/// ```
/// use tidegate::Limit;
/// use tidegate_tower::{Key, RateLimitLayer};
///
/// let layer = RateLimitLayer::new(Limit::per_second(50).burst(100), Key::address());
/// ```
#[derive(Debug, Clone)]
pub struct RateLimitLayer(Arc<Gate>);

impl RateLimitLayer {
    /// One limit for each value of a key, counted in this process, by a policy named
    /// `default`.
    ///
    /// # Panics
    /// When the key is an invalid [path parameter](Key::path_parameter).
    #[must_use]
    pub fn new(limit: Limit, key: Key) -> Self {
        let policy = Policy::builder("default").limit(limit).build();
        let policy = policy.expect("a name and a limit make a policy");
        let limiter = PolicyLimiter::in_memory(policy).expect("a policy without a script");
        let layer = Self::builder(limiter).key("key", key).build();
        layer.unwrap_or_else(|error| panic!("{error}"))
    }

    /// A layer that checks a policy.
    ///
    /// ```
    /// use tidegate::{Limit, Policy, PolicyLimiter};
    /// use tidegate_tower::{Key, Proxies, RateLimitLayer};
    ///
    /// let address = Policy::builder("address").key("{ip}").limit(Limit::per_second(100));
    /// let token = Policy::builder("token").key("{token}").limit(Limit::per_minute(600));
    /// let layer = RateLimitLayer::builder(PolicyLimiter::in_memory(address.build()?)?)
    ///     .policy(PolicyLimiter::in_memory(token.build()?)?)
    ///     .key("ip", Key::address())
    ///     .key("token", Key::bearer_token().or_skip())
    ///     .proxies(Proxies::x_forwarded_for(["10.0.0.0/8"]))
    ///     .skip(|request| request.uri.path() == "/health")
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder(policy: impl Into<LayerPolicy>) -> RateLimitBuilder {
        RateLimitBuilder {
            gate: Gate::new(policy.into()),
            wrong_network: None,
        }
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit::new(inner, self.0.clone())
    }
}

/// Builds a [`RateLimitLayer`].
#[derive(Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct RateLimitBuilder {
    gate: Gate,
    wrong_network: Option<LayerError>,
}

impl RateLimitBuilder {
    /// Checks this policy, too, after those added before. The first refusal ends the check,
    /// and the policies before it are refunded.
    pub fn policy(mut self, policy: impl Into<LayerPolicy>) -> Self {
        self.gate.policies.push(policy.into());
        self
    }

    /// Where the attribute with this name, as used in the policies' keys, comes from.
    pub fn key(mut self, name: impl Into<Box<str>>, key: Key) -> Self {
        self.gate.keys.push((name.into(), key));
        self
    }

    /// How to find the address of a connection. By default, it is a `SocketAddr` in the
    /// request's extensions or, with the feature `axum` or `tonic`, what axum
    /// (`ConnectInfo<SocketAddr>`) or tonic (`TcpConnectInfo`) stores there.
    pub fn peer<F>(mut self, peer: F) -> Self
    where
        F: Fn(&RequestHead<'_>) -> Option<IpAddr> + Send + Sync + 'static,
    {
        self.gate.addresses.peer = Some(Box::new(peer));
        self
    }

    /// The proxies that are trusted about a client's address; none by default.
    pub fn proxies(mut self, proxies: Proxies) -> Self {
        match proxies.0 {
            Ok(trusted) => self.gate.addresses.trusted = Some(trusted),
            Err(error) => self.wrong_network = Some(error),
        }
        self
    }

    /// IPv6 addresses with this many leading bits in common count as one client. The default
    /// is 64, the smallest network that a client gets; use 56 or 48 for larger ones.
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.gate.addresses.ipv6_prefix = bits;
        self
    }

    /// Clients with an address in these networks are not counted.
    pub fn exempt_addresses<T: AsRef<str>>(
        mut self,
        networks: impl IntoIterator<Item = T>,
    ) -> Self {
        match Networks::parse(networks) {
            Ok(networks) => self.gate.exempt_networks.extend(networks),
            Err(error) => self.wrong_network = Some(error),
        }
        self
    }

    /// Requests with one of these bearer tokens are not counted.
    pub fn exempt_tokens<T: AsRef<[u8]>>(mut self, tokens: impl IntoIterator<Item = T>) -> Self {
        let tokens = tokens.into_iter().map(|token| hashed(token.as_ref()));
        self.gate.exempt_tokens.extend(tokens);
        self
    }

    /// Requests for which this returns true are not counted. Can be called several times.
    pub fn skip<F>(mut self, rule: F) -> Self
    where
        F: Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static,
    {
        self.gate.skip.push(Box::new(rule));
        self
    }

    /// The cost of a request; 1 by default.
    pub fn cost<F>(mut self, cost: F) -> Self
    where
        F: Fn(&RequestHead<'_>) -> Cost + Send + Sync + 'static,
    {
        self.gate.cost = Some(Box::new(cost));
        self
    }

    /// Makes the response to a refused request, instead of [`Refusal::response`]. It is not
    /// called for gRPC requests, which get a gRPC status.
    ///
    /// ```
    /// # use tidegate::{Limit, Policy, PolicyLimiter};
    /// # use tidegate_tower::{Key, RateLimitLayer};
    /// # let site = Policy::builder("site").key("").limit(Limit::per_second(100)).build()?;
    /// # let site = PolicyLimiter::in_memory(site)?;
    /// let layer = RateLimitLayer::builder(site).responder(|refusal| {
    ///     let mut response = http::Response::new("<h1>Too fast</h1>");
    ///     *response.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
    ///     refusal.add_headers(response.headers_mut());
    ///     response
    /// });
    /// # layer.build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn responder<T, F>(mut self, responder: F) -> Self
    where
        T: Into<Bytes>,
        F: Fn(&Refusal<'_, '_>) -> Response<T> + Send + Sync + 'static,
    {
        self.gate.responder = Some(Box::new(move |refusal| responder(refusal).map(Into::into)));
        self
    }

    /// Responses for which this returns true do not count: the charge is given back, as far
    /// as it still counts, before the response is sent. The numbers in its headers are from
    /// before the refund. A request without a response (because the service failed or the
    /// client disconnected) stays charged.
    pub fn refund<F>(mut self, classifier: F) -> Self
    where
        F: Fn(&ResponseHead<'_>) -> bool + Send + Sync + 'static,
    {
        self.gate.refund = Some(Box::new(classifier));
        self
    }

    /// Lets requests wait instead of being refused, if they can be admitted within the
    /// deadline. At most `most` requests wait at once; others are refused. `sleep` is the
    /// runtime's timer, such as `tokio::time::sleep`.
    ///
    /// Waiting requests are not queued: when the time comes, the first to ask is admitted.
    pub fn wait<F>(
        mut self,
        deadline: Duration,
        most: usize,
        sleep: impl Fn(Duration) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.gate.wait = Some(Wait::new(deadline, most, sleep));
        self
    }

    /// Validates the settings and builds the layer.
    pub fn build(mut self) -> Result<RateLimitLayer, LayerError> {
        self.check_policies()?;
        self.check_keys()?;
        let prefix = self.gate.addresses.ipv6_prefix;
        if !(1..=128).contains(&prefix) {
            return Err(LayerError::Prefix(prefix));
        }
        if let Some(error) = self.wrong_network {
            return Err(error);
        }
        self.gate.fields = KnownFields::new(&self.gate.policies);
        Ok(RateLimitLayer(Arc::new(self.gate)))
    }

    fn check_policies(&self) -> Result<(), LayerError> {
        let Gate { policies, keys, .. } = &self.gate;
        for (index, limiter) in policies.iter().enumerate() {
            let policy = limiter.policy();
            let name = policy.name().to_owned();
            if policies[..index]
                .iter()
                .any(|it| it.policy().name() == name)
            {
                return Err(LayerError::DuplicatePolicy(name));
            }
            if self.gate.wait.is_some() && policy.count_denied() {
                return Err(LayerError::WaitCountsDenied(name));
            }
            let script = policy.script();
            if self.gate.cost.is_some() && script.is_some_and(|it| !it.takes_the_cost()) {
                return Err(LayerError::CostNotTold(name));
            }
            let has_key = |name: &str| keys.iter().any(|(other, _)| **other == *name);
            if let Some(attribute) = limiter.attributes().find(|name| !has_key(name)) {
                return Err(LayerError::NoKey {
                    policy: name,
                    attribute: attribute.to_owned(),
                });
            }
        }
        Ok(())
    }

    fn check_keys(&self) -> Result<(), LayerError> {
        let Gate { policies, keys, .. } = &self.gate;
        for (index, (name, key)) in keys.iter().enumerate() {
            key.check()?;
            if keys[..index].iter().any(|(other, _)| other == name) {
                return Err(LayerError::DuplicateKey(name.to_string()));
            }
            let is_used = policies.iter().any(|it| {
                let mut optional = it.policy().optional_attributes();
                it.attributes().any(|other| *other == **name) || optional.any(|it| *it == **name)
            });
            if !is_used {
                return Err(LayerError::UnusedKey(name.to_string()));
            }
        }
        Ok(())
    }
}
