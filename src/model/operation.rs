//! Operations: what a store is asked to do.

use std::time::Duration;

use super::{Budget, Check, Error, Group, Limit};
use crate::units::{Claim, Payment, Receipt};

/// The question to a [`Store`](crate::store::Store), or the change that it makes.
///
/// ```
/// use tollgate::store::{Budget, Change, Operation};
/// use tollgate::{Check, Limit, Quota, RateLimiter};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::in_memory();
/// let api = Limit::fixed_window("api", Quota::per_minute(1))?;
///
/// let charge = Operation::Charge(Check::new(&api, "alice").into());
/// assert!(limiter.apply(charge.clone()).await?.allowed());
/// assert!(!limiter.apply(charge.clone()).await?.allowed());
///
/// let reset = Operation::Change(Budget::new(&api, "alice"), Change::Reset);
/// assert_eq!(limiter.apply(reset).await?.remaining(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Charges the cost of every check of the group, or of none.
    Charge(Group),
    /// Returns the decision that a charge would return. Changes nothing. A denial that would begin
    /// a block is reported without the block.
    Peek(Group),
    /// Changes one budget, whatever it has left. The decision equals a peek of cost 0 afterwards.
    Change(Budget, Change),
}

/// How an operation changes a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Replaces the charge that a receipt proves by its real cost. If the cost is less than was
    /// charged, the difference is [given back](crate::RateLimiter::refund). If it is more, the
    /// difference is charged now, even if it does not fit. The debt delays later checks.
    Settle {
        /// The receipt of the charge. The [default](Receipt::default) is of no charge, so the whole
        /// cost is charged.
        receipt: Receipt,
        /// The real cost, in units.
        cost: u32,
    },
    /// Deletes the state of the budget, and ends a block.
    Reset,
    /// Blocks the key for this time, at most 366 days, in place of a block that it may have. Zero
    /// ends the block, and forgets the denials that were counted.
    ///
    /// The limit need not [block keys](Limit::with_block_policy).
    Block(Duration),
    /// Reports the permits and the waiters of a process under a [concurrency
    /// limit](Limit::concurrency), and grants permits.
    /// [`RateLimiter::acquire_permit`](crate::RateLimiter::acquire_permit) makes claims. The
    /// [remaining](crate::Decision::remaining) units of the decision are the granted permits that
    /// the claim does not count, and its [reset time](crate::Decision::reset_after) in microseconds
    /// is the number of processes with permits or waiters. A claim can be repeated.
    Claim(Claim),
    /// Charges units that a process allowed before, even if they do not fit. Replicas send payments
    /// under a limit with an [overshoot](Limit::with_overshoot_percent). A payment can be repeated,
    /// because a store that may lose an answer remembers the last number of each payer for a
    /// minute, and charges only higher numbers. The [largest debt](Limit::with_max_debt) does not
    /// bound payments, because their units have already passed. The
    /// [delay](crate::Decision::delay) of the decision in microseconds is the number of units that
    /// did not fit.
    Pay(Payment),
}

impl Operation {
    /// The budgets of the operation, in the order of its decision's
    /// [verdicts](crate::Decision::verdicts).
    pub fn budgets(&self) -> impl Iterator<Item = &Budget> {
        let (checks, changed) = match self {
            Self::Charge(group) | Self::Peek(group) => (&**group, None),
            Self::Change(budget, _) => (&[][..], Some(budget)),
        };
        checks.iter().map(Check::budget).chain(changed)
    }

    /// The number of its budgets.
    #[inline]
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Charge(group) | Self::Peek(group) => group.len(),
            Self::Change(..) => 1,
        }
    }

    /// Returns an error if a limit does not support the operation, because permits are claimed, and
    /// units are charged.
    #[inline]
    pub(crate) fn validate(&self) -> Result<(), Error> {
        match self {
            Self::Charge(group) | Self::Peek(group) => {
                match group.iter().find(|check| check.limit().is_concurrency()) {
                    None => Ok(()),
                    Some(check) => Err(self.misuse(check.limit())),
                }
            }
            Self::Change(budget, change) => {
                let is_claim = matches!(change, Change::Claim(_));
                match budget.limit().is_concurrency() == is_claim {
                    true => Ok(()),
                    false => Err(self.misuse(budget.limit())),
                }
            }
        }
    }

    fn misuse(&self, limit: &Limit) -> Error {
        let advice = match self {
            Self::Charge(_) => "its permits are not charged; use `RateLimiter::acquire_permit`",
            Self::Peek(_) => {
                "its permits have no peek; `RateLimiter::held_permits` counts the permits of this \
                 process"
            }
            Self::Change(_, Change::Reset) => {
                "its permits are released when they are dropped, or when their lease expires"
            }
            Self::Change(_, Change::Block(_)) => {
                "it cannot block a key; block the key under a rate limit of the same requests"
            }
            Self::Change(_, Change::Pay(_)) => "its permits have no cost to be paid; drop them",
            Self::Change(_, Change::Settle { .. }) => {
                "its permits have no cost to give back; drop them"
            }
            Self::Change(_, Change::Claim(_)) => {
                return Error::misuse(format!(
                    "limit `{}` has no permits to be claimed; use a concurrency limit",
                    limit.name()
                ));
            }
        };
        let name = limit.name();
        Error::misuse(format!("limit `{name}` is a concurrency limit: {advice}"))
    }
}

impl Change {
    /// Returns whether it is the real cost of no charge.
    pub(crate) fn settles_no_charge(&self) -> bool {
        matches!(self, Self::Settle { receipt, .. } if receipt.cost() == 0)
    }

    /// Gives a charge back.
    pub(crate) const fn give_back(receipt: Receipt) -> Self {
        Self::Settle { receipt, cost: 0 }
    }
}
