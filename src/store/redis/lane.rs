//! A lane: the queue of checks for a connection, and places for its calls in flight.
//!
//! Two calls may be in flight, so that the server has the next one at hand when it finishes one.
//! Checks that arrive meanwhile are queued, and are sent together, so batches grow with the
//! load, and no check waits for a later one.
//!
//! A check that finds a place free and nothing queued is sent by its caller, which needs no task. A
//! caller may be blocked, so a queued check does not wait for its call. A task sends the next call
//! meanwhile.
//!
//! A distant server would make a check wait for a whole round trip before it leaves. So if the
//! newest call of a task has been in flight for a [pace](LaneSettings::pace), that task starts the
//! next one, and a check leaves at most one pace after the call before. A fast server has at most
//! three calls in flight, because two callers may send beside a task. A slow one has at most 128.
//!
//! Every check counts from its arrival until its call is answered or given up, whether its caller
//! still waits or not. So a server that hangs cannot pile up checks without bound.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::batch::{Batch, BatchCaller, MAX_CHARGES};
use super::route::LaneRoute;
use crate::model::{Change, Error, Operation};
use crate::store::deny_cache::DenyCache;
use crate::store::heartbeat::Heartbeat;
use crate::store::promise::{Promise, Promised};
use crate::telemetry::GaugeLevel;
use crate::units::{ManualClock, Mutex, MutexGuard, later};

/// The calls in flight while each is answered within the pace.
const IN_FLIGHT: usize = 2;

/// The most empty batches that are kept: as many as a fast server has calls in flight.
const SPARE: usize = IN_FLIGHT + 1;

/// The most calls in flight, which follows from the pace. A call is in flight for at most two
/// deadlines.
const MOST_IN_FLIGHT: usize = 2 * PACES_OF_A_DEADLINE as usize;

/// The pace of calls to a distant server. It costs the server at most 250 calls a second more.
const PACE: Duration = Duration::from_millis(4);

/// A long deadline has a longer pace.
const PACES_OF_A_DEADLINE: u32 = 64;

/// The patience is a twelfth of the deadline, about 20 ms of the default.
const PING_PATIENCES_OF_A_DEADLINE: u32 = 12;

/// In place of the number of a call that its caller drives. No other call has it.
const OF_CALLER: u64 = 0;

/// The settings of all lanes of a store.
#[derive(Clone)]
pub(super) struct LaneSettings {
    pub(super) deadline: Duration,
    pub(super) max_waiting: usize,
    pub(super) clock: Option<ManualClock>,
    /// `None` if Redis decides every check.
    pub(super) deny_cache: Option<Arc<DenyCache>>,
}

impl LaneSettings {
    /// The longest wait for the answer to the ping of an idle connection. It is enough to notice
    /// that the connection is closed, because nothing has to travel for that. A distant server
    /// answers later, and its checks still meet their deadlines.
    pub(super) fn ping_patience(&self) -> Duration {
        self.deadline
            .checked_div(PING_PATIENCES_OF_A_DEADLINE)
            .unwrap_or_default()
    }

    /// How long the newest call has been in flight when the next one leaves beside it.
    pub(super) fn pace(&self) -> Duration {
        PACE.max(
            self.deadline
                .checked_div(PACES_OF_A_DEADLINE)
                .unwrap_or_default(),
        )
    }
}

pub(super) struct Lane {
    /// Where its calls go.
    pub(super) route: LaneRoute,
    /// The start of its keys, up to the braces around the key of a check.
    pub(super) prefix: String,
    pub(super) settings: LaneSettings,
    queue: Mutex<LaneQueue>,
    /// Keeps other batches from leaving. Held from taking a batch until it is handed to the
    /// connection, so that batches keep their order.
    pub(super) leaving: Mutex<()>,
    /// The turn to send a group whose keys are partly on another node. Many groups that try again
    /// together would be a flood.
    pub(super) groups_that_wait: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct LaneQueue {
    /// In boxes, because each is moved to its call, and back.
    batches: VecDeque<Box<Batch>>,
    /// The number of checks that are queued or in flight.
    unanswered: usize,
    /// The number of places in use.
    in_flight: usize,
    /// The number of calls of tasks so far.
    calls: u64,
    /// When the newest call of a task left. `None` once it has ended.
    newest_sent_at: Option<Instant>,
    /// The last time that a place was taken, or that a call started or ended.
    heartbeat: Heartbeat,
    /// Counts how often the places were given up as lost.
    generation: u64,
    /// Empty batches, whose memory is used again.
    #[expect(clippy::vec_box, reason = "a batch is moved from list to list")]
    spare: Vec<Box<Batch>>,
    /// In the gauge of queued checks. It is set when a call is sent and when it is answered.
    level: GaugeLevel,
}

/// The reasons for which a check may be rejected before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// It is rejected by a full queue, and by an open circuit breaker.
    Usual,
    /// It is rejected by an open circuit breaker alone. Its process holds permits, or has a place
    /// in a queue, and would lose them, or it pays for units that have already passed. A process
    /// has a bounded number of claims in flight, and one payment for each key.
    Renews,
    /// It is never rejected. It gives back what was just charged, so there are never more of these
    /// than there were checks.
    GivesBack,
}

/// A queued check.
pub(super) struct QueuedCheck {
    pub(super) promised: Promised,
    /// `true` if its caller sends it, unless another check arrives before, because nothing was
    /// queued and a place was free.
    pub(super) is_alone: bool,
    /// `true` if a place is free for a task that sends it.
    pub(super) has_place: bool,
    /// `true` if it is in the batch that leaves next.
    pub(super) leaves_next: bool,
}

impl Lane {
    pub(super) fn new(route: LaneRoute, prefix: String, settings: LaneSettings) -> Arc<Self> {
        Arc::new(Self {
            route,
            prefix,
            settings,
            queue: Mutex::default(),
            leaving: Mutex::default(),
            groups_that_wait: tokio::sync::Mutex::default(),
        })
    }

    /// Queues a check, unless the queue is full.
    pub(super) fn add(
        self: &Arc<Self>,
        operation: &Operation,
        urgency: Urgency,
    ) -> Option<QueuedCheck> {
        let prefix = &self.prefix;
        let LaneSettings {
            deadline,
            max_waiting,
            ..
        } = &self.settings;
        let now = Instant::now();
        let mut queue = self.queue();
        queue.give_up_lost_places(now, *deadline);
        let is_full = || queue.is_full_for(operation, prefix, *max_waiting);
        if urgency == Urgency::Usual && is_full() {
            return None;
        }
        queue.unanswered += 1;
        let deadline = later(now, *deadline);
        let (promise, promised) = Promise::new(deadline, self.route.events().server());
        let deny_cache = self.settings.deny_cache.as_ref();
        // Peeks, claims and payments end no denial.
        let (asked, change) = match (deny_cache, operation) {
            (Some(denials), Operation::Charge(_)) => (Some(denials.asked(now)), None),
            (_, Operation::Peek(_) | Operation::Change(_, Change::Claim(_) | Change::Pay(_))) => {
                (None, None)
            }
            (Some(denials), Operation::Change(budget, _)) => {
                (None, Some(denials.begin_change(budget)))
            }
            (None, _) => (None, None),
        };
        let caller = BatchCaller::new(deadline, promise, asked, change);
        let is_alone = queue.in_flight < IN_FLIGHT && queue.batches.is_empty();
        let has_place = queue.has_place(now, self.settings.pace());
        queue.batch_for(operation).push(prefix, operation, caller);
        Some(QueuedCheck {
            promised,
            is_alone,
            has_place,
            leaves_next: queue.batches.len() == 1,
        })
    }

    /// Takes a place for the first batch, if there is one and a place is free.
    pub(super) fn place(self: &Arc<Self>) -> Option<CallPlace> {
        let mut queue = self.queue();
        let has_place = queue.has_place(Instant::now(), self.settings.pace());
        let is_wanted = has_place && !queue.batches.is_empty();
        is_wanted.then(|| queue.take_place(self))
    }

    /// Takes a place for a check that is still alone in the queue.
    pub(super) fn place_alone(
        self: &Arc<Self>,
        check: &Promised,
        now: Instant,
    ) -> Option<CallPlace> {
        let mut queue = self.queue();
        let may_leave = queue.in_flight < IN_FLIGHT && queue.batches.len() == 1;
        queue
            .batches
            .front()
            .filter(|batch| may_leave && batch.holds_only(check))?;
        let batch = queue.batches.pop_front()?;
        Some(queue.take_place_of_caller(self, now).with(Some(batch)))
    }

    /// Fails the checks of the first batch whose deadline is over at `until`, or all of them.
    pub(super) fn fail_first(&self, until: Option<Instant>, reason: &str) {
        // Another place must not take or put back a batch meanwhile: the order would change.
        let _one_by_one = self.leaving.lock();
        let Some(mut batch) = self.queue().batches.pop_front() else {
            return;
        };
        let error = || Error::unreachable(reason.to_owned());
        let Some(now) = until else {
            return self.fail(batch, error);
        };
        let expired = batch.answer_expired(now, error);
        self.route.count_undecided(expired);
        if batch.first_deadline().is_some() {
            let mut queue = self.queue();
            queue.batches.push_front(batch);
            queue.heartbeat.beat(Instant::now());
        } else {
            self.finish(batch);
        }
    }

    /// Fails all queued checks, because the circuit breaker opened. Checks in flight may still be
    /// answered.
    pub(super) fn fail_queued(&self) {
        let _one_by_one = self.leaving.lock();
        let batches = mem::take(&mut self.queue().batches);
        for batch in batches {
            self.fail(batch, || Error::circuit_open(Duration::ZERO));
        }
    }

    /// Fails all checks of a batch that left the queue.
    fn fail(&self, mut batch: Box<Batch>, error: impl FnMut() -> Error) {
        let failed = batch.set_failure(error);
        self.route.count_undecided(failed);
        batch.deliver(None);
        self.finish(batch);
    }

    /// The deadline of the first queued check.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.queue().batches.front()?.first_deadline()
    }

    /// Reports how long the queue is.
    fn measure(&self, queue: &mut LaneQueue) {
        let checks = queue.unanswered;
        self.route.events().queued(&mut queue.level, checks);
    }

    /// Takes back a batch, whose checks are answered or given up.
    fn finish(&self, mut batch: Box<Batch>) {
        let checks = batch.len();
        batch.clear();
        let mut queue = self.queue();
        queue.unanswered -= checks;
        queue.heartbeat.beat(Instant::now());
        if queue.spare.len() < SPARE {
            queue.spare.push(batch);
        }
        self.measure(&mut queue);
    }

    fn queue(&self) -> MutexGuard<'_, LaneQueue> {
        self.queue.lock()
    }
}

impl LaneQueue {
    /// Returns whether the queue is full for this operation. Past half full, a check is rejected if
    /// its key has more than 256 checks in the newest batch, so that a hot key does not crowd out
    /// the others.
    fn is_full_for(&self, operation: &Operation, prefix: &str, max_waiting: usize) -> bool {
        let crowded = || {
            self.batches.back().is_some_and(|batch| {
                operation
                    .budgets()
                    .any(|budget| batch.keys.checks_of(prefix, budget) > MAX_CHARGES / 4)
            })
        };
        self.unanswered >= max_waiting || (self.unanswered >= max_waiting / 2 && crowded())
    }

    /// Frees the places if none has moved for three deadlines. A server that hangs holds a place
    /// for two, until the deadline, and as long again for a late answer. So the tasks that hold the
    /// places stand still, and other tasks must not wait for them.
    fn give_up_lost_places(&mut self, now: Instant, deadline: Duration) {
        let at_most = deadline.saturating_mul(3);
        if self.in_flight > 0 && self.heartbeat.has_stopped(now, at_most) {
            self.generation += 1;
            self.in_flight = 0;
        }
    }

    /// Returns whether a place is free, for a second call at once, and for one more when the pace
    /// is over.
    fn has_place(&self, now: Instant, pace: Duration) -> bool {
        self.in_flight < IN_FLIGHT
            || (self.in_flight < MOST_IN_FLIGHT && self.is_pace_over(now, pace))
    }

    fn is_pace_over(&self, now: Instant, pace: Duration) -> bool {
        self.newest_sent_at
            .is_none_or(|left| now.saturating_duration_since(left) >= pace)
    }

    fn take_place(&mut self, lane: &Arc<Lane>) -> CallPlace {
        let call = self.begin_call();
        self.add_place(lane, call)
    }

    /// Takes a place for a call that its caller drives. It does not count as the newest call,
    /// because the newest one sees to the queue when the pace is over, and a caller may be blocked.
    fn take_place_of_caller(&mut self, lane: &Arc<Lane>, now: Instant) -> CallPlace {
        self.heartbeat.beat(now);
        self.add_place(lane, OF_CALLER)
    }

    fn add_place(&mut self, lane: &Arc<Lane>, call: u64) -> CallPlace {
        self.in_flight += 1;
        CallPlace {
            lane: Arc::clone(lane),
            generation: Some(self.generation),
            call,
            batch: None,
            rest: Default::default(),
            answered: 0,
        }
    }

    /// Counts a call. Returns its number.
    fn begin_call(&mut self) -> u64 {
        let now = Instant::now();
        self.calls += 1;
        self.newest_sent_at = Some(now);
        self.heartbeat.beat(now);
        self.calls
    }

    /// Frees the place of a call, if it is still counted. Nothing sees to the queue after the
    /// newest call, so the next check leaves at once.
    fn free(&mut self, generation: Option<u64>, call: u64) {
        if generation == Some(self.generation) {
            self.in_flight -= 1;
        }
        if call == self.calls {
            self.newest_sent_at = None;
        }
    }

    /// The batch for the next group.
    fn batch_for(&mut self, operation: &Operation) -> &mut Batch {
        if !self
            .batches
            .back()
            .is_some_and(|batch| batch.has_room_for(operation))
        {
            self.batches.push_back(self.spare.pop().unwrap_or_default());
        }
        let last = self.batches.len() - 1;
        &mut self.batches[last]
    }
}

/// A place for a call in flight, and the checks of that call.
pub(super) struct CallPlace {
    lane: Arc<Lane>,
    /// The generation in which it was taken. A place of an earlier one does not count. `None` once
    /// it is freed, and for a part that a task of its own sends.
    generation: Option<u64>,
    /// The number of its call, or [`OF_CALLER`].
    call: u64,
    /// `None` before its first checks, and after they are answered.
    batch: Option<Box<Batch>>,
    /// The parts that are left of a batch that is sent apart.
    #[expect(clippy::vec_box, reason = "a batch is moved from list to list")]
    rest: Vec<Box<Batch>>,
    /// The number of checks in the last call.
    answered: usize,
}

impl CallPlace {
    pub(super) const fn lane(&self) -> &Arc<Lane> {
        &self.lane
    }

    /// Its checks.
    pub(super) fn batch(&mut self) -> &mut Batch {
        self.parts().1
    }

    fn parts(&mut self) -> (&Lane, &mut Batch) {
        (&self.lane, self.batch.get_or_insert_default())
    }

    fn with(mut self, batch: Option<Box<Batch>>) -> Self {
        self.batch = batch;
        self
    }

    /// Takes the first batch of the queue.
    pub(super) fn with_first(mut self) -> Self {
        let lane = Arc::clone(&self.lane);
        let mut queue = lane.queue();
        let batch = queue.batches.pop_front();
        self.call = queue.begin_call();
        lane.measure(&mut queue);
        drop(queue);
        self.with(batch)
    }

    /// Before sending, drops cancelled and expired checks. Returns whether any is left.
    pub(super) fn is_worth_sending(&mut self, now: Instant) -> bool {
        let Some(batch) = &mut self.batch else {
            return false;
        };
        let route = &self.lane.route;
        let late = batch.mark_sent(now, route.events().server());
        route.count_undecided(late);
        !batch.is_empty()
    }

    /// Fails the checks whose deadline is over.
    pub(super) fn expire(&mut self) {
        let (lane, batch) = self.parts();
        let timeout = || Error::timeout().at_server(lane.route.events().server());
        let expired = batch.answer_expired(Instant::now(), timeout);
        lane.route.count_undecided(expired);
    }

    /// Delivers the answers of its checks.
    pub(super) fn deliver(&mut self) {
        let (lane, batch) = self.parts();
        batch.deliver(lane.settings.deny_cache.as_deref());
    }

    /// Divides its batch in two, to be sent one after the other. Returns whether it has more than
    /// one group.
    pub(super) fn halve(&mut self) -> bool {
        let (lane, batch) = self.parts();
        let Some([first, second]) = batch.halves(&lane.prefix) else {
            return false;
        };
        batch.clear();
        self.rest.extend([second, first]);
        true
    }

    /// Takes the next part of a batch that is sent apart. Returns whether there is one.
    pub(super) fn take_next_part(&mut self) -> bool {
        self.batch = self.rest.pop();
        self.batch.is_some()
    }

    /// Moves its checks into a new place for a task of their own. That place does not count as a
    /// call in flight, and lasts for one deadline at most.
    pub(super) fn part(&mut self) -> Self {
        Self {
            lane: Arc::clone(&self.lane),
            generation: None,
            call: self.call,
            batch: self.batch.take(),
            rest: Vec::new(),
            answered: 0,
        }
    }

    /// Drops its checks, which are answered or given up.
    pub(super) fn unload(&mut self) {
        self.answered = 0;
        if let Some(batch) = self.batch.take() {
            self.answered = batch.len();
            self.lane.finish(batch);
        }
    }

    /// Returns whether answered callers run before the place is freed or goes on, so that their
    /// next checks are sent together. A caller that is alone is not waited for. It finds the lane
    /// idle then, and sends its next check itself, without a task.
    pub(super) fn has_to_let_others_run(&self) -> bool {
        self.answered != 1 || !self.lane.queue().batches.is_empty()
    }

    /// Frees the place, unless checks are queued that its call has to see to. From then on, a task
    /// has the place.
    pub(super) fn continue_or_free(mut self) -> Option<Self> {
        let lane = Arc::clone(&self.lane);
        let mut queue = lane.queue();
        let sees_to_queue = queue.in_flight <= IN_FLIGHT
            || self.call == queue.calls
            || queue.is_pace_over(Instant::now(), lane.settings.pace());
        if self.generation == Some(queue.generation) && !queue.batches.is_empty() && sees_to_queue {
            return Some(self);
        }
        queue.free(self.generation.take(), self.call);
        None
    }
}

impl Drop for CallPlace {
    /// A place that was not freed is dropped with its runtime. If no other place is in use, the
    /// queued checks are dropped too, which answers them with an error.
    fn drop(&mut self) {
        let Some(generation) = self.generation else {
            self.unload();
            return;
        };
        self.unload();
        while let Some(next) = self.rest.pop() {
            self.batch = Some(next);
            self.unload();
        }
        // The connection most likely ran on the same runtime.
        if let Some(node) = self.lane.route.node()
            && let Some(handle) = node.connection.current()
        {
            node.connection
                .replace(&handle, &"its runtime was shut down");
        }
        let mut queue = self.lane.queue();
        queue.free(Some(generation), self.call);
        if queue.generation == generation && queue.in_flight == 0 {
            let abandoned = mem::take(&mut queue.batches);
            queue.unanswered -= abandoned.iter().map(|batch| batch.len()).sum::<usize>();
            drop(queue);
            abandoned.into_iter().for_each(|mut batch| batch.clear());
        }
    }
}

#[cfg(test)]
mod tests;
