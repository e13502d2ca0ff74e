//! The layer and its builder.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use tidegate::{Cost, Limit, Policies, Policy};
use tower_layer::Layer;

use crate::address::{Addresses, Networks, PeerFunction, Proxies};
use crate::error::LayerError;
use crate::fields::Names;
use crate::gate::{Asked, Classifier, CostFunction, Exempt, Gate, Responder, Rule};
use crate::head::{RequestHead, ResponseHead};
use crate::key::Key;
use crate::limiter::AnyLimiter;
use crate::plain::Plain;
use crate::refusal::Refusal;
use crate::service::RateLimit;
use crate::token::hashed;
use crate::value::Text;
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
        let limiter = Policies::in_memory([policy]).expect("one policy, one store");
        let layer = Self::builder(limiter).policy("default").key("key", key);
        layer.build().unwrap_or_else(|error| panic!("{error}"))
    }

    /// A layer that checks policies of a limiter.
    ///
    /// ```
    /// use tidegate::{Limit, Policy, Policies};
    /// use tidegate_tower::{Key, Proxies, RateLimitLayer};
    ///
    /// let limiter = Policies::in_memory([
    ///     Policy::builder("address").key("{ip}").limit(Limit::per_second(100)).build()?,
    ///     Policy::builder("token").key("{token}").limit(Limit::per_minute(600)).build()?,
    /// ])?;
    /// let layer = RateLimitLayer::builder(limiter)
    ///     .policy("address")
    ///     .policy("token")
    ///     .key("ip", Key::address())
    ///     .key("token", Key::bearer_token().or_skip())
    ///     .proxies(Proxies::x_forwarded_for(["10.0.0.0/8"]))
    ///     .skip(|request| request.uri.path() == "/health")
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder(limiter: impl Into<AnyLimiter>) -> RateLimitBuilder {
        RateLimitBuilder {
            limiter: limiter.into(),
            policies: Vec::new(),
            keys: Vec::new(),
            peer: None,
            proxies: None,
            ipv6_prefix: 64,
            exempt_networks: Ok(Networks::default()),
            exempt_tokens: HashSet::new(),
            skip: Vec::new(),
            cost: None,
            responder: None,
            refund: None,
            wait: None,
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
#[must_use = "a builder does nothing until `build`"]
pub struct RateLimitBuilder {
    limiter: AnyLimiter,
    policies: Vec<String>,
    keys: Vec<(String, Key)>,
    peer: Option<PeerFunction>,
    proxies: Option<Proxies>,
    ipv6_prefix: u8,
    exempt_networks: Result<Networks, LayerError>,
    exempt_tokens: HashSet<Text>,
    skip: Vec<Rule>,
    cost: Option<CostFunction>,
    responder: Option<Responder>,
    refund: Option<Classifier>,
    wait: Option<Wait>,
}

impl RateLimitBuilder {
    /// Checks this policy, after those added before. The first refusal ends the check, and
    /// the policies before it are refunded.
    pub fn policy(mut self, name: impl Into<String>) -> Self {
        self.policies.push(name.into());
        self
    }

    /// Where the attribute with this name, as used in the policies' keys, comes from.
    pub fn key(mut self, name: impl Into<String>, key: Key) -> Self {
        self.keys.push((name.into(), key));
        self
    }

    /// How to find the address of a connection. By default, it is a `SocketAddr` in the
    /// request's extensions or, with the feature `axum` or `tonic`, what axum
    /// (`ConnectInfo<SocketAddr>`) or tonic (`TcpConnectInfo`) stores there.
    pub fn peer<F>(mut self, peer: F) -> Self
    where
        F: Fn(&RequestHead<'_>) -> Option<IpAddr> + Send + Sync + 'static,
    {
        self.peer = Some(Box::new(peer));
        self
    }

    /// The proxies that are trusted about a client's address; none by default.
    pub fn proxies(mut self, proxies: Proxies) -> Self {
        self.proxies = Some(proxies);
        self
    }

    /// IPv6 addresses with this many leading bits in common count as one client. The default
    /// is 64, the smallest network that a client gets; use 56 or 48 for larger ones.
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_prefix = bits;
        self
    }

    /// Clients with an address in these networks are not counted.
    pub fn exempt_addresses<T: AsRef<str>>(
        mut self,
        networks: impl IntoIterator<Item = T>,
    ) -> Self {
        let before = self.exempt_networks;
        self.exempt_networks = before.and_then(|before| before.and(networks));
        self
    }

    /// Requests with one of these bearer tokens are not counted.
    pub fn exempt_tokens<T: AsRef<[u8]>>(mut self, tokens: impl IntoIterator<Item = T>) -> Self {
        let tokens = tokens.into_iter().map(|token| hashed(token.as_ref()));
        self.exempt_tokens.extend(tokens);
        self
    }

    /// Requests for which this returns true are not counted. Can be called several times.
    pub fn skip<F>(mut self, rule: F) -> Self
    where
        F: Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static,
    {
        self.skip.push(Box::new(rule));
        self
    }

    /// The cost of a request; 1 by default.
    pub fn cost<F>(mut self, cost: F) -> Self
    where
        F: Fn(&RequestHead<'_>) -> Cost + Send + Sync + 'static,
    {
        self.cost = Some(Box::new(cost));
        self
    }

    /// Makes the response to a refused request, instead of [`Refusal::response`]. It is not
    /// called for gRPC requests, which get a gRPC status.
    ///
    /// ```
    /// # use tidegate::{Limit, Policy, Policies};
    /// # use tidegate_tower::{Key, RateLimitLayer};
    /// # let policy = Policy::builder("site").key("").limit(Limit::per_second(100)).build()?;
    /// # let limiter = Policies::in_memory([policy])?;
    /// let layer = RateLimitLayer::builder(limiter).policy("site").responder(|refusal| {
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
        self.responder = Some(Box::new(move |refusal| responder(refusal).map(Into::into)));
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
        self.refund = Some(Box::new(classifier));
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
        self.wait = Some(Wait::new(deadline, most, sleep));
        self
    }

    /// Validates the settings and builds the layer.
    pub fn build(self) -> Result<RateLimitLayer, LayerError> {
        let policies = self.check_policies()?;
        let used = |name: &str| {
            let mut attributes = policies.iter().flat_map(|policy| &policy.attributes);
            let asked = policies.iter();
            let asked = asked.filter_map(|policy| self.limiter.policy(&policy.name));
            let mut optional = asked.flat_map(Policy::optional_attributes);
            attributes.any(|other| **other == *name) || optional.any(|other| other == name)
        };
        for (index, (name, key)) in self.keys.iter().enumerate() {
            key.check()?;
            if self.keys[..index].iter().any(|(other, _)| other == name) {
                return Err(LayerError::DuplicateKey(name.clone()));
            }
            if !used(name) {
                return Err(LayerError::UnusedKey(name.clone()));
            }
        }
        if !(1..=128).contains(&self.ipv6_prefix) {
            return Err(LayerError::Prefix(self.ipv6_prefix));
        }
        let exempt = Exempt {
            networks: self.exempt_networks?,
            tokens: self.exempt_tokens,
        };
        let trusted = self.proxies.map(Proxies::check).transpose()?;
        let names = policies.iter();
        let names = names.filter_map(|policy| self.limiter.policy(&policy.name));
        let keys = self.keys.into_iter().map(|(name, key)| (name.into(), key));
        let keys: Box<[(Box<str>, Key)]> = keys.collect();
        let is_plain = self.skip.is_empty()
            && self.cost.is_none()
            && self.refund.is_none()
            && self.wait.is_none()
            && keys.len() == 1
            && exempt.is_empty();
        let plain = match (&*policies, self.limiter.at_once()) {
            ([policy], Some(limiter)) if is_plain => limiter.handle(&policy.name).ok().cloned(),
            _ => None,
        };
        // Its one value stands for any attribute.
        let plain = plain.filter(|plain| plain.policy().optional_attributes().len() == 0);
        Ok(RateLimitLayer(Arc::new(Gate {
            plain: plain.map(Plain::new),
            names: Names::of(names),
            needs_client: !exempt.networks.is_empty()
                || keys.iter().any(|(_, key)| key.is_client_address()),
            addresses: Addresses::new(self.peer, trusted, self.ipv6_prefix),
            policies,
            keys,
            exempt,
            skip: self.skip.into(),
            cost: self.cost,
            responder: self.responder,
            refund: self.refund,
            wait: self.wait,
            limiter: self.limiter,
        })))
    }

    /// The policies with their attributes, each of which has a key.
    fn check_policies(&self) -> Result<Box<[Asked]>, LayerError> {
        if self.policies.is_empty() {
            return Err(LayerError::NoPolicy);
        }
        let mut asked: Vec<Asked> = Vec::new();
        for name in &self.policies {
            let policy = self.limiter.policy(name);
            let policy = policy.ok_or_else(|| LayerError::UnknownPolicy(name.clone()))?;
            if asked.iter().any(|other| *other.name == **name) {
                return Err(LayerError::DuplicatePolicy(name.clone()));
            }
            if self.wait.is_some() && policy.count_denied() {
                return Err(LayerError::WaitCountsDenied(name.clone()));
            }
            let script = policy.script();
            if self.cost.is_some() && script.is_some_and(|script| !script.takes_the_cost()) {
                return Err(LayerError::CostNotTold(name.clone()));
            }
            let levels = policy.levels().iter();
            let attributes = levels.flat_map(|level| level.key().attributes());
            let attributes: Box<[Box<str>]> = attributes.map(Into::into).collect();
            let has_key = |name: &str| self.keys.iter().any(|(other, _)| other == name);
            if let Some(attribute) = attributes.iter().find(|name| !has_key(name)) {
                return Err(LayerError::NoKey {
                    policy: name.clone(),
                    attribute: attribute.to_string(),
                });
            }
            asked.push(Asked {
                name: name.as_str().into(),
                attributes,
            });
        }
        Ok(asked.into())
    }
}

impl fmt::Debug for RateLimitBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitBuilder")
            .field("policies", &self.policies)
            .field("keys", &self.keys)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}
