//! Keys that are blocked, by their denials, and by operators.

use std::time::Duration;

use super::RateLimiter;
use crate::algorithm::MAX_PERIOD;
use crate::model::{Budget, Change, Error, Key, Limit, Operation, Source};
use crate::store::Answer;
use crate::telemetry;

/// # Operators
impl RateLimiter {
    /// Blocks a key under a limit for a time, at most 366 days, on all replicas. So you shut a
    /// client out. A later call replaces the block.
    ///
    /// Checks of the key are denied until the block ends, except checks of cost 0 and checks that
    /// hold reserved units already. Another replica that denied the key less than a second ago may
    /// answer that denial first. On a service with several limits, block the key under one that all
    /// of its requests are charged under.
    ///
    /// The block applies to the name and [kind](Limit#kinds) of the limit and to the key, in all
    /// stores of the same prefix. For example, a tool for operators may pass a limit of the same
    /// name and algorithm with another quota. The limit need not [block
    /// keys](Limit::with_block_policy). If the key is also blocked because of its denials, pass a
    /// limit with a block policy, such as [by operators](crate::limit::BlockPolicy::by_operators),
    /// and your block replaces that one. With a limit that has no policy, the key stays blocked
    /// until both blocks have ended. `LimitSet::limit` returns a limit of a configuration. Pass the
    /// key as the key extractor returns it. See
    /// [`Key::from_encoded`].
    ///
    /// Under an [asynchronous](Limit::asynchronous) limit, the other replicas first spend the units
    /// that they have. Under a limit with an [overshoot](Limit::with_overshoot_percent), they
    /// notice the block within about 9 seconds.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Key, Limit, Quota, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// let api = Limit::token_bucket("api", Quota::per_second(10))?;
    /// let mallory = Key::new("mallory");
    ///
    /// limiter.block(&api, &mallory, Duration::from_secs(3600)).await?;
    /// let blocked = limiter.check(&api, &mallory).await?;
    /// assert!(blocked.is_blocked() && !blocked.allowed());
    /// assert_eq!(blocked.retry_after(), Some(Duration::from_secs(3600)));
    ///
    /// limiter.unblock(&api, &mallory).await?;
    /// assert!(limiter.check(&api, &mallory).await?.allowed());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the store does not answer. Then the key may still be blocked in this
    /// process, as long as a local limit decides. It [is misuse](Error::is_misuse) if the time is
    /// shorter than a microsecond, or longer than 366 days.
    pub async fn block(
        &self,
        limit: &Limit,
        key: impl Into<Key>,
        length: Duration,
    ) -> Result<(), Error> {
        if length.as_micros() == 0 {
            return Err(Error::misuse(
                "the block is shorter than a microsecond; use more, or `unblock` the key",
            ));
        }
        if length > MAX_PERIOD {
            return Err(Error::misuse(
                "the block is longer than 366 days; block the key again before it ends, or reject \
                 such a client before its limits",
            ));
        }
        let budget = Budget::new(limit, key);
        let decision = self.change(budget.clone(), Change::Block(length)).await?;
        telemetry::blocked_by_operator(
            limit,
            budget.key(),
            decision.deciding().blocked_for().unwrap_or(length),
        );
        Ok(())
    }

    /// Ends the block of a key under a limit, and forgets the denials and the blocks that were
    /// counted. What the key consumed stays consumed, so the key may still be denied.
    /// [`reset`](Self::reset) also refills its budget. Use it for a client that was blocked by
    /// mistake.
    ///
    /// It also ends a block that followed denials, whatever the policy of the limit that is passed
    /// here.
    ///
    /// On other replicas it takes effect after at most
    /// [`deny_blocked_for`](crate::store::RedisStoreBuilder::deny_blocked_for).
    ///
    /// # Errors
    ///
    /// Returns an error like [`block`](Self::block).
    pub async fn unblock(&self, limit: &Limit, key: impl Into<Key>) -> Result<(), Error> {
        let budget = Budget::new(limit, key);
        let ends = Change::Block(Duration::ZERO);
        let answer = self.change(budget.clone(), ends).await;
        answer.map(|_| telemetry::unblocked_by_operator(limit, budget.key()))
    }

    /// Charges or peeks, and reports a block that begins with its denial. A store that answers
    /// later reports it itself, because its caller may not wait for the answer.
    pub(super) fn apply_reporting_blocks(&self, operation: Operation) -> Answer {
        let mut answer = self.shared.failover.apply(operation.clone());
        let Some(answer) = answer.take_ready() else {
            return answer;
        };
        if let Ok(decision) = &answer
            && decision.source() == Source::Store
            && let Operation::Charge(group) | Operation::Peek(group) = &operation
        {
            let is_charge = matches!(operation, Operation::Charge(_));
            telemetry::blocks_of(&self.shared.blocked, group, is_charge, decision);
        }
        Answer::ready(answer)
    }
}
