//! Charging for what others decide: a quota is paid for before it is assigned.

use tidegate::{Attributes, CheckError, Cost};

use super::home::at;
use super::{Current, Engine, Entry};

impl Engine {
    /// Charges every level of the policy with as much of `cost` as there is, and says how
    /// much that was. When the store cannot be asked, the policy's `on_error` says whether
    /// it counts as charged.
    ///
    /// It is recorded and logged as decisions are, and not counted among them.
    pub(crate) async fn charge<A>(
        &self,
        current: &Current,
        policy: &str,
        attributes: &A,
        cost: Cost,
    ) -> Result<u32, CheckError>
    where
        A: Attributes + ?Sized,
    {
        let entry = current.entry(policy)?;
        let left = match self.charge_all(current, entry, attributes, cost).await? {
            Ok(()) => return Ok(cost.get()),
            Err(left) => left.min(cost.get() - 1),
        };
        let Ok(less) = Cost::new(left.into()) else {
            return Ok(0);
        };
        let charged = self.charge_all(current, entry, attributes, less).await?;
        Ok(charged.map_or(0, |()| left))
    }

    /// Charges all of it, or nothing: then it says how much there is.
    async fn charge_all<A>(
        &self,
        current: &Current,
        entry: &Entry,
        attributes: &A,
        cost: Cost,
    ) -> Result<Result<(), u32>, CheckError>
    where
        A: Attributes + ?Sized,
    {
        let handle = entry.handle();
        let decision = match handle.in_memory() {
            Some(memory) => memory.check(attributes, cost)?,
            None => at(self.home.as_ref(), handle.check(attributes, cost)).await?,
        };
        self.note(current, &decision, attributes, cost, None);
        Ok(match decision.allowed() {
            true => Ok(()),
            false if decision.is_unavailable() => Err(0),
            false => Err(decision.remaining()),
        })
    }
}
