//! The slots of an agent, and the queues in which they wait to be claimed: a state without I/O.

use std::collections::{BTreeMap, VecDeque};

use hashbrown::{HashMap, HashSet};
use tokio::runtime::Handle as Runtime;
use tokio::time::Instant;

use super::permit::SlotKey;
use super::slot::{ClaimQueue, Slot};
use crate::store::heartbeat::Heartbeat;

/// The memory for so many slots is kept.
const KEPT_CAPACITY: usize = 1_024;

#[derive(Default)]
pub(super) struct Slots {
    pub(super) slots: HashMap<SlotKey, Slot>,
    pub(super) queues: Queues,
    /// Calls in flight, by their numbers.
    pub(super) calls: BTreeMap<u64, SentCall>,
    /// Counts calls.
    pub(super) sent: u64,
    /// The slots that may have waiters.
    pub(super) waiting: HashSet<SlotKey>,
    /// The time of the last scan of all slots.
    pub(super) scanned: Option<Instant>,
    /// The number of the task that runs.
    pub(super) task: Option<u64>,
    /// Counts tasks.
    pub(super) tasks: u64,
    /// The task's last round.
    pub(super) rounds: Heartbeat,
    /// The last runtimes with callers. The task moves to another one when its runtime shuts down.
    pub(super) runtimes: VecDeque<Runtime>,
    /// Counts holders.
    pub(super) holders: u64,
}

/// A call in flight.
pub(super) struct SentCall {
    pub(super) keys: Vec<SlotKey>,
    pub(super) at: Instant,
}

/// The slots that the task has to claim.
#[derive(Default)]
pub(super) struct Queues {
    /// Slots with changes or callers.
    urgent: VecDeque<SlotKey>,
    /// Slots whose leases are to be renewed.
    renewals: VecDeque<SlotKey>,
}

impl Queues {
    pub(super) fn queue(&mut self, key: &SlotKey, slot: &mut Slot) {
        match slot.enter_queue() {
            Some(ClaimQueue::Urgent) => self.urgent.push_back(key.clone()),
            Some(ClaimQueue::Renewals) => self.renewals.push_back(key.clone()),
            None => {}
        }
    }

    /// Takes out the slots of the next call, and passes each to `claim`.
    ///
    /// Urgent slots do not wait behind many renewals. A fourth of each call is reserved for renewals, because leases expire.
    pub(super) fn take(
        &mut self,
        slots: &mut HashMap<SlotKey, Slot>,
        most: usize,
        mut claim: impl FnMut(SlotKey, &mut Slot),
    ) {
        let mut taken = 0;
        for (kind, up_to) in [
            (ClaimQueue::Renewals, most / 4),
            (ClaimQueue::Urgent, most),
            (ClaimQueue::Renewals, most),
        ] {
            let queue = match kind {
                ClaimQueue::Urgent => &mut self.urgent,
                ClaimQueue::Renewals => &mut self.renewals,
            };
            while taken < up_to
                && let Some(key) = queue.pop_front()
            {
                // The slot may be gone, or claimed since.
                if let Some(slot) = slots.get_mut(&key).filter(|slot| slot.is_in(kind)) {
                    claim(key, slot);
                    taken += 1;
                }
            }
        }
    }
}

impl Slots {
    /// Removes a slot. Frees memory that is no longer needed.
    pub(super) fn remove(&mut self, key: &SlotKey) {
        let Self { slots, queues, .. } = self;
        slots.remove(key);
        if slots.capacity() > KEPT_CAPACITY && slots.len() < slots.capacity() / 8 {
            slots.shrink_to(slots.len() * 2);
            queues.urgent.shrink_to(slots.len());
            queues.renewals.shrink_to(slots.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::super::agent::Agent;
    use super::*;
    use crate::nouns::{HolderId, Key};
    use crate::store::{MemoryStore, Store};

    fn key(number: usize) -> SlotKey {
        SlotKey {
            name: "exports".into(),
            key: Key::from(number as u64),
        }
    }

    /// Slots in the queues: the first ones are urgent, the others are renewals.
    fn queued(urgent: usize, all: usize) -> Slots {
        let mut state = Slots::default();
        for number in 0..all {
            let mut slot = Slot::new(HolderId([0; 8]), 1);
            if number < urgent {
                slot.release();
            }
            slot.mark_due();
            state.queues.queue(&key(number), &mut slot);
            state.slots.insert(key(number), slot);
        }
        state
    }

    fn taken(state: &mut Slots) -> Vec<SlotKey> {
        let mut taken = Vec::new();
        state.queues.take(&mut state.slots, 256, |key, slot| {
            drop(slot.claim(&key, Duration::from_secs(10)));
            taken.push(key);
        });
        taken
    }

    #[test]
    fn callers_and_renewals_share_a_call() {
        let urgent = (0..1_000).map(key).collect::<Vec<_>>();
        let mut state = queued(1_000, 2_000);
        for _ in 0..3 {
            let taken = taken(&mut state);
            let of_callers = taken.iter().filter(|key| urgent.contains(key)).count();
            assert_eq!((of_callers, taken.len()), (192, 256));
        }
        assert_eq!(taken(&mut queued(0, 1_000)).len(), 256);
        assert_eq!(taken(&mut queued(1_000, 1_000)).len(), 256);
    }

    #[test]
    fn renewal_that_becomes_urgent_is_claimed_once_and_soon() {
        let mut state = queued(0, 1_000);
        let last = state.slots.get_mut(&key(999)).unwrap();
        last.release();
        state.queues.queue(&key(999), last);
        state.queues.queue(&key(999), last);
        assert!(taken(&mut state).contains(&key(999)));
        let mut later = Vec::new();
        while !state.queues.renewals.is_empty() {
            later.extend(taken(&mut state));
        }
        assert_eq!((later.len(), later.contains(&key(999))), (744, false));
    }

    #[tokio::test]
    async fn memory_is_freed_after_many_keys() {
        let store = MemoryStore::new()
            .permits()
            .expect("it grants permits")
            .into_store();
        let agent = Arc::new(Agent::new(store, Duration::from_secs(10), Arc::default()));
        let mut held = Vec::new();
        for number in 0..50_000 {
            let (caller, outcome) = oneshot::channel();
            agent.request(&key(number), 1, caller);
            held.push(outcome.await.unwrap().unwrap());
        }
        assert!(agent.lock().slots.capacity() >= 50_000);
        drop(held);
        assert_eq!(agent.keys(), 0);
        assert!(agent.lock().slots.capacity() <= KEPT_CAPACITY);
    }
}
