//! What is asked of a store.

use crate::{Error, Key, Limit, Receipt};

/// The most charges in one batch.
const MAX_BATCH: usize = 255;

/// What to do with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Take the cost from every budget of the batch, or from none.
    Charge,
    /// Answer as a charge would, and change nothing.
    Peek,
    /// Give the cost back to every budget, as far as the charge of its
    /// [receipt](Charge::receipt) still counts. The answer is that of a peek of cost 0 afterwards.
    Refund,
    /// Forget every budget. The answer is that of a peek of cost 0 afterwards.
    Reset,
}

/// A cost, whose it is, and under which limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge<'a> {
    /// The limit under which the cost counts.
    pub limit: &'a Limit,
    /// Whose budget it is taken from.
    pub key: &'a Key,
    /// In units. A check of cost 0 always passes and takes nothing.
    pub cost: u32,
    /// The charge that a refund takes back. Without it, a refund gives nothing back.
    pub receipt: Option<Receipt>,
}

impl Charge<'_> {
    /// Sets the receipt of the charge to refund.
    #[must_use]
    pub const fn of(mut self, receipt: Receipt) -> Self {
        self.receipt = Some(receipt);
        self
    }
}

/// Checks that a batch can be decided: it has 1 to 255 charges, and no budget twice, which would
/// make "all or none" ambiguous.
///
/// # Errors
///
/// One that [is misuse](Error::is_misuse).
pub fn check_batch(batch: &[Charge<'_>]) -> Result<(), Error> {
    if batch.is_empty() {
        return Err(Error::misuse("the batch is empty: name at least one limit and key"));
    }
    if batch.len() > MAX_BATCH {
        return Err(Error::misuse(format!(
            "the batch has {} charges, and at most {MAX_BATCH} are decided at once",
            batch.len()
        )));
    }
    for (i, charge) in batch.iter().enumerate() {
        let same = |other: &Charge<'_>| {
            other.limit.shares_budgets_with(charge.limit) && other.key == charge.key
        };
        if batch[..i].iter().any(same) {
            return Err(Error::misuse(format!(
                "limit `{}` and key `{}` are in the batch twice: charge the sum once",
                charge.limit.name(),
                charge.key
            )));
        }
    }
    Ok(())
}
