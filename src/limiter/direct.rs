//! Checks and changes of an application, without a layer.

use super::RateLimiter;
use crate::model::{Budget, Change, Check, Decision, Error, Group, Key, Limit, Operation, Usage};
use crate::store::Answer;
use crate::units::Receipt;

/// # Checks
///
/// Each call returns an error if the store does not decide, unless the limit has a [failure
/// policy](Limit::with_on_store_failure). A denial is not an error. A call on Redis needs a tokio
/// runtime.
impl RateLimiter {
    /// Consumes one unit if the budget has it.
    ///
    /// # Errors
    ///
    /// Returns an error if the store does not decide, as every check does, unless the limit has a
    /// [failure policy](Limit::with_on_store_failure). A denial is not an error.
    pub async fn check(&self, limit: &Limit, key: impl Into<Key>) -> Result<Decision, Error> {
        self.check_n(limit, key, 1).await
    }

    /// Consumes `n` units, all or none. Zero units are always allowed.
    pub async fn check_n(
        &self,
        limit: &Limit,
        key: impl Into<Key>,
        n: u32,
    ) -> Result<Decision, Error> {
        self.charge(Check::new(limit, key).with_cost(n).into())
            .await
    }

    /// Returns the decision that [`check_n`](Self::check_n) would return. Changes nothing. No
    /// denial counts, and no block begins. Its [`remaining`](Decision::remaining) is what such a
    /// check would leave. `n = 0` returns what is left now, and [whether the key is
    /// blocked](Decision::is_blocked). [`usage`](Self::usage) says the same of several limits.
    pub async fn peek(
        &self,
        limit: &Limit,
        key: impl Into<Key>,
        n: u32,
    ) -> Result<Decision, Error> {
        let check = Check::new(limit, key).with_cost(n);
        self.apply(Operation::Peek(check.into())).await
    }

    /// Returns the remaining budgets under the limits of one check or several, in one call to the
    /// store, without a charge. The cost of the checks does not matter.
    ///
    /// If you want the limits of a request, with its key and its plan, use
    /// [`RateLimitLayer::usage`](crate::RateLimitLayer::usage).
    ///
    /// While the store is unavailable, limits that [fail open](Limit::with_on_store_failure) are
    /// left out, because nothing is known of their budgets. A limit with a local share reports this
    /// process's share.
    ///
    /// ```
    /// # use tollgate::{Check, Limit, Quota, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// let minute = Limit::token_bucket("minute", Quota::per_minute(60))?;
    /// let day = Limit::fixed_window("day", Quota::per_day(1_000))?;
    /// limiter.check_n(&day, "alice", 300).await?;
    ///
    /// let checks = [&minute, &day].map(|limit| Check::new(limit, "alice"));
    /// let usage = limiter.usage(checks).await?;
    /// assert_eq!((usage[0].remaining, usage[1].remaining), (60, 700));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the store does not decide. It [is misuse](Error::is_misuse) if the
    /// checks [are not a group](Group::new), or if one has a concurrency limit.
    pub async fn usage(
        &self,
        checks: impl TryInto<Group, Error: Into<Error>>,
    ) -> Result<Vec<Usage>, Error> {
        let checks = checks.try_into().map_err(Into::into)?;
        let free = checks.iter().map(|check| check.clone().with_cost(0));
        let free = Group::of_distinct(free.collect());
        let peeked = self.apply(Operation::Peek(free)).await?;
        let known = peeked
            .verdicts()
            .iter()
            .filter(|verdict| !verdict.is_unlimited());
        let decided_at = peeked.timestamp();
        Ok(known
            .map(|it| Usage::from_verdict(it, decided_at))
            .collect())
    }

    /// Decides several checks as one [group](Group), in one call to the store. All are charged, or
    /// none.
    ///
    /// # Errors
    ///
    /// Returns an error if the store does not decide. It [is misuse](Error::is_misuse) if there are
    /// no checks, more than 255, or two checks of one budget.
    pub async fn check_all(
        &self,
        group: impl TryInto<Group, Error: Into<Error>>,
    ) -> Result<Decision, Error> {
        self.charge(group.try_into().map_err(Into::into)?).await
    }

    /// Applies an [`Operation`], in one call to the store.
    ///
    /// The answer is an error that [is misuse](Error::is_misuse) if the store cannot decide the
    /// limits of a group together, or, on Redis, if this is called outside of a tokio runtime.
    pub fn apply(&self, operation: Operation) -> Answer {
        match operation {
            Operation::Charge(group) => self.charge(group),
            Operation::Peek(group) => self.apply_with_overrides(group, false, |group| {
                self.apply_unobserved(Operation::Peek(group))
            }),
            Operation::Change(budget, change) => self.change_with_overrides(budget, change),
        }
    }
}

/// # Refunds, real costs and resets
///
/// Each call returns an error if the store does not answer. To also learn what is left afterwards,
/// [apply](Self::apply) the [`Change`].
impl RateLimiter {
    /// Gives back `n` units of a charge, for example of work that was not done.
    ///
    /// The [receipt](Decision::receipt) comes from the decision that charged the units, under the
    /// same limit and key. After a refund, at most as much passes as without the charge:
    ///
    /// | algorithm | units given back |
    /// |---|---|
    /// | token bucket, leaky bucket, GCRA | `n`, but at most the larger of (1) the cost, minus what has refilled since the charge, and (2) the units that were used right after the charge, minus what has refilled and been refunded since |
    /// | leaky bucket as a queue | `n`, if no other check has been queued since. Otherwise nothing, because later checks keep their places, and a freed place would overlap one of them |
    /// | fixed window | `n`, if the window of the charge is in force. A window that starts with a charge keeps its end if that charge is refunded, as long as the window has other units |
    /// | sliding window | `n`, if the sub-window of the charge still counts |
    /// | sliding log | `n`, if the charge still counts; with more than 1,024 newer entries, from the oldest entries |
    ///
    /// A receipt is void after a reset of the budget, after its loss by the store, and after a
    /// change of the limit's rate or period. A refund gives nothing back then.
    ///
    /// A receipt names its charge by the time, so a clock that steps back has two effects. Receipts
    /// of new charges are void until the clock has caught up with the first charge that the budget
    /// counts. After a step of more than a period, they are void until it has caught up with the
    /// last charge before the step. After such a longer step, receipts of old charges are also void
    /// while the budget is stored. If the budget becomes full, the store deletes it, and an old
    /// receipt counts again when the clock reaches its time.
    ///
    /// You can use a receipt for one refund. For the next refund of the same charge, use
    /// [`Receipt::after`].
    ///
    /// ```
    /// # use tollgate::{Key, Limit, Quota, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// let tokens = Limit::fixed_window("tokens", Quota::per_hour(1_000))?;
    /// let alice = Key::new("alice");
    ///
    /// let decision = limiter.check_n(&tokens, &alice, 800).await?;
    /// // The work used only 300 of them.
    /// if let Some(receipt) = decision.receipt() {
    ///     limiter.refund(&tokens, &alice, 500, receipt).await?;
    /// }
    /// assert_eq!(limiter.peek(&tokens, &alice, 0).await?.remaining(), 700);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn refund(
        &self,
        limit: &Limit,
        key: impl Into<Key>,
        n: u32,
        receipt: Receipt,
    ) -> Result<(), Error> {
        let cost = receipt.cost().saturating_sub(n);
        self.settle(limit, key, cost, receipt).await
    }

    /// Replaces the cost of a charge by its real cost, when that is known, such as tokens of a
    /// language model, bytes sent, the cost of a query.
    ///
    /// If `cost` is less than was charged, the difference is given back, as by a
    /// [refund](Self::refund). If it is more, the difference is charged now, even if the budget has
    /// fewer units. The debt delays later checks. [`Limit::with_max_debt`] bounds it. Without a
    /// receipt, the whole cost is charged.
    ///
    /// A charge that was decided [locally](crate::decision::Source::Local) is settled where it
    /// counts: here, until the store is charged for it after the outage. After that, a higher cost
    /// is charged to the store, and a lower one gives nothing back.
    ///
    /// On Redis, settlements that are in flight at the same time share calls.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Key, Limit, Quota, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// let tokens = Limit::token_bucket("tokens", Quota::per_minute(6_000))?;
    /// let alice = Key::new("alice");
    ///
    /// let estimate = limiter.check_n(&tokens, &alice, 500).await?;
    /// // The answer of the model was longer than the bucket.
    /// limiter.settle(&tokens, &alice, 7_000, estimate.receipt()).await?;
    /// let denied = limiter.check_n(&tokens, &alice, 500).await?;
    /// assert_eq!(denied.retry_after(), Some(Duration::from_secs(15)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the store does not answer. If it [may have
    /// charged](Error::may_have_charged), you must not settle again, because the difference would
    /// count twice.
    pub async fn settle(
        &self,
        limit: &Limit,
        key: impl Into<Key>,
        cost: u32,
        receipt: impl Into<Option<Receipt>>,
    ) -> Result<(), Error> {
        let receipt = receipt.into().unwrap_or_default();
        let settle = Change::Settle { receipt, cost };
        let settle = Operation::Change(Budget::new(limit, key), settle);
        self.apply(settle).await.map(drop)
    }

    /// Resets the budget of `key` under `limit`, and under all limits that [share it](Limit), to
    /// full. Also deletes the local budget, even if the store then fails. Under an
    /// [asynchronous](Limit::asynchronous) limit, other replicas still spend the units that they
    /// charged before. Under a limit with an [overshoot](Limit::with_overshoot_percent), they
    /// notice it within about 9 seconds, and still charge what they owe.
    pub async fn reset(&self, limit: &Limit, key: impl Into<Key>) -> Result<(), Error> {
        self.change(Budget::new(limit, key), Change::Reset)
            .await
            .map(drop)
    }
}
