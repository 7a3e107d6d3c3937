//! The callers of a slot, and the queue of those that wait.

use std::collections::{BTreeMap, VecDeque};
use std::mem;

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
}

impl Waiters {
    pub(super) fn push(&mut self, asking: Asking) {
        *self.limits.entry(asking.limit).or_default() += 1;
        self.queue.push_back(asking);
    }

    pub(super) fn pop(&mut self) -> Option<Asking> {
        let first = self.queue.pop_front()?;
        self.uncount(first.limit);
        Some(first)
    }

    /// Removes the waiters that are gone.
    pub(super) fn remove_gone(&mut self) {
        let all = mem::take(&mut self.queue);
        for asking in all {
            if asking.caller.is_closed() {
                self.uncount(asking.limit);
            } else {
                self.queue.push_back(asking);
            }
        }
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

    fn uncount(&mut self, limit: u32) {
        if let Some(count) = self.limits.get_mut(&limit) {
            *count -= 1;
            if *count == 0 {
                self.limits.remove(&limit);
            }
        }
    }
}
