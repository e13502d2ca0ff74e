//! What decides the checks of a policy in Redis: the store, this node, or a user-defined
//! script. One case per mode; for a new mode, the compiler reports the places that must
//! handle it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{Charge, Keys, Mode, Policy, Receipt};

use crate::background::Background;
use crate::config::SetupError;
use crate::custom::Custom;
use crate::lease::Leases;
use crate::refusals::Refusals;
use crate::store::RedisStore;

/// Who decides.
#[derive(Debug)]
pub(crate) enum Decider {
    /// The mode `exact`: the store decides every check. What it has just refused need not be
    /// asked again for a moment.
    Exact(Option<Box<Refusals>>),
    /// The mode `background`: this node decides, and sends its counts to the store later.
    Background(Arc<Background>),
    /// The mode `lease`: this node takes tokens out of the store and spends them. Keys that
    /// are not worth a lease are asked for as in the mode `exact`.
    Lease(Arc<Leases>, Option<Box<Refusals>>),
    /// A script of the user's own, in place of the levels' limits.
    Script(Custom),
}

impl Decider {
    /// For this policy. Keeps what the one before it knows, if it decided the same keys in
    /// the same way, and changes nothing in it.
    pub(crate) fn new(
        policy: &Policy,
        store: &RedisStore,
        charge: Charge,
        folder: &Path,
        before: Option<&Self>,
    ) -> Result<Self, SetupError> {
        if let Some(script) = policy.script() {
            let custom = Custom::read(script, folder);
            return custom.map(Self::Script).map_err(|problem| {
                let policy = policy.name().into();
                SetupError::Script { policy, problem }
            });
        }
        Ok(match policy.mode() {
            Mode::Background => {
                let before = before.and_then(Self::background);
                Self::Background(Background::new(policy, store, before))
            }
            Mode::Lease => {
                let before = before.and_then(Self::leases);
                let leases = Leases::new(policy, store, before);
                Self::Lease(leases, refusals(policy, charge))
            }
            Mode::Exact => Self::Exact(refusals(policy, charge)),
        })
    }

    /// Puts into force what it shares with the one before it: the policy is in force now.
    pub(crate) fn commit(&self, policy: &Policy) {
        match self {
            Self::Background(background) => {
                background.set_sync_interval(policy.sync_interval());
            }
            Self::Exact(_) | Self::Lease(..) | Self::Script(_) => {}
        }
    }

    /// Takes back a charge that only this node can take back, and says whether it did. `None`
    /// where the store can.
    pub(crate) fn refund(&self, keys: &Keys<'_>, receipt: &Receipt) -> Option<bool> {
        match self {
            Self::Background(background) => background.give_back(keys, receipt),
            Self::Exact(_) | Self::Lease(..) | Self::Script(_) => None,
        }
    }

    /// A charge of these keys was given back, or their counts deleted: refusals of them no
    /// longer hold. `None` stands for keys that are not known.
    pub(crate) fn forget_refusals(&self, keys: Option<&Keys<'_>>) {
        match (self, keys) {
            (Self::Exact(Some(refusals)) | Self::Lease(_, Some(refusals)), Some(keys)) => {
                refusals.forget(keys);
            }
            (Self::Exact(Some(refusals)) | Self::Lease(_, Some(refusals)), None) => {
                refusals.forget_all();
            }
            (Self::Exact(None) | Self::Lease(_, None), _)
            | (Self::Background(_) | Self::Script(_), _) => {}
        }
    }

    /// The store has deleted these keys.
    pub(crate) fn reset(&self, stored: &[String]) {
        match self {
            Self::Background(background) => background.forget(stored),
            Self::Lease(leases, _) => leases.forget(stored),
            Self::Exact(_) | Self::Script(_) => {}
        }
    }

    /// Sends the store everything it does not know yet. Says whether that was done in time.
    pub(crate) async fn flush(&self, within: Duration) -> bool {
        match self {
            Self::Background(background) => background.flush(within).await,
            Self::Lease(leases, _) => leases.flush(within).await,
            Self::Exact(_) | Self::Script(_) => true,
        }
    }

    /// What the store has refused lately, of what it is asked for check by check.
    pub(crate) fn refusals(&self) -> Option<&Refusals> {
        match self {
            Self::Exact(refusals) | Self::Lease(_, refusals) => refusals.as_deref(),
            Self::Background(_) | Self::Script(_) => None,
        }
    }

    /// The script of the user's own.
    pub(crate) fn script(&self) -> Option<&Custom> {
        match self {
            Self::Script(custom) => Some(custom),
            Self::Exact(_) | Self::Background(_) | Self::Lease(..) => None,
        }
    }

    pub(crate) fn background(&self) -> Option<&Arc<Background>> {
        match self {
            Self::Background(background) => Some(background),
            Self::Exact(_) | Self::Lease(..) | Self::Script(_) => None,
        }
    }

    pub(crate) fn leases(&self) -> Option<&Arc<Leases>> {
        match self {
            Self::Lease(leases, _) => Some(leases),
            Self::Exact(_) | Self::Background(_) | Self::Script(_) => None,
        }
    }
}

/// The memory of refusals, where the policy wants one. A refusal that is charged has to
/// reach the store.
fn refusals(policy: &Policy, charge: Charge) -> Option<Box<Refusals>> {
    let memory = policy.refusal_memory();
    (charge != Charge::Always && !memory.is_zero()).then(|| Box::new(Refusals::new(memory)))
}
