//! Waiting for units, for a bounded time.

use std::future::{pending, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::task::spawn;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::RateLimiter;
use super::turns::Turn;
use crate::nouns::{Check, Decision, Error, Group, Key, Limit, Op, later};

/// How long before its deadline a queued waiter peeks for the details of its denial, unless half of
/// its wait is shorter. The details are at most this old when the caller gets them.
const PEEK_BEFORE: Duration = Duration::from_millis(100);

/// The resolution of a store's time.
const TICK: Duration = Duration::from_micros(1);

/// The time bounds of one call.
#[derive(Clone, Copy)]
struct Bounds {
    max_wait: Duration,
    deadline: Instant,
    /// The deadline of each answer. A call with a `max_wait` of zero waits for its one answer, as
    /// every check does.
    answer_by: Instant,
    peek_at: Instant,
}

impl Bounds {
    fn new(max_wait: Duration) -> Self {
        let now = Instant::now();
        let half = max_wait.checked_div(2).unwrap_or_default();
        let peek_at = max_wait.saturating_sub(PEEK_BEFORE.min(half));
        let deadline = later(now, max_wait);
        let answer_by = if max_wait.is_zero() { later(now, Duration::MAX) } else { deadline };
        Self { max_wait, deadline, answer_by, peek_at: later(now, peek_at) }
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Whether it is too late to ask the store. A call with a `max_wait` of zero asks once.
    fn is_over(&self) -> bool {
        self.left().is_zero() && !self.max_wait.is_zero()
    }
}

impl RateLimiter {
    /// Consumes `n` units, and waits for them for at most `max_wait`.
    ///
    /// The store's decision contains the time at which the units are available. The store is not
    /// asked again before that time, unless this limiter refunds or resets one of the budgets.
    /// Waiters of one process for one budget are served first come, first served, so small requests
    /// do not starve a large one. A leaky bucket's delay is part of the wait.
    ///
    /// If the units will not be available in time, the caller is denied at once. Behind other
    /// waiters, the denial comes after `max_wait`. Dropping the future cancels the wait. Units that
    /// are already consumed stay consumed.
    ///
    /// `max_wait` bounds the call, including the store's answers. A `max_wait` shorter than the
    /// store's latency ends in an error. Zero asks once and does not wait for units: only the
    /// store's own deadline bounds that answer.
    ///
    /// If the store is unavailable, the limit's [failure policy](Limit::on_store_failure) decides. A limit that fails
    /// closed is asked again after each `retry_after`, until `max_wait`. Without a policy, the error is returned at
    /// once. Retry after a pause.
    ///
    /// # Errors
    ///
    /// Returns an error if the store does not decide, as every check does. An error that [is a
    /// timeout](Error::is_timeout) can also mean that `max_wait` ended before the store answered.
    /// If the caller was still waiting for its turn, [`may_have_charged`](Error::may_have_charged)
    /// is false.
    pub async fn acquire(
        &self,
        limit: &Limit,
        key: &Key,
        n: u32,
        max_wait: Duration,
    ) -> Result<Decision, Error> {
        self.acquire_group(&Check::new(limit, key).with_cost(n).into(), max_wait).await
    }

    /// Consumes the units of a group, all or none, and waits for them like
    /// [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// Returns an error like [`acquire`](Self::acquire). It [is misuse](Error::is_misuse) if there are
    /// no checks, more than 255, or two checks of one budget.
    pub async fn acquire_all(
        &self,
        group: impl TryInto<Group, Error: Into<Error>>,
        max_wait: Duration,
    ) -> Result<Decision, Error> {
        self.acquire_group(&group.try_into().map_err(Into::into)?, max_wait).await
    }

    async fn acquire_group(&self, group: &Group, max_wait: Duration) -> Result<Decision, Error> {
        // Without a runtime there are no timers.
        Runtime::try_current().map_err(Error::misuse)?;
        let bounds = Bounds::new(max_wait);
        let consumes_nothing = group.iter().all(|check| check.cost() == 0);
        let exceeds_capacity =
            |check: &Check| u64::from(check.cost()) > check.limit().quota().capacity();
        if consumes_nothing || group.iter().any(exceeds_capacity) {
            // No wait changes this decision, and nothing is charged.
            let answer = self.apply(Op::Charge, group.clone());
            return timeout_at(bounds.answer_by, answer)
                .await
                .map_err(|_| Error::timeout_unsent())?;
        }
        match self.turn(group, bounds).await {
            Ok(turn) => self.acquire_in_front(group, turn, bounds).await,
            Err(denied) => denied,
        }
    }

    /// Waits for the caller's turn. If the turn does not come in time, returns the denial.
    async fn turn(&self, group: &Group, bounds: Bounds) -> Result<Turn, Result<Decision, Error>> {
        let mut turn = pin!(async {
            let turn = self.shared.turns.wait(group).await;
            if !bounds.is_over() {
                return turn;
            }
            // The turn came too late. The next waiter may have more time.
            drop(turn);
            pending().await
        });
        let mut denial = pin!(self.deny_at_the_deadline(group, bounds));
        poll_fn(|cx| match turn.as_mut().poll(cx) {
            Poll::Ready(turn) => Poll::Ready(Ok(turn)),
            Poll::Pending => denial.as_mut().poll(cx).map(Err),
        })
        .await
    }

    /// The denial of a waiter that is still queued at its deadline. The peek is sent shortly
    /// before, so that the store has time to answer.
    async fn deny_at_the_deadline(&self, group: &Group, bounds: Bounds) -> Result<Decision, Error> {
        sleep_until(bounds.peek_at).await;
        let peeked = timeout_at(bounds.deadline, self.apply(Op::Peek, group.clone())).await;
        let answered = Instant::now();
        sleep_until(bounds.deadline).await;
        let decision = peeked.map_err(|_| Error::timeout_unsent())??;
        let retry_after = decision.retry_after().unwrap_or_default();
        let retry_after = retry_after.saturating_sub(answered.elapsed()).max(TICK);
        Ok(if decision.exceeds_capacity() {
            decision
        } else {
            decision.denied_until(retry_after, None)
        })
    }

    /// Charges as soon as the units are available. No other waiter is in front.
    async fn acquire_in_front(
        &self,
        group: &Group,
        turn: Turn,
        bounds: Bounds,
    ) -> Result<Decision, Error> {
        loop {
            let replenished = turn.replenished();
            let asked = Instant::now();
            let answer = timeout_at(bounds.answer_by, self.apply(Op::Charge, group.clone())).await;
            let decision = answer.map_err(|_| Error::timeout())??;
            let latency = asked.elapsed();
            if decision.allowed() {
                drop(replenished);
                drop(turn);
                return self.wait_out(decision, group, bounds).await;
            }
            match decision.retry_after() {
                // The next answer probably takes as long as this one, and also has to be in time.
                Some(wait) if wait.saturating_add(latency) <= bounds.left() => {
                    drop(timeout(wait, replenished).await);
                }
                _ => return Ok(decision),
            }
        }
    }

    /// Waits out the delay of an allowed check, or refunds the check if the delay is too long.
    async fn wait_out(
        &self,
        decision: Decision,
        group: &Group,
        bounds: Bounds,
    ) -> Result<Decision, Error> {
        let late = decision.delay().saturating_sub(bounds.left());
        if !late.is_zero() {
            let slowest = decision.slowest();
            let refunded = self.refund_unused(decision, group, bounds).await?;
            return Ok(refunded.denied_until(late, slowest));
        }
        if !decision.delay().is_zero() {
            sleep(decision.delay()).await;
        }
        Ok(decision)
    }

    /// Refunds a charge that the caller cannot use. Returns the store's decision after the refund,
    /// or the decision of the charge if the store does not answer in time.
    ///
    /// A refund that is not ready at once continues in a task, so that neither the caller's
    /// deadline nor a dropped future loses it. The store's deadline bounds the task.
    async fn refund_unused(
        &self,
        charged: Decision,
        group: &Group,
        bounds: Bounds,
    ) -> Result<Decision, Error> {
        let back: Vec<_> = group
            .iter()
            .zip(charged.receipts())
            .map(|(check, receipt)| check.clone().with_receipt(receipt))
            .collect();
        let mut refund = self.apply(Op::Refund, Group::of_distinct(back));
        let answer = match poll_fn(|cx| Poll::Ready(Pin::new(&mut refund).poll(cx))).await {
            Poll::Ready(answer) => answer,
            Poll::Pending => match timeout_at(bounds.answer_by, spawn(refund)).await {
                Ok(Ok(answer)) => answer,
                // The runtime shuts down, or the caller's deadline has expired.
                Ok(Err(_)) | Err(_) => return Ok(charged),
            },
        };
        // Even if the refund was not sent, units have been charged before.
        answer.map_err(|error| if error.may_have_charged() { error } else { Error::store(error) })
    }
}
