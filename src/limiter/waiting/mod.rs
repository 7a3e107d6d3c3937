//! Waiting for units, for a bounded time.
//!
//! The waiters of one process for one budget queue (`turns`). The one at the front asks the store
//! (`front`), again when the store says that the units are available, or once, for units that it
//! reserves (`reservation`). If the store is far away, several ask at once (`width`).

mod bounds;
mod front;
mod held;
mod reservation;
mod settings;
mod turns;
mod width;

use std::future::{pending, poll_fn};
use std::ops::ControlFlow;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::time::{Instant, sleep_until};

use self::bounds::Bounds;
pub(crate) use self::settings::WaitSettings;
use self::settings::WaiterGuard;
use self::turns::Turn;
pub(super) use self::turns::Turns;
use super::RateLimiter;
use super::overrides::OverriddenGroup;
use crate::model::{Check, Decision, Error, Group, Key, Limit, Operation};
use crate::store::Answer;
use crate::telemetry::CheckSpan;
use crate::units::later;

/// A group that is being charged.
struct ChargeAttempt {
    bounds: Bounds,
    /// The number of changes of its budgets before the charge.
    changes: u64,
    /// The place of its caller among the waiters.
    place: Option<WaiterGuard>,
    /// `true` if an allowed charge may have a delay.
    may_be_delayed: bool,
    longest_delay: Duration,
    /// How many callers of its keys may wait before it.
    most: usize,
}

/// The end of a wait.
enum WaitEnd {
    Decided(Decision),
    /// The override of a key began, changed or ended.
    OverrideChanged,
}

/// The resolution of a store's time.
const TICK: Duration = Duration::from_micros(1);

/// The group of a caller that waits. Its denial is not an offence if the wait may end it. A place
/// in a queue whose delay is longer is denied by the store. A refund would leave a gap, because
/// later checks keep their places.
fn patient(group: &Group, wait: Duration, longest_delay: Duration) -> Group {
    if !counts_denials(group) && !queues(group) {
        return group.clone();
    }
    let patient = |check: &Check| {
        let check = check.clone().with_patience(wait);
        with_longest_delay(check, longest_delay)
    };
    Group::of_distinct(group.iter().map(patient).collect())
}

/// The check, denied in a queue if its delay would be longer.
fn with_longest_delay(check: Check, longest_delay: Duration) -> Check {
    match check.limit().queues() {
        // Zero would be no bound.
        true => check.with_max_wait(longest_delay.max(TICK)),
        false => check,
    }
}

/// Returns whether the checks of a group have a delay until their turn.
fn queues(group: &Group) -> bool {
    group.iter().any(|check| check.limit().queues())
}

/// Returns whether the group is a single check that asks the store to reserve its units.
fn asks_to_reserve(group: &Group) -> bool {
    matches!(&**group, [check] if check.limit().reserves() && !check.max_wait().is_zero())
}

/// The group of a caller that is denied, for whatever reason, so a peek counts its denial.
fn of_denied_caller(group: &Group) -> Group {
    if !counts_denials(group) {
        return group.clone();
    }
    let denied = |check: &Check| with_longest_delay(check.clone().of_denied_caller(), TICK);
    Group::of_distinct(group.iter().map(denied).collect())
}

fn counts_denials(group: &Group) -> bool {
    group.iter().any(|check| check.limit().counts_denials())
}

/// # Waiting for units
///
/// Each call needs a tokio runtime for its timers. Outside of one, the error [is
/// misuse](Error::is_misuse).
impl RateLimiter {
    /// Consumes `n` units, all or none, and waits for them for at most `max_wait`.
    ///
    /// If they are not available in time, the decision is a denial. A denial is not an error, so
    /// look at [`allowed`](Decision::allowed):
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Error, Limit, RateLimiter};
    /// # async fn job(limiter: &RateLimiter, limit: &Limit) -> Result<(), Error> {
    /// let decision = limiter.acquire(limit, "job", 5, Duration::from_secs(2)).await?;
    /// if !decision.allowed() {
    ///     return Ok(()); // Not in time: do not start the job.
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The store's decision contains the time at which the units are available. The store is not
    /// asked again before that time, unless this limiter refunds or resets one of the budgets, or
    /// the [override](crate::overrides::Override) of a key changes.
    /// Waiters of one process for one budget are served first come, first served, so small requests
    /// do not starve a large one. A leaky bucket's delay is part of the wait. As long as answers
    /// find free units, more waiters ask at the same time, in their order, because otherwise a
    /// distant store would serve one waiter in each round trip.
    ///
    /// A caller that does not find others waiting is decided at once, and waits only if it is
    /// denied. Under a token bucket, GCRA, or a leaky bucket as a meter, the first waiter of a
    /// process [reserves its units](Check::with_max_wait). So the processes take turns, in the
    /// order in which the store decided. If another caller gives units back, a reserved turn does
    /// not come earlier. A leaky bucket as a queue gives each caller its place, in the order in
    /// which the store decided. Under other algorithms, and for groups, the processes ask when the
    /// units are available, and the first one to ask gets them.
    ///
    /// A caller is denied at once if the store says that its units come too late. Behind waiters
    /// that reserve their units, it is also denied at once if the queue of this process is too
    /// long. Behind other waiters, its denial comes after `max_wait`, because the wait is not known
    /// before. Dropping the future cancels the wait. Reserved units are left to the next waiter of
    /// this process, or given back. The place in a leaky bucket as a queue stays taken.
    ///
    /// `max_wait` bounds the wait for units. Each answer of the store has the store's own deadline,
    /// so the call ends at most two such deadlines after `max_wait`. One is for the last charge,
    /// and one for its refund if its units come too late. Zero asks once and does not wait for
    /// units.
    ///
    /// If the store is unavailable, the limit's [failure policy](Limit::with_on_store_failure)
    /// decides. A limit that fails closed is asked again after each `retry_after`, until
    /// `max_wait`. Without a policy, you get the error at once. Retry after a pause.
    ///
    /// # Errors
    ///
    /// Returns an error if the store does not decide, as every check does.
    pub async fn acquire(
        &self,
        limit: &Limit,
        key: impl Into<Key>,
        n: u32,
        max_wait: Duration,
    ) -> Result<Decision, Error> {
        self.acquire_group(Check::new(limit, key).with_cost(n).into(), max_wait)
            .await
    }

    /// Consumes the units of a group, all or none, and waits for them like
    /// [`acquire`](Self::acquire). If they are not available in time, the decision is a denial.
    ///
    /// # Errors
    ///
    /// Returns an error like [`acquire`](Self::acquire). It [is misuse](Error::is_misuse) if there
    /// are no checks, more than 255, or two checks of one budget.
    pub async fn acquire_all(
        &self,
        group: impl TryInto<Group, Error: Into<Error>>,
        max_wait: Duration,
    ) -> Result<Decision, Error> {
        self.acquire_group(group.try_into().map_err(Into::into)?, max_wait)
            .await
    }

    /// Acquires a group, with the overrides of its keys.
    async fn acquire_group(&self, group: Group, max_wait: Duration) -> Result<Decision, Error> {
        if self.shared.overrides.is_empty() {
            return self.wait_observed(&group, max_wait).await;
        }
        let limiter = self.clone();
        let acquire =
            |group| Answer::later(async move { limiter.wait_observed(&group, max_wait).await });
        self.apply_with_overrides(group, true, acquire).await
    }

    async fn wait_observed(&self, group: &Group, max_wait: Duration) -> Result<Decision, Error> {
        let observation = self.observe(CheckSpan::begin(), group);
        let mut acquiring = pin!(async {
            // Timers need a runtime.
            Runtime::try_current().map_err(Error::outside_of_runtime)?;
            let settings = WaitSettings::unbounded(max_wait);
            self.charge_within(group.clone(), &settings).await
        });
        let answer = poll_fn(|cx| observation.span.poll(&mut acquiring, cx)).await;
        self.observe_answer(&observation, &answer);
        answer
    }

    /// Charges a group, and waits for its units as the settings say. A request that need not wait
    /// is decided like any other. No delay is left to be waited out.
    pub(crate) fn charge_within(&self, group: Group, settings: &WaitSettings) -> Answer {
        let attempt = self.attempt(&group, settings, None);
        let mut first = self.first_answer(&group, settings, &attempt);
        if let Some(answer) = first.as_mut().and_then(Answer::take_ready) {
            if !attempt.bounds.has_to_wait(&answer) {
                return Answer::ready(answer);
            }
            first = Some(Answer::ready(answer));
        }
        if let Err(error) = Runtime::try_current() {
            // Timers need a runtime.
            return Answer::ready(Err(Error::outside_of_runtime(error)));
        }
        self.charge_later(group, attempt, first, settings.clone())
    }

    /// The answer to a charge that is not decided at once. The future of its wait is boxed, because
    /// most requests need not wait when the store has answered.
    #[inline(never)]
    fn charge_later(
        &self,
        group: Group,
        attempt: ChargeAttempt,
        first: Option<Answer>,
        settings: WaitSettings,
    ) -> Answer {
        let limiter = self.clone();
        Answer::later(async move {
            let first = match first {
                Some(first) => match first.await {
                    answer if !attempt.bounds.has_to_wait(&answer) => return answer,
                    answer => Some(Answer::ready(answer)),
                },
                None => None,
            };
            Box::pin(limiter.wait(group, attempt, first, settings)).await
        })
    }

    /// Begins to charge a group. A caller that waited before has its `place` already.
    ///
    /// It and the first answer are parts of their callers, because as calls they cost a request of
    /// a layer that waits 4 percent of its rate.
    #[inline(always)]
    fn attempt(
        &self,
        group: &Group,
        settings: &WaitSettings,
        place: Option<WaiterGuard>,
    ) -> ChargeAttempt {
        let bounds = Bounds::new(settings);
        let changes = self.shared.turns.changes(group);
        // Only a waiter with a place may have a delay, so where there are delays, the place is
        // taken before the charge. An application that waits always has one.
        let may_be_delayed = queues(group) || asks_to_reserve(group);
        let most = match place {
            Some(_) => usize::MAX,
            None => settings.max_waiters_per_key,
        };
        let place = match may_be_delayed || settings.is_unbounded() {
            true => place.or_else(|| settings.take_place()),
            false => place,
        };
        let longest_delay = match place {
            Some(_) => settings.max_wait,
            None => Duration::ZERO,
        };
        ChargeAttempt {
            bounds,
            changes,
            place,
            may_be_delayed,
            longest_delay,
            most,
        }
    }

    /// The answer to the charge of a group. `None` if others wait for its budgets, because the
    /// first to come is served first.
    #[inline(always)]
    fn first_answer(
        &self,
        group: &Group,
        settings: &WaitSettings,
        attempt: &ChargeAttempt,
    ) -> Option<Answer> {
        let is_behind_others = !self.shared.turns.contested(group).is_empty() && may_wait(group);
        (!is_behind_others).then(|| {
            let patient = patient(group, settings.max_wait, attempt.longest_delay);
            self.apply_unobserved(Operation::Charge(patient))
        })
    }

    /// Waits for the units of a group. If the override of a key changes, the group is charged anew,
    /// with the overrides that its keys have then.
    async fn wait(
        &self,
        group: Group,
        mut attempt: ChargeAttempt,
        mut first: Option<Answer>,
        settings: WaitSettings,
    ) -> Result<Decision, Error> {
        let bounds = attempt.bounds;
        let mut overridden = OverriddenGroup::all_asked(group.clone());
        let mut asked = group.clone();
        loop {
            let place = match self.wait_once(&asked, attempt, first, &settings).await? {
                (WaitEnd::Decided(decision), _) => return overridden.with(&decision),
                (WaitEnd::OverrideChanged, place) => place,
            };
            let plain = Group::of_distinct(group.iter().map(Check::without_override).collect());
            overridden = match self.overridden_group(&plain, true) {
                Some(overridden) => overridden,
                None => OverriddenGroup::all_asked(plain),
            };
            asked = match overridden.asked() {
                Some(asked) => asked.clone(),
                None => return overridden.of_overrides(),
            };
            let settings = settings.clone().with_max_wait(bounds.left());
            attempt = self.attempt(&asked, &settings, place);
            first = self.first_answer(&asked, &settings, &attempt);
        }
    }

    /// Waits for the units of a group, until the override of a key changes. Returns the place of
    /// the caller.
    async fn wait_once(
        &self,
        group: &Group,
        attempt: ChargeAttempt,
        first: Option<Answer>,
        settings: &WaitSettings,
    ) -> Result<(WaitEnd, Option<WaiterGuard>), Error> {
        let bounds = attempt.bounds;
        let denied = match first {
            None => None,
            Some(first) => match first.await {
                answer if !bounds.has_to_wait(&answer) => {
                    return Ok((WaitEnd::Decided(answer?), attempt.place));
                }
                Ok(queued) if queued.allowed() => {
                    let decision = self.wait_out(queued, group, attempt.longest_delay).await?;
                    return Ok((WaitEnd::Decided(decision), attempt.place));
                }
                answer => Some(answer?),
            },
        };
        // A request that need not wait has no place, however many are in flight.
        let place = match attempt.place {
            None if !attempt.may_be_delayed => settings.take_place(),
            place => place,
        };
        let most = place.as_ref().map(|_| attempt.most);
        let end = self
            .wait_in_bounds(group, denied, attempt.changes, bounds, most)
            .await?;
        Ok((end, place))
    }

    /// Waits for the units of a group that was `denied`, or was not charged because others wait.
    /// `changes` is the number of changes of its budgets before that. A caller waits behind at most
    /// `most` others of its key. A caller without a place has `None`, and is denied.
    async fn wait_in_bounds(
        &self,
        group: &Group,
        denied: Option<Decision>,
        changes: u64,
        bounds: Bounds,
        most: Option<usize>,
    ) -> Result<WaitEnd, Error> {
        let denied = match denied {
            Some(denied) if !bounds.may_end(&denied) => return Ok(WaitEnd::Decided(denied)),
            denied => denied,
        };
        let contested = match &denied {
            Some(denied) => denied.denied_checks(group),
            None => self.shared.turns.contested(group),
        };
        let wait = denied.as_ref().and_then(Decision::retry_after);
        let ask_at = later(Instant::now(), wait.unwrap_or_default());
        if let Some(most) = most {
            let acquiring = self.acquire_in_turn(group, contested, ask_at, changes, bounds, most);
            if let ControlFlow::Break(end) = acquiring.await {
                return end;
            }
        }
        let denied = match denied {
            Some(denied) if !counts_denials(group) => self.behind_queue(group, denied),
            _ => self.deny_at_once(group).await?,
        };
        Ok(WaitEnd::Decided(denied))
    }

    /// The denial of a check that has no place in the queue.
    async fn deny_at_once(&self, group: &Group) -> Result<Decision, Error> {
        let denied = self.deny_behind_others(of_denied_caller(group)).await?;
        Ok(self.behind_queue(group, denied))
    }

    /// A denial whose `retry_after` is not before the turns of the waiters in this process.
    fn behind_queue(&self, group: &Group, denied: Decision) -> Decision {
        match (self.shared.turns.least_wait(group), denied.retry_after()) {
            (Some(wait), Some(known)) if wait > known => denied.denied_until(wait, None),
            _ => denied,
        }
    }

    /// Charges a group when it is its turn in the queues of the `contested` checks, which were
    /// denied until `ask_at`. Returns the end of the wait in `Break`, or `Continue` if one of the
    /// queues has `most` waiters, or is so long that the turn cannot be in time.
    ///
    /// A group does not queue for a budget that has room, because others would wait behind it for
    /// nothing.
    async fn acquire_in_turn(
        &self,
        group: &Group,
        contested: Vec<Check>,
        ask_at: Instant,
        changes: u64,
        bounds: Bounds,
        most: usize,
    ) -> ControlFlow<Result<WaitEnd, Error>> {
        let least_wait = self.shared.turns.least_wait(group);
        if least_wait.is_some_and(|wait| wait > bounds.left()) {
            return ControlFlow::Continue(());
        }
        if let [check] = &**group
            && check.limit().reserves()
        {
            return match self.turn(group, group, bounds, most).await? {
                Some(turn) => ControlFlow::Break(self.acquire_reserved(group, turn, bounds).await),
                None => ControlFlow::Continue(()),
            };
        }
        let mut contested = match group.len() {
            1 => group.to_vec(),
            _ => contested,
        };
        let mut asking = (ask_at, changes);
        while let Some(turn) = self.turn(group, &contested, bounds, most).await? {
            contested = self
                .acquire_in_front(group, &contested, turn, &mut asking, bounds)
                .await?;
        }
        ControlFlow::Continue(())
    }

    /// Waits for the caller's turn. `None` if a queue has no place.
    async fn turn(
        &self,
        group: &Group,
        contested: &[Check],
        bounds: Bounds,
        most: usize,
    ) -> ControlFlow<Result<WaitEnd, Error>, Option<Turn<'_>>> {
        let waiting = in_time(self.shared.turns.wait(contested, most), bounds);
        self.unless_late(group, bounds, waiting).await
    }

    /// Waits for something of a queue. If it does not come in time, the caller is denied. If a key
    /// has another override first, the wait ends.
    async fn unless_late<T>(
        &self,
        group: &Group,
        bounds: Bounds,
        waiting: impl Future<Output = T>,
    ) -> ControlFlow<Result<WaitEnd, Error>, T> {
        let mut waiting = pin!(waiting);
        let mut denial = pin!(self.deny_at_the_deadline(group, bounds));
        let first = poll_fn(|cx| match waiting.as_mut().poll(cx) {
            Poll::Ready(place) => Poll::Ready(ControlFlow::Continue(place)),
            Poll::Pending => {
                let denial = denial.as_mut().poll(cx).map_ok(WaitEnd::Decided);
                denial.map(ControlFlow::Break)
            }
        });
        self.unless_override_changes(group, first)
            .await
            .unwrap_or(ControlFlow::Break(Ok(WaitEnd::OverrideChanged)))
    }

    /// The denial of a waiter that is still queued at its deadline. The peek is sent shortly
    /// before, so that the answer of most stores is here by then.
    async fn deny_at_the_deadline(&self, group: &Group, bounds: Bounds) -> Result<Decision, Error> {
        sleep_until(bounds.peek_at).await;
        let peeked = self.deny_behind_others(group.clone()).await;
        let answered = Instant::now();
        sleep_until(bounds.deadline).await;
        if counts_denials(group) {
            // Not before the deadline, because its turn may come until then.
            let peek = Operation::Peek(of_denied_caller(group));
            tokio::spawn(self.apply_unobserved(peek));
        }
        let decision = peeked?;
        let Some(retry_after) = decision.retry_after() else {
            return Ok(decision);
        };
        let retry_after = retry_after.saturating_sub(answered.elapsed()).max(TICK);
        Ok(decision.denied_until(retry_after, None))
    }

    /// The denial of a check that would be decided before other waiters.
    async fn deny_behind_others(&self, group: Group) -> Result<Decision, Error> {
        let decision = self.apply_unobserved(Operation::Peek(group)).await?;
        if decision.exceeds_capacity() {
            return Ok(decision);
        }
        let retry_after = decision.retry_after().unwrap_or_default().max(TICK);
        Ok(decision.denied_until(retry_after, None))
    }
}

/// A place, unless it comes too late, because the next waiter may have more time.
async fn in_time<T>(waiting: impl Future<Output = T>, bounds: Bounds) -> T {
    let place = waiting.await;
    if bounds.is_over() {
        drop(place);
        pending().await
    } else {
        place
    }
}

/// Returns whether the checks of a group may be denied for now, so that a wait helps.
fn may_wait(group: &Group) -> bool {
    let exceeds = |check: &Check| u64::from(check.cost()) > check.limit().quota().capacity();
    let mut enforced = group.iter().filter(|check| !check.is_shadow());
    !enforced.clone().any(exceeds) && enforced.any(|check| check.cost() > 0)
}
