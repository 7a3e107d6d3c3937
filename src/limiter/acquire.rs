//! Waiting for units, for a bounded time.

use std::future::{pending, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tokio::task::spawn;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::RateLimiter;
use super::turns::Turn;
use crate::nouns::{Check, Decision, Error, Key, Limit, Op, later, validate_group};

/// How long before its deadline a queued caller asks the store what it will be denied with, unless
/// half of its wait is shorter. The answer is not older than this when the caller gets it.
const LAST_LOOK: Duration = Duration::from_millis(100);

/// The shortest time that a store tells apart.
const TICK: Duration = Duration::from_micros(1);

/// How long a call may take.
#[derive(Clone, Copy)]
struct Patience {
    max_wait: Duration,
    deadline: Instant,
    /// Until when the store is waited for. A caller that does not want to wait for units waits for
    /// the one answer, as in every check.
    answer_by: Instant,
    last_look: Instant,
}

impl Patience {
    fn new(max_wait: Duration) -> Self {
        let now = Instant::now();
        let half = max_wait.checked_div(2).unwrap_or_default();
        let last_look = max_wait.saturating_sub(LAST_LOOK.min(half));
        let deadline = later(now, max_wait);
        let answer_by = if max_wait.is_zero() { later(now, Duration::MAX) } else { deadline };
        Self { max_wait, deadline, answer_by, last_look: later(now, last_look) }
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Whether it is too late to ask the store. A caller that does not want to wait asks once.
    fn is_over(&self) -> bool {
        self.left().is_zero() && !self.max_wait.is_zero()
    }
}

impl RateLimiter {
    /// Takes `n` units, waiting for them at most `max_wait`.
    ///
    /// The store says when the units will be there, and is not asked again before that time, unless
    /// this limiter refunded or reset one of the budgets meanwhile. Waiters of one process for one
    /// budget get their turn in the order in which they came, so small requests do not starve a
    /// large one. A leaky bucket's delay is part of the wait.
    ///
    /// If the units will not be there in time, the caller is denied at once, or when `max_wait` is
    /// over if others wait in front. Dropping the future ends the wait; units that were already
    /// consumed stay consumed.
    ///
    /// `max_wait` bounds the whole call, and with it the time for which the store is waited for. A
    /// `max_wait` that is shorter than the store needs to answer ends in an error. Zero asks once:
    /// it waits for that answer, for as long as the store's deadline lets it, and not for units.
    ///
    /// It waits for units, not for the store: while the store is unavailable, it returns the error at
    /// once. Retry after a pause then.
    ///
    /// # Errors
    ///
    /// If the store could not decide, as in every check. An error that [is a
    /// timeout](Error::is_timeout) also says that `max_wait` ended before the store answered.
    /// [`may_have_charged`](Error::may_have_charged) is false then if the caller still waited for
    /// its turn.
    pub async fn acquire(
        &self,
        limit: &Limit,
        key: &Key,
        n: u32,
        max_wait: Duration,
    ) -> Result<Decision, Error> {
        self.acquire_all(&[Check::new(limit, key).cost(n)], max_wait).await
    }

    /// [`acquire`](Self::acquire) for several limits at once: all or none.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and if the group is [misuse](Error::is_misuse).
    pub async fn acquire_all(
        &self,
        group: &[Check],
        max_wait: Duration,
    ) -> Result<Decision, Error> {
        validate_group(group)?;
        let patience = Patience::new(max_wait);
        let takes_nothing = group.iter().all(|check| check.units() == 0);
        let exceeds_capacity =
            |check: &Check| u64::from(check.units()) > check.limit().quota().capacity();
        if takes_nothing || group.iter().any(exceeds_capacity) {
            // It passes at once, or never: there is nothing to wait for, and nothing is charged.
            let answer = self.apply(Op::Charge, group);
            return timeout_at(patience.answer_by, answer)
                .await
                .map_err(|_| Error::timeout_unsent())?;
        }
        match self.turn(group, patience).await {
            Ok(turn) => self.acquire_in_front(group, turn, patience).await,
            Err(denied) => denied,
        }
    }

    /// The caller's turn, or what the caller gets if its turn does not come in time.
    async fn turn(
        &self,
        group: &[Check],
        patience: Patience,
    ) -> Result<Turn, Result<Decision, Error>> {
        let mut turn = pin!(async {
            let turn = self.shared.turns.wait(group).await;
            if !patience.is_over() {
                return turn;
            }
            // The caller in front needed the time of both. The next one may have more.
            drop(turn);
            pending().await
        });
        let mut denial = pin!(self.deny_at_the_deadline(group, patience));
        poll_fn(|cx| match turn.as_mut().poll(cx) {
            Poll::Ready(turn) => Poll::Ready(Ok(turn)),
            Poll::Pending => denial.as_mut().poll(cx).map(Err),
        })
        .await
    }

    /// What a caller gets that is still queued when its time is over. The store is asked shortly
    /// before, so that it has time to answer.
    async fn deny_at_the_deadline(
        &self,
        group: &[Check],
        patience: Patience,
    ) -> Result<Decision, Error> {
        sleep_until(patience.last_look).await;
        let peeked = timeout_at(patience.deadline, self.apply(Op::Peek, group)).await;
        let answered = Instant::now();
        sleep_until(patience.deadline).await;
        let decision = peeked.map_err(|_| Error::timeout_unsent())??;
        let retry_after = decision.retry_after().unwrap_or_default();
        let retry_after = retry_after.saturating_sub(answered.elapsed()).max(TICK);
        Ok(if decision.exceeds_capacity() { decision } else { decision.denied_until(retry_after) })
    }

    /// Charges as soon as the units are there, with no other waiter in front.
    async fn acquire_in_front(
        &self,
        group: &[Check],
        turn: Turn,
        patience: Patience,
    ) -> Result<Decision, Error> {
        loop {
            let came_back = turn.came_back();
            let asked = Instant::now();
            let answer = timeout_at(patience.answer_by, self.apply(Op::Charge, group)).await;
            let decision = answer.map_err(|_| Error::timeout())??;
            let latency = asked.elapsed();
            if decision.allowed() {
                drop(came_back);
                drop(turn);
                return self.wait_out(decision, group, patience).await;
            }
            match decision.retry_after() {
                // The next answer takes as long as this one, and has to come in time as well.
                // Whichever comes first, there is something new to find.
                Some(wait) if wait.saturating_add(latency) <= patience.left() => {
                    drop(timeout(wait, came_back).await);
                }
                _ => return Ok(decision),
            }
        }
    }

    /// Waits until it is an allowed check's turn to leave, or gives it back if that is too late.
    async fn wait_out(
        &self,
        decision: Decision,
        group: &[Check],
        patience: Patience,
    ) -> Result<Decision, Error> {
        let late = decision.delay().saturating_sub(patience.left());
        if !late.is_zero() {
            let given_back = self.give_back(decision, group, patience).await?;
            return Ok(given_back.denied_until(late));
        }
        if !decision.delay().is_zero() {
            sleep(decision.delay()).await;
        }
        Ok(decision)
    }

    /// Gives back what was charged in vain. Returns what is there afterwards, or the charge's own
    /// decision if the store does not say so in time.
    ///
    /// A refund that takes longer goes on in a task of its own: it must not be lost, whether the
    /// time is over or the caller is gone. The store's deadline bounds the task.
    async fn give_back(
        &self,
        charged: Decision,
        group: &[Check],
        patience: Patience,
    ) -> Result<Decision, Error> {
        let back: Vec<_> = group
            .iter()
            .zip(charged.receipts())
            .map(|(check, receipt)| check.clone().of(receipt))
            .collect();
        let mut refund = self.apply(Op::Refund, &back);
        let answer = match poll_fn(|cx| Poll::Ready(Pin::new(&mut refund).poll(cx))).await {
            Poll::Ready(answer) => answer,
            Poll::Pending => match timeout_at(patience.answer_by, spawn(refund)).await {
                Ok(Ok(answer)) => answer,
                // The runtime shuts down, or the time is over.
                Ok(Err(_)) | Err(_) => return Ok(charged),
            },
        };
        // Whatever became of the refund, the units were charged before.
        answer.map_err(|error| if error.may_have_charged() { error } else { Error::store(error) })
    }
}
