//! What can be broken on purpose, to see whether the tests notice.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Fault {
    #[default]
    None,
    /// The node sends what was spent of a lease and goes on spending it until the store
    /// has answered.
    ClosesAfterSending,
    /// The node takes answers to requests that it has given up.
    AcceptsLateAnswers,
    /// A lease is valid from when the answer arrives.
    ValidFromReceipt,
    /// A message that is sent again is dated anew.
    RetryDatedAnew,
    /// The store admits and grants as if nothing were out.
    OutLeftOut,
    /// A lease that has ended is given back, and not charged.
    ExpiredLeasesReturned,
    /// What is out gets less with time.
    OutDrains,
    /// The key expires when its last lease ends.
    ExpiresWithLeases,
    /// A lease that is returned is charged in full.
    SettleChargesAll,
    /// A node can return more than it was given.
    SettleIsTrusted,
    /// A message that arrives twice takes two leases.
    RepeatedGrantAdds,
}
