//! The waiter at the front of a queue. It asks the store.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tokio::task::spawn;
use tokio::time::{Instant, sleep, timeout_at};

use super::bounds::Bounds;
use super::held::Held;
use super::reservation::Reservation;
use super::turns::Turn;
use super::width::UnitsFound;
use super::{TICK, WaitEnd, in_time, patient};
use crate::limiter::{OverriddenCheck, RateLimiter};
use crate::model::{Check, Decision, Error, Group, Operation, Source};
use crate::store::Answer;
use crate::units::later;

/// Why a waiter holds reserved units no longer.
enum HeldEnd {
    /// Their turn has come.
    Turn,
    /// A reset has given them back.
    Reset,
    /// Under the override that the key has now, the caller is decided at once, or comes earlier.
    OverrideChanged,
}

impl RateLimiter {
    /// Charges as soon as the units are available. No other waiter is in front, for the `contested`
    /// checks. The store is asked at `ask_at`, or at once if the budgets had other changes since
    /// the last answer. `Break` is the end of the wait. `Continue` has the checks of the group that
    /// were denied in place of the contested ones. The caller queues for these.
    pub(super) async fn acquire_in_front(
        &self,
        group: &Group,
        contested: &[Check],
        turn: Turn<'_>,
        (ask_at, changes): &mut (Instant, u64),
        bounds: Bounds,
    ) -> ControlFlow<Result<WaitEnd, Error>, Vec<Check>> {
        // Single checks before may have handed units over. They are given back.
        drop(turn.take_handed_over());
        let mut replenished = Box::pin(turn.replenished());
        // Changes from now on wake the caller. Those before did not.
        if self.shared.turns.changes(group) != *changes {
            *ask_at = Instant::now();
        }
        let mut repeat = None;
        loop {
            if *ask_at > Instant::now() && repeat.is_none() {
                let waiting = in_time(turn.wait_to_repeat(), bounds);
                repeat = Some(self.unless_late(group, bounds, waiting).await?);
            }
            let waiting = async {
                if *ask_at > Instant::now() {
                    drop(timeout_at(*ask_at, &mut replenished).await);
                }
            };
            if self.unless_override_changes(group, waiting).await.is_none() {
                return ControlFlow::Break(Ok(WaitEnd::OverrideChanged));
            }
            // Registered before the store is asked, so that no refund is missed.
            replenished.set(turn.replenished());
            *changes = self.shared.turns.changes(group);
            let asked = Instant::now();
            let left = bounds.left();
            let answer = self.apply_unobserved(Operation::Charge(patient(group, left, left)));
            let decision = match answer.await {
                Ok(decision) => decision,
                Err(error) => return ControlFlow::Break(Err(error)),
            };
            if decision.allowed() {
                turn.adapt(
                    contested,
                    UnitsFound::Free,
                    asked.elapsed(),
                    repeat.is_some(),
                );
                drop(replenished);
                drop(repeat);
                drop(turn);
                let answer = self.wait_out(decision, group, left).await;
                return ControlFlow::Break(answer.map(WaitEnd::Decided));
            }
            let denied = decision.denied_checks(group);
            turn.adapt(
                &denied,
                UnitsFound::Missing,
                asked.elapsed(),
                repeat.is_some(),
            );
            match bounds.retry_after(&decision) {
                Some(wait) if bounds.may_end(&decision) => {
                    *ask_at = later(Instant::now(), wait);
                    if !is_denied_by(&decision, group, contested) {
                        return ControlFlow::Continue(denied);
                    }
                }
                _ => return ControlFlow::Break(Ok(WaitEnd::Decided(decision))),
            }
        }
    }

    /// Reserves the units of a single check, and waits for them at the front of the queue.
    ///
    /// The other waiters of this process have no reservation yet. So one of them that gives up
    /// costs nothing, and the one at the front can hand its units over to the next. If the
    /// override of the key changes, it may give the units back, because they were reserved under
    /// the old limit.
    pub(super) async fn acquire_reserved(
        &self,
        group: &Group,
        turn: Turn<'_>,
        bounds: Bounds,
    ) -> Result<WaitEnd, Error> {
        loop {
            let reset = turn.reset();
            let resets = turn.resets();
            let reserved = match turn.take_suiting(group, bounds.deadline) {
                Some(reserved) => reserved,
                None => match self.reserve(group, &turn, bounds).await? {
                    ControlFlow::Continue(reserved) => reserved,
                    ControlFlow::Break(end) => return Ok(end),
                },
            };
            let held = Held::new(reserved, &turn, resets);
            match self.hold(group, &held, reset).await {
                HeldEnd::Turn => return Ok(WaitEnd::Decided(held.used())),
                HeldEnd::Reset => held.void(),
                HeldEnd::OverrideChanged => {
                    // If the refund fails, the units count until they are replenished.
                    if let Some((charged, refund)) = held.give_back() {
                        drop(after_refund(charged, refund).await);
                    }
                    return Ok(WaitEnd::OverrideChanged);
                }
            }
        }
    }

    /// Waits for the turn of reserved units. After a change of the override, they stay reserved,
    /// unless the caller comes earlier without them. Units that are given back may be lost,
    /// because a bucket gives nothing back if another process has charged it at another rate.
    async fn hold(
        &self,
        group: &Group,
        held: &Held<'_>,
        reset: impl Future<Output = ()>,
    ) -> HeldEnd {
        let mut waiting = pin!(timeout_at(held.turn_at(), reset));
        let mut known = group[0].clone();
        loop {
            let checks = std::slice::from_ref(&known);
            match self.unless_override_changes(checks, &mut waiting).await {
                Some(Ok(())) => return HeldEnd::Reset,
                Some(Err(_)) => return HeldEnd::Turn,
                None => match self.overridden_check(known.without_override()) {
                    OverriddenCheck::Asked(check)
                        if !held.is_late_under(&group[0], check.limit()) =>
                    {
                        known = check;
                    }
                    _ => return HeldEnd::OverrideChanged,
                },
            }
        }
    }

    /// Charges a check that waits for its units. Returns the end of the wait if there is nothing to
    /// wait for.
    async fn reserve(
        &self,
        group: &Group,
        turn: &Turn<'_>,
        bounds: Bounds,
    ) -> Result<ControlFlow<WaitEnd, Reservation>, Error> {
        loop {
            let max_wait = bounds.left();
            let check = group[0].clone().with_max_wait(max_wait);
            let asked = Instant::now();
            let decision = self
                .apply_unobserved(Operation::Charge(check.into()))
                .await?;
            let found = match decision.delay() {
                _ if !decision.allowed() => UnitsFound::Missing,
                Duration::ZERO => UnitsFound::Free,
                delay => UnitsFound::ReservedFor(delay),
            };
            turn.adapt(group, found, asked.elapsed(), false);
            if decision.allowed() {
                if decision.delay().is_zero() {
                    return Ok(decided(decision));
                }
                let reserved = Reservation::new(self, group, decision);
                let late = reserved.is_late_by(bounds.deadline);
                if late.is_zero() {
                    return Ok(ControlFlow::Continue(reserved));
                }
                let (charged, refund) = reserved.give_back();
                let left = after_refund(charged, refund).await?;
                return Ok(decided(left.denied_until(late, None)));
            }
            let wait = match decision.retry_after() {
                // The store is asked again when it may be available.
                Some(wait)
                    if decision.source() == Source::FailClosed
                        && bounds.waits_for_store
                        && wait <= bounds.left() =>
                {
                    wait
                }
                // The end of a block is not a matter of units.
                Some(wait) if decision.is_blocked() && wait <= bounds.left() => wait,
                Some(_) if decision.is_blocked() => return Ok(decided(decision)),
                // The time until the units are available, without a wait.
                Some(wait) if decision.source() != Source::FailClosed => {
                    let denied = decision.denied_until(wait.saturating_add(max_wait), None);
                    return Ok(decided(denied));
                }
                _ => return Ok(decided(decision)),
            };
            if self
                .unless_override_changes(group, sleep(wait))
                .await
                .is_none()
            {
                return Ok(ControlFlow::Break(WaitEnd::OverrideChanged));
            }
        }
    }

    /// Waits out the delay of an allowed check, or refunds the check if the delay is too long.
    ///
    /// `longest` is the wait that was left when the store was asked, not what is left of it now:
    /// a place in a queue that is given back stays empty.
    pub(super) async fn wait_out(
        &self,
        decision: Decision,
        group: &Group,
        longest: Duration,
    ) -> Result<Decision, Error> {
        let late = decision.delay().saturating_sub(longest);
        if late > TICK {
            let slowest = decision.slowest();
            let (charged, refund) = Reservation::new(self, group, decision).give_back();
            let left = after_refund(charged, refund).await?;
            return Ok(left.denied_until(late, slowest));
        }
        if !decision.delay().is_zero() {
            sleep(decision.delay()).await;
        }
        Ok(decision)
    }
}

const fn decided<T>(decision: Decision) -> ControlFlow<WaitEnd, T> {
    ControlFlow::Break(WaitEnd::Decided(decision))
}

/// Returns whether only the `contested` checks are denied.
fn is_denied_by(decision: &Decision, group: &Group, contested: &[Check]) -> bool {
    let is_contested = |check: &Check| contested.iter().any(|it| it.budget() == check.budget());
    let mut verdicts = group.iter().zip(decision.verdicts());
    verdicts.all(|(check, verdict)| verdict.allowed() || is_contested(check))
}

/// The store's decision after the refund of a charge that the caller cannot use, or the decision of
/// the charge if the runtime shuts down.
///
/// A refund that is not ready at once continues in a task, so that a dropped future does not lose
/// it.
async fn after_refund(charged: Decision, mut refund: Answer) -> Result<Decision, Error> {
    let answer = match poll_fn(|cx| Poll::Ready(Pin::new(&mut refund).poll(cx))).await {
        Poll::Ready(answer) => answer,
        Poll::Pending => match spawn(refund).await {
            Ok(answer) => answer,
            // The runtime shuts down.
            Err(_) => return Ok(charged),
        },
    };
    // Even if the refund was not sent, units have been charged before.
    answer.map_err(|error| {
        if error.may_have_charged() {
            error
        } else {
            Error::store(error)
        }
    })
}
