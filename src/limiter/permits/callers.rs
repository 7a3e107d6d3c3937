//! The callers of a slot, and the queue of those that wait.

use std::collections::{BTreeMap, VecDeque};

use tokio::sync::oneshot::Sender;

use super::permit::Permit;
use crate::nouns::Error;

/// The outcome for a caller: a permit, none, or an error.
pub(super) type PermitOutcome = Result<Option<Permit>, Error>;

pub(super) type PermitCaller = Sender<PermitOutcome>;

/// A caller, and the limit that it asked under: plans differ.
pub(super) struct Asking {
    pub(super) caller: PermitCaller,
    pub(super) limit: u32,
}

/// The waiters of a slot. Their limits are counted, because the smallest one decides for all of a claim.
#[derive(Default)]
pub(super) struct Waiters {
    queue: VecDeque<Asking>,
    /// How many wait under each limit. Usually all have the same.
    limits: BTreeMap<u32, usize>,
    /// The waiters that left since all that were gone were removed. Some may have been removed with an outcome.
    gone: usize,
}

impl Waiters {
    pub(super) fn push(&mut self, asking: Asking) {
        *self.limits.entry(asking.limit).or_default() += 1;
        self.queue.push_back(asking);
    }

    pub(super) fn pop(&mut self) -> Option<Asking> {
        let first = self.queue.pop_front()?;
        uncount(&mut self.limits, first.limit);
        Some(first)
    }

    /// Counts a waiter that left. All that are gone are removed when they are half of the queue, because each removal looks
    /// at the whole queue, or at once if a larger limit may count from then on. Returns whether any was removed.
    pub(super) fn leave(&mut self, limit: u32) -> bool {
        self.gone += 1;
        let was_smallest = self.limits.len() > 1 && self.smallest_limit() == Some(limit);
        let are_many = self.gone >= self.queue.len().div_ceil(2);
        (was_smallest || are_many) && self.remove_gone()
    }

    /// Removes the waiters that are gone. Returns whether there were any.
    pub(super) fn remove_gone(&mut self) -> bool {
        let before = self.queue.len();
        let Self {
            queue,
            limits,
            gone,
        } = self;
        *gone = 0;
        queue.retain(|asking| {
            let is_gone = asking.caller.is_closed();
            if is_gone {
                uncount(limits, asking.limit);
            }
            !is_gone
        });
        queue.len() < before
    }

    /// Returns whether fewer than `most` wait.
    pub(super) fn has_room(&mut self, most: usize) -> bool {
        if self.queue.len() >= most && self.gone > 0 {
            self.remove_gone();
        }
        self.queue.len() < most
    }

    /// The smallest limit of a waiter.
    pub(super) fn smallest_limit(&self) -> Option<u32> {
        self.limits.keys().next().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

fn uncount(limits: &mut BTreeMap<u32, usize>, limit: u32) {
    if let Some(count) = limits.get_mut(&limit) {
        *count -= 1;
        if *count == 0 {
            limits.remove(&limit);
        }
    }
}
