//! The settings of a layer, and how they decide a request.

use std::collections::HashSet;
use std::fmt;
use std::iter;
use std::net::IpAddr;
use std::slice;
use std::sync::Arc;

use bytes::Bytes;
use http::{Response, request};
use smallvec::SmallVec;
use tidegate::{Attributes, Cost, Decisions, Headers, Policies, PolicyDecision};

use crate::address::{Addresses, Networks};
use crate::fields::{Fields, Names};
use crate::grpc;
use crate::head::{RequestHead, ResponseHead};
use crate::key::{Key, Missing};
use crate::limiter::AnyLimiter;
use crate::plain::Plain;
use crate::refund::Charged;
use crate::refusal::{Reason, Refusal};
use crate::token::{bearer, hashed};
use crate::value::{Text, Value, Values};
use crate::wait::Wait;

pub(crate) type Rule = Box<dyn Fn(&RequestHead<'_>) -> bool + Send + Sync>;
pub(crate) type CostFunction = Box<dyn Fn(&RequestHead<'_>) -> Cost + Send + Sync>;
pub(crate) type Responder = Box<dyn Fn(&Refusal<'_, '_>) -> Response<Bytes> + Send + Sync>;
pub(crate) type Classifier = Box<dyn Fn(&ResponseHead<'_>) -> bool + Send + Sync>;

/// The validated settings of a layer, shared by all its clones.
pub(crate) struct Gate {
    pub(crate) limiter: AnyLimiter,
    /// The one policy, where it is asked about one key and nothing else matters.
    pub(crate) plain: Option<Plain>,
    pub(crate) policies: Box<[Asked]>,
    pub(crate) keys: Box<[(Box<str>, Key)]>,
    pub(crate) addresses: Addresses,
    /// Whether anything depends on the client's address.
    pub(crate) needs_client: bool,
    pub(crate) exempt: Exempt,
    pub(crate) skip: Box<[Rule]>,
    pub(crate) cost: Option<CostFunction>,
    pub(crate) names: Names,
    pub(crate) responder: Option<Responder>,
    /// Says which responses do not count.
    pub(crate) refund: Option<Classifier>,
    pub(crate) wait: Option<Wait>,
}

/// A policy, and the attributes of its keys.
pub(crate) struct Asked {
    pub(crate) name: Box<str>,
    pub(crate) attributes: Box<[Box<str>]>,
}

/// Clients that are not counted.
#[derive(Debug, Default)]
pub(crate) struct Exempt {
    pub(crate) networks: Networks,
    /// Hashed.
    pub(crate) tokens: HashSet<Text>,
}

/// The outcome of a request.
pub(crate) enum Verdict {
    Pass(Pass),
    Refuse(Box<Response<Bytes>>),
}

/// What remains to be done for an admitted request.
#[derive(Default)]
pub(crate) struct Pass {
    /// To be added to the response.
    pub(crate) fields: Fields,
    /// What to give back if the response does not count.
    pub(crate) charged: Option<Box<Charged>>,
}

/// What to check for a request.
struct Question<'r> {
    values: Values<'r>,
    /// Whether a value is missing that policies need which are not asked then.
    skips: bool,
    cost: Cost,
}

/// Why nothing is checked.
enum Unasked<'r> {
    /// It is not counted.
    Free,
    /// This attribute is missing.
    Missing(&'r str),
}

impl Gate {
    /// The limiter, if every verdict is there at once.
    pub(crate) fn at_once(&self) -> Option<&Policies> {
        self.limiter.at_once().filter(|_| self.wait.is_none())
    }

    /// The verdict of a limiter in memory.
    pub(crate) fn decide(self: &Arc<Self>, limiter: &Policies, head: &RequestHead<'_>) -> Verdict {
        if let (Some(plain), [(_, key)]) = (&self.plain, &*self.keys)
            && let Some(verdict) = plain.decide(self, key, head)
        {
            return verdict;
        }
        let question = match self.question(head) {
            Ok(question) => question,
            Err(unasked) => return self.without_asking(head, unasked),
        };
        let (values, cost) = (&question.values, question.cost);
        // The everyday case, without a list of one.
        if let [policy] = &*self.policies {
            let decision = limiter.check(&policy.name, values, cost);
            let decision = decision.as_ref().expect(FITS);
            return match decision.allowed() {
                true => self.pass(|| decision.headers(), slice::from_ref(decision), values),
                false => self.refuse_limited(head, &iter::once(decision.clone()).collect()),
            };
        }
        let decisions = limiter.check_all(&self.asked(&question), values, cost);
        self.verdict(head, &decisions.expect(FITS), values)
    }

    /// The verdict of any limiter, after as many turns as it takes.
    pub(crate) async fn ask(self: Arc<Self>, parts: request::Parts) -> (request::Parts, Verdict) {
        let verdict = self.decide_later(&RequestHead::of_parts(&parts)).await;
        (parts, verdict)
    }

    async fn decide_later(self: &Arc<Self>, head: &RequestHead<'_>) -> Verdict {
        let question = match self.question(head) {
            Ok(question) => question,
            Err(unasked) => return self.without_asking(head, unasked),
        };
        let policies = self.asked(&question);
        let (values, cost) = (&question.values, question.cost);
        let mut waiting = self.wait.as_ref().map(Wait::start);
        loop {
            let decisions = self.limiter.check(&policies, values, cost).await;
            let decisions = decisions.expect(FITS);
            if let (Some(refusal), Some(waiting)) = (decisions.refusal(), &mut waiting)
                && waiting.sleep(refusal.retry_after()).await
            {
                continue;
            }
            return self.verdict(head, &decisions, values);
        }
    }

    /// What to ask about a request, if anything.
    #[inline]
    fn question<'r>(&'r self, head: &RequestHead<'r>) -> Result<Question<'r>, Unasked<'r>> {
        if self.skip.iter().any(|rule| rule(head)) {
            return Err(Unasked::Free);
        }
        let client = match self.needs_client {
            true => self.addresses.client(head),
            false => None,
        };
        if self.exempt.has(client, head) {
            return Err(Unasked::Free);
        }
        let mut values = Values(SmallVec::new());
        let mut skips = false;
        for (name, key) in &self.keys {
            let value = match (key.value(head, client, &self.addresses), key.missing()) {
                (Some(value), _) => value,
                (None, Missing::Shared(value)) => Value::Borrowed(value),
                (None, Missing::Refuse) => return Err(Unasked::Missing(name)),
                (None, Missing::Skip) => {
                    skips = true;
                    continue;
                }
            };
            values.0.push((name, value));
        }
        if skips && !self.policies.iter().any(|policy| policy.has_all(&values)) {
            return Err(Unasked::Free);
        }
        let cost = self.cost.as_ref().map_or(Cost::ONE, |cost| cost(head));
        Ok(Question {
            values,
            skips,
            cost,
        })
    }

    /// The policies to ask, of which there is at least one.
    fn asked<'r>(&'r self, question: &Question<'_>) -> SmallVec<[&'r str; 4]> {
        let has_all = |policy: &&Asked| !question.skips || policy.has_all(&question.values);
        let policies = self.policies.iter().filter(has_all);
        policies.map(|policy| &*policy.name).collect()
    }

    fn without_asking(&self, head: &RequestHead<'_>, unasked: Unasked<'_>) -> Verdict {
        match unasked {
            Unasked::Free => Verdict::Pass(Pass::default()),
            Unasked::Missing(name) => self.refuse(head, Reason::Missing(name)),
        }
    }

    fn verdict(
        self: &Arc<Self>,
        head: &RequestHead<'_>,
        decisions: &Decisions<'_>,
        values: &Values<'_>,
    ) -> Verdict {
        match decisions.allowed() {
            true => self.pass(|| decisions.headers(), decisions.as_slice(), values),
            false => self.refuse_limited(head, decisions),
        }
    }

    fn pass<'p>(
        self: &Arc<Self>,
        headers: impl FnOnce() -> Headers<'p>,
        decisions: &[PolicyDecision<'p>],
        values: &Values<'_>,
    ) -> Verdict {
        let fields = match self.names.is_silent() {
            true => Fields::new(),
            false => self.names.fields(headers()),
        };
        let charged = self.refund.is_some();
        let charged = charged.then(|| Box::new(Charged::new(self, decisions, values)));
        Verdict::Pass(Pass { fields, charged })
    }

    #[cold]
    pub(crate) fn refuse_limited(
        &self,
        head: &RequestHead<'_>,
        decisions: &Decisions<'_>,
    ) -> Verdict {
        let refusal = decisions.refusal();
        let reason = match refusal.is_some_and(|refusal| refusal.is_unavailable()) {
            true => Reason::Unavailable(decisions),
            false => Reason::Limited(decisions),
        };
        self.refuse(head, reason)
    }

    fn refuse(&self, head: &RequestHead<'_>, reason: Reason<'_, '_>) -> Verdict {
        let refusal = Refusal {
            head: *head,
            reason,
            names: &self.names,
        };
        // A client of gRPC understands nothing else.
        let responder = self.responder.as_ref();
        let responder = responder.filter(|_| grpc::content_type(head).is_none());
        Verdict::Refuse(Box::new(match responder {
            Some(responder) => responder(&refusal),
            None => refusal.response(),
        }))
    }
}

/// Why a check has an answer.
pub(crate) const FITS: &str = "policies and keys were found to fit when the layer was built";

impl Asked {
    fn has_all(&self, values: &Values<'_>) -> bool {
        let mut attributes = self.attributes.iter();
        attributes.all(|name| values.value(name).is_some())
    }
}

impl Exempt {
    pub(crate) fn is_empty(&self) -> bool {
        self.networks.is_empty() && self.tokens.is_empty()
    }

    fn has(&self, client: Option<IpAddr>, head: &RequestHead<'_>) -> bool {
        client.is_some_and(|client| self.networks.contain(client)) || self.has_token(head)
    }

    fn has_token(&self, head: &RequestHead<'_>) -> bool {
        // A hash is not worth its time when there is nothing to find.
        if self.tokens.is_empty() {
            return false;
        }
        bearer(head).is_some_and(|token| self.tokens.contains(&hashed(token)))
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policies = self.policies.iter().map(|policy| &*policy.name);
        f.debug_struct("Gate")
            .field("policies", &policies.collect::<Vec<_>>())
            .field("keys", &self.keys)
            .field("addresses", &self.addresses)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}
