//! Group commit: checks that come while a batch is in flight leave together in the next.
//!
//! A lane is a connection and a queue. A check that finds the lane idle leaves at once, on its
//! own, and on its caller's task: no other has to wake up for it. Under load, up to [`IN_FLIGHT`]
//! tasks send one batch after another, so that the server has the next one at hand when it is done
//! with one; what comes meanwhile gathers. There is no timer: the batches grow with the load, and
//! no check waits for another to come.
//!
//! The lane keeps the order: batches leave in the order in which they were begun, on one
//! connection, and Redis decides in that order.
//!
//! Every check counts from the moment it is asked until its batch is answered or given up, whether
//! its caller still waits or not. So what a server that hangs can pile up is bounded.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::time::Instant;

use super::batch::{Batch, MAX_CHARGES};
use super::connection::Connections;
use super::sender::{Escort, Sender};
use crate::nouns::{Check, Error, ManualClock, Op, later};
use crate::store::Answer;
use crate::store::denials::Ticket;
use crate::store::promise::Promise;

/// Batches in flight at a time.
const IN_FLIGHT: usize = 2;

/// What all lanes of a store have in common.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) prefix: Arc<str>,
    pub(super) deadline: Duration,
    pub(super) max_waiting: usize,
    pub(super) clock: Option<ManualClock>,
}

/// A queue of checks, and the connection they leave on.
pub(super) struct Lane {
    pub(super) connections: Connections,
    pub(super) settings: Settings,
    queue: Mutex<Queue>,
    /// Held from taking a batch until it is handed to the connection, so that none overtakes.
    pub(super) leaving: Mutex<()>,
}

#[derive(Default)]
pub(super) struct Queue {
    batches: VecDeque<Batch>,
    /// Checks that are queued or in flight.
    waiting: usize,
    /// Tasks and callers that send a batch, or wait for the answer to one.
    senders: usize,
    /// Whether a caller sees to a check that came alone.
    escorted: bool,
    /// When a place was last taken, or a batch left or landed.
    moved: Option<Instant>,
    /// Counts how often all places were given up as lost.
    round: u64,
    /// Batches that are done, to be filled again.
    spare: Vec<Batch>,
}

/// One of the places from which batches are sent.
pub(super) struct Sending {
    lane: Arc<Lane>,
    /// In which round it was taken. A place of an earlier round is no longer counted.
    round: u64,
    is_over: bool,
}

impl Lane {
    pub(super) fn new(connections: Connections, settings: Settings) -> Arc<Self> {
        let (queue, leaving) = Default::default();
        Arc::new(Self { connections, settings, queue, leaving })
    }

    /// Queues a check.
    pub(super) fn ask(
        self: &Arc<Self>,
        op: Op,
        charges: &[Check],
        ticket: Option<Ticket>,
    ) -> Answer {
        let Settings { prefix, deadline, max_waiting, .. } = &self.settings;
        let now = Instant::now();
        let deadline = later(now, *deadline);
        let mut queue = self.queue();
        queue.give_up_lost_places(now, self.settings.deadline);
        if queue.is_full_for(charges, prefix, *max_waiting) {
            // Checks that were given up before a task sent them must not take up the room for good.
            let nothing_sends = queue.senders == 0;
            drop(queue);
            if nothing_sends {
                // Outside of a runtime nothing can; the next check inside one will.
                drop(self.send());
            }
            return Answer::ready(Err(Error::overloaded(*max_waiting)));
        }
        let (promise, answer) = Promise::new(deadline, self.connections.events().server());
        let comes_alone = queue.senders == 0 && queue.batches.is_empty() && !queue.escorted;
        let batch = queue.batch_for(charges);
        batch.push(prefix, op, charges, deadline, promise, ticket);
        batch.has_escort |= comes_alone;
        queue.waiting += 1;
        if queue.senders == IN_FLIGHT {
            return Answer::promised(answer);
        }
        if comes_alone {
            // Its caller may never poll the answer. The next check takes it along then.
            queue.escorted = true;
            drop(queue);
            return Answer::later(Escort::new(Arc::clone(self)).see_to(answer));
        }
        drop(queue);
        if self.send().is_ok() {
            return Answer::promised(answer);
        }
        // Asked outside of the runtime, it is sent once its answer is awaited inside.
        let lane = Arc::clone(self);
        Answer::later(async move {
            lane.send()?;
            answer.await
        })
    }

    /// Begins to send what is queued, unless enough tasks do.
    pub(super) fn send(self: &Arc<Self>) -> Result<(), Error> {
        let runtime = Runtime::try_current().map_err(Error::misuse)?;
        if !self.queue().batches.is_empty()
            && let Some(sending) = self.begin()
        {
            runtime.spawn(Sender::new(sending).run());
        }
        Ok(())
    }

    /// A place to send from, unless all are taken.
    pub(super) fn begin(self: &Arc<Self>) -> Option<Sending> {
        let mut queue = self.queue();
        (queue.senders < IN_FLIGHT).then(|| {
            queue.senders += 1;
            queue.moved = Some(Instant::now());
            Sending { lane: Arc::clone(self), round: queue.round, is_over: false }
        })
    }

    /// Takes the first batch, if it is `wanted`, without the checks that are not worth sending any
    /// more.
    pub(super) fn take_first(&self, wanted: impl FnOnce(&Batch) -> bool) -> Option<Batch> {
        let mut queue = self.queue();
        queue.batches.front().filter(|batch| wanted(batch))?;
        let mut batch = queue.batches.pop_front()?;
        queue.moved = Some(Instant::now());
        drop(queue);
        let late = batch.drop_stale(Instant::now(), self.connections.events().server());
        self.connections.undecided(late);
        if batch.is_empty() {
            self.finish(batch);
            return None;
        }
        Some(batch)
    }

    /// Fails the checks that could not leave in time, or all that could not leave.
    pub(super) fn fail_first(&self, until: Option<Instant>, reason: &str) {
        let Some(mut batch) = self.queue().batches.pop_front() else { return };
        let error = || Error::unreachable(reason.to_owned());
        let failed = match until {
            Some(now) => batch.expire(now, error),
            None => batch.fail(error),
        };
        self.connections.undecided(failed);
        if until.is_some() && batch.first_deadline().is_some() {
            self.queue().batches.push_front(batch);
        } else {
            self.finish(batch);
        }
    }

    /// The last time at which the next check can be answered, if one is queued.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.queue().batches.front().and_then(Batch::first_deadline)
    }

    /// Lets go of a batch that is answered or given up.
    pub(super) fn finish(&self, mut batch: Batch) {
        let checks = batch.len();
        batch.clear();
        let mut queue = self.queue();
        queue.waiting -= checks;
        queue.moved = Some(Instant::now());
        if queue.spare.len() < IN_FLIGHT {
            queue.spare.push(batch);
        }
    }

    pub(super) fn end_escort(&self) {
        self.queue().escorted = false;
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Whether it has no room for one more check, or not for this one: the second half of the
    /// room is not for a key that alone takes up a quarter of the newest batch.
    fn is_full_for(&self, charges: &[Check], prefix: &str, max_waiting: usize) -> bool {
        let crowded = || {
            self.batches.back().is_some_and(|batch| {
                charges.iter().any(|check| batch.checks_of(prefix, check) > MAX_CHARGES / 4)
            })
        };
        self.waiting >= max_waiting || (self.waiting >= max_waiting / 2 && crowded())
    }

    /// Frees the places if none of them has moved for longer than a server that hangs can hold one:
    /// until the deadline, and as long again for a late answer. They are with tasks of runtimes that
    /// stand still, and others must not wait for those.
    fn give_up_lost_places(&mut self, now: Instant, deadline: Duration) {
        let is_still =
            |moved: Instant| now.saturating_duration_since(moved) > deadline.saturating_mul(3);
        if self.senders == IN_FLIGHT && self.moved.is_some_and(is_still) {
            self.round += 1;
            self.senders = 0;
        }
    }

    /// The batch that the next check goes into.
    fn batch_for(&mut self, charges: &[Check]) -> &mut Batch {
        if !self.batches.back().is_some_and(|batch| batch.has_room_for(charges)) {
            self.batches.push_back(self.spare.pop().unwrap_or_default());
        }
        let last = self.batches.len() - 1;
        &mut self.batches[last]
    }
}

impl Sending {
    pub(super) const fn lane(&self) -> &Arc<Lane> {
        &self.lane
    }

    /// Gives the place back, unless more is queued by now.
    pub(super) fn end_if_idle(mut self) -> Option<Self> {
        let mut queue = self.lane.queue();
        let is_counted = queue.round == self.round;
        if is_counted && !queue.batches.is_empty() {
            drop(queue);
            return Some(self);
        }
        queue.senders -= usize::from(is_counted);
        drop(queue);
        self.is_over = true;
        None
    }
}

impl Drop for Sending {
    /// A place that was not given back goes down with its runtime. Checks that no other task sends
    /// are dropped then: that is an answer, too.
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        // The connection most likely ran on the same runtime.
        if let Some(handle) = self.lane.connections.current() {
            self.lane.connections.replace(&handle, &"its runtime was shut down");
        }
        let mut queue = self.lane.queue();
        if queue.round != self.round {
            return;
        }
        queue.senders -= 1;
        if queue.senders == 0 {
            let abandoned = std::mem::take(&mut queue.batches);
            queue.waiting -= abandoned.iter().map(Batch::len).sum::<usize>();
            drop(queue);
            drop(abandoned);
        }
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane")
            .field("prefix", &self.settings.prefix)
            .field("deadline", &self.settings.deadline)
            .field("max_waiting", &self.settings.max_waiting)
            .finish_non_exhaustive()
    }
}
