//! The settings of a layer, and how they decide a request.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::fmt;
use std::iter;
use std::pin::pin;
use std::slice;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Response, request};
use smallvec::SmallVec;
use tidegate::{CheckError, Cost, Decisions, Headers, PolicyDecision, Receipt};

use crate::address::{Addresses, Networks};
use crate::fields::{Fields, KnownFields};
use crate::grpc;
use crate::head::{RequestHead, ResponseHead};
use crate::key::{Key, Missing};
use crate::limiter::LayerPolicy;
use crate::refund::Charged;
use crate::refusal::{Reason, Refusal};
use crate::token::{bearer, hashed};
use crate::value::{Text, Value, Values};
use crate::wait::Wait;

pub(crate) type Rule = Box<dyn Fn(&RequestHead<'_>) -> bool + Send + Sync>;
pub(crate) type CostFunction = Box<dyn Fn(&RequestHead<'_>) -> Cost + Send + Sync>;
pub(crate) type Responder = Box<dyn Fn(&Refusal<'_, '_>) -> Response<Bytes> + Send + Sync>;
pub(crate) type Classifier = Box<dyn Fn(&ResponseHead<'_>) -> bool + Send + Sync>;

/// The settings of a layer, shared by all its clones.
pub(crate) struct Gate {
    pub(crate) policies: Vec<LayerPolicy>,
    pub(crate) keys: Vec<(Box<str>, Key)>,
    pub(crate) addresses: Addresses,
    /// Networks of clients that are not counted.
    pub(crate) exempt_networks: Networks,
    /// Hashes of bearer tokens that are not counted.
    pub(crate) exempt_tokens: HashSet<Text>,
    pub(crate) skip: Vec<Rule>,
    pub(crate) cost: Option<CostFunction>,
    pub(crate) fields: KnownFields,
    pub(crate) responder: Option<Responder>,
    /// Says which responses do not count.
    pub(crate) refund: Option<Classifier>,
    pub(crate) wait: Option<Wait>,
}

/// The outcome of a request.
pub(crate) enum Passage {
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

impl Gate {
    /// Settings under which this policy decides, and nothing else.
    pub(crate) fn new(policy: LayerPolicy) -> Self {
        Self {
            policies: vec![policy],
            keys: Vec::new(),
            addresses: Addresses::default(),
            exempt_networks: Networks::default(),
            exempt_tokens: HashSet::new(),
            skip: Vec::new(),
            cost: None,
            fields: KnownFields::default(),
            responder: None,
            refund: None,
            wait: None,
        }
    }

    /// Decides a request, if there is nothing to wait for.
    #[inline]
    pub(crate) fn now(self: &Arc<Self>, head: &RequestHead<'_>) -> Option<Passage> {
        if self.wait.is_some() || !self.policies.iter().all(LayerPolicy::is_in_memory) {
            return None;
        }
        let [LayerPolicy::Memory(policy)] = &*self.policies else {
            return Some(at_once(self.decide(head)));
        };
        // The everyday case, without a list of one.
        let (values, cost) = match self.question(head) {
            Ok(question) => question,
            Err(passage) => return Some(passage),
        };
        let decision = policy.check(&values, cost);
        let Some(decision) = checked(decision.as_ref()) else {
            return Some(Passage::Pass(Pass::default()));
        };
        Some(match decision.allowed() {
            true => self.pass(slice::from_ref(decision), || decision.headers(), &values),
            false => self.refuse_limited(head, &iter::once(decision.clone()).collect()),
        })
    }

    /// [`decide`](Self::decide) for a request whose body is elsewhere.
    pub(crate) async fn decide_parts(
        self: Arc<Self>,
        parts: request::Parts,
    ) -> (request::Parts, Passage) {
        let passage = self.decide(&RequestHead::of_parts(&parts)).await;
        (parts, passage)
    }

    /// Decides a request, after as many turns as it takes.
    async fn decide(self: &Arc<Self>, head: &RequestHead<'_>) -> Passage {
        let (values, cost) = match self.question(head) {
            Ok(question) => question,
            Err(passage) => return passage,
        };
        let mut waiting = self.wait.as_ref().map(Wait::start);
        loop {
            let decisions = self.check(&values, cost).await;
            let Some(refusal) = decisions.refusal() else {
                return self.pass(decisions.as_slice(), || decisions.headers(), &values);
            };
            if let Some(waiting) = &mut waiting
                && waiting.sleep(refusal.retry_after()).await
            {
                continue;
            }
            return self.refuse_limited(head, &decisions);
        }
    }

    /// The values and the cost of a request, or what happens to it without a check.
    #[inline]
    fn question<'r>(&'r self, head: &RequestHead<'r>) -> Result<(Values<'r>, Cost), Passage> {
        if self.is_exempt(head) {
            return Err(Passage::Pass(Pass::default()));
        }
        let mut values = SmallVec::new();
        for (name, key) in &self.keys {
            let value = match (key.value(head, &self.addresses), key.missing()) {
                (Some(value), _) => value,
                (None, Missing::Shared(value)) => Value::Borrowed(value),
                (None, Missing::Refuse) => return Err(self.refuse(head, Reason::Missing(name))),
                (None, Missing::Skip) => continue,
            };
            values.push((&**name, value));
        }
        let cost = self.cost.as_ref().map_or(Cost::ONE, |cost| cost(head));
        Ok((Values(values), cost))
    }

    /// Whether a request is not counted at all.
    #[inline]
    fn is_exempt(&self, head: &RequestHead<'_>) -> bool {
        let networks = &self.exempt_networks;
        self.skip.iter().any(|rule| rule(head))
            || !networks.is_empty()
                && self.addresses.client(head).is_some_and(|it| networks.contain(it))
            // A hash is not worth its time when there is nothing to find.
            || !self.exempt_tokens.is_empty()
                && bearer(head).is_some_and(|token| self.exempt_tokens.contains(&hashed(token)))
    }

    /// Checks the policies in order. The first refusal ends the check, and the policies before
    /// it are refunded. Until then, another request may be refused too early, but never too many
    /// are admitted.
    async fn check(&self, values: &Values<'_>, cost: Cost) -> Decisions<'_> {
        let mut decisions: SmallVec<[PolicyDecision<'_>; 2]> = SmallVec::new();
        for policy in &self.policies {
            decisions.extend(checked(policy.check(values, cost).await));
            if decisions.last().is_some_and(|decision| !decision.allowed()) {
                for (policy, receipt) in self.receipts(&decisions) {
                    policy.refund(values, &receipt).await;
                }
                break;
            }
        }
        decisions.into_iter().collect()
    }

    /// What these decisions have charged.
    fn receipts(
        &self,
        decisions: &[PolicyDecision<'_>],
    ) -> impl Iterator<Item = (&LayerPolicy, Receipt)> {
        decisions.iter().filter_map(|decision| {
            let name = decision.policy().name();
            let policy = self.policies.iter().find(|it| it.policy().name() == name);
            policy.zip(decision.receipt())
        })
    }

    #[inline]
    fn pass<'p>(
        self: &Arc<Self>,
        decisions: &[PolicyDecision<'p>],
        headers: impl FnOnce() -> Headers<'p>,
        values: &Values<'_>,
    ) -> Passage {
        let charged = self.refund.is_some().then(|| {
            let receipts = self.receipts(decisions);
            let receipts = receipts.map(|(policy, receipt)| (policy.clone(), receipt));
            Box::new(Charged {
                gate: self.clone(),
                values: values.to_owned(),
                receipts: receipts.collect(),
            })
        });
        let fields = match decisions {
            [decision] => self.fields.of_one(decision),
            _ => None,
        };
        let fields = fields.unwrap_or_else(|| self.fields.of(headers()));
        Passage::Pass(Pass { fields, charged })
    }

    #[cold]
    fn refuse_limited(&self, head: &RequestHead<'_>, decisions: &Decisions<'_>) -> Passage {
        let refusal = decisions.refusal();
        let reason = match refusal.is_some_and(|refusal| refusal.is_unavailable()) {
            true => Reason::Unavailable(decisions),
            false => Reason::Limited(decisions),
        };
        self.refuse(head, reason)
    }

    #[cold]
    fn refuse(&self, head: &RequestHead<'_>, reason: Reason<'_, '_>) -> Passage {
        let refusal = Refusal {
            head: *head,
            reason,
            fields: &self.fields,
        };
        // A client of gRPC understands nothing else.
        let responder = self.responder.as_ref();
        let responder = responder.filter(|_| grpc::content_type(head).is_none());
        Passage::Refuse(Box::new(match responder {
            Some(responder) => responder(&refusal),
            None => refusal.response(),
        }))
    }
}

/// The decision of a check; `None` if a value is missing that may be.
fn checked<D, E: Borrow<CheckError> + fmt::Debug>(decision: Result<D, E>) -> Option<D> {
    match decision {
        Err(error) if matches!(error.borrow(), CheckError::MissingAttribute(_)) => None,
        decision => Some(decision.expect("keys and costs were found to fit by `build`")),
    }
}

/// The output of a future that never waits.
fn at_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("nothing waits for policies in memory"),
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policies = self.policies.iter().map(|it| it.policy().name());
        f.debug_struct("Gate")
            .field("policies", &policies.collect::<Vec<_>>())
            .field("keys", &self.keys)
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}
